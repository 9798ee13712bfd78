"""Two metaservers over a journal in three members of etcd: one is lost, the other takes over.

Programs on two mounts create, sync, rename, lock and read all the time. Whatever happens to the
active metaserver, to its disk or to the engine's leader, they see no error, only a pause, which is
printed; nothing that was answered is missing afterwards.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from metaserver.fsck import check
from metaserver.owners import Owner
from metaserver.store.journaled import mark_in
from metaserver.store.journals.address import parse_journal
from metaserver.store.journals.settings import JournalSettings, open_journal
from metaserver.store.lmdb import LmdbStore
from tests.cluster.cluster import Cluster
from tests.cluster.etcd import EtcdCluster, running_etcd
from tests.cluster.plan import make_plan
from tests.cluster.process import PATIENCE, Program, wait_until

TAKE_OVER_S_MAX = 60.0 * PATIENCE  # a bound of the test, not what is promised
FOLLOWS_S_MAX = 60.0 * PATIENCE
KEEP = b"k" * 700


@dataclass
class Worker:
    """One thread of a program. kept: what was answered as durable, by name. pauses: how long each
    operation took, with when it ended."""

    folder: Path
    kept: dict[str, bytes] = field(default_factory=dict)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    ends: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        try:
            number = 0
            while not self.ends.is_set():
                began_s = time.monotonic()
                self._work(number)
                number += 1
                self.pauses.append((time.monotonic(), time.monotonic() - began_s))
        except BaseException as error:
            self.errors.append(error)

    def _work(self, number: int) -> None:
        content = KEEP + str(number).encode()
        made, name = self.folder / f"made{number}", f"f{number}"
        with open(made, "wb", buffering=0) as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            file.write(content)
            os.fsync(file.fileno())
        made.rename(self.folder / name)
        self._sync_folder()
        self.kept[name] = content
        if number % 3 == 2:
            gone = f"f{number - 1}"
            del self.kept[gone]
            (self.folder / gone).unlink()
        if number % 5 == 4:
            assert (self.folder / name).read_bytes() == content

    def _sync_folder(self) -> None:
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def longest_since(self, since_s: float) -> float:
        return max((took_s for ended_s, took_s in self.pauses if ended_s > since_s), default=0.0)


class Group:
    """The cluster, and who is active in it by what the journal says."""

    def __init__(self, cluster: Cluster, etcd: EtcdCluster, url: str) -> None:
        self.cluster = cluster
        self.etcd = etcd
        self._door = open_journal(JournalSettings(parse_journal(url)))

    def close(self) -> None:
        self._door.close()

    def active(self) -> Program:
        owner = Owner.of(self._door.sighting().head.owner)
        assert owner is not None, "nobody is active"
        return next(one for one in self.cluster.metaservers if one.name == owner.name)

    def standby_has_followed(self) -> bool:
        """Whether both have reported the newest entry that was there before."""
        index = self._door.sighting().head.index
        members = self._door.members()
        return len(members) == 2 and all(one.applied >= index - 200 for one in members)

    def wait_followed(self) -> None:
        assert wait_until(self.standby_has_followed, FOLLOWS_S_MAX), "the standby never followed"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("take-over")
    with running_etcd(folder / "etcd", 3) as etcd:
        url = f"etcd://{','.join(etcd.endpoints)}/braidfs"
        plan = make_plan(
            folder / "cluster",
            storage_servers=2,
            metaservers=2,
            settings={"metaserver": {"journal": url}},
        )
        cluster = Cluster(plan)
        try:
            cluster.start()
            found = Group(cluster, etcd, url)
            with contextlib.closing(found):
                yield found
        finally:
            cluster.stop()


@contextlib.contextmanager
def working(group: Group, where: str) -> Iterator[list[Worker]]:
    """Four threads on two mounts, until the end of the block; then everything is looked at, through
    the other mount each."""
    second = group.cluster.plan.state / "second"
    with group.cluster.second_client(second):
        roots = (group.cluster.mount_path, second)
        workers = []
        for index in range(4):
            folder = roots[index % 2] / f"{where}-{index}"
            folder.mkdir()
            workers.append(Worker(folder))
        threads = [threading.Thread(target=one.run) for one in workers]
        for thread in threads:
            thread.start()
        try:
            yield workers
        finally:
            for worker in workers:
                worker.ends.set()
            for thread in threads:
                thread.join(TAKE_OVER_S_MAX)
        assert [error for worker in workers for error in worker.errors] == []
        for index, worker in enumerate(workers):
            there = roots[1 - index % 2] / worker.folder.name
            assert {one.name for one in there.iterdir()} >= set(worker.kept)
            for name, content in worker.kept.items():
                assert (there / name).read_bytes() == content


def _kill(group: Group) -> Callable[[], None]:
    active = group.active()
    active.kill()
    return lambda: print(f"started again as {active.start()}")


def _pause(group: Group) -> Callable[[], None]:
    """It is stopped for longer than its lease, and goes on as if nothing had happened."""
    active = group.active()
    active.signal(signal.SIGSTOP)
    return lambda: active.signal(signal.SIGCONT)


def _stop(group: Group) -> Callable[[], None]:
    active = group.active()
    active.stop()
    return lambda: print(f"started again as {active.start()}")


def _kill_leader(group: Group) -> Callable[[], None]:
    """The engine goes on with another leader; the metaserver stays active or is followed."""
    leader = group.etcd.leader()
    leader.program.kill()

    def start() -> None:
        leader.program.start(ready=False)
        group.etcd.wait_healthy()

    return start


def _break(
    group: Group, workers: list[Worker], fault: Callable[[Group], Callable[[], None]]
) -> float:
    """Returns the longest pause that a program has seen."""
    group.wait_followed()
    began_s = time.monotonic()
    counts = [len(one.pauses) for one in workers]
    mend = fault(group)

    def all_go_on() -> bool:
        return all(
            worker.errors or len(worker.pauses) > count + 3
            for worker, count in zip(workers, counts, strict=True)
        )

    assert wait_until(all_go_on, TAKE_OVER_S_MAX), "nobody has taken over"
    longest_s = max(worker.longest_since(began_s) for worker in workers)
    mend()
    return longest_s


@pytest.mark.timeout(600 * PATIENCE)
@pytest.mark.parametrize("fault", [_kill, _pause, _stop, _kill_leader])
def test_programs_see_a_pause_and_nothing_else(
    group: Group, fault: Callable[[Group], Callable[[], None]]
) -> None:
    with working(group, fault.__name__.strip("_")) as workers:
        assert wait_until(lambda: all(len(one.pauses) > 3 for one in workers), TAKE_OVER_S_MAX)
        print(f"{fault.__name__}: a pause of {_break(group, workers, fault):.2f} s")
    group.wait_followed()


@pytest.mark.timeout(600 * PATIENCE)
def test_a_lost_machine_is_replaced_by_an_empty_one(group: Group) -> None:
    """The active one is killed and its disk wiped: the other one goes on, and the new one copies.
    Then that one alone is enough."""
    group.wait_followed()
    name = "kept-over-two-machines"
    (group.cluster.mount_path / name).write_bytes(KEEP)
    for _ in range(2):
        active = group.active()
        active.kill()
        plan = next(one for one in group.cluster.plan.metaservers if one.name == active.name)
        first = plan is group.cluster.plan.metaserver
        shutil.rmtree(group.cluster.plan.state / ("meta" if first else plan.name))
        (group.cluster.mount_path / f"{name}.more").write_bytes(KEEP)
        copies = _copies(active)
        print(f"started again as {active.start()}")
        assert wait_until(lambda: _copies(active) > copies, FOLLOWS_S_MAX), "no copy"  # noqa: B023
        group.wait_followed()
        assert (group.cluster.mount_path / name).read_bytes() == KEEP


def _copies(program: Program) -> int:
    return program.log_path.read_text().count("took a copy of the state")


@pytest.mark.timeout(600 * PATIENCE)
def test_the_stores_are_the_same_at_the_end(group: Group) -> None:
    """After a planned stop of both: the same mark, the same records, and both consistent."""
    group.wait_followed()
    cluster = group.cluster
    cluster.unmount()
    active = group.active()
    other = next(one for one in cluster.metaservers if one.name != active.name)
    time.sleep(1.0)  # the last entries reach the standby
    other.stop()
    active.stop()
    found = []
    for folder in ("meta", "metaserver-2"):
        store = LmdbStore(cluster.plan.state / folder / "store", size_max=0)
        try:
            snapshot = store.snapshot()
            assert check(snapshot) == []
            found.append((mark_in(snapshot), dict(snapshot.range(b"", b"\xff"))))
            snapshot.close()
        finally:
            store.close()
    mark, mark_of_standby = (one[0] for one in found)
    if mark == mark_of_standby:
        assert found[0][1] == found[1][1]
    else:  # the one that ended last may have written what the other one never saw
        assert mark is not None and mark_of_standby is not None and mark.log == mark_of_standby.log
    cluster.start()
    assert (cluster.mount_path / "kept-over-two-machines").read_bytes() == KEEP


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_fifty_take_overs(group: Group) -> None:
    faults = [_kill, _pause, _stop] * 17
    pauses: dict[str, list[float]] = {}
    with working(group, "fifty") as workers:
        assert wait_until(lambda: all(len(one.pauses) > 3 for one in workers), TAKE_OVER_S_MAX)
        for fault in faults:
            pauses.setdefault(fault.__name__, []).append(_break(group, workers, fault))
            time.sleep(1.0)
    for name, found in pauses.items():
        print(f"{name}: median {statistics.median(found):.2f} s, longest {max(found):.2f} s")
    crashes = sorted(pauses["_kill"] + pauses["_pause"])
    assert statistics.median(crashes) < 6 * PATIENCE
    assert statistics.median(pauses["_stop"]) < 2 * PATIENCE
