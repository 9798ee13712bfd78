"""Mounts inside a mount stay when another process takes over the mount, and other clients' changes
are seen afterwards.

They also stay when no metaserver answers a lookup.
"""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.nested import nested
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli
from .test_restart import restart
from .test_survival import kill

pytestmark = [pytest.mark.mount, pytest.mark.timeout(180), pytest.mark.expects_warnings]

WAYS = {"restart": restart, "kill": kill}
LEASE_S = 4  # the lease duration in SHORT_SESSIONS


@pytest.mark.parametrize("way", WAYS)
def test_another_process_goes_on(cluster: Cluster, workdir: Path, localdir: Path, way: str) -> None:
    """The takeover comes at once: no nested mount was accessed since it was made."""
    go_on: Callable[[Cluster], int] = WAYS[way]
    names = [workdir / "looked" / name for name in ("stays", "goes", "moves", "comes", "later")]
    (workdir / "looked").mkdir()
    for path in names[:3]:
        path.write_bytes(b"before")
    assert [path.exists() for path in names] == [True, True, True, False, False]
    with nested(workdir / "nested", localdir / "nested") as made:
        go_on(cluster)
        assert made.faults() == []
        with cluster.second_client(localdir / "beside") as other:
            there = other / (workdir / "looked").relative_to(cluster.mount_path)
            (there / "goes").unlink()
            (there / "moves").rename(there / "later")
            (there / "comes").touch()
            assert [path.exists() for path in names] == [True, False, False, True, True]
            (other / made.folder.relative_to(cluster.mount_path) / "new").touch()
            assert (made.folder / "new").exists()
        assert made.faults() == []


# ---- no metaserver answers lookups --------------------------------------------------------------


def _errno_of_a_look(folder: int) -> int | None:
    """The errno of an access to what is mounted there."""
    try:
        os.stat("tmpfs/marker", dir_fd=folder)
    except OSError as error:
        return error.errno
    return 0


def _times_out(cluster: Cluster, folder: int) -> None:
    with cluster.paused(cluster.metaserver):
        assert _errno_of_a_look(folder) == errno.ENOMEM


def _is_aborted(cluster: Cluster, folder: int) -> None:
    seen: list[int | None] = []
    with cluster.paused(cluster.metaserver):
        looker = threading.Thread(target=lambda: seen.append(_errno_of_a_look(folder)))
        looker.start()
        looker.join(1)
        assert looker.is_alive()
        Cli(cluster).json("client", "abort", cluster.mount_path)
        looker.join(20)
    assert seen == [errno.ENOMEM]


def _loses_its_session(cluster: Cluster, _folder: int) -> None:
    pid = cluster.client_pid()
    assert pid is not None
    log = cluster.plan.state / "log" / "client.log"
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3 * LEASE_S)
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: "the session was lost" in log.read_text(), 30)


AWAY: dict[str, tuple[Callable[[Cluster, int], None], int]] = {
    "times out": (_times_out, 1),
    "is aborted": (_is_aborted, 60),
    "loses its session": (_loses_its_session, 60),
}


@pytest.mark.expects_log("the session was lost")
@pytest.mark.parametrize("what", AWAY)
def test_nobody_says_what_a_name_is(make_cluster: ClusterMaker, localdir: Path, what: str) -> None:
    happen, timeout_s = AWAY[what]
    cluster = make_cluster(
        storage_servers=1, settings=SHORT_SESSIONS, client_options=[f"timeout={timeout_s}"]
    )
    with (
        nested(cluster.mount_path / "nested", localdir / "nested") as made,
        cluster.second_client(localdir / "beside") as other,
    ):
        folder = os.open(made.folder, os.O_RDONLY)
        (other / "nested" / "new").touch()  # names there must be looked up from now on
        os.fstat(folder)  # the directory that the path walk visits first is cached
        happen(cluster, folder)
        assert wait_until(lambda: _errno_of_a_look(folder) == 0, 30)
        assert made.faults() == []
        os.close(folder)
