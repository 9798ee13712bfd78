"""A client is killed: its mount goes on in another process while programs use it."""

import errno
import fcntl
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from fsclient.cli.restart import client_pid
from tests.cluster.cluster import Cluster, link_mount_helper
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import is_gone, parent_of, wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli
from .test_restart import HOLD, check_that_others_are_believed

pytestmark = [pytest.mark.mount, pytest.mark.timeout(90), pytest.mark.expects_warnings]


def _has_another_client(cluster: Cluster, pid: int) -> bool:
    return cluster.client_pid() not in (None, pid)


def kill(cluster: Cluster) -> int:
    """Kills the client; returns the pid of the process that takes over."""
    link_mount_helper()
    place = str(cluster.mount_path)
    before = client_pid(place)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert wait_until(lambda: client_pid(place) not in (None, before), 30)
    assert os.statvfs(place).f_blocks > 0
    after = client_pid(place)
    assert after is not None
    return after


class Reader(threading.Thread):
    """Reads at random places, with and without the page cache, and compares."""

    def __init__(self, path: Path, octets: bytes, flags: int) -> None:
        super().__init__(daemon=True)
        self.fd = os.open(path, os.O_RDONLY | flags)
        self.octets = octets
        self.count = 0
        self.errors: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        place = mmap.mmap(-1, 1 << 16)
        try:
            while not self.stopping.is_set():
                begin = random.randrange(0, len(self.octets) - len(place), 4096)
                read = os.preadv(self.fd, [place], begin)
                if place[:read] != self.octets[begin : begin + read] or read != len(place):
                    self.errors.append(f"wrong bytes at {begin}")
                self.count += 1
        except OSError as error:
            self.errors.append(f"after {self.count}: {error}")
        finally:
            os.close(self.fd)


@contextmanager
def reading(path: Path, octets: bytes) -> Iterator[list[Reader]]:
    readers = [Reader(path, octets, flags) for flags in (0, os.O_DIRECT, os.O_DIRECT)]
    for reader in readers:
        reader.start()
    yield readers
    for reader in readers:
        reader.stopping.set()
        reader.join(60)
        assert not reader.is_alive() and not reader.errors, reader.errors


def get_on(readers: list[Reader]) -> bool:
    """True as soon as each reader has read once more; raises what a reader met."""
    before = [reader.count for reader in readers]
    got_on = wait_until(lambda: all(r.count > b for r, b in zip(readers, before, strict=True)), 20)
    assert not any(reader.errors for reader in readers), [reader.errors for reader in readers]
    return got_on


def test_readers_do_not_notice(cluster: Cluster, workdir: Path) -> None:
    """Three kills under readers, with a mapping, a listing in progress, and a file without
    a name."""
    octets = os.urandom(8 << 20)
    path = workdir / "read"
    path.write_bytes(octets)
    subprocess.run(("sync", path), check=True)
    gone = os.open(workdir / "gone", os.O_RDWR | os.O_CREAT)
    os.write(gone, b"without a name")
    os.fsync(gone)
    (workdir / "gone").unlink()
    for number in range(600):
        (workdir / f"listed-{number:03}").touch()
    listing = os.scandir(workdir)
    names = {next(listing).name for _ in range(40)}
    with path.open("rb") as file, reading(path, octets) as readers:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        for _ in range(3):
            kill(cluster)
            assert get_on(readers)
            assert view[: 1 << 20] == octets[: 1 << 20]
            assert os.pread(gone, 100, 0) == b"without a name" and os.fstat(gone).st_nlink == 0
    names |= {entry.name for entry in listing}
    assert {f"listed-{number:03}" for number in range(600)} <= names
    os.close(gone)
    assert path.read_bytes() == octets


