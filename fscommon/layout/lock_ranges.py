"""The byte ranges that one owner has locked in one file; they are split, merged and changed as
fcntl(2) says.

Ranges are half-open, sorted, and do not overlap; adjacent ranges of one type are one range. A
flock(2) lock is the range of everything. The metaserver's lock table uses it, and the client, which
must report its locks again after the metaserver was restarted. Pure.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice

LOCK_END = 1 << 63  # the end of a range "to the end of the file"


class LockType(IntEnum):
    READ = 0  # F_RDLCK, LOCK_SH
    WRITE = 1  # F_WRLCK, LOCK_EX
    NONE = 2  # F_UNLCK, LOCK_UN


@dataclass(frozen=True, slots=True)
class LockedRange:
    start: int
    end: int
    type: LockType
    pid: int

    def conflicts(self, start: int, end: int, kind: LockType) -> bool:
        """True when a lock of another owner, of this type and range, would conflict with this
        range."""
        if LockType.WRITE not in (self.type, kind):
            return False
        return self.start < end and start < self.end


class LockedRanges:
    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[LockedRange] = []

    def __iter__(self) -> Iterator[LockedRange]:
        return iter(self._ranges)

    def __len__(self) -> int:
        return len(self._ranges)

    def set(self, start: int, end: int, kind: LockType, pid: int) -> None:
        """Locks, changes or (NONE) unlocks [start, end)."""
        first = bisect_left(self._ranges, start, key=lambda r: r.end)  # adjacent ones included
        last = first
        new = LockedRange(start, end, kind, pid)
        left: list[LockedRange] = []
        right: list[LockedRange] = []
        while last < len(self._ranges) and self._ranges[last].start <= end:
            old = self._ranges[last]
            last += 1
            if old.type is kind and old.pid == pid:
                new = LockedRange(min(new.start, old.start), max(new.end, old.end), kind, pid)
                continue
            if old.start < start:
                left.append(LockedRange(old.start, min(old.end, start), old.type, old.pid))
            if old.end > end:
                right.append(LockedRange(max(old.start, end), old.end, old.type, old.pid))
        middle = [] if kind is LockType.NONE else [new]
        self._ranges[first:last] = left + middle + right

    def conflict(self, start: int, end: int, kind: LockType) -> LockedRange | None:
        """The first range with which a lock of another owner would conflict."""
        first = bisect_right(self._ranges, start, key=lambda r: r.end)
        for held in islice(self._ranges, first, None):
            if held.start >= end:
                break
            if held.conflicts(start, end, kind):
                return held
        return None
