"""Case h: one file of N ranks, in IOR's patterns, without MPI (with it: mpi.py).

Segmented: each rank has one stretch of the file. Strided: transfers of the ranks alternate, of 1
MiB and of 47,008 bytes (IOR's hard pattern; the code of `braidfs validate`). Each rank writes its
own, with fsync; the file is then read cold by ranks that take each other's places (IOR -C), so that
no rank reads what it wrote. The first bytes of each transfer say where it belongs, and are checked;
transfers of 47,008 bytes are checked completely.
"""

import os
from collections.abc import Iterator
from functools import partial

from fsclient.validate import load
from tests.bench.data.amounts import Amounts
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.patterns import HARD, PATTERNS, Pattern, read, write
from tests.bench.data.places import NullPlace, Place
from tests.bench.data.workers import Together, together

FILE = "shared"
_PEERS = (Bar(Than.PEERS, 2.0),)


def _each_rank(place: Place, pattern: Pattern, amounts: Amounts, *, reading: bool) -> Together:
    path, ranks = str(place.folder / FILE), amounts.ranks
    count = max(1, amounts.rank_bytes // pattern.transfer)

    def work(rank: int) -> float:
        share = (rank + ranks // 2) % ranks if reading else rank
        if pattern is HARD:
            run = load.shared_read if reading else load.shared_write
            return float(run(load.Share(path, share, ranks, count))["bytes"])
        offsets = list(pattern.offsets(share, ranks, count))
        return (read if reading else write)(path, offsets, pattern.transfer)

    return together([partial(work, rank) for rank in range(ranks)])


def _name(pattern: Pattern, amounts: Amounts, what: str) -> str:
    return f"{what}, one file, {amounts.ranks} ranks, {pattern.name}"


def _rows(amounts: Amounts) -> Iterator[Row]:
    for pattern in PATTERNS:
        yield Row(_name(pattern, amounts, "write"), "MB/s", _PEERS)
        yield Row(_name(pattern, amounts, "read"), "MB/s", _PEERS)


def _run(place: Place, amounts: Amounts) -> Values:
    values: dict[str, float] = {}
    if isinstance(place, NullPlace):
        return values
    for pattern in PATTERNS:
        os.sync()
        done = _each_rank(place, pattern, amounts, reading=False)
        values[_name(pattern, amounts, "write")] = done.rate / 1e6
        place.chill()
        done = _each_rank(place, pattern, amounts, reading=True)
        values[_name(pattern, amounts, "read")] = done.rate / 1e6
        (place.folder / FILE).unlink()
    return values


SHARED = Case("h", "one shared file", lambda amounts: tuple(_rows(amounts)), _run)
