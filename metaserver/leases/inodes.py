"""Who holds leases on each inode, and how many of them hold one with an exclusive bit.

A shared need is met by nothing but exclusive bits, so that count lets an op that only looks pass a
thousand other readers without a look at any of them. Only metaserver.leases.table calls.

Invariant: `_exclusive` has exactly the inodes of which some holder has an exclusive bit.
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
        self._exclusive: dict[Ino, int] = {}  # holders that have an exclusive bit

    def add(self, ino: Ino, held: Held) -> None:
        """One holder more; its flags are put with `change`."""
        self._held.setdefault(ino, []).append(held)

    def change(self, ino: Ino, held: Held, flags: int) -> None:
        """The holder's lease on the inode has these bits from now on."""
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
        """The leases of all other sessions on the inode."""
        return [held for held in self._held.get(ino, _NOBODY) if held.session != session]

    def rivals(self, session: SessionId, ino: Ino, flags: int) -> list[Held]:
        """The others that can be in the way of these bits: none of them for shared bits where
        nobody holds an exclusive one."""
        if flags & LEASE_EXCLUSIVE_ALL or ino in self._exclusive:
            return self.others(session, ino)
        return []

    def has_others(self, session: SessionId, ino: Ino) -> bool:
        holders = self._held.get(ino, _NOBODY)
        return len(holders) > 1 or any(held.session != session for held in holders)

    def is_held(self, ino: Ino, flags: int) -> bool:
        """Some session holds one of these exclusive bits on it."""
        return ino in self._exclusive and any(held.flags & flags for held in self._held[ino])

    def exclusive_behind(self, after: int, flags: int, count: int) -> list[Ino]:
        """The next inodes, in order, on which any session holds one of these exclusive bits."""
        found = (ino for ino in self._exclusive if ino > after and self.is_held(ino, flags))
        return heapq.nsmallest(count, found)
