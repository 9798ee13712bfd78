"""A transport within one process, for tests: the same waist, no sockets; it works in virtual time.

Each direction is a bounded queue of byte strings, so a sender blocks when nobody reads, as on TCP.
"""

import contextlib
from typing import Final

import trio

from fscommon.errors import TransportError
from fscommon.net.address import Address

QUEUE_LENGTH_MAX: Final = 16
SEGMENT_SIZE: Final = 64 << 10
ACCEPT_QUEUE_LENGTH_MAX: Final = 64


class MemoryStream:
    def __init__(
        self,
        peer_address: str,
        sender: trio.MemorySendChannel[bytes],
        receiver: trio.MemoryReceiveChannel[bytes],
    ) -> None:
        self.peer_address = peer_address
        self._sender = sender
        self._receiver = receiver

    @property
    def tls(self) -> None:
        return None

    async def send(self, outgoing: bytes) -> None:
        try:
            for start in range(0, len(outgoing), SEGMENT_SIZE):
                await self._sender.send(outgoing[start : start + SEGMENT_SIZE])
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise TransportError(f"connection to {self.peer_address} ended") from error

    async def receive(self) -> bytes:
        try:
            return await self._receiver.receive()
        except trio.EndOfChannel:
            return b""
        except trio.ClosedResourceError as error:
            raise TransportError(f"connection to {self.peer_address} ended") from error

    def detach(self) -> int:
        raise TransportError("a connection in memory has no file descriptor")

    async def aclose(self) -> None:
        self._sender.close()
        self._receiver.close()


class MemoryListener:
    def __init__(self, transport: "MemoryTransport", address: Address) -> None:
        self._transport = transport
        self._address = address
        self._arrivals, self._waiting = trio.open_memory_channel[MemoryStream](
            ACCEPT_QUEUE_LENGTH_MAX
        )

    @property
    def address(self) -> Address:
        return self._address

    async def accept(self) -> MemoryStream:
        try:
            return await self._waiting.receive()
        except (trio.ClosedResourceError, trio.EndOfChannel) as error:
            raise TransportError(f"cannot accept connections at {self._address}") from error

    async def aclose(self) -> None:
        self._transport.forget(self._address)
        with contextlib.suppress(trio.WouldBlock):
            while True:
                await self._waiting.receive_nowait().aclose()
        self._arrivals.close()
        self._waiting.close()

    async def connect(self, stream: MemoryStream) -> None:
        await self._arrivals.send(stream)


class MemoryTransport:
    """A network of its own: only what listens on this object can be dialled on it."""

    def __init__(self) -> None:
        self._listeners: dict[Address, MemoryListener] = {}
        self._next_port = 49152

    async def dial(self, address: Address) -> MemoryStream:
        listener = self._listeners.get(address)
        if listener is None:
            raise TransportError(f"nothing listens at {address} (connection refused)")
        there = trio.open_memory_channel[bytes](QUEUE_LENGTH_MAX)
        back = trio.open_memory_channel[bytes](QUEUE_LENGTH_MAX)
        await listener.connect(MemoryStream("memory:client", back[0], there[1]))
        return MemoryStream(str(address), there[0], back[1])

    async def listen(self, address: Address) -> MemoryListener:
        if address.port == 0:
            address = Address(address.host, self._next_port)
            self._next_port += 1
        if address in self._listeners:
            raise TransportError(f"cannot listen at {address}: Address already in use")
        listener = self._listeners[address] = MemoryListener(self, address)
        return listener

    def forget(self, address: Address) -> None:
        self._listeners.pop(address, None)
