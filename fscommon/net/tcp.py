"""The TCP transport, and local sockets instead of it on one host; the one door to sockets.

Sockets are plain and non-blocking, and trio waits for them. A send that succeeds at once costs one
system call and no turn of trio's loop. A receive waits first, so every batch is a checkpoint. A
dead peer is found by keepalive when the connection is idle, and by TCP_USER_TIMEOUT when bytes are
outstanding.
"""

import contextlib
import os
import select
import socket
from typing import Final

import trio

from fscommon.errors import NobodyThereError, TransportError
from fscommon.net import nearby
from fscommon.net.address import Address

RECEIVE_SIZE: Final = 256 << 10
LISTEN_BACKLOG: Final = 1024
KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_COUNT: Final = 4
USER_TIMEOUT_MS: Final = 30_000


class TcpStream:
    """ByteStream over one connected socket, TCP or local, which it owns."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._socket = sock
        self._peer = peer

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
        """The socket, as something that trio may wait for. A closed socket has descriptor -1; trio
        takes all of these for one descriptor, and never forgets who waited for it. Raises
        trio.ClosedResourceError."""
        if self._socket.fileno() < 0:
            raise trio.ClosedResourceError
        return self._socket

    def _ended(self, error: Exception) -> TransportError:
        reason = getattr(error, "strerror", None) or "it was closed here"
        return TransportError(f"connection to {self._peer} ended: {reason}")


class TcpListener:
    """Accepts on a TCP socket; `beside` is the local socket for peers on this host."""

    def __init__(self, sock: socket.socket, beside: nearby.NearbySocket | None = None) -> None:
        self._sockets = [sock] if beside is None else [beside.socket, sock]
        self._beside = beside
        self._ready = select.epoll()
        for one in self._sockets:
            self._ready.register(one, select.EPOLLIN)
        host, port = sock.getsockname()[:2]
        self._address = Address(host, port)

    @property
    def address(self) -> Address:
        return self._address

    async def accept(self) -> TcpStream:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._ready.fileno())
                for one in self._sockets:
                    with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
                        accepted, _ = one.accept()
                        return TcpStream(_prepare(accepted), _peer_address(accepted))
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise TransportError(
                f"cannot accept connections at {self._address}: {error}"
            ) from error

    async def aclose(self) -> None:
        if not self._ready.closed:
            trio.lowlevel.notify_closing(self._ready.fileno())
            self._ready.close()
        if self._beside is not None:  # before the port may belong to another process
            self._beside.close()
        for one in self._sockets:
            one.close()


class TcpTransport:
    """TCP. is_local: peers on this host are reached over local sockets."""

    def __init__(self, *, is_local: bool = True) -> None:
        self.is_local = is_local

    async def dial(self, address: Address) -> TcpStream:
        """Tries every address that the name has, in the resolver's order. Raises TransportError."""
        failure = TransportError(f"the name {address.host} has no address")
        for family, kind, protocol, _, sockaddr in await _resolve(address):
            host, port = sockaddr[:2]
            if self.is_local and (near := nearby.connect(family, host, port)) is not None:
                return TcpStream(near, str(address))
            try:
                sock = await _connected(family, kind, protocol, sockaddr)
                return TcpStream(sock, _peer_address(sock))
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
        host, port = sock.getsockname()[:2]
        beside = nearby.listen(host, port, LISTEN_BACKLOG) if self.is_local else None
        return TcpListener(sock, beside)


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
    """A connected socket; it is closed when the caller is cancelled. Raises OSError."""
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
        return NobodyThereError(f"nothing listens at {address} (connection refused)")
    return TransportError(f"cannot connect to {address}: {error.strerror or error}")


def _prepare(sock: socket.socket) -> socket.socket:
    sock.setblocking(False)
    if sock.family == socket.AF_UNIX:
        return sock
    tcp = socket.IPPROTO_TCP
    sock.setsockopt(tcp, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(tcp, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(tcp, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(tcp, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
    sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    return sock


def _peer_address(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return nearby.peer_of(sock)
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "unknown"
    return str(Address(host, port))
