"""How busy emulated GPUs were. Pure.

Accelerator utilisation is the time of computing over all the time, without the first step, whose
wait is that of starting. The time of computing is what the workload says, not what a late timer
made of it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

SERVED_LEAST: Final = 0.95  # of the bytes that were read
STEPS_LEAST: Final = 500
MEMORY_FACTOR: Final = 5


@dataclass(frozen=True, slots=True)
class Trace:
    """One GPU in one epoch. began_s: by time.monotonic() of its node. first_s, stopped_s: seconds
    since then to the end of the first step, and of the last; a step that was not finished counts
    in stopped_s."""

    began_s: float
    first_s: float
    stopped_s: float
    steps: int
    bytes: int
    files: int

    @classmethod
    def of_steps(
        cls, began_s: float, ends_s: Sequence[float], stopped_s: float, moved: tuple[int, int]
    ) -> "Trace":
        """ends_s: seconds from the beginning to the end of each finished step. moved: bytes and
        files that were read."""
        first_s = ends_s[0] if ends_s else 0.0
        return cls(began_s, first_s, stopped_s, len(ends_s), *moved)

    def utilisation(self, compute_s: float) -> float:
        return utilisation_of([self], compute_s)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of all GPUs. utilisation: of all of them together; lowest: of the slowest. served:
    bytes that storage servers served meanwhile; None: that cannot be known. is_dropped: all nodes
    dropped their caches before. is_cut: a GPU did not do all its steps in time."""

    utilisation: float
    lowest: float
    steps: int
    bytes: int
    files: int
    seconds: float
    served: int | None = None
    is_dropped: bool = False
    is_cut: bool = False

    @property
    def bytes_per_second(self) -> float:
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def files_per_second(self) -> float:
        return self.files / self.seconds if self.seconds > 0 else 0.0

    @property
    def is_from_caches(self) -> bool:
        return self.served is not None and self.served < SERVED_LEAST * self.bytes

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "bytes_per_second": round(self.bytes_per_second, 3),
            "files_per_second": round(self.files_per_second, 3),
        }


def utilisation_of(traces: Sequence[Trace], compute_s: float) -> float:
    """Of all these GPUs together, from 0 to 1. compute_s: seconds of a step."""
    counted = sum(one.stopped_s - one.first_s for one in traces)
    computed = sum(compute_s * max(0, one.steps - 1) for one in traces)
    return computed / counted if counted > 0 else 0.0


def seconds_of(by_node: Sequence[Sequence[Trace]]) -> float:
    """How long the slowest node took, each by its own clock: they begin together."""
    return max(
        max(one.began_s + one.stopped_s for one in traces) - min(one.began_s for one in traces)
        for traces in by_node
    )


def epoch_of(by_node: Sequence[Sequence[Trace]], compute_s: float, steps: int) -> Epoch:
    """by_node: the GPUs of each node that took part. compute_s: seconds of a step. steps: those
    that each GPU was to do."""
    traces = [one for listed in by_node for one in listed]
    return Epoch(
        utilisation=utilisation_of(traces, compute_s),
        lowest=min(one.utilisation(compute_s) for one in traces),
        steps=min(one.steps for one in traces),
        bytes=sum(one.bytes for one in traces),
        files=sum(one.files for one in traces),
        seconds=seconds_of(by_node),
        is_cut=any(one.steps < steps for one in traces),
    )


def of_save(every_s: float, save_s: float) -> float:
    """The part of the time that is left for training if each save stops it for save_s seconds.
    every_s: seconds of training between two saves."""
    return every_s / (every_s + save_s)


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of some values."""

    middle: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(median(values), min(values), max(values))


class Search:
    """Finds the largest count that holds: it doubles until one does not, then it bisects. `wanted`
    is the count to be tried next, None at the end; `best` the largest that held, 0 for none."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.best = 0
        self._failed: int | None = None

    @property
    def wanted(self) -> int | None:
        if self._failed is not None:
            return None if self._failed - self.best <= 1 else (self._failed + self.best) // 2
        if self.best >= self._most:
            return None
        return min(2 * self.best or 1, self._most)

    @property
    def is_at_most(self) -> bool:
        """Whether the limit of the search, not the storage, ended it."""
        return self._failed is None and self.best >= self._most

    def tell(self, count: int, holds: bool) -> None:
        if holds:
            self.best = max(self.best, count)
        else:
            self._failed = count if self._failed is None else min(self._failed, count)
            self.best = min(self.best, count - 1)
