"""Ports for servers that are about to start, on loopback.

Some seconds may pass between the choice of a port and its server's listen(). A process
locks the ports that it chose last, so that neither it nor another process of the same user chooses
one of them meanwhile: each port is a byte of one file, and the kernel unlocks the bytes of a
process that ends. Ports are from outside the ephemeral range, as the port of a stopped server must
still be free when it starts again.
"""

import fcntl
import functools
import os
import random
import socket
import tempfile
from collections import deque
from collections.abc import Collection
from pathlib import Path

from tests.cluster.networks import Place

HOST = Place().address
PORTS = range(10_000, 30_000)
LOCKED_MAX = 2000


class NoPortError(Exception):
    """No free port was found; the message is one sentence."""


class _Locks:
    """The locks on the last LOCKED_MAX ports that a process chose."""

    def __init__(self) -> None:
        file = Path(tempfile.gettempdir(), f"braidfs-ports-{os.getuid()}")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(file, flags, 0o600)
        self._chosen: deque[int] = deque()

    def take(self, port: int) -> bool:
        if port in self._chosen:
            return False
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:  # another process chose it
            return False
        self._chosen.append(port)
        if len(self._chosen) > LOCKED_MAX:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._chosen.popleft())
        return True


@functools.cache
def _locks_of(process: int) -> _Locks:
    """A process that was forked has none of its parent's locks."""
    return _Locks()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is nobody
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(taken: Collection[int] = ()) -> int:
    """A port on which no program listens now, that is not in `taken`, and that nobody else gets
    from here in the time that a server takes to start. Raises NoPortError."""
    locks = _locks_of(os.getpid())
    for _ in range(1000):
        port = random.choice(PORTS)
        if port not in taken and _is_free(port) and locks.take(port):
            return port
    raise NoPortError(f"no free port was found on {HOST}")
