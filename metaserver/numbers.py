"""Numbers of inodes and files: never given twice, whatever crashes.

The store holds the end of the reserved range; numbers are given only from a range whose
reservation is durable, and the rest of a range is skipped by a restart. The engine asks `wanted`
after each commit and writes the next end long before the range is used up.
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
        """At start: the end that the caller makes durable before anything is served."""
        self._asked = self._end = self._end + RANGE
        return self._end

    def take(self) -> Ino:
        if self._next >= self._end:
            raise FsError(Status.BUSY, "the next range of inode numbers is not durable yet")
        self._next += 1
        return Ino(self._next - 1)

    def is_former(self, ino: int) -> bool:
        """It may have been given before this metaserver started."""
        return 0 < ino < self._first

    def wanted(self) -> int | None:
        """The end to be made durable next, or None while there is enough."""
        if self._asked - self._next > RANGE // 2:
            return None
        self._asked += RANGE
        return self._asked

    def reserved(self, end: int) -> None:
        """The store holds this end now."""
        self._end = max(self._end, end)
