"""Inodes that are known to have no extended attributes (ls -l and cp -a ask for several per file).

This is known as long as the attributes that said so are valid: while a META lease is held, or,
without leases, for the time that the kernel caches attributes. Replies may come in another order
than they were made: an older record does not replace a newer one. Bounded. Pure; touched by the
client's trio thread only.
"""

from collections.abc import Callable
from math import inf

from fscommon.layout.attributes import LEASE_META

from ..leases.holder import Leases

INODES_MAX = 1 << 16


class InodesWithoutXattrs:
    def __init__(self, leases: Leases, clock: Callable[[], float], valid_s: float) -> None:
        """valid_s: how long this is known without leases; 0: not at all."""
        self._leases = leases
        self._clock = clock
        self._valid_s = valid_s
        self._seen: dict[int, tuple[int, float]] = {}  # change version; valid until then

    def __contains__(self, ino: int) -> bool:
        """Whether ino is known to have no extended attributes."""
        known = self._seen.get(ino)
        if known is None or known[1] <= self._clock():
            return False
        return not self._leases.is_on or self._leases.holds(ino, LEASE_META)

    def note(self, ino: int, change_version: int, xattr_count: int) -> None:
        """Notes what a record of the metaserver says."""
        known = self._seen.get(ino)
        if known is not None and change_version < known[0]:
            return
        until = 0.0 if xattr_count else self._until(ino)
        if not xattr_count and not until:
            self._seen.pop(ino, None)
            return
        if known is None and len(self._seen) >= INODES_MAX:
            self._seen.clear()
        self._seen[ino] = (change_version, until)

    def note_held(self, ino: int, change_version: int, xattr_count: int) -> None:
        """Like note(), under a lease that is held."""
        known = self._seen.get(ino)
        if known is None and len(self._seen) >= INODES_MAX:
            self._seen.clear()
        if known is None or change_version >= known[0]:
            self._seen[ino] = (change_version, 0.0 if xattr_count else inf)

    def _until(self, ino: int) -> float:
        if self._leases.is_on:
            return inf if self._leases.holds(ino, LEASE_META) else 0.0
        return self._clock() + self._valid_s if self._valid_s else 0.0

    def forget(self, ino: int) -> None:
        self._seen.pop(ino, None)
