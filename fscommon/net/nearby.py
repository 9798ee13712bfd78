"""Local sockets beside TCP, for programs on one host (docs/decisions/0039-local-sockets.md).

A server that listens at HOST:PORT also listens at a socket file named after that address and its
network namespace. The file is in a directory where only root and the services may make files, so
that nobody else can stand in for a server. A client looks there first. The stream and the handshake
are the same on both. When anything here fails, TCP is used.
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
    """A listening local socket, and its file."""

    def __init__(self, sock: socket.socket, path: Path) -> None:
        self.socket = sock
        self._path = path

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()
        self.socket.close()


def listen(host: str, port: int, backlog: int) -> NearbySocket | None:
    """Listens beside a TCP socket at the same address. None where that is not possible."""
    sock = _socket()
    try:
        DIRECTORY.mkdir(mode=0o755, exist_ok=True)
        if not _is_safe():
            raise PermissionError(f"others may write in {DIRECTORY}")
        path = _path(host, port)
        path.unlink(missing_ok=True)  # left by a server that was killed: the port is ours now
        sock.bind(str(path))
        path.chmod(0o666)  # keys decide who may speak
        sock.listen(backlog)
    except OSError:
        sock.close()
        return None
    return NearbySocket(sock, path)


def connect(family: int, host: str, port: int) -> socket.socket | None:
    """A socket connected to the server at an address of this host; None when it has no local
    socket."""
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
    """Describes the process that connected to a server's local socket."""
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
    """True when nobody but the directory's owner can make files in it. (/run belongs to root, and
    so does the choice of the owner.)"""
    try:
        found = DIRECTORY.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _is_of_this_host(family: int, host: str, port: int) -> bool:
    """True for an address of this host: Linux uses it as the source of what is sent to it."""
    with socket.socket(family, socket.SOCK_DGRAM) as sock:  # sends nothing
        try:
            sock.connect((host, port))
        except OSError:
            return False
        return bool(sock.getsockname()[0] == host)
