"""Checkpoints by braidfs.checkpoint.torch beside torch's own (`--torch`): saves and loads of DCP by
four ranks, one file, the commit of eight ranks, and eight ranks that read one replicated state.

tests.torch.job does the work of a rank, in the environment of the extra `bench` that has torch. All
saves end with fsync, all loads begin with nothing cached; the ways take turns, and each of them is
the first as often as the others. CPU is that of the ranks, without the mount's.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from braidfs.checkpoint import Checkpoints
from tests.bench.data import buffers
from tests.bench.data.amounts import GIB, MIB, Amounts
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.places import NullPlace, Place
from tests.bench.data.training import PACKAGES
from tests.bench.data.workers import together
from tests.dev.extras import python_of
from tests.torch.start import Seen, job

RANKS, MANY = 4, 8
STOCK, OURS, PAST = "FileSystemWriter", "Writer", "Writer, O_DIRECT"
SAVE = "save by DCP, 4 ranks, {}"
SAVE_CPU = "CPU of the ranks per GiB saved, {}"
ONE_FILE = "save of one file and fsync, {}"
LOAD = "load by DCP, cold, 4 ranks, {}"
READERS = ("FileSystemReader", "Reader")
COMMIT = "commit, 8 ranks, after the last fsync"
ONE_RANK = "load of one state by 1 rank, cold"
SHARED = "load of one state by 8 ranks, cold, share {}"
SERVED = "bytes from servers per byte of one state, 8 ranks, share {}"
SHARES = (None, "node", "job")
_WORKS: Mapping[str, Mapping[str, object]] = {
    STOCK: {"kind": "torch"},
    OURS: {"kind": "ours"},
    PAST: {"kind": "ours", "direct": True},
}


def _rows(_: Amounts) -> Iterator[Row]:
    for way in _WORKS:
        bars = (Bar(Than.ITSELF, 1.7, row=SAVE.format(STOCK)),) if way == OURS else ()
        yield Row(SAVE.format(way), "MB/s", bars)
    for way in _WORKS:
        cpu_bars = (Bar(Than.VALUE, 0.15, at_most=True),) if way == OURS else ()
        yield Row(SAVE_CPU.format(way), "s", cpu_bars, less_is_better=True)
    for way in ("torch.save", "save"):
        yield Row(ONE_FILE.format(way), "MB/s")
    for reader in READERS:
        bars = (Bar(Than.ITSELF, 1.7, row=LOAD.format(READERS[0])),) if reader == "Reader" else ()
        yield Row(LOAD.format(reader), "MB/s", bars)
    yield Row(COMMIT, "ms", (Bar(Than.VALUE, 30, at_most=True),), less_is_better=True)
    yield Row(ONE_RANK, "s", less_is_better=True)
    for share in SHARES:
        wall = (Bar(Than.ITSELF, 1.3, at_most=True, row=ONE_RANK),) if share == "node" else ()
        yield Row(SHARED.format(share), "s", wall, less_is_better=True)
    for share in SHARES:
        served = (Bar(Than.VALUE, 1.05, at_most=True),) if share == "node" else ()
        yield Row(SERVED.format(share), "", served, less_is_better=True)


def _run(python: str, place: Place, amounts: Amounts, turn: Iterator[int]) -> Values:
    if isinstance(place, NullPlace):
        return {}
    number = next(turn)
    values: dict[str, float] = {}
    for part in (_saves_and_loads, _one_file, _replicated):
        values |= part(python, place, amounts.stream_bytes, number)
        for path in place.folder.iterdir():
            shutil.rmtree(path)
    return {**values, COMMIT: _commit_ms(place.folder)}


def _turned(ways: Sequence[str], number: int) -> list[str]:
    """The ways, each the first in one of so many rounds."""
    first = number % len(ways)
    return [*ways[first:], *ways[:first]]


def _saves_and_loads(python: str, place: Place, size: int, number: int) -> Values:
    values: dict[str, float] = {}
    ways = _turned(list(_WORKS), number)
    works = [
        {"action": "save", "path": way, "step": 1, "size": size, "seed": 1, **_WORKS[way]}
        for way in ways
    ]
    with job(python, [place.folder] * RANKS, works) as running:
        for way in ways:
            os.sync()
            seen = running.next()
            values[SAVE.format(way)] = _rate(seen)
            cpu_s = sum(one["cpu_s"] for one in seen)
            values[SAVE_CPU.format(way)] = cpu_s / sum(one["bytes"] for one in seen) * GIB
    readers = _turned(READERS, number)
    kinds = {"FileSystemReader": "torch", "Reader": "ours"}
    works = [
        {"action": "load", "path": OURS, "step": 1, "size": size, "kind": kinds[reader]}
        for reader in readers
    ]
    with job(python, [place.folder] * RANKS, works) as running:
        for reader in readers:
            place.chill()
            values[LOAD.format(reader)] = _rate(running.next())
    return values


def _one_file(python: str, place: Place, size: int, number: int) -> Values:
    ways = _turned(("torch.save", "save"), number)
    works = [{"action": "file", "kind": way, "path": way, "size": size, "seed": 1} for way in ways]
    values: dict[str, float] = {}
    with job(python, [place.folder], works) as running:
        for way in ways:
            os.sync()
            values[ONE_FILE.format(way)] = _rate(running.next())
    return values


def _replicated(python: str, place: Place, size: int, number: int) -> Values:
    """The ranks of a node all load what one of them has saved."""
    common = {"path": "whole", "step": 1, "size": size, "replicated": True, "kind": "ours"}
    with job(python, [place.folder], [{"action": "save", "seed": 1, **common}]) as running:
        running.next()
    files = (place.folder / "whole").rglob("*.distcp")
    stored = sum(path.stat().st_size for path in files)
    values: dict[str, float] = {}
    with job(python, [place.folder], [{"action": "load", **common}]) as running:
        place.chill()
        values[ONE_RANK] = _seconds(running.next())
    shares = SHARES[number % 3 :] + SHARES[: number % 3]
    works = [{"action": "load", "share": share, **common} for share in shares]
    with job(python, [place.folder] * MANY, works) as running:
        for share in shares:
            place.chill()
            before = place.served_bytes()
            values[SHARED.format(share)] = _seconds(running.next())
            after = place.served_bytes()
            if before is not None and after is not None:
                values[SERVED.format(share)] = (after - before) / stored
    return values


def _commit_ms(folder: Path) -> float:
    """From the last fsync of a rank to the moment when the last rank knows of the commit."""
    root = folder / "commits"

    def part(rank: int, step: int) -> float:
        with Checkpoints(root).begin(step, part=rank, parts=MANY, attempt="bench") as c:
            with c.file(f"{rank}") as file:
                file.write(buffers.filled(MIB))
                file.flush()
                os.fsync(file.fileno())
            durable_s = time.monotonic()
        c.wait()
        return durable_s

    seen = []
    for step in range(1, 6):
        works: list[Callable[[], float]] = [partial(part, rank, step) for rank in range(MANY)]
        shares = together(works).shares
        last_s = max(one.count for one in shares)
        seen.append(max(one.ended_s for one in shares) - last_s)
    return sorted(seen)[len(seen) // 2] * 1e3


def _rate(seen: Sequence[Seen]) -> float:
    return sum(one["bytes"] for one in seen) / _seconds(seen) / 1e6


def _seconds(seen: Sequence[Seen]) -> float:
    return max(one["seconds"] for one in seen)


def torch_checkpoints() -> Case:
    """Installs PyTorch first, if it is not there yet."""
    python = os.environ.get("BRAIDFS_TORCH_PYTHON") or python_of("bench", PACKAGES)
    turns: dict[str, Iterator[int]] = {}

    def run(place: Place, amounts: Amounts) -> Values:
        turn = turns.setdefault(place.name, iter(range(1_000_000)))
        return _run(python, place, amounts, turn)

    return Case("k", "checkpoints of PyTorch", lambda amounts: tuple(_rows(amounts)), run)
