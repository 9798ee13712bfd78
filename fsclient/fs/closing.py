"""Sends CLOSE in batches: which inodes this client has open no more.

A short delay gathers the closes of a burst (untar closes thousands of files a second). Nothing is
sent while the connection is down: when the session is opened again, all opens are reported anyway.
Touched by the client's trio thread only.
"""

import itertools
import time

import trio

from fscommon.wire.messages import Close
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from .inodes import Inodes
from .ports import Metadata
from .replicas import Replicas

GATHER_S = 0.1
BATCH_COUNT_MAX = 4096


class Closer:
    def __init__(self, meta: Metadata, leases: Leases, inodes: Inodes, replicas: Replicas) -> None:
        self._meta = meta
        self._leases = leases
        self._inodes = inodes
        self._replicas = replicas
        # It also rises from one process of a session to the next.
        self._serials = itertools.count(time.monotonic_ns())

    async def run(self) -> None:
        while True:
            await trio.sleep(GATHER_S)
            self.flush()
            self._replicas.tell_synced()

    def close_now(self, ino: int) -> None:
        """Sends the CLOSE of ino at once, if one waits: before its lease is returned, so that a
        client which waits for that does not find the file open."""
        if ino in self._inodes.closed and self._meta.is_ready:
            del self._inodes.closed[ino]
            self._tell((ino,), urgent=True)

    def flush(self) -> None:
        """Sends all closes that wait."""
        while self._inodes.closed and self._meta.is_ready:
            inos = self._inodes.take_closed(BATCH_COUNT_MAX)
            self._tell(inos)

    def _tell(self, inos: tuple[int, ...], *, urgent: bool = False) -> None:
        close = Close(inos)
        if replicated := self._inodes.take_replicated(inos):
            serial = next(self._serials)
            close = Close(inos, self._replicas.closing(replicated, serial), serial)
        self._leases.closed(inos, self._meta.tell(Op.CLOSE, close, urgent=urgent))
