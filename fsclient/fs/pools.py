"""Pools of slots: which layout the files have that lanes make, and how many of them they may make.

Slots of the pool DEFAULT have the cluster's default layout. A directory with a layout of its own
has the pool that the metaserver named when it gave the directory; directories with the same layout
share it. The pool is known for as long as the directory is delegated and this client changes none
of its extended attributes: then no file gets a former layout. The pools of directories that are in
use have equal shares of a bounded number of slots; those that were not used for a while give theirs
up first. The metaserver gets such slots back with the next request.
docs/decisions/0013-delegation.md. Touched by the client's trio thread only.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fscommon.native_ports import ChangesPort
from fscommon.wire.births import Slot

DEFAULT: Final = 0
POOLS_MAX: Final = 8  # besides DEFAULT
SLOTS_WANTED: Final = 256  # at first; twice as many each time that half of them are used
SLOTS_WANTED_MAX: Final = 2048
# Of all pools together. With files that are not reported yet they are no more than a session may
# have.
SLOTS_MAX: Final = 3072
BUSY_S: Final = 10.0  # for so long after its last use a pool keeps its share of these


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """A directory has this pool, as long as Pools.of() returns this same object."""

    directory: int
    pool: int


class Pools:
    def __init__(self, changes: ChangesPort, clock: Callable[[], float]) -> None:
        self._changes = changes
        self._clock = clock
        self._wanted: dict[int, int] = {DEFAULT: SLOTS_WANTED}  # slots, by pool
        # When each pool was used last; that one is at the end. DEFAULT stays.
        self._recent: OrderedDict[int, float] = OrderedDict({DEFAULT: -math.inf})
        self._of: dict[int, Pooled] = {}
        self._used_in: dict[int, int] = {}  # a directory of each pool that lanes have used
        self._returned: list[int] = []

    # ---- directories --------------------------------------------------------------------------

    def told(self, directory: int, pool: int) -> None:
        """Files in the directory get slots of this pool. It is delegated, or about to be."""
        known = self._of.get(directory)
        if known is not None and known.pool == pool:
            return
        self.forget(directory)
        if pool != DEFAULT:
            self._of[directory] = Pooled(directory, pool)
            self._changes.pool_put(directory, pool)
            self._use(pool)

    def forget(self, directory: int) -> None:
        """The directory is not delegated any more, or has another layout from now on."""
        if self._of.pop(directory, None) is not None:
            self._changes.pool_put(directory, DEFAULT)

    def of(self, directory: int) -> Pooled | None:
        """The pool of the directory, if it has a layout of its own and the pool is known."""
        return self._of.get(directory)

    def is_current(self, pooled: Pooled) -> bool:
        return self._of.get(pooled.directory) is pooled

    # ---- slots --------------------------------------------------------------------------------

    def missing(self, *, is_sure: bool) -> int:
        """How many slots of DEFAULT to request. is_sure: they will be used."""
        return self._missing(DEFAULT, is_sure=is_sure)

    def missing_in(self, directory: int) -> int:
        """How many slots of the directory's own layout to request. As long as its pool is not
        known, it is probably the one that was used last."""
        pooled = self._of.get(directory)
        if pooled is not None:
            self._use(pooled.pool)
            return self._missing(pooled.pool, is_sure=True)
        own = [pool for pool in self._recent if pool != DEFAULT]
        return self._missing(own[-1], is_sure=False) if own else SLOTS_WANTED

    def is_short(self, pool: int) -> bool:
        """Whether more slots should be requested."""
        if pool == DEFAULT and not self._is_busy(DEFAULT) and any(map(self._is_busy, self._recent)):
            return False
        return self._changes.slots_left(pool) < self._fair(pool) // 2

    def _missing(self, pool: int, *, is_sure: bool) -> int:
        left = self._changes.slots_left(pool)
        room = SLOTS_MAX - sum(map(self._changes.slots_left, self._recent))
        if is_sure:
            room += self._make_room(pool, self._fair(pool) - left - room)
        return max(0, min(self._wanted[pool] - left, room))

    def _fair(self, pool: int) -> int:
        """How many slots the pool gets in any case."""
        return min(self._wanted.get(pool, SLOTS_WANTED), self._share(pool))

    def _share(self, pool: int) -> int:
        others = sum(1 for one in self._recent if one != pool and self._is_busy(one))
        return SLOTS_MAX // (1 + others)

    def _is_busy(self, pool: int) -> bool:
        return self._clock() < self._recent[pool] + BUSY_S

    def _make_room(self, pool: int, count: int) -> int:
        """Takes about so many slots from other pools, at least. Returns how many."""
        share, made = self._share(pool), 0
        for one in [one for one in self._recent if one != pool]:
            if made < count:
                made += self._drop(one, share if self._is_busy(one) else 0)
        return made

    def want_more(self, pool: int) -> None:
        wanted = self._wanted.get(pool, SLOTS_WANTED)
        self._wanted[pool] = min(2 * wanted, SLOTS_WANTED_MAX)

    def put(self, pool: int, slots: Sequence[Slot]) -> None:
        if pool != DEFAULT:
            self._use(pool)
        self._changes.slots_put(pool, slots)

    def take_returned(self) -> tuple[int, ...]:
        """The slots that the metaserver gets back."""
        returned, self._returned = tuple(self._returned), []
        return returned

    def not_returned(self, inos: Sequence[int]) -> None:
        """The request with them failed."""
        self._returned += inos

    def used(self, directory: int) -> None:
        """Lanes made a file in the directory."""
        pooled = self._of.get(directory)
        self._used_in[DEFAULT if pooled is None else pooled.pool] = directory

    def take_used(self) -> tuple[int, ...]:
        """One directory of each pool that lanes have used since the last call."""
        if not self._used_in:
            return ()
        for pool in self._used_in:
            self._use(pool)
        directories, self._used_in = tuple(self._used_in.values()), {}
        return directories

    def clear(self) -> None:
        """Slots are void; directories keep their pools."""
        self._changes.slots_clear()

    def lose(self) -> None:
        """The session was lost."""
        for directory in tuple(self._of):
            self.forget(directory)
        self._returned.clear()

    def _use(self, pool: int) -> None:
        self._wanted.setdefault(pool, SLOTS_WANTED)
        self._recent[pool] = self._clock()
        self._recent.move_to_end(pool)
        if len(self._recent) > 1 + POOLS_MAX:
            self._drop(next(one for one in self._recent if one != DEFAULT), 0)

    def _drop(self, pool: int, kept: int) -> int:
        """The pool loses all slots but so many; returns how many. Its directories keep it."""
        inos = self._changes.slots_drop(pool, kept)
        self._returned += inos
        if not kept and pool != DEFAULT:
            del self._recent[pool], self._wanted[pool]
        return len(inos)