@pytest.mark.expects_log("the mount failed")  # this is logged while the metaserver is away
@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.full)])
def test_killed_with_the_metaserver(make_cluster: ClusterMaker, rounds: int) -> None:
    """Client and metaserver are killed at once, during changes: each success that is reported
    afterwards is real.

    Ids of requests must not begin again, because the metaserver has stored replies to earlier
    requests.
    """
    cluster = make_cluster()
    top = cluster.mount_path / "top"
    top.mkdir()
    subprocess.run(("sync", "-f", top), check=True)
    expected = set()
    for number in range(rounds):
        for index in range(1500):
            (top / f"before-{number}-{index}").mkdir()
        pid = cluster.client_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        cluster.metaserver.kill()
        cluster.metaserver.start()
        assert wait_until(partial(_has_another_client, cluster, pid), 30)
        for index in range(700):
            name = f"after-{number}-{index}"
            (top / name).mkdir()
            (top / name).rename(top / f"{name}-renamed")
            expected.add(f"{name}-renamed")
        subprocess.run(("sync", "-f", top), check=True)
    cluster.remount()
    assert expected <= {entry.name for entry in top.iterdir() if entry.is_dir()}


def test_what_was_lost_is_told(cluster: Cluster, workdir: Path) -> None:
    """Bytes that were not durable give EIO at the next fsync and close, once for each descriptor.

    A program that had synced gets no error, and continues to write.
    """
    safe = os.open(workdir / "safe", os.O_RDWR | os.O_CREAT)
    os.write(safe, b"synced")
    os.fsync(safe)
    risky = os.open(workdir / "risky", os.O_RDWR | os.O_CREAT)
    os.write(risky, b"x" * 100_000)
    os.fsync(risky)
    os.write(risky, b"y" * 100_000)
    kill(cluster)
    os.write(safe, b", and more")
    os.fsync(safe)
    with pytest.raises(OSError) as lost:
        os.fsync(risky)
    assert lost.value.errno == errno.EIO
    size = os.fstat(risky).st_size
    os.ftruncate(risky, 300_000)
    assert not any(os.pread(risky, 300_000, size)), "what was lost does not come back"
    os.pwrite(risky, b"again", 0)
    os.fsync(risky)
    os.close(risky)
    os.close(safe)
    assert (workdir / "safe").read_bytes() == b"synced, and more"
    assert (workdir / "risky").read_bytes()[:5] == b"again"


def test_locks_stay(cluster: Cluster, workdir: Path) -> None:
    """Locks still exclude others, waiting requests go on waiting, and a lock is released with its
    file."""
    path = workdir / "locked"
    path.touch()
    held, whole = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    fcntl.lockf(held, fcntl.LOCK_EX, 100, 10)
    fcntl.flock(whole, fcntl.LOCK_EX)
    words = [sys.executable, "-c", HOLD, str(path)]
    waiter = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    time.sleep(1)
    kill(cluster)
    other = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    asked = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX|fcntl.LOCK_NB)"
    refused = subprocess.run(
        [sys.executable, "-c", asked, path], capture_output=True, text=True, check=False
    )
    assert "BlockingIOError" in refused.stderr
    assert waiter.poll() is None
    fcntl.lockf(held, fcntl.LOCK_UN, 100, 10)
    subprocess.run([sys.executable, "-c", asked, path], check=True)
    fcntl.flock(whole, fcntl.LOCK_UN)
    assert waiter.communicate(timeout=30)[0] == "has it\n"
    for fd in (held, whole, other):
        os.close(fd)


def test_names_stay_and_others_are_believed(
    cluster: Cluster, workdir: Path, localdir: Path
) -> None:
    check_that_others_are_believed(cluster, workdir, localdir, kill)


