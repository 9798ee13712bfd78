"""Announced reads: the directories of announced files are granted, then lanes fetch the files in
order.

Lanes fetch by themselves only files that they know by their directory's grant
(docs/decisions/0022). So each directory of an announcement is granted first, once, a few
directories at a time. Announcements wait in a queue of bounded length; one that replaces earlier
ones empties it. Files that are never granted, or for which the lanes have no room, are read when a
program reads them. Touched by the client's trio thread only.
"""

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from fscommon.errors import FsError, Status

from .ahead import Ahead
from .ports import Lanes

WAITING_MAX: Final = 1024  # announcements
DIRECTORIES_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class _Waiting:
    inos: bytes
    parents: frozenset[int]
    replaces: bool


class Announced:
    def __init__(self, lanes: Lanes, ahead: Ahead) -> None:
        self._lanes = lanes
        self._ahead = ahead
        self._waiting: deque[_Waiting] = deque()
        self._comes = trio.Event()
        self._is_on = False

    async def run(self) -> None:
        """Runs until it is cancelled. Nothing is announced before it runs."""
        self._is_on = True
        while True:
            await self._comes.wait()
            self._comes = trio.Event()
            while self._waiting:
                await self._work(self._waiting.popleft())

    def announce(self, inos: Sequence[int], parents: Sequence[int], *, replaces: bool) -> int:
        """Returns for how many files there was room. Raises EOPNOTSUPP if it is switched off."""
        if not self._is_on:
            raise FsError(Status.EOPNOTSUPP, "this mount does not fetch announced files")
        if replaces:
            self._waiting.clear()
        if len(self._waiting) >= WAITING_MAX:
            return 0
        packed = array("Q", inos).tobytes()
        self._waiting.append(_Waiting(packed, frozenset(parents), replaces))
        self._comes.set()
        return len(inos)

    async def _work(self, waiting: _Waiting) -> None:
        if waiting.replaces:
            self._lanes.io.announce(b"", True)
        limit = trio.CapacityLimiter(DIRECTORIES_AT_ONCE)

        async def go_through(parent: int) -> None:
            async with limit:
                await self._ahead.go_through(parent)

        async with trio.open_nursery() as nursery:
            for parent in waiting.parents:
                nursery.start_soon(go_through, parent)
        self._lanes.io.announce(waiting.inos, False)
