"""Cases b and f: random 4 KiB reads of a large file, and how long each takes at a light rate.

The client is cold, the servers have the file cached: it is read once through O_DIRECT before, in
pieces that they do not take for a scan (docs/decisions/0030-large-reads.md). Read amplification is
the number of bytes that the storage servers sent for each byte that was read, by the servers'
counters: by O_DIRECT, and through the page cache as read by a program that gives no advice.
"""

import os
import subprocess
from collections.abc import Iterator

from tests.bench.data.amounts import MIB, Amounts
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.cost import spending
from tests.bench.data.fio import engine_words, fio, timed_words
from tests.bench.data.places import NullPlace, Place
from tests.bench.data.streams import file_of, write_buffered

ENGINES = ("psync", "io_uring")
LEAST_OF_NULL = {1: 0.4, 32: 0.5}  # the key is the depth
PEERS_DEPTH = 32
AMPLIFIED_DIRECT = "read amplification, O_DIRECT"
AMPLIFIED_CACHED = "read amplification, page cache"
READ_CPU = "CPU per 1,000 random reads, psync, deepest"
READ_SWITCHES = "context switches per random read, psync, deepest"
LIGHT_RATE = 500  # it is the number of reads a second
LATENCIES = {"50.000000": "p50", "99.000000": "p99", "99.900000": "p99.9"}

_4K = ("--rw=randread", "--bs=4k", "--filename=f0", "--randrepeat=0")
_DIRECT = (*_4K, "--direct=1")


def _prepare(place: Place, amounts: Amounts) -> None:
    if isinstance(place, NullPlace):
        place.shape(1, amounts.random_bytes)
        return
    write_buffered(file_of(place, 0), amounts.random_bytes, MIB)
    os.sync()
    place.remount()
    words = ["dd", "bs=128k", "iflag=direct", "of=/dev/null", "status=none"]
    subprocess.run([*words, f"if={file_of(place, 0)}"], check=True, timeout=600)


def _depth(engine: str, depth: int) -> str:
    return f"4 KiB random reads, {engine}, depth {depth}"


def _rows(amounts: Amounts) -> Iterator[Row]:
    for engine in ENGINES:
        for depth in amounts.depths:
            least = LEAST_OF_NULL.get(depth)
            bars = (Bar(Than.NULL, least),) if least else ()
            peers = (Bar(Than.PEERS, 5.0),) if depth == PEERS_DEPTH else ()
            yield Row(_depth(engine, depth), "op/s", (*bars, *peers))
    most = (Bar(Than.VALUE, 1.1, at_most=True),)
    yield Row(AMPLIFIED_DIRECT, "", most, less_is_better=True)
    yield Row(AMPLIFIED_CACHED, "", most, less_is_better=True)
    yield Row(READ_CPU, "ms", less_is_better=True)
    yield Row(READ_SWITCHES, "", less_is_better=True)


def _run(place: Place, amounts: Amounts) -> Values:
    values: dict[str, float] = {}
    _prepare(place, amounts)
    timed = timed_words(amounts.seconds)
    for engine in ENGINES:
        for depth in amounts.depths:
            with spending(place.serving()) as spent:
                job = fio(place.folder, (*_DIRECT, *engine_words(engine, depth), *timed))
            values[_depth(engine, depth)] = job["read"]["iops"]
            if (engine, depth) == ("psync", amounts.depths[-1]) and place.serving().client:
                # fio did not count the reads of the ramp.
                reads = job["read"]["iops"] * (amounts.seconds + 0.5)
                values[READ_CPU] = spent.cpu_s / reads * 1e6
                values[READ_SWITCHES] = spent.switches / reads
    return {**values, **_amplification(place, amounts)}


def _amplification(place: Place, amounts: Amounts) -> Values:
    values = {}
    amount = ("--ioengine=psync", f"--io_size={amounts.random_bytes // 16}")
    cached = (*_4K, "--direct=0", "--invalidate=1", "--fadvise_hint=0")
    for row, words in ((AMPLIFIED_DIRECT, _DIRECT), (AMPLIFIED_CACHED, cached)):
        before = place.served_bytes()
        if before is None:
            return {}
        read = fio(place.folder, (*words, *amount))["read"]["io_bytes"]
        values[row] = ((place.served_bytes() or 0) - before) / read
    return values


def _latency(name: str) -> str:
    return f"4 KiB random reads, {LIGHT_RATE} a second: {name}"


def _latency_rows(_: Amounts) -> Iterator[Row]:
    bars = {
        "p50": (Bar(Than.NULL, 3.0, at_most=True),),
        "p99": (Bar(Than.ITSELF, 5.0, at_most=True, row=_latency("p50")),),
    }
    for name in LATENCIES.values():
        yield Row(_latency(name), "µs", bars.get(name, ()), less_is_better=True)


def _latency_run(place: Place, amounts: Amounts) -> Values:
    _prepare(place, amounts)
    words = (f"--rate_iops={LIGHT_RATE}", "--percentile_list=50:99:99.9")
    timed = timed_words(2 * amounts.seconds)
    job = fio(place.folder, (*_DIRECT, *engine_words("psync", 1), *words, *timed))
    found = job["read"]["clat_ns"]["percentile"]
    return {_latency(name): found[key] / 1000 for key, name in LATENCIES.items()}


READS = Case("b", "random reads", lambda amounts: tuple(_rows(amounts)), _run)
LATENCY = Case("f", "latency", lambda amounts: tuple(_latency_rows(amounts)), _latency_run)