@pytest.mark.full
@pytest.mark.expects_log("the session was lost")
def test_the_session_ends_while_nobody_serves(make_cluster: ClusterMaker) -> None:
    """The next process has another session: files are opened again, and waiting requests go on."""
    cluster = make_cluster(settings=SHORT_SESSIONS)
    path = cluster.mount_path / "file"
    path.write_bytes(b"kept")
    subprocess.run(("sync", path), check=True)
    pid = cluster.client_pid()
    assert pid is not None
    keeper = parent_of(pid)
    cli = Cli(cluster)
    with path.open("rb") as file:
        os.kill(keeper, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not cli.json("client", "list"), 30)
        os.kill(keeper, signal.SIGCONT)
        assert os.pread(file.fileno(), 10, 0) == b"kept"
        (cluster.mount_path / "another").write_bytes(b"made")
    assert path.read_bytes() == b"kept"


@pytest.mark.full
def test_restarts_and_kills_in_turns(cluster: Cluster, workdir: Path) -> None:
    """The keeper uses the state that the program of the last restart gave it; slots do not
    run out."""
    path = workdir / "turns"
    path.write_bytes(b"kept")
    with path.open("rb") as file:
        for number in range(3):
            Cli(cluster).json("client", "restart", cluster.mount_path, "--timeout", 60)
            kill(cluster)
            assert os.pread(file.fileno(), 10, 0) == b"kept"
            for one in range(100):
                (workdir / f"made-{number}-{one}").write_bytes(b"made")
    assert sum(1 for one in workdir.glob("made-*") if one.read_bytes() == b"made") == 300


def test_nobody_else_is_taken_for_the_client(cluster: Cluster) -> None:
    """Another process may have the same command line: the command that asks, an editor, an earlier
    client.

    The process that serves the mount was started after it.
    """
    words = ["braidfs", "-c", "import time; time.sleep(60)", str(cluster.mount_path)]
    with subprocess.Popen(words, executable=sys.executable) as decoy:
        try:
            pid = kill(cluster)
            assert pid != decoy.pid and client_pid(str(cluster.mount_path)) == pid
            (told,) = Cli(cluster).json("client", "abort", cluster.mount_path)
            assert told["pid"] == pid
        finally:
            decoy.kill()


def test_the_keeper_ends_with_the_mount(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster()
    pid = cluster.client_pid()
    assert pid is not None
    keeper = parent_of(pid)
    assert b"fsclient.keeper" in Path(f"/proc/{keeper}/cmdline").read_bytes()
    cluster.unmount()
    assert wait_until(lambda: is_gone(keeper), 10)


@pytest.mark.full
def test_whose_keeper_was_killed_before_ends_the_mount(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster()
    pid = cluster.client_pid()
    assert pid is not None
    keeper = parent_of(pid)
    os.kill(keeper, signal.SIGKILL)
    assert wait_until(lambda: is_gone(keeper), 10)
    (cluster.mount_path / "file").write_bytes(b"served without a keeper")
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: is_gone(pid), 10)
    assert wait_until(lambda: _errno_of_statvfs(cluster.mount_path) == errno.ENOTCONN, 10)


def _errno_of_statvfs(path: Path) -> int | None:
    try:
        os.statvfs(path)
    except OSError as error:
        return error.errno
    return None


@pytest.mark.full
def test_fio_reads_on(cluster: Cluster, workdir: Path, localdir: Path) -> None:
    common = (
        "fio",
        "--name=on",
        f"--directory={workdir}",
        "--size=64m",
        "--numjobs=2",
        "--bsrange=4k-256k",
        "--verify=crc32c",
        "--group_reporting",
    )
    written = (*common, "--rw=write", "--do_verify=0", "--end_fsync=1")
    subprocess.run(written, check=True, capture_output=True, timeout=120, cwd=localdir)
    words = (
        *common,
        "--rw=read",
        "--ioengine=libaio",
        "--iodepth=8",
        "--time_based",
        "--runtime=12",
    )
    fio = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=localdir
    )
    for _ in range(3):
        time.sleep(3)
        kill(cluster)
    said, _ = fio.communicate(timeout=120)
    assert fio.returncode == 0 and "err= 0" in said, said
