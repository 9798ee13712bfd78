"""Case h: one file of N ranks, in IOR's patterns, without MPI.

Segmented: each rank has one stretch of the file. Strided: transfers of the ranks take turns, of
1 MiB and of 47,008 bytes (IOR's hard pattern; the code of `braidfs validate`). Each rank writes its
own, with fsync; the file is then read cold by ranks that take each other's places (IOR -C), so that
nobody reads what it wrote. The first bytes of each transfer say where it belongs, and are checked;
those of 47,008 bytes are checked whole.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fsclient.validate import load
from tests.bench.data.amounts import MIB, Amounts
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.places import NullPlace, Place
from tests.bench.data.workers import Together, together

FILE = "shared"
_PEERS = (Bar(Than.PEERS, 2.0),)


@dataclass(frozen=True, slots=True)
class Pattern:
    """offsets of the transfers of a rank: rank, ranks, transfers of each."""

    name: str
    transfer: int
    strided: bool

    def offsets(self, rank: int, ranks: int, count: int) -> Iterator[int]:
        for number in range(count):
            index = rank + number * ranks if self.strided else rank * count + number
            yield index * self.transfer


SEGMENTED = Pattern("segmented, 1 MiB", MIB, strided=False)
STRIDED = Pattern("strided, 1 MiB", MIB, strided=True)
HARD = Pattern("strided, 47,008 bytes", load.BLOCK_BYTES, strided=True)
PATTERNS = (SEGMENTED, STRIDED, HARD)


def _write(path: str, offsets: Sequence[int], transfer: int) -> float:
    content = bytearray(os.urandom(transfer))
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    for offset in offsets:
        content[:8] = offset.to_bytes(8, "little")
        if os.pwrite(file, content, offset) != transfer:
            raise OSError(0, f"a short write at offset {offset}")
    os.fsync(file)
    os.close(file)
    return float(len(offsets) * transfer)


def _read(path: str, offsets: Sequence[int], transfer: int) -> float:
    into = bytearray(transfer)
    file = os.open(path, os.O_RDONLY)
    for offset in offsets:
        if os.preadv(file, [into], offset) != transfer:
            raise OSError(0, f"a short read at offset {offset}")
        if into[:8] != offset.to_bytes(8, "little"):
            raise OSError(0, f"wrong bytes at offset {offset}")
    os.close(file)
    return float(len(offsets) * transfer)


def _each_rank(place: Place, pattern: Pattern, amounts: Amounts, *, reading: bool) -> Together:
    path, ranks = str(place.folder / FILE), amounts.ranks
    count = max(1, amounts.rank_bytes // pattern.transfer)

    def work(rank: int) -> float:
        share = (rank + ranks // 2) % ranks if reading else rank
        if pattern is HARD:
            run = load.shared_read if reading else load.shared_write
            return float(run(load.Share(path, share, ranks, count))["bytes"])
        offsets = list(pattern.offsets(share, ranks, count))
        return (_read if reading else _write)(path, offsets, pattern.transfer)

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
