"""A lost server costs nothing: programs on a mount, whose files have two replicas, see no error and
no wrong byte, and do not wait for long, whatever happens to one of four storage servers.

BRAIDFS_TEST_SEED decides about victim, moments, and all that programs do. BRAIDFS_FAULT_PROGRAMS
says which programs run (a,b,c).
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster import programs
from tests.cluster.networks import why_no_networks
from tests.cluster.process import PATIENCE, wait_until
from tests.cluster.workers import READ, WRITE, Worker, all_go_on
from tests.conftest import ClusterMaker

from .mirror_faults import FAULTS, REBUILD_AFTER_S, WHOLE_S, Fault, Mend, Site, running_site
from .test_disks import UNSERVED

pytestmark = [
    pytest.mark.mount,
    pytest.mark.timeout(480 * PATIENCE),
    pytest.mark.expects_warnings,
    pytest.mark.expects_log(UNSERVED),
]

SEEDS = 3  # of each fault, in the long form
SHORT = (("kill", 3.0), ("full", 1.0), ("stop", 11.0))  # for how many seconds
GO_ON = 4  # operations of each program, which show that it goes on
GO_ON_S_MAX = 150.0 * PATIENCE
CHECKPOINT, LARGE_CHECKPOINT = 3 << 20, 24 << 20
ShowFigure = Callable[[str], None]
FULL = "written bytes were lost: status 28"  # its programs are told ENOSPC, too
LOST = "fdatasync failed|cannot sync or checkpoint"  # its directory is gone
LOG_LINES = {"filled-up": FULL, "removed": LOST}  # of storage servers and clients, by fault
FAULT_CASES = [
    pytest.param(name, marks=pytest.mark.expects_log(LOG_LINES[name]) if name in LOG_LINES else ())
    for name in FAULTS
]


def _chance(request: pytest.FixtureRequest) -> tuple[random.Random, int]:
    """Prints the command that repeats it."""
    seed = int(os.environ.get("BRAIDFS_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    names = ",".join(_names())
    print(
        f"repeat with: BRAIDFS_TEST_SEED={seed} BRAIDFS_FAULT_PROGRAMS={names}"
        f" ./dev test --full '{request.node.nodeid}'"
    )
    return random.Random(seed), seed


def _names(*, may_be_full: bool = False) -> list[str]:
    """may_be_full: without those that end when they are told that there is no room."""
    names = os.environ.get("BRAIDFS_FAULT_PROGRAMS", ",".join(programs.PROGRAMS)).split(",")
    return [one for one in names if not may_be_full or one in programs.BEAR_ENOSPC]


class Run:
    """Programs on a site: what befell it, and what they waited for since."""

    def __init__(self, site: Site, folder: Path, workers: dict[str, Worker]) -> None:
        self.site = site
        self.folder = folder
        self.workers = workers
        self.figures: list[str] = []
        self._late: list[str] = []

    def go_on(self) -> None:
        assert all_go_on(list(self.workers.values()), GO_ON_S_MAX, GO_ON), "no progress"

    def strike(self, fault: Fault) -> tuple[Mend, float]:
        """At a random moment. Returns how to mend it, and when it was."""
        self.go_on()
        time.sleep(self.site.chance.uniform(0.0, 2.0))
        since_s = time.monotonic()
        return fault.act(self.site), since_s

    def meet(self, fault: Fault) -> None:
        """Breaks and mends, with the programs going on all the time."""
        mend, since_s = self.strike(fault)
        time.sleep(self.site.chance.uniform(*fault.hold_s))
        mend()
        self.go_on()
        self.note_waits(fault, since_s)

    def note_waits(self, fault: Fault, since_s: float) -> None:
        words = []
        for name, worker in self.workers.items():
            read_s, write_s = (programs.longest_s(worker, kind, since_s) for kind in (READ, WRITE))
            words.append(f"{name} {read_s:.2f} and {write_s:.2f}")
            # fsx reads what it has just written, and holes, in which a replica has no object: that
            # waits, as its writes do, until the lost replica is dropped.
            bound_s = fault.waits.write_s if name.startswith("fsx") else fault.waits.read_s
            if read_s > bound_s * PATIENCE or write_s > fault.waits.write_s * PATIENCE:
                self._late.append(f"{fault.name}: {words[-1]} s")
        self.figures.append(f"{fault.name}: longest read and write in s: {', '.join(words)}")

    def end(self) -> None:
        """All is well: programs saw no error and no wrong byte, and objects are whole."""
        outcomes = {worker.folder: worker.stop() for worker in self.workers.values()}
        assert [one.error for one in outcomes.values() if one.error] == []
        self.site.end_jobs()
        self.site.check_objects()
        self.site.cluster.remount()
        for folder, outcome in outcomes.items():
            assert programs.changed(folder, outcome.kept) == [], folder
        assert self._late == [], "programs waited for too long"


@contextmanager
def working(
    site: Site, local: Path, seed: int, *, may_be_full: bool = False, size: int = LARGE_CHECKPOINT
) -> Iterator[Run]:
    folder = site.cluster.mount_path / "d"
    folder.mkdir()
    workers = programs.start(
        folder, local, _names(may_be_full=may_be_full), seed, may_be_full=may_be_full, size=size
    )
    run = Run(site, folder, workers)
    try:
        yield run
        run.end()
    finally:
        for worker in workers.values():
            worker.tell_to_stop()
        for worker in workers.values():
            if not worker.has_ended:
                worker.stop()
        print(*run.figures, sep="\n")


def _skip_without(faults: Sequence[Fault]) -> None:
    unable = why_no_networks() if any(one.has_network for one in faults) else None
    if unable:
        pytest.skip(unable)


@pytest.mark.timeout(120 * PATIENCE)
def test_one_after_the_other(
    request: pytest.FixtureRequest,
    make_cluster: ClusterMaker,
    localdir: Path,
    show_figure: ShowFigure,
) -> None:
    """The short form: small programs, and three faults."""
    chance, seed = _chance(request)
    with (
        running_site(make_cluster, localdir, chance, disks=1) as site,
        working(site, localdir, seed, size=CHECKPOINT) as run,
    ):
        for name, hold_s in SHORT:
            run.meet(replace(FAULTS[name], hold_s=(hold_s, hold_s)))
    for line in run.figures:
        show_figure(line)


@pytest.mark.full
@pytest.mark.parametrize("number", range(SEEDS))
@pytest.mark.parametrize("name", FAULT_CASES)
def test_fault(
    request: pytest.FixtureRequest,
    make_cluster: ClusterMaker,
    localdir: Path,
    show_figure: ShowFigure,
    name: str,
    number: int,
) -> None:
    chance, seed = _chance(request)
    fault = FAULTS[name]
    _skip_without([fault])
    with (
        running_site(
            make_cluster, localdir, chance, has_network=fault.has_network, disks=fault.disks
        ) as site,
        working(site, localdir, seed, may_be_full=fault.may_be_full) as run,
    ):
        run.meet(fault)
    for line in run.figures:
        show_figure(line)


@pytest.mark.full
@pytest.mark.parametrize("number", range(SEEDS))
def test_a_second_one_dies_during_the_rebuild(
    request: pytest.FixtureRequest,
    make_cluster: ClusterMaker,
    localdir: Path,
    show_figure: ShowFigure,
    number: int,
) -> None:
    """With three replicas."""
    chance, seed = _chance(request)
    kill = FAULTS["kill"]
    with (
        running_site(make_cluster, localdir, chance, replicas=3) as site,
        working(site, localdir, seed) as run,
    ):
        mend_first, since_s = run.strike(kill)
        assert wait_until(
            lambda: any(one["kind"] == "rebuild" for one in site.unfinished()),
            REBUILD_AFTER_S + WHOLE_S,
        )
        run.note_waits(kill, since_s)
        first, site.victim = site.victim, (site.victim + chance.randrange(1, 4)) % 4
        mend_second, since_s = run.strike(kill)
        time.sleep(chance.uniform(*kill.hold_s))
        run.go_on()
        run.note_waits(kill, since_s)
        mend_second()
        site.victim = first
        mend_first()
        run.go_on()
    for line in run.figures:
        show_figure(line)
