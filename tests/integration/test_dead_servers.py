"""A mount whose servers are all gone is unmounted lazily: its client and its keeper end.

Bytes that were written and never reached a server are then lost, and the client's log says so. A
program that uses the mount keeps it alive, as with every file system; here that program is a
process, which the test kills.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fsclient.meta.client import CLOSE_TIMEOUT_S
from fsclient.mount import DRAIN_TIMEOUT_S
from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.process import PATIENCE, is_gone, parent_of, wait_until
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300), pytest.mark.expects_warnings]

END_S = DRAIN_TIMEOUT_S + CLOSE_TIMEOUT_S  # docs/operate/mount.md promises this time
WRITER = (
    "import os, sys\n"
    "file = os.open(sys.argv[1], os.O_RDWR)\n"
    "print('open', flush=True)\n"
    "sys.stdin.readline()\n"
    "os.write(file, b'y' * 3_000_000)\n"
    "print('written', flush=True)\n"
    "os.fsync(file)\n"
)


@contextmanager
def _writer(path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that has the file open, writes when it is told to, and then waits in fsync without
    end."""
    words = [sys.executable, "-c", WRITER, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "open\n"
            yield writer
        finally:
            writer.kill()


def _write(writer: "subprocess.Popen[str]") -> None:
    assert writer.stdin is not None and writer.stdout is not None
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == "written\n"


def _check_ends(cluster: Cluster, pid: int, keeper: int, within_s: float) -> None:
    started = time.monotonic()
    assert wait_until(lambda: is_gone(pid), (within_s + 10) * PATIENCE), "the client lives"
    assert wait_until(lambda: is_gone(keeper), 10 * PATIENCE), "the keeper lives"
    assert time.monotonic() - started < (within_s + 20) * PATIENCE
    log = (cluster.plan.state / "log" / "client.log").read_text()
    assert "the session was not closed" in log
    assert "event=unmounted" in log


def _kill_all(cluster: Cluster) -> None:
    for program in cluster.programs:
        program.kill()


@pytest.mark.parametrize("option", ["timeout=2", "hard"])
def test_what_was_synced_holds_nothing_up(make_cluster: ClusterMaker, option: str) -> None:
    cluster = make_cluster(client_options=(option,))
    pid = cluster.client_pid()
    assert pid is not None
    keeper = parent_of(pid)
    (cluster.mount_path / "file").write_bytes(b"x" * 100)
    subprocess.run(("sync", cluster.mount_path / "file"), check=True)
    _kill_all(cluster)
    mounts.unmount(cluster.mount_path, lazy=True)
    _check_ends(cluster, pid, keeper, CLOSE_TIMEOUT_S)


@pytest.mark.parametrize("option", ["timeout=2", pytest.param("hard", marks=pytest.mark.full)])
@pytest.mark.expects_log("written bytes were lost")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_what_cannot_be_drained_is_given_up(
    make_cluster: ClusterMaker, how: signal.Signals, option: str
) -> None:
    cluster = make_cluster(client_options=(option,))
    pid = cluster.client_pid()
    assert pid is not None
    keeper = parent_of(pid)
    path = cluster.mount_path / "file"
    path.write_bytes(b"x" * 100)
    with _writer(path) as writer:
        if how == signal.SIGKILL:
            _kill_all(cluster)
            _write_and_leave(cluster, writer, pid, keeper)
        else:
            with cluster.paused(*cluster.programs):
                _write_and_leave(cluster, writer, pid, keeper)
    log = (cluster.plan.state / "log" / "client.log").read_text()
    assert "written bytes were lost" in log


def _write_and_leave(
    cluster: Cluster, writer: "subprocess.Popen[str]", pid: int, keeper: int
) -> None:
    _write(writer)
    mounts.unmount(cluster.mount_path, lazy=True)
    assert not is_gone(pid), "the writer uses it"
    writer.kill()
    _check_ends(cluster, pid, keeper, END_S)
