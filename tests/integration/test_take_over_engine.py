"""Faults below a group of metaservers, while four mounts are worked on: the engine of its journal
loses its leader, a disk is full, a member is replaced, a disk is slow; and PostgreSQL is restarted.

All of it costs a stall, which is printed, and neither an error nor a change that was answered as
durable. `braidfs status` has a sentence for what is wrong.
"""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.cluster.etcd import EtcdMember
from tests.cluster.groups import (
    ASKS_AGAIN,
    CRASHES,
    FAULTS,
    TAKE_OVER_S_MAX,
    Fault,
    Group,
    Mend,
    running_group,
)
from tests.cluster.networks import why_no_networks
from tests.cluster.plan import ETCD, POSTGRESQL
from tests.cluster.process import PATIENCE, wait_until
from tests.cluster.slow_disk import SlowDisk
from tests.cluster.workers import Worker

pytestmark = [pytest.mark.mount, pytest.mark.expects_warnings, pytest.mark.timeout(600 * PATIENCE)]

ShowFigure = Callable[[str], None]
STALL_S_MAX = 15.0 * PATIENCE
SMALL_DISK = 200 << 20  # etcd reserves 64 MiB for each of two files of its log
SLOW_S = 12.0


def _in_full(*values: str) -> ParameterSet:
    """Parameters of ./dev test --full."""
    return pytest.param(*values, marks=pytest.mark.full)


def _group_over(engine: str, folder: Path) -> Iterator[Group]:
    if unable := why_no_networks():
        pytest.skip(unable)
    with running_group(folder, engine) as made:
        yield made


@pytest.fixture(scope="module")
def etcd_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    yield from _group_over(ETCD, tmp_path_factory.mktemp("engine"))


@pytest.fixture(scope="module")
def postgresql_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    yield from _group_over(POSTGRESQL, tmp_path_factory.mktemp("engine"))


def _stalled(
    group: Group, workers: list[Worker], show_figure: ShowFigure, name: str, act: Callable[[], Mend]
) -> None:
    """The fault costs a stall that is not longer than it may be."""
    fault = Fault(name, lambda _: act(), is_sudden=False, is_of_engine=True)
    figure = group.broken(fault, workers)
    show_figure(f"{name}: a stall of {figure.pause_s:.2f} s")
    assert figure.pause_s < STALL_S_MAX


# ---- etcd ----------------------------------------------------------------------------------------


def test_the_leader_is_killed(etcd_group: Group, tmp_path: Path, show_figure: ShowFigure) -> None:
    group, etcd = etcd_group, etcd_group.etcd
    with group.working(tmp_path) as workers:
        leader = etcd.leader()

        def act() -> Mend:
            leader.program.kill()
            return lambda: None

        _stalled(group, workers, show_figure, "the leader is killed", act)
        leads = f"and {etcd.leader().endpoint} leads"
        print(group.wait_until_said(leader.endpoint, "of etcd is not reachable", leads))
        leader.program.start(ready=False)
        etcd.wait_healthy()


@pytest.mark.full
def test_a_member_is_removed_and_another_one_added(
    etcd_group: Group, tmp_path: Path, show_figure: ShowFigure
) -> None:
    group, etcd = etcd_group, etcd_group.etcd
    with group.working(tmp_path) as workers:
        for member, which in ((etcd.leader(), "leader"), (_follower(group), "follower")):

            def act(member: EtcdMember = member) -> Mend:
                etcd.replace(member)
                return lambda: None

            _stalled(group, workers, show_figure, f"the {which} is replaced by a new member", act)


