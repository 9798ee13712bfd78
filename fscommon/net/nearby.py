"""Local sockets beside TCP, for programs on one host (docs/decisions/0039-local-sockets.md).

A server that listens at HOST:PORT listens also at a socket file that is called after that address
and its network namespace, in a directory where only root and the services may make files (so that
nobody else can stand in for a server); who dials the address looks there first. The stream is the
same on both, and so is the handshake. What goes wrong here leaves TCP.
"""

import contextlib
import socket
import stat
import struct
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path("/run/braidfs")
_NAMESPACE: Final = Path("/proc/self/ns/net")
_PEER: Final = struct.Struct("3i")  # struct ucred, unix(7): pid, uid, gid
_WILDCARDS: Final[dict[int, tuple[str, ...]]] = {
    socket.AF_INET: ("0.0.0.0", "::"),
    socket.AF_INET6: ("::",),
}


class NearbySocket:
    """A listening one, and its file."""

    def __init__(self, sock: socket.socket, path: Path) -> None:
        self.socket = sock
        self._path = path

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()
        self.socket.close()


def listen(host: str, port: int, backlog: int) -> NearbySocket | None:
    """Beside a TCP socket that listens there; None where that cannot be."""
    sock = _socket()
    try:
        DIRECTORY.mkdir(mode=0o755, exist_ok=True)
        if not _is_safe():
            raise PermissionError(f"others may write in {DIRECTORY}")
        path = _path(host, port)
        path.unlink(missing_ok=True)  # of a server that was killed: the port is ours now
        sock.bind(str(path))
        path.chmod(0o666)  # who may speak is decided by keys
        sock.listen(backlog)
    except OSError:
        sock.close()
        return None
    return NearbySocket(sock, path)


def connect(family: int, host: str, port: int) -> socket.socket | None:
    """A connected socket to the server that listens there, by an address of this host; None when
    that has none."""
    if not _is_safe():
        return None
    names = [host]
    if _is_of_this_host(family, host, port):
        names += _WILDCARDS.get(family, ())
    for name in names:
        sock = _socket()
        try:
            sock.connect(str(_path(name, port)))
        except OSError:
            sock.close()
        else:
            return sock
    return None


def peer_of(sock: socket.socket) -> str:
    """Who connected to a server's local socket."""
    try:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    except OSError:
        return "this host"
    pid, uid, _ = _PEER.unpack(credentials)
    return f"this host (pid {pid}, uid {uid})"


def _socket() -> socket.socket:
    kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    return socket.socket(socket.AF_UNIX, kind)


def _path(host: str, port: int) -> Path:
    return DIRECTORY / f"{_NAMESPACE.stat().st_ino}-{host}:{port}"


def _is_safe() -> bool:
    """Nobody but the directory's owner makes files there. (/run is root's: so is the choice of the
    owner.)"""
    try:
        found = DIRECTORY.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_of_this_host(family: int, host: str, port: int) -> bool:
    """Linux takes an address of the host itself as the source of what is sent to it."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:  # sends nothing
        try:
            sock.connect((host, port))
        except OSError:
            return False
        return bool(sock.getsockname()[0] == host)
