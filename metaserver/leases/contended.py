"""Directories that several clients change at the same time: they are granted to nobody for a while.

It is better not to cache a directory whose entries are recalled again and again: each of its
clients would only wait for the next recall. Time is passed in. Only the event loop's thread calls.
"""

from collections import OrderedDict
from typing import Final

from fscommon.layout.attributes import LEASE_ENTRIES, LEASE_EXCLUSIVE_SHIFT
from fscommon.types import Ino
from metaserver.leases.holders import Need

_RECALLED_TWICE_WITHIN_S: Final = 1.0
_NOT_GRANTED_FOR_S: Final = 0.5
_DIRECTORIES_MAX: Final = 4096


class ContendedDirectories:
    def __init__(self) -> None:
        # For each directory: when it was last recalled, and until when it is granted to nobody.
        self._recalls: OrderedDict[Ino, tuple[float, float]] = OrderedDict()

    def is_contended(self, ino: Ino, now_s: float) -> bool:
        return ino in self._recalls and self._recalls[ino][1] > now_s

    def recalled(self, need: Need, now_s: float) -> None:
        """A lease was recalled because of this need."""
        if not need.flags & (LEASE_ENTRIES << LEASE_EXCLUSIVE_SHIFT):
            return
        last_s, until_s = self._recalls.pop(need.ino, (float("-inf"), 0.0))
        if now_s - last_s < _RECALLED_TWICE_WITHIN_S:
            until_s = now_s + _NOT_GRANTED_FOR_S
        if len(self._recalls) >= _DIRECTORIES_MAX:
            self._recalls.popitem(last=False)
        self._recalls[need.ino] = (now_s, until_s)