def _follower(group: Group) -> EtcdMember:
    leader = group.etcd.leader()
    return next(one for one in group.etcd.members if one != leader)


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(
        ("mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "braidfs-test", str(folder)),
        check=True,
    )
    try:
        yield folder
    finally:
        subprocess.run(("umount", "-l", str(folder)), check=True)


def _fill(disk: Path) -> Path:
    """Takes all that is left; returns the file that has it."""
    path = disk / "full"
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return path
    raise AssertionError("the disk is not full")


@pytest.mark.full
def test_the_disk_of_one_member_is_full(
    etcd_group: Group, tmp_path: Path, show_figure: ShowFigure
) -> None:
    """It is that of the leader, which ends when it cannot write, or hangs."""
    group, etcd = etcd_group, etcd_group.etcd
    with _small_disk(tmp_path / "disk") as disk, group.working(tmp_path) as workers:
        member = etcd.replace(_follower(group), data=disk / "data")
        etcd.lead(member)
        full: list[Path] = []

        def act() -> Mend:
            full.append(_fill(disk))
            gone = wait_until(lambda: not etcd.is_healthy(member), TAKE_OVER_S_MAX)
            assert gone, "the disk is full, and nothing happens"
            return lambda: None

        _stalled(group, workers, show_figure, "the leader's disk is full", act)
        print(group.wait_until_said(member.endpoint, "of etcd is not reachable"))
        full.pop().unlink()
        member.program.stop()
        member.program.start(ready=False)
        etcd.wait_healthy()
        etcd.replace(member)


@contextmanager
def _pulses(member: EtcdMember, stopped_s: float, running_s: float) -> Iterator[Callable[[], None]]:
    """Yields what lets one pulse pass: the member is stopped, and goes on for a moment."""

    def pulse() -> None:
        member.program.signal(signal.SIGSTOP)
        time.sleep(stopped_s)
        member.program.signal(signal.SIGCONT)
        time.sleep(running_s)

    try:
        yield pulse
    finally:
        member.program.signal(signal.SIGCONT)


@pytest.mark.full
def test_the_engine_is_slow(etcd_group: Group, tmp_path: Path, show_figure: ShowFigure) -> None:
    """Its leader is stopped most of the time, but not for so long that another one is elected."""
    group, etcd = etcd_group, etcd_group.etcd
    active = group.active_name()
    with group.working(tmp_path) as workers, _pulses(etcd.leader(), 0.6, 0.15) as pulse:

        def act() -> Mend:
            until_s = time.monotonic() + SLOW_S
            while time.monotonic() < until_s:
                pulse()
            return lambda: None

        _stalled(group, workers, show_figure, "the leader is slow", act)
        print(group.wait_until_said("the journal in etcd is slow", "each fsync waits for one"))
    assert group.active_name() == active, "slowness is no reason for a take-over"


@pytest.mark.full
def test_the_disk_of_the_active_metaserver_is_slow(
    etcd_group: Group, tmp_path: Path, show_figure: ShowFigure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait of its store for the disk takes half a second: everything is slow, and nobody takes
    over."""
    group = etcd_group
    disk = SlowDisk(tmp_path / "slow")
    standby = next(one for one in group.cluster.metaservers if one.name != group.active_name())
    standby.stop()
    with monkeypatch.context() as patch:
        for name, value in disk.environment.items():
            patch.setenv(name, value)
        standby.start()
    group.wait_for_standby()
    FAULTS["switch"].act(group)
    assert group.active_name() == standby.name
    with group.working(tmp_path) as workers:

        def act() -> Mend:
            disk.take(500)
            time.sleep(SLOW_S)
            return lambda: disk.take(0)

        began_s = time.monotonic()
        _stalled(group, workers, show_figure, "the active's disk is slow", act)
        waits = [row.ended_s - row.began_s for one in workers for row in one.waits(began_s)]
        assert sum(wait_s > 0.4 for wait_s in waits) > 10, "the disk was not slow"
        assert group.active_name() == standby.name, "slowness is no reason for a take-over"


# ---- what `braidfs status` says of a metaserver that is lost -------------------------------------


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("kill", "its host answers, but nothing listens there: the program has ended"),
        _in_full(
            "pause", "it accepts connections and answers nothing: the program is stopped, or hangs"
        ),
        _in_full("cut", "its host cannot be reached from here"),
        _in_full("cut-from-engine", "it runs, and answers: it does not reach the journal"),
    ],
    ids=list(CRASHES),
)
def test_what_status_says_of_the_one_that_is_lost(etcd_group: Group, kind: str, words: str) -> None:
    group = etcd_group
    group.wait_for_standby()
    lost = group.active_plan()
    mend = CRASHES[kind].act(group)
    try:
        assert wait_until(lambda: group.active_name() != lost.name, TAKE_OVER_S_MAX)
        sentence = group.wait_until_said("there is no standby metaserver", lost.name, words)
        print(sentence)
        said = group.status()
        assert said.code == 3 and words in " ".join(said.text.split())
    finally:
        mend()
    group.wait_for_standby()
    assert not [one for one in group.status().sentences() if "standby" in one]


# ---- PostgreSQL ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", _in_full("kill")])
def test_postgresql_is_restarted(
    postgresql_group: Group, tmp_path: Path, show_figure: ShowFigure, how: str
) -> None:
    group, server = postgresql_group, postgresql_group.postgresql
    with group.working(tmp_path) as workers:

        def act() -> Mend:
            getattr(server, how)()
            server.start()
            return lambda: None

        _stalled(group, workers, show_figure, f"PostgreSQL: {how}, and start", act)


@pytest.mark.full
def test_postgresql_is_away_for_a_while(
    postgresql_group: Group, tmp_path: Path, show_figure: ShowFigure
) -> None:
    """For longer than the active metaserver's lease: it goes on when the engine is back."""
    group, server = postgresql_group, postgresql_group.postgresql
    with group.working(tmp_path) as workers:

        def act() -> Mend:
            server.stop()
            time.sleep(6)
            server.start()
            return lambda: None

        _stalled(group, workers, show_figure, "PostgreSQL is away for 6 s", act)


@pytest.mark.parametrize("kind", [one if one == "kill" else _in_full(one) for one in FAULTS])
def test_take_overs_with_postgresql(
    postgresql_group: Group, tmp_path: Path, show_figure: ShowFigure, kind: str
) -> None:
    group = postgresql_group
    with group.working(tmp_path) as workers:
        figure = group.broken(FAULTS[kind], workers)
        show_figure(f"PostgreSQL, {kind}: {figure.pause_s:.2f} s")
        assert figure.pause_s < (8.0 if kind in CRASHES else 0.7) * PATIENCE
        assert not any(figure.asked[op] for op in ASKS_AGAIN), figure.asked
