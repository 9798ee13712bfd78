"""The TCP transport; the one door to network sockets.

Sockets are plain non-blocking ones that trio waits on: an immediate send costs one system call
and no turn of trio's loop, and a receive waits first, so that every batch is a checkpoint.
A dead peer is found by keepalive when idle and by TCP_USER_TIMEOUT when bytes are outstanding.
"""

import contextlib
import os
import socket
from typing import Final

import trio

from fscommon.errors import TransportError
from fscommon.net.address import Address

RECEIVE_SIZE: Final = 256 << 10
LISTEN_BACKLOG: Final = 1024
KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_COUNT: Final = 4
USER_TIMEOUT_MS: Final = 30_000


class TcpStream:
    """ByteStream over one connected socket, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._peer = _peer_address(sock)

    @property
    def peer_address(self) -> str:
        return self._peer

    async def send(self, outgoing: bytes) -> None:
        rest = memoryview(outgoing)
        try:
            while True:
                with contextlib.suppress(BlockingIOError):
                    rest = rest[self._socket.send(rest) :]
                    if not rest:
                        return
                await trio.lowlevel.wait_writable(self._open())
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise self._ended(error) from error

    async def receive(self) -> bytes:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._open())
                with contextlib.suppress(BlockingIOError):
                    return self._socket.recv(RECEIVE_SIZE)
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise self._ended(error) from error

    @property
    def tls(self) -> None:
        return None

    def fileno(self) -> int:
        return self._socket.fileno()

    async def readable(self) -> None:
        try:
            await trio.lowlevel.wait_readable(self._open())
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise self._ended(error) from error

    async def writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self._open())
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise self._ended(error) from error

    async def peek(self) -> int | None:
        """The next byte, which stays to be received; None when the peer closed."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._open())
                with contextlib.suppress(BlockingIOError):
                    return next(iter(self._socket.recv(1, socket.MSG_PEEK)), None)
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise self._ended(error) from error

    def detach(self) -> int:
        trio.lowlevel.notify_closing(self._socket)
        return self._socket.detach()

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def _open(self) -> socket.socket:
        """What trio may wait for. A closed socket is file descriptor -1 to it, which it takes for
        one and the same, and never forgets who waited for it."""
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError
        return self._socket

    def _ended(self, error: Exception) -> TransportError:
        reason = getattr(error, "strerror", None) or "it was closed here"
        return TransportError(f"connection to {self._peer} ended: {reason}")


class TcpListener:
    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        host, port = sock.getsockname()[:2]
        self._address = Address(host, port)

    @property
    def address(self) -> Address:
        return self._address

    async def accept(self) -> TcpStream:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._socket)
                with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                    accepted, _ = self._socket.accept()
                    return TcpStream(_prepare(accepted))
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise TransportError(
                f"cannot accept connections at {self._address}: {error}"
            ) from error

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class TcpTransport:
    async def dial(self, address: Address) -> TcpStream:
        """Try every address that the name has, in the resolver's order."""
        failure = TransportError(f"the name {address.host} has no address")
        for family, kind, protocol, _, sockaddr in await _resolve(address):
            try:
                return TcpStream(await _connected(family, kind, protocol, sockaddr))
            except OSError as error:
                failure = _cannot_connect(address, error)
        raise failure

    async def listen(self, address: Address) -> TcpListener:
        family, kind, protocol, _, sockaddr = (await _resolve(address, passive=True))[0]
        sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(sockaddr)
            sock.listen(LISTEN_BACKLOG)
        except OSError as error:
            sock.close()
            raise TransportError(f"cannot listen at {address}: {error.strerror}") from error
        return TcpListener(sock)


_Resolved = list[tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]]


async def _resolve(address: Address, *, passive: bool = False) -> _Resolved:
    flags = socket.AI_PASSIVE if passive else 0
    try:
        found = await trio.socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=flags
        )
    except (OSError, UnicodeError) as error:
        raise TransportError(f"the name {address.host} cannot be resolved: {error}") from error
    return list(found)  # type: ignore[arg-type]


async def _connected(
    family: int, kind: int, protocol: int, sockaddr: tuple[str, int] | tuple[str, int, int, int]
) -> socket.socket:
    """A connected socket; OSError when that fails. Closed when cancelled."""
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    try:
        with contextlib.suppress(BlockingIOError):
            sock.connect(sockaddr)
        await trio.lowlevel.wait_writable(sock)
        if code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(code, os.strerror(code))
        return _prepare(sock)
    except BaseException:
        sock.close()
        raise


def _cannot_connect(address: Address, error: OSError) -> TransportError:
    if isinstance(error, ConnectionRefusedError):
        return TransportError(f"nothing listens at {address} (connection refused)")
    return TransportError(f"cannot connect to {address}: {error.strerror or error}")


def _prepare(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    return sock


def _peer_address(sock: socket.socket) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "unknown"
    return str(Address(host, port))
