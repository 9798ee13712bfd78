"""The holders of leases on each inode, and how many of them have an exclusive bit.

A shared need conflicts only with exclusive bits. So, where that count is 0, an op that only looks
passes a thousand other readers without a look at any of them. Only metaserver.leases.table calls.

Invariant: `_exclusive` has exactly the inodes on which some holder has an exclusive bit.
"""

import heapq
from collections.abc import Sequence

from fscommon.layout.attributes import LEASE_EXCLUSIVE_ALL
from fscommon.types import Ino, SessionId
from metaserver.leases.holders import Held

_NOBODY: Sequence[Held] = ()


class InodeHolders:
    def __init__(self) -> None:
        self._held: dict[Ino, list[Held]] = {}
        self._exclusive: dict[Ino, int] = {}  # the number of holders with an exclusive bit

    def add(self, ino: Ino, held: Held) -> None:
        """Adds a holder; `change` sets its flags."""
        self._held.setdefault(ino, []).append(held)

    def change(self, ino: Ino, held: Held, flags: int) -> None:
        """Sets the bits of the holder's lease on the inode."""
        was, held.flags = held.flags, flags
        more = bool(flags & LEASE_EXCLUSIVE_ALL) - bool(was & LEASE_EXCLUSIVE_ALL)
        if more:
            count = self._exclusive.pop(ino, 0) + more
            if count:
                self._exclusive[ino] = count

    def remove(self, ino: Ino, held: Held) -> None:
        self.change(ino, held, 0)
        holders = self._held[ino]
        holders.remove(held)
        if not holders:
            del self._held[ino]

    def of(self, ino: Ino) -> Sequence[Held]:
        return self._held.get(ino, _NOBODY)

    def others(self, session: SessionId, ino: Ino) -> list[Held]:
        """Returns the leases of all other sessions on the inode."""
        return [held for held in self._held.get(ino, _NOBODY) if held.session != session]

    def rivals(self, session: SessionId, ino: Ino, flags: int) -> list[Held]:
        """Returns the leases of others that may conflict with these bits: none if the bits are all
        shared and nobody holds an exclusive bit."""
        if flags & LEASE_EXCLUSIVE_ALL or ino in self._exclusive:
            return self.others(session, ino)
        return []

    def has_others(self, session: SessionId, ino: Ino) -> bool:
        holders = self._held.get(ino)
        return holders is not None and (len(holders) > 1 or holders[0].session != session)

    def is_held(self, ino: Ino, flags: int) -> bool:
        """Whether some session holds one of these exclusive bits on the inode."""
        return ino in self._exclusive and any(held.flags & flags for held in self._held[ino])

    def exclusive_behind(self, after: int, flags: int, count: int) -> list[Ino]:
        """Returns the next inodes, in order, on which one of these exclusive bits is held."""
        found = (ino for ino in self._exclusive if ino > after and self.is_held(ino, flags))
        return heapq.nsmallest(count, found)
