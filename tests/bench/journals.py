"""`./dev bench journals`: what a journal costs, beside the embedded default.

One cluster with a single metaserver, and one with two metaservers for each engine (three etcd, one
PostgreSQL), all on one disk and running at once. A round asks all of them in turn; medians count.
Engines and metaservers share the machine's cores and disk here, which they do not at a site: rates
are the least that can be expected, and latencies lack the network's round trips.
"""

import os
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.cases import create_files, timed
from tests.bench.report import write_results
from tests.bench.scratch import scratch_folder
from tests.bench.state import settle
from tests.cluster.cluster import Cluster
from tests.cluster.plan import make_plan
from tests.dev.build import build
from tests.dev.steps import console

EMBEDDED = "embedded"
ENGINES = ("etcd", "postgresql")
FILES = 6_000  # the total number of a case of rates
CALLS = 300  # the number of a case of latencies
BLOCK = b"\xa5" * 4096


def _creates(processes: int) -> Callable[[Path], float]:
    """Empty files a second, in a folder for each process, until the last close is answered."""

    def run(base: Path) -> float:
        folders = [base / f"p{number}" for number in range(processes)]
        for folder in folders:
            folder.mkdir()
        return FILES / timed(create_files, folders, FILES // processes)

    return run


def _latencies(call: Callable[[Path, int], None]) -> Callable[[Path], float]:
    """The median of so many calls, one after another, in ms."""

    def run(base: Path) -> float:
        taken = []
        for number in range(CALLS):
            began = time.monotonic()
            call(base, number)
            taken.append((time.monotonic() - began) * 1000)
        return statistics.median(taken)

    return run


def _create_and_sync(base: Path, number: int) -> None:
    fd = os.open(base / f"{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, BLOCK)
    os.fsync(fd)
    os.close(fd)


def _append_and_sync(base: Path, _number: int) -> None:
    fd = os.open(base / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.write(fd, BLOCK)
    os.fsync(fd)
    os.close(fd)


def _rename_and_sync(base: Path, number: int) -> None:
    (base / f"r{number}").touch()
    os.rename(base / f"r{number}", base / "renamed")
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


@dataclass(frozen=True, slots=True)
class Case:
    """least_share: of the embedded default's rate. most_more_ms: than its latency. They are bars
    for etcd, the default engine."""

    name: str
    unit: str
    run: Callable[[Path], float]
    least_share: float | None = None
    most_more_ms: float | None = None


CASES = (
    *(
        Case(f"create, {count} processes", "files/s", _creates(count), least_share=0.9)
        for count in (1, 4, 16)
    ),
    Case("create, write 4 KiB, fsync", "ms", _latencies(_create_and_sync), most_more_ms=3.0),
    Case("append 4 KiB, fsync", "ms", _latencies(_append_and_sync), most_more_ms=3.0),
    Case("rename, fsync of the directory", "ms", _latencies(_rename_and_sync), most_more_ms=3.0),
)

Runs = dict[str, dict[str, list[float]]]  # case, system, values


def journals(rounds: int) -> bool:
    """True when every bar was met."""
    build()
    runs: Runs = defaultdict(lambda: defaultdict(list))
    with _clusters() as folders:
        for round_ in range(rounds):
            for case in CASES:
                for system, folder in folders.items():
                    base = folder / f"{round_}-{CASES.index(case)}"
                    base.mkdir()
                    settle()
                    runs[case.name][system].append(case.run(base))
                    shutil.rmtree(base)
            console.print(f"  round {round_ + 1} of {rounds} done")
    return _report(runs)


@contextmanager
def _clusters() -> Iterator[dict[str, Path]]:
    """Where each cluster is mounted. They are removed afterwards."""
    folders = {}
    with scratch_folder() as scratch, ExitStack() as stack:
        for system in (EMBEDDED, *ENGINES):
            console.print(f"starting a cluster: {system}")
            journal = None if system == EMBEDDED else system
            count = 1 if journal is None else 2
            plan = make_plan(scratch / system, metaservers=count, journal=journal)
            cluster = Cluster(plan)
            stack.callback(cluster.stop)
            cluster.start()
            folders[system] = cluster.mount_path
        yield folders


def _report(runs: Runs) -> bool:
    table = Table(title="a journal beside the embedded default: medians")
    for column in ("case", "", EMBEDDED, *ENGINES, "etcd beside embedded"):
        table.add_column(column, justify="left" if column == "case" else "right")
    below = []
    for case in CASES:
        medians = {name: statistics.median(values) for name, values in runs[case.name].items()}
        text, met = _judge(case, medians)
        if not met:
            below.append(f"{case.name}: {text}")
        values = [f"{medians[name]:,.{0 if case.least_share else 2}f}" for name in medians]
        table.add_row(case.name, case.unit, *values, f"[{'green' if met else 'red'}]{text}[/]")
    Console(width=max(console.width, 120)).print(table)
    print(f"all runs: {write_results('journals', {'failures': below, 'cases': runs})}")
    for line in below:
        print(f"below the bar: {line}")
    return not below


def _judge(case: Case, medians: dict[str, float]) -> tuple[str, bool]:
    embedded, etcd = medians[EMBEDDED], medians["etcd"]
    if case.least_share is not None:
        share = etcd / embedded
        return f"{share:.2f}, at least {case.least_share}", share >= case.least_share
    more = etcd - embedded
    most = case.most_more_ms or 0.0
    return f"{more:+.2f} ms, at most {most:+}", more <= most
