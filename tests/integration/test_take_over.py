"""Two metaservers over a journal in three members of etcd: a machine is lost with its disk, and all
metaservers have the same records at the end.

What programs see of a take-over is in test_take_over_faults.py.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator

import pytest

from metaserver.fsck import check
from metaserver.owners import Owner
from metaserver.store.journaled import mark_in
from metaserver.store.journals.address import parse_journal
from metaserver.store.journals.settings import JournalSettings, open_journal
from metaserver.store.lmdb import LmdbStore
from tests.cluster.cluster import Cluster
from tests.cluster.etcd import running_etcd
from tests.cluster.plan import make_plan
from tests.cluster.process import PATIENCE, Program, wait_until

FOLLOWS_S_MAX = 60.0 * PATIENCE
KEEP = b"k" * 700


class Group:
    """The cluster, and who is active in it by what the journal says."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        self.cluster = cluster
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
            found = Group(cluster, url)
            with contextlib.closing(found):
                yield found
        finally:
            cluster.stop()


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
