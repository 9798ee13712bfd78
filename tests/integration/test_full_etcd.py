"""An etcd that others have filled: changes wait, and go on by themselves when there is room.

Real metaservers over three real members of etcd with a small quota, under a program that writes.
"""

import base64
import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metaserver.store.journal import JournalFullError, UnknownOutcomeError
from metaserver.store.journals.etcd import EtcdJournal
from metaserver.store.journals.etcd_care import ROOM
from metaserver.store.journals.etcd_gateway import EtcdSettings
from tests.cluster.cluster import Cluster
from tests.cluster.etcd import EtcdCluster, running_etcd
from tests.cluster.process import PATIENCE, wait_until
from tests.conformance.journal_chains import new_nonce
from tests.conftest import ClusterMaker

from .test_meta_switch import GroupCli, writing

pytestmark = [
    pytest.mark.full,  # it takes a minute and a half
    pytest.mark.mount,
    pytest.mark.timeout(900),
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
    """As another program that uses this etcd, until its members have no room that the active
    metaserver could make."""
    other = EtcdJournal(EtcdSettings(etcd.endpoints, "/other", timeout_s=20.0 * PATIENCE))
    piece = random.Random(1).randbytes(PIECE)
    deadline = time.monotonic() + RECOVERS_S_MAX
    with contextlib.closing(other):
        head, nonce = other.claim(other.sighting(), "another program"), new_nonce()
        while not alarms(etcd) or not is_dense(etcd, other):
            assert time.monotonic() < deadline
            with contextlib.suppress(JournalFullError, UnknownOutcomeError):
                while True:
                    head = other.append(head, nonce, piece)
                    nonce = new_nonce()


def is_dense(etcd: EtcdCluster, journal: EtcdJournal) -> bool:
    """Whether the files of all members are too large also when there is nothing free in them."""
    for member in etcd.members:
        etcd.ask(member, "/v3/maintenance/defragment", {})
    return min(one.bytes_used for one in journal.health().members) > ROOM * QUOTA


def empty(etcd: EtcdCluster) -> None:
    first, end = (base64.b64encode(key).decode() for key in (b"/other/", b"/other0"))
    etcd.ask(etcd.members[0], "/v3/kv/deleterange", {"key": first, "range_end": end})


@contextlib.contextmanager
def emptied(etcd: EtcdCluster) -> Iterator[None]:
    """Afterwards there is room, also if the test has failed: the writer would wait for ever."""
    try:
        yield
    finally:
        empty(etcd)


def test_changes_go_on_by_themselves(
    cluster: Cluster, etcd: EtcdCluster, show_figure: Callable[[str], None]
) -> None:
    cli = GroupCli(cluster)
    assert wait_until(lambda: len(cli.roles()) == 2, 60 * PATIENCE)
    with writing(cluster.mount_path / "folder") as took, emptied(etcd):
        assert wait_until(lambda: len(took) > 10, 60 * PATIENCE)
        began_s = time.monotonic()
        fill(etcd)
        assert wait_until(lambda: alarms(etcd) > 0, 20 * PATIENCE)
        # Requests that were under way when etcd was full may have been done.
        assert wait_until(lambda: stands_still(took), 30 * PATIENCE)
        stood_s = time.monotonic()
        count = len(took)
        empty(etcd)
        assert wait_until(lambda: len(took) > count + 10, RECOVERS_S_MAX)
        gone_s = time.monotonic() - stood_s
    show_figure(f"full after {stood_s - began_s:.0f} s; changes go on {gone_s:.0f} s after the end")
    for number in range(max(1, len(took) - 49), len(took) + 1):  # the newest of each name
        path = cluster.mount_path / "folder" / f"renamed {number % 50}"
        assert path.read_bytes() == b"x" * (number % 5000)
    assert alarms(etcd) == 0
    servers = cli.status()["journal"]["servers"]
    assert max(server["bytes_used"] for server in servers) < 0.7 * QUOTA
    said = "".join(path.read_text() for path in (cluster.plan.state / "log").glob("meta*.log"))
    assert said.count("is defragmented") >= 1 and "its alarm NOSPACE is ended" in said


def alarms(etcd: EtcdCluster) -> int:
    answer = etcd.ask(etcd.members[0], "/v3/maintenance/alarm", {"action": "GET"})
    return sum(one["alarm"] == "NOSPACE" for one in answer.get("alarms", []))


def stands_still(took: list[float]) -> bool:
    count = len(took)
    return not wait_until(lambda: len(took) > count, 4.0)
