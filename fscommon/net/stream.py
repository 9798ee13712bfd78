"""FrameStream: an authenticated connection as frames. connect() makes one to a server.

Any number of tasks may send: frames never interleave. A task that is cancelled in the middle of a
frame breaks the stream, not its framing. One task receives.
"""

from typing import Final

import trio

from fscommon.auth.handshake import ClientHandshake, HandshakeState, HelloFields
from fscommon.errors import AuthenticationError, ProtocolError, RefusedError, TransportError
from fscommon.native_ports import NativeTls
from fscommon.net.address import Address, parse_address
from fscommon.net.tcp import TcpTransport
from fscommon.net.transport import ByteStream, Transport
from fscommon.wire.frame import Frame, FrameParser

_ALERT: Final = b"\x15\x03"  # the beginning of a TLS alert, with which a peer refuses a connection


class FrameStream:
    """Owns its ByteStream. The parser may already hold bytes that came with the handshake."""

    def __init__(self, stream: ByteStream, parser: FrameParser) -> None:
        self._stream = stream
        self._parser = parser
        self._turn = trio.Lock()
        self._broken = False

    @property
    def peer_address(self) -> str:
        return self._stream.peer_address

    @property
    def tls(self) -> NativeTls | None:
        """The encryption of the connection; it must go where the descriptor of detach() goes. None:
        there is none."""
        return self._stream.tls

    def take_payloads(self, length_max: int) -> None:
        """From now on frames may have payloads of so many bytes."""
        self._parser.payload_length_max = length_max

    async def send(self, outgoing: bytes) -> None:
        """Sends whole frames. Returns without a checkpoint when the network takes them at once.
        Raises TransportError."""
        if self._turn.locked():
            await self._turn.acquire()
        else:
            self._turn.acquire_nowait()
        try:
            if self._broken:
                raise TransportError(f"connection to {self.peer_address} is broken")
            self._broken = True  # stays True unless everything is sent
            await self._stream.send(outgoing)
            self._broken = False
        finally:
            self._turn.release()

    async def receive_batch(self) -> list[Frame]:
        """Whole frames, at least one; [] when the peer closed between two frames.

        Raises ProtocolError for a breach of the protocol, TransportError when the connection ends.
        """
        frames = self._parser.frames()
        while not frames:
            received = await self._stream.receive()
            if not received:
                if self._parser.is_empty:
                    return []
                raise TransportError(f"connection to {self.peer_address} ended within a frame")
            self._parser.feed(received)
            frames = self._parser.frames()
        return frames

    def detach(self) -> tuple[int, bytes]:
        """The file descriptor, and bytes that were received and not parsed; the stream is unusable
        afterwards."""
        early = self._parser.take_remainder()
        self._broken = True
        return self._stream.detach(), early

    async def aclose(self) -> None:
        self._broken = True
        await self._stream.aclose()


async def connect(
    address: Address | str,
    *,
    key: bytes,
    hello: HelloFields,
    timeout_s: float,
    transport: Transport | None = None,
) -> FrameStream:
    """Connects and authenticates.

    Raises TransportError or AuthenticationError with one sentence that distinguishes: a name that
    cannot be resolved, a refused connection, silence, a peer that is no BraidFS server, and a wrong
    key.
    """
    if isinstance(address, str):
        address = parse_address(address)
    stream: ByteStream | None = None
    try:
        with trio.fail_after(timeout_s):
            stream = await (transport or TcpTransport()).dial(address)
            return await _authenticated(stream, address, ClientHandshake(key, hello))
    except BaseException as error:
        if stream is not None:
            await stream.aclose()
        if isinstance(error, trio.TooSlowError):
            what = "did not answer" if stream is None else "accepted but did not authenticate"
            raise TransportError(f"{address} {what} within {timeout_s:g} s") from None
        raise


async def _authenticated(
    stream: ByteStream, address: Address, handshake: ClientHandshake
) -> FrameStream:
    await stream.send(handshake.start())
    while handshake.state is not HandshakeState.DONE:
        received = await _receive(stream, address, handshake)
        if stream.tls is None and received.startswith(_ALERT):
            raise TransportError(f"{address} takes no connection without TLS: say tls=required")
        try:
            reply = handshake.receive(received)
        except ProtocolError as error:
            raise TransportError(f"{address} is not a BraidFS server: {error}") from error
        except AuthenticationError as error:
            raise AuthenticationError(f"{address}: {error}") from error
        except RefusedError as error:
            raise RefusedError(f"{address} refuses the connection: {error}") from error
        if reply:
            await stream.send(reply)
    return FrameStream(stream, handshake.parser)


async def _receive(stream: ByteStream, address: Address, handshake: ClientHandshake) -> bytes:
    """Bytes of the handshake. Raises TransportError: how the connection ended tells what the peer
    thought of it."""
    try:
        received = await stream.receive()
    except TransportError:
        received = b""  # a reset means the same as an end
    if received:
        return received
    if handshake.state is HandshakeState.AUTH:
        raise TransportError(f"{address} closed the connection within the handshake")
    or_old = ", or too old for keys of clients" if handshake.key_id else ""
    raise TransportError(
        f"{address} closed the connection at once: not a BraidFS server, or it is full{or_old}"
    )
