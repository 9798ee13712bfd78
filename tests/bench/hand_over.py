"""A file that two mounts use in turns: lock it, read what the other wrote, write it again, unlock.

One process has a descriptor on each mount and uses them in turns, so that a turn is a hand-over of
the lock, of the lease and of the bytes, and nothing else: no turn waits for a held lock.
"""

import fcntl
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TURNS = 2000
PIECE = 4096
SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class HandOvers:
    per_s: float
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return f"{self.per_s:,.0f} a second, p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms"


def pass_to_and_fro(roots: Sequence[Path], turns: int = TURNS) -> HandOvers:
    """`roots`: one directory, by its path on each mount. Raises RuntimeError when a turn does not
    read what the one before it wrote."""
    paths = [root / "passed" for root in roots]
    paths[0].write_bytes(_piece(0) + bytes(SIZE - PIECE))
    fds = [os.open(path, os.O_RDWR) for path in paths]
    try:
        took = [_turn(fds[number % len(fds)], number) for number in range(turns)]
    finally:
        for fd in fds:
            os.close(fd)
        paths[0].unlink()
    cuts = statistics.quantiles(took, n=100)
    return HandOvers(turns / sum(took), cuts[49] * 1000, cuts[98] * 1000)


def median(passed: Sequence[HandOvers]) -> HandOvers:
    """The median of each figure by itself."""
    columns = zip(*((one.per_s, one.p50_ms, one.p99_ms) for one in passed), strict=True)
    return HandOvers(*map(statistics.median, columns))


def _turn(fd: int, number: int) -> float:
    """The duration in seconds."""
    start = time.perf_counter()
    fcntl.lockf(fd, fcntl.LOCK_EX)
    if os.pread(fd, PIECE, 0) != _piece(number):
        raise RuntimeError(f"turn {number} read something else than the turn before it wrote")
    os.pwrite(fd, _piece(number + 1), 0)
    fcntl.lockf(fd, fcntl.LOCK_UN)
    return time.perf_counter() - start


def _piece(number: int) -> bytes:
    return number.to_bytes(8, "little") * (PIECE // 8)
