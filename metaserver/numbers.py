"""Numbers of inodes and files. No number is given twice, whatever crashes.

The store holds the end of the reserved range. Numbers are given only from a range whose reservation
is durable; a restart skips the rest of a range. The engine calls `wanted` for each commit, and
writes the next end long before the range is used up.
"""

from typing import Final

from fscommon.errors import FsError, Status
from fscommon.types import Ino

RANGE: Final = 1 << 20


class InodeNumbers:
    def __init__(self, end: int) -> None:
        self._first = end
        self._next = end
        self._end = end  # durable
        self._asked = end

    def reserve_first(self) -> int:
        """Returns the first end, which the caller makes durable before it serves anything."""
        self._asked = self._end = self._end + RANGE
        return self._end

    def take(self) -> Ino:
        if self._next >= self._end:
            raise FsError(Status.BUSY, "the next range of inode numbers is not durable yet")
        self._next += 1
        return Ino(self._next - 1)

    def is_former(self, ino: int) -> bool:
        """Whether this number may have been given before this metaserver started."""
        return 0 < ino < self._first

    @property
    def next(self) -> int:
        """The number that is given next: all numbers that were given are below it."""
        return self._next

    def wanted(self) -> int | None:
        """Returns the end to make durable next, or None while enough numbers are left."""
        if self._asked - self._next > RANGE // 2:
            return None
        self._asked += RANGE
        return self._asked

    def reserved(self, end: int) -> None:
        """Takes the news that the store holds this end."""
        self._end = max(self._end, end)
