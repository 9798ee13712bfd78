"""Spans of time, and turns, on inodes, for tasks that wait. Touched by the trio thread only."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio


class Spans:
    """Spans of time on inodes. Several may be open on one inode; wait() returns when none is."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, trio.Event]] = {}

    def begin(self, ino: int) -> None:
        count, event = self._open.get(ino) or (0, trio.Event())
        self._open[ino] = (count + 1, event)

    def end(self, ino: int) -> None:
        count, event = self._open.pop(ino)
        if count > 1:
            self._open[ino] = (count - 1, event)
        else:
            event.set()

    @contextmanager
    def on(self, ino: int) -> Iterator[None]:
        self.begin(ino)
        try:
            yield
        finally:
            self.end(ino)

    def is_open(self, ino: int) -> bool:
        return ino in self._open

    async def wait(self, ino: int) -> None:
        while (span := self._open.get(ino)) is not None:
            await span[1].wait()


class Turns:
    """Turns on inodes: one task at a time on each, in order of arrival."""

    def __init__(self) -> None:
        self._locks: dict[int, tuple[int, trio.StrictFIFOLock]] = {}

    def take_now(self, ino: int) -> bool:
        """Takes the turn without waiting; False: another task has it. The same task returns it."""
        if ino in self._locks:
            return False
        lock = trio.StrictFIFOLock()
        lock.acquire_nowait()
        self._locks[ino] = (1, lock)
        return True

    def give_back(self, ino: int) -> None:
        self._locks[ino][1].release()
        self._leave(ino)

    @asynccontextmanager
    async def of(self, ino: int) -> AsyncIterator[None]:
        count, lock = self._locks.get(ino) or (0, trio.StrictFIFOLock())
        self._locks[ino] = (count + 1, lock)
        try:
            async with lock:
                yield
        finally:
            self._leave(ino)

    def _leave(self, ino: int) -> None:
        count, lock = self._locks.pop(ino)
        if count > 1:
            self._locks[ino] = (count - 1, lock)
