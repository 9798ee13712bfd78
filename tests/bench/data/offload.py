"""Case i: tensors in swap files, as DeepNVMe and ZeRO-Infinity keep them.

They are O_DIRECT random reads and writes of whole tensors of 1 to 64 MiB in one large existing
file, several in flight, by libaio and by io_uring. Writes are timed until an fsync at the end is
done, because an O_DIRECT write of BraidFS may return before its bytes are at the servers.
"""

import os
from collections.abc import Iterator

from tests.bench.data.amounts import MIB, Amounts, bytes_text
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.fio import engine_words, fio, timed_words
from tests.bench.data.places import NullPlace, Place
from tests.bench.data.streams import file_of, write_buffered

_BARS = (Bar(Than.LOCAL, 0.6), Bar(Than.PEERS, 2.0))
RANDOM = {"read": "randread", "write": "randwrite"}


def _name(what: str, size: int, depth: int, engine: str) -> str:
    return f"{bytes_text(size)} tensors, {what}, {engine}, depth {depth}"


def _kinds(amounts: Amounts) -> Iterator[tuple[str, int, int, str]]:
    for engine in amounts.engines:
        for size, depth in amounts.tensors:
            for what in RANDOM:
                yield what, size, depth, engine


def _rows(amounts: Amounts) -> Iterator[Row]:
    for kind in _kinds(amounts):
        yield Row(_name(*kind), "MB/s", _BARS)


def _run(place: Place, amounts: Amounts) -> Values:
    if isinstance(place, NullPlace):
        place.shape(1, amounts.swap_bytes)
    else:
        write_buffered(file_of(place, 0), amounts.swap_bytes, MIB)
    values: dict[str, float] = {}
    for what, size, depth, engine in _kinds(amounts):
        os.sync()
        words = (
            f"--rw={RANDOM[what]}",
            f"--bs={size}",
            "--direct=1",
            "--filename=f0",
            f"--filesize={amounts.swap_bytes}",
            "--overwrite=1",
            "--randrepeat=0",
        )
        rate = _rate(place, (*words, *engine_words(engine, depth)), what, amounts.seconds)
        values[_name(what, size, depth, engine)] = rate / 1e6
    return values


def _rate(place: Place, words: tuple[str, ...], what: str, seconds: int) -> float:
    if what == "read":
        return float(fio(place.folder, (*words, *timed_words(seconds)))["read"]["bw_bytes"])
    # fio's own rate stops before the fsync at the end: job_runtime includes it.
    job = fio(place.folder, (*words, "--time_based", f"--runtime={seconds}", "--end_fsync=1"))
    return float(job["write"]["io_bytes"] / job["job_runtime"] * 1000)


OFFLOAD = Case("i", "tensor offload", lambda amounts: tuple(_rows(amounts)), _run)
