"""`./dev bench replicas`: what two replicas cost beside one, and beside peers with two copies.

Two clusters of four storage servers, each a failure domain of its own: files have one replica in
the first, and two in the second. A round asks both in turn, and then each peer, whose scripts are
called with COPIES=2; medians count. All servers share the machine's one disk, so each byte of two
replicas takes twice as much of it; at a site each replica has a disk of its own.
"""

import os
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.data.amounts import FULL, MIB, QUICK, Amounts
from tests.bench.data.case import empty
from tests.bench.data.places import BraidPlace, Place, peer, peers_in
from tests.bench.data.small_files import create, epoch, file_set
from tests.bench.data.streams import read_file, write_all, write_buffered
from tests.bench.data.workers import together
from tests.bench.report import write_results
from tests.bench.scratch import scratch_folder
from tests.bench.state import settle
from tests.bench.systems import CLIENT_OPTIONS
from tests.cluster.cluster import Cluster
from tests.cluster.mounts import MountError
from tests.cluster.plan import make_plan
from tests.cluster.process import ProcessError
from tests.dev.build import build
from tests.dev.steps import console

SERVERS = 4
ONE, TWO = "one replica", "two replicas"
NAMES = {1: ONE, 2: TWO}
PROCESSES = 4
_FAILURES = (OSError, RuntimeError, subprocess.SubprocessError, MountError, ProcessError)


def _checkpoint(writers: int) -> Callable[[Place, Amounts], float]:
    """MB/s until all bytes are durable."""

    def run(place: Place, amounts: Amounts) -> float:
        done = write_all(place, writers, amounts.stream_bytes, MIB, write_buffered)
        return writers * amounts.stream_bytes / done.seconds / 1e6

    return run


def _restore(place: Place, amounts: Amounts) -> float:
    """MB/s of files that nothing has cached."""
    size = amounts.stream_bytes
    write_all(place, PROCESSES, size, MIB, write_buffered)
    place.chill()
    paths = [place.folder / f"f{number}" for number in range(PROCESSES)]
    return together([partial(read_file, path, size, MIB) for path in paths]).rate / 1e6


def _create(place: Place, amounts: Amounts) -> float:
    return create(file_set(place.folder, amounts), place.folder, amounts)


def _cold_epoch(place: Place, amounts: Amounts) -> float:
    files = file_set(place.folder, amounts)
    create(files, place.folder, amounts)
    place.chill()
    return epoch(files, PROCESSES, seed=1)


@dataclass(frozen=True, slots=True)
class Case:
    """least_share: of what one replica reaches. least_of_peers: of the best peer."""

    name: str
    unit: str
    run: Callable[[Place, Amounts], float]
    least_share: float
    least_of_peers: float | None = None


CASES = (
    Case("checkpoint, 1 writer", "MB/s", _checkpoint(1), 0.45, 2.0),
    Case("checkpoint, 4 writers", "MB/s", _checkpoint(4), 0.45, 2.0),
    Case("restore, cold, 4 readers", "MB/s", _restore, 1.0),
    Case("create with data, 4 processes", "files/s", _create, 0.45),
    Case("epoch cold, 4 processes", "files/s", _cold_epoch, 1.0),
)

Runs = dict[str, dict[str, list[float]]]  # case, system, values


def replicas(rounds: int, peers: Path | None, *, quick: bool) -> bool:
    """True when every bar that could be judged was met."""
    build(tests=True)
    amounts = QUICK if quick else replace(FULL, stream_bytes=512 * MIB)
    os.environ["COPIES"] = "2"
    runs: Runs = defaultdict(lambda: defaultdict(list))
    failures: list[str] = []
    ups = peers_in(peers)
    with cluster_with(1) as one, cluster_with(2) as two:
        places = one, two
        for round_ in range(rounds):
            for case in CASES:
                for place in places if round_ % 2 == 0 else reversed(places):
                    _measure(case, place, amounts, runs, failures)
            for up in ups:
                try:
                    with peer(up) as other:
                        for case in CASES:
                            if case.least_of_peers:
                                _measure(case, other, amounts, runs, failures)
                except _FAILURES as error:
                    failures.append(f"{up.name}: {error}")
            console.print(f"  round {round_ + 1} of {rounds} done")
    return _report(runs, [up.name.removesuffix("-up") for up in ups], failures)


def _measure(case: Case, place: Place, amounts: Amounts, runs: Runs, failures: list[str]) -> None:
    try:
        settle()
        runs[case.name][place.name].append(case.run(place, amounts))
    except _FAILURES as error:
        failures.append(f"{case.name} on {place.name}: {error}")
    finally:
        empty(place)


@contextmanager
def cluster_with(replicas: int) -> Iterator[BraidPlace]:
    """A folder of a cluster whose files have so many replicas; it is removed afterwards."""
    settings: dict[str, dict[str, object]] = {
        f"storageserver-{number}": {"domain": f"rack{number}"} for number in range(1, SERVERS + 1)
    }
    settings["metaserver"] = {"layout": {"replicas": replicas, "replicas_max": replicas}}
    with scratch_folder() as scratch:
        state = scratch / "cluster"
        plan = make_plan(
            state, storage_servers=SERVERS, client_options=CLIENT_OPTIONS, settings=settings
        )
        cluster = Cluster(plan)
        try:
            console.print(f"starting a cluster of {SERVERS} storage servers: {NAMES[replicas]}")
            cluster.start()
            place = BraidPlace(cluster)
            place.name = NAMES[replicas]
            yield place
        finally:
            cluster.stop()


def _report(runs: Runs, peers: list[str], failures: list[str]) -> bool:
    table = Table(title="two replicas beside one: medians")
    for column in ("case", "", ONE, TWO, *peers, "two beside one", "two beside the best peer"):
        table.add_column(column, justify="left" if column == "case" else "right")
    below = []
    for case in CASES:
        medians = {
            name: statistics.median(values) for name, values in runs[case.name].items() if values
        }
        verdicts = _judge(case, medians, peers)
        below += [f"{case.name}: {text}" for text, is_met in verdicts if not is_met]
        shown = [f"{medians[name]:,.0f}" if name in medians else "-" for name in (ONE, TWO, *peers)]
        texts = [f"[{'green' if is_met else 'red'}]{text}[/]" for text, is_met in verdicts]
        table.add_row(case.name, case.unit, *shown, *texts, *[""] * (2 - len(texts)))
    Console(width=max(console.width, 140)).print(table)
    content = {"below": below, "failures": failures, "cases": runs}
    print(f"all runs: {write_results('replicas', content)}")
    for line in below:
        print(f"below the bar: {line}")
    for line in failures:
        print(f"not measured: {line}")
    return not below and not failures


def _judge(case: Case, medians: dict[str, float], peers: list[str]) -> list[tuple[str, bool]]:
    if ONE not in medians or TWO not in medians:
        return [("not measured", False)]
    share = medians[TWO] / medians[ONE]
    verdicts = [(f"{share:.2f}, at least {case.least_share}", share >= case.least_share)]
    found = [medians[name] for name in peers if name in medians]
    if case.least_of_peers and found:
        times = medians[TWO] / max(found)
        verdicts.append(
            (f"{times:.2f}, at least {case.least_of_peers}", times >= case.least_of_peers)
        )
    return verdicts
