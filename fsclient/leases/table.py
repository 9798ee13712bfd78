"""Which leases this session holds, as a plain table: no I/O, no clock, no task of its own.

Grants are the LEASE_* bits of attribute records. They only ever add: what is given up is taken out
here at once, together with a *mask*: grants of these bits in replies to requests up to a limit
count no more, because such a reply may have been overtaken (docs/INTERFACES.md, section 7). A limit
is the id of a request that may still have to be sent; until it is, every grant is masked.

All leases of a session end together, `until`: they are renewed together, counted from when the
renewal left (rule 11); one granted since then lasts longer in truth, which is not used.
Invariant: a bit that is held is one that the metaserver counts for this session, or has ended.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from fscommon.layout.attributes import LEASE_EXCLUSIVE_ALL, LEASE_EXCLUSIVE_SHIFT, LEASE_SHARED_ALL


class Limit(Protocol):
    """A request; 0: it has not been sent."""

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
        """It hides something that the other, which was made after it, does not."""
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
        """The bits held on ino, whether or not they have run out."""
        return self._held.get(ino, 0)

    def holds(self, ino: int, flags: int, now: float) -> bool:
        """All these bits are held and have not run out."""
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
        """These bits are held no longer, whatever replies up to the limit say. A shared bit takes
        its exclusive one along. Returns what had been held."""
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
        """What was held by the inode's directory is held by itself."""
        self._held[ino] = self._held.get(ino, 0) | flags

    def forget(self, ino: int) -> None:
        """The inode is no more, or nobody here will use it again. To hold less than the metaserver
        counts is always right."""
        self._held.pop(ino, None)

    def renewed(self, sent_at: float, lease_s: float) -> None:
        self.until = max(self.until, sent_at + lease_s)

    def prune(self, answered: int) -> None:
        """Every request up to that id has been answered: masks below it hide nothing more."""
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
        """The inodes of which nothing is held exclusively, those that came last at the end."""
        return {ino: bits for ino, bits in self._held.items() if not bits & LEASE_EXCLUSIVE_ALL}

    def end(self, flags: int, inos: Iterable[int] | None = None) -> dict[int, int]:
        """These bits ended without a word on such inodes, on all (None) or these of them. Returns
        what was held of them."""
        shared = self.shared()
        chosen = shared if inos is None else [ino for ino in inos if ino in shared]
        ended = {ino: shared[ino] & flags for ino in chosen if shared[ino] & flags}
        for ino in ended:
            self._held[ino] &= ~flags
            if not self._held[ino]:
                del self._held[ino]
        return ended

    def drop_shared(self) -> dict[int, int]:
        """Leases ended without a word: only exclusive ones stay, which nobody else gets before this
        session was evicted. Returns what was held."""
        dropped = self._held
        self._held = {ino: bits for ino, bits in dropped.items() if bits & LEASE_EXCLUSIVE_ALL}
        return dropped

    def clear(self) -> dict[int, int]:
        """The session is gone. Returns what was held."""
        dropped, self._held = self._held, {}
        self._masks.clear()
        self.until = 0.0
        return dropped

    def rows(self) -> tuple[tuple[int, int], ...]:
        """All that is held: inodes and bits."""
        return tuple(self._held.items())

    def with_bits(self, flags: int) -> tuple[int, ...]:
        """The inodes on which all these bits are held."""
        return tuple(ino for ino, bits in self._held.items() if bits & flags == flags)
