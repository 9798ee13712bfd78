"""Which leases this session holds, as a plain table: no I/O, no clock, no task of its own.

Grants are the LEASE_* bits of attribute records, which only add leases. A lease that is given up is
removed here at once, and a *mask* is added: grants of its bits in replies to requests up to a limit
do not count any more, because such a reply may have been overtaken (docs/INTERFACES.md, section 7).
A limit is the id of a request that may not have been sent yet; until it is, every grant is masked.

All leases of a session end together, at `until`: they are renewed together, counted from when the
renewal was sent (rule 11); one that was granted since lasts longer, which is not used. Invariant:
the metaserver counts every bit that is held here for this session, or the bit has ended. Touched by
the client's trio thread only.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fscommon.layout.attributes import LEASE_EXCLUSIVE_ALL, LEASE_EXCLUSIVE_SHIFT, LEASE_SHARED_ALL


class Limit(Protocol):
    """A request with its id; 0: it has not been sent."""

    @property
    def request_id(self) -> int: ...


@dataclass(frozen=True, slots=True)
class KnownLimit:
    """A limit that is known as a number."""

    request_id: int


@dataclass(frozen=True, slots=True)
class _Mask:
    flags: int
    limit: Limit

    def hides(self, request_id: int) -> bool:
        return not self.limit.request_id or request_id <= self.limit.request_id

    def adds_to(self, later: "_Mask") -> bool:
        """Whether it hides something that the later mask does not."""
        if self.flags & ~later.flags or not self.limit.request_id:
            return True
        return not later.hides(self.limit.request_id)


class LeaseTable:
    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._masks: dict[int, list[_Mask]] = {}
        self.until = 0.0

    def __len__(self) -> int:
        return len(self._held)

    def held(self, ino: int) -> int:
        """The bits held on ino, ended or not."""
        return self._held.get(ino, 0)

    def holds(self, ino: int, flags: int, now: float) -> bool:
        """Whether all these bits are held and have not ended."""
        return now < self.until and self._held.get(ino, 0) & flags == flags

    def granted(self, ino: int, flags: int, request_id: int) -> int:
        """A reply to that request grants flags. Returns those that are new."""
        masks = self._masks.get(ino) if self._masks else None
        if masks is not None:
            for mask in masks:
                if mask.hides(request_id):
                    flags &= ~mask.flags
        held = self._held.get(ino, 0)
        if flags & ~held:
            self._held[ino] = held | flags
        return flags & ~held

    def give_up(self, ino: int, flags: int, limit: Limit) -> int:
        """Gives up these bits, whatever replies up to the limit say. A shared bit takes its
        exclusive one along. Returns what was held."""
        flags |= (flags & LEASE_SHARED_ALL) << LEASE_EXCLUSIVE_SHIFT
        mask = _Mask(flags, limit)
        former = self._masks.get(ino, ())
        self._masks[ino] = [*(one for one in former if one.adds_to(mask)), mask]
        held = self._held.get(ino, 0)
        kept = held & ~flags
        if kept:
            self._held[ino] = kept
        else:
            self._held.pop(ino, None)
        return held & flags

    def single(self, ino: int, flags: int) -> None:
        """What was held by the directory's grant becomes leases of the inode."""
        self._held[ino] = self._held.get(ino, 0) | flags

    def forget(self, ino: int) -> None:
        """The inode was removed, or nobody here will use it again. To hold less than the metaserver
        counts is always correct."""
        self._held.pop(ino, None)

    def renewed(self, sent_at: float, lease_s: float) -> None:
        self.until = max(self.until, sent_at + lease_s)

    def prune(self, answered: int) -> None:
        """Every request up to that id has been answered: masks up to it hide nothing any more."""
        for ino in list(self._masks):
            kept = [mask for mask in self._masks[ino] if mask.hides(answered + 1)]
            if kept:
                self._masks[ino] = kept
            else:
                del self._masks[ino]

    @property
    def mask_count(self) -> int:
        return sum(map(len, self._masks.values()))

    def shared(self) -> dict[int, int]:
        """The inodes without exclusive leases, and their bits; the latest are at the end."""
        return {ino: bits for ino, bits in self._held.items() if not bits & LEASE_EXCLUSIVE_ALL}

    def end(self, flags: int, inos: Iterable[int] | None = None) -> dict[int, int]:
        """Ends these bits of inodes without exclusive leases, of all (None) or these, without a
        return. Returns what was held."""
        shared = self.shared()
        chosen = shared if inos is None else [ino for ino in inos if ino in shared]
        ended = {ino: shared[ino] & flags for ino in chosen if shared[ino] & flags}
        for ino in ended:
            self._held[ino] &= ~flags
            if not self._held[ino]:
                del self._held[ino]
        return ended

    def drop_shared(self) -> dict[int, int]:
        """The leases were not renewed: only exclusive ones stay, which nobody else gets before this
        session is evicted. Returns what was held."""
        dropped = self._held
        self._held = {ino: bits for ino, bits in dropped.items() if bits & LEASE_EXCLUSIVE_ALL}
        return dropped

    def clear(self) -> dict[int, int]:
        """The session has ended. Returns what was held."""
        dropped, self._held = self._held, {}
        self._masks.clear()
        self.until = 0.0
        return dropped

    def rows(self) -> tuple[tuple[int, int], ...]:
        """All inodes with their bits."""
        return tuple(self._held.items())

    def with_bits(self, flags: int) -> tuple[int, ...]:
        """The inodes on which all these bits are held."""
        return tuple(ino for ino, bits in self._held.items() if bits & flags == flags)
