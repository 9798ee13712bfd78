"""An etcd that others have filled: changes wait, and go on by themselves when there is room.

Real metaservers over three real members of etcd with a small quota, under a program that writes.
"""

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaserver.store.journal import JournalFullError
from metaserver.store.journals.etcd import EtcdJournal
from metaserver.store.journals.etcd_care import ROOM
from metaserver.store.journals.etcd_gateway import EtcdSettings
from tests.cluster.cluster import Cluster
from tests.cluster.etcd import EtcdCluster, running_etcd
from tests.cluster.process import PATIENCE, wait_until
from tests.conftest import ClusterMaker

from .test_etcd_journal import append
from .test_meta_switch import GroupCli, writing

pytestmark = [
    pytest.mark.mount,
    pytest.mark.timeout(600),
    pytest.mark.expects_warnings,
    pytest.mark.expects_log("changes wait: the journal is full"),
]
MIB = 1 << 20
QUOTA = 32 * MIB
RECOVERS_S_MAX = 240.0 * PATIENCE
PIECE = 60_000  # bytes; larger ones leave more room in the files, which comes back again and again


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path, 3, quota=QUOTA) as running:
        yield running


@pytest.fixture
def cluster(make_cluster: ClusterMaker, etcd: EtcdCluster) -> Cluster:
    journal = f"etcd://{','.join(etcd.endpoints)}/braidfs"
    return make_cluster(
        storage_servers=1,
        metaservers=2,
        settings={"metaserver": {"journal": journal}},
        client_options=("hard",),
    )


def fill(etcd: EtcdCluster) -> None:
    """As another program that uses this etcd, and wants more than can be made free in its files."""
    other = EtcdJournal(EtcdSettings(etcd.endpoints, "/other", timeout_s=20.0 * PATIENCE))
    piece = random.Random(1).randbytes(PIECE)
    deadline = time.monotonic() + RECOVERS_S_MAX
    with contextlib.closing(other):
        head = other.claim(other.sighting(), "another program")
        while True:
            try:
                head = append(other, head, piece, RECOVERS_S_MAX)
            except JournalFullError:
                if head.index * PIECE > ROOM * QUOTA:
                    return
                assert time.monotonic() < deadline, head
                time.sleep(0.1)


def test_changes_go_on_by_themselves(cluster: Cluster, etcd: EtcdCluster) -> None:
    cli = GroupCli(cluster)
    assert wait_until(lambda: len(cli.roles()) == 2, 60 * PATIENCE)
    import sys

    t0 = time.monotonic()
    say = lambda *x: print(round(time.monotonic() - t0, 1), *x, file=open("/tmp/full_times", "a"))
    with writing(cluster.mount_path / "folder") as took:
        assert wait_until(lambda: len(took) > 10, 60 * PATIENCE)
        fill(etcd)
        say("filled", alarms(etcd), len(took))
        assert wait_until(lambda: alarms(etcd) > 0, 20 * PATIENCE)
        # Requests that were under way when etcd was full may have been done.
        assert wait_until(lambda: stands_still(took), 30 * PATIENCE)
        say("still", len(took))
        count = len(took)
        etcd.control("del", "--prefix", "/other")
        say("deleted")
        assert wait_until(lambda: len(took) > count + 10, RECOVERS_S_MAX)
        say("on", len(took))
    for number in range(max(1, len(took) - 49), len(took) + 1):  # the newest of each name
        path = cluster.mount_path / "folder" / f"renamed {number % 50}"
        assert path.read_bytes() == b"x" * (number % 5000)
    assert alarms(etcd) == 0
    servers = cli.status()["journal"]["servers"]
    assert max(server["bytes_used"] for server in servers) < 0.7 * QUOTA
    said = "".join(path.read_text() for path in (cluster.plan.state / "log").glob("meta*.log"))
    assert said.count("is defragmented") >= 1 and "its alarm NOSPACE is ended" in said


def alarms(etcd: EtcdCluster) -> int:
    return etcd.control("alarm", "list").count("NOSPACE")


def stands_still(took: list[float]) -> bool:
    count = len(took)
    return not wait_until(lambda: len(took) > count, 4.0)
