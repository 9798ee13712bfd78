"""Where the replicas of a new file go: each stripe's in distinct failure domains.

The first replica of each stripe goes where that of a file with one replica would go: to a target
chosen by a hash of the file id, and to the next targets for the next stripes. The others go to
other domains, to each target as often as its free room says. Which they are depends on the file id
and on this placement alone, which depends on the map and, coarsely, on the free room.

The hash is a point on a circle, which is cut into as many arcs as there are targets, for the first
replica, and each of these into as many as there are *rows* for the others. Any run of file ids lies
evenly on the circle, so it is spread evenly over all of these. A row is made when it is first
needed, and kept: placing a file is then little more than looking its rows up. Pure.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from fscommon.errors import ConfigError
from fscommon.layout.layout import VACANT
from fscommon.limits import REPLICA_COUNT_MAX
from fscommon.net.address import parse_address

# Fibonacci hashing: multiples of the golden ratio lie evenly on a circle. This holds for any run of
# file ids, and for the first few ids of each of many runs: clients get ids in blocks, and most use
# only the first ids of a block. The remainder of a division would put these on few targets.
GOLDEN: Final = 0x9E37_79B9_7F4A_7C15
U64: Final = (1 << 64) - 1
_ROOT_OF_TWO: Final = 0x6A09_E667_F3BC_C909  # another ratio whose multiples lie evenly
_ROWS_KEPT: Final = 8192  # for each number of replicas, about
_ROWS_MIN, _ROWS_MAX = 4, 64  # of one target
_DIGITS: Final = 3  # binary ones, of free room


@dataclass(frozen=True, slots=True)
class ReplicaPolicy:
    """What the configuration says of replicas. replicas: of new files where no directory says
    another number. degraded_ok: a new file may have fewer while too few domains are up.
    replicas_max: the most that anybody may ask for."""

    replicas: int = 1
    degraded_ok: bool = False
    replicas_max: int = REPLICA_COUNT_MAX

    def __post_init__(self) -> None:
        if not 1 <= self.replicas_max <= REPLICA_COUNT_MAX:
            raise ValueError(f"replicas_max is not in 1..{REPLICA_COUNT_MAX}")
        if not 1 <= self.replicas <= self.replicas_max:
            raise ValueError(f"replicas is not in 1..{self.replicas_max}, which replicas_max says")


DEFAULT_REPLICAS: Final = ReplicaPolicy()


class Spot(NamedTuple):
    """A target that may get new replicas. weight: how often, compared with others."""

    target: int
    domain: str
    weight: int


def weight_of(free: int) -> int:
    """The weight of a target with so much free room, rounded so that it seldom changes."""
    shift = max(0, free.bit_length() - _DIGITS)
    return max(1, free >> shift << shift)


def domain_of(address: str, name: str) -> str:
    """The failure domain of a node whose configuration names none: its host."""
    try:
        return parse_address(address).host
    except ConfigError:
        return name


class Placement:
    """Places replicas on these spots, which are in the order of their targets."""

    def __init__(self, spots: Sequence[Spot]) -> None:
        self.spots = tuple(spots)
        self._domains = {name: at for at, name in enumerate(sorted({s.domain for s in spots}))}
        self._domain_of = [self._domains[spot.domain] for spot in spots]
        self._lie_on_circle()
        count = max(1, len(spots))
        self._rows_of_target = max(_ROWS_MIN, min(_ROWS_MAX, _ROWS_KEPT // count))
        self._cells = len(spots) * self._rows_of_target
        self._kept: dict[int, dict[int, tuple[int, ...]]] = {}  # by number of replicas and cell

    def _lie_on_circle(self) -> None:
        """Lays all weights side by side, those of one domain next to each other, so that a domain
        is one arc that can be left out."""
        order = sorted(range(len(self.spots)), key=lambda at: (self._domain_of[at], at))
        self._order = order
        self._ends = list(accumulate(self.spots[at].weight for at in order))
        self._weights = [0] * len(self._domains)
        for at in order:
            self._weights[self._domain_of[at]] += self.spots[at].weight
        ends = list(accumulate(self._weights))
        self._starts = [end - weight for end, weight in zip(ends, self._weights, strict=True)]
        self._total = ends[-1] if ends else 0

    @property
    def domain_count(self) -> int:
        return len(self._domains)

    def place(self, file_id: int, width_max: int, replicas: int) -> tuple[int, ...]:
        """Returns the targets of a file, stripe-major, with VACANT for replicas for which there are
        too few domains. There must be a spot."""
        width, cells, step = min(len(self.spots), width_max), self._cells, self._rows_of_target
        rows = self._kept.setdefault(replicas, {})
        cell = (file_id * GOLDEN & U64) * cells >> 64
        targets: tuple[int, ...] = ()
        for _ in range(width):
            row = rows.get(cell)
            if row is None:
                row = rows[cell] = self._row(cell, replicas)
            targets += row
            cell += step
            if cell >= cells:
                cell -= cells
        return targets

    def _row(self, cell: int, replicas: int) -> tuple[int, ...]:
        first, row = divmod(cell, self._rows_of_target)
        # Of one file's stripes, which have consecutive first targets, the others lie apart, too.
        points = (
            (row << 64) // self._rows_of_target + first * GOLDEN & U64,
            row * GOLDEN + first * _ROOT_OF_TWO & U64,
        )
        chosen = [first]
        for point in points[: min(replicas, self.domain_count) - 1]:
            chosen.append(self._pick(point, sorted(self._domain_of[at] for at in chosen)))
        vacant = (VACANT,) * (replicas - len(chosen))
        return tuple([self.spots[at].target for at in chosen]) + vacant

    def _pick(self, point: int, without: list[int]) -> int:
        """Returns the spot at this point of the circle without these domains."""
        at = point * (self._total - sum(self._weights[domain] for domain in without)) >> 64
        for domain in without:
            if at >= self._starts[domain]:
                at += self._weights[domain]
        return self._order[bisect_right(self._ends, at)]
