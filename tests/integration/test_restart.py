"""A mount goes on in another program while it is in use: open files stay as they were."""

import errno
import fcntl
import hashlib
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fsclient.cli.restart import client_pid, generation_of
from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster, link_mount_helper
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

BLOCK = 4096
HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX)
print("has it", flush=True)
"""


def restart(cluster: Cluster) -> int:
    """Restarts the client; returns its ordinal number among the mount's processes."""
    link_mount_helper()
    (found,) = Cli(cluster).json("client", "restart", cluster.mount_path, "--timeout", 60)
    assert found["pid"] == client_pid(str(cluster.mount_path))
    return int(found["generation"])


class Writer(threading.Thread):
    """Writes numbered blocks to a file in turns, reads them back, and sometimes creates names."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.errors: list[str] = []
        self.count = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        fd = os.open(self.folder / "written", os.O_RDWR | os.O_CREAT)
        seen: dict[int, bytes] = {}
        try:
            while not self.stopping.is_set():
                self.count += 1
                place = random.randrange(200)
                seen[place] = self.count.to_bytes(8, "little") * (BLOCK // 8)
                os.pwrite(fd, seen[place], place * BLOCK)
                if self.count % 7 == 0:
                    os.fsync(fd)
                if self.count % 3 == 0:
                    name = self.folder / f"name-{self.count}"
                    name.write_bytes(b"x" * (self.count % 5000))
                    assert name.stat().st_size == self.count % 5000
                    name.rename(self.folder / f"other-{self.count % 50}")
                look = random.choice(list(seen))
                if os.pread(fd, BLOCK, look * BLOCK) != seen[look]:
                    self.errors.append(f"block {look} is not what was written")
        except OSError as error:
            self.errors.append(f"after {self.count}: {error}")
        finally:
            os.close(fd)


def is_working(writers: list[Writer]) -> bool:
    """Whether each writer makes progress."""
    before = [writer.count for writer in writers]
    return wait_until(lambda: all(w.count > b for w, b in zip(writers, before, strict=True)), 20)


def test_nobody_notices(cluster: Cluster, workdir: Path) -> None:  # noqa: PLR0915 - one story
    """Three restarts under writers, with a mapping, locks, a file without a name, a listing in
    progress, and an append."""
    octets = os.urandom(3 << 20)
    (workdir / "mapped").write_bytes(octets)
    mapped = os.open(workdir / "mapped", os.O_RDWR)
    view = mmap.mmap(mapped, 0)
    gone = os.open(workdir / "gone", os.O_RDWR | os.O_CREAT)
    os.write(gone, b"without a name")
    (workdir / "gone").unlink()
    for number in range(600):
        (workdir / f"listed-{number:03}").touch()
    listing = os.scandir(workdir)
    names = {next(listing).name for _ in range(40)}
    log = os.open(workdir / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    locked = os.open(workdir / "mapped", os.O_RDWR)
    fcntl.flock(locked, fcntl.LOCK_EX)
    fcntl.lockf(mapped, fcntl.LOCK_EX, 100, 10)
    words = [sys.executable, "-c", HOLD, str(workdir / "mapped")]
    waiter = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    time.sleep(1)
    writers = [Writer(workdir) for _ in range(2)]
    for index, writer in enumerate(writers):
        writer.folder = workdir / f"writer-{index}"
        writer.folder.mkdir()
        writer.start()
    first = generation_of(client_pid(str(cluster.mount_path)) or 0)
    for round_ in range(1, 4):
        os.write(log, b"%d\n" % round_)
        assert restart(cluster) == first + round_
        assert view[:] == octets
        view[round_ * 5000] = octets[round_ * 5000]
        assert os.pread(gone, 100, 0) == b"without a name" and os.fstat(gone).st_nlink == 0
        assert waiter.poll() is None
        assert is_working(writers)
    for writer in writers:
        writer.stopping.set()
        writer.join(60)
        assert not writer.errors and not writer.is_alive()
    names |= {entry.name for entry in listing}
    assert {f"listed-{number:03}" for number in range(600)} <= names
    os.write(log, b"end\n")
    assert (workdir / "log").read_bytes() == b"1\n2\n3\nend\n"
    view.flush()
    fcntl.flock(locked, fcntl.LOCK_UN)
    assert waiter.communicate(timeout=30)[0] == "has it\n"
    for fd in (mapped, gone, log, locked):
        os.close(fd)
    assert (workdir / "mapped").read_bytes() == octets


TRY = """
import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def test_locks_go_with_descriptors_from_before(cluster: Cluster, workdir: Path) -> None:
    """The kernel does not report the close of descriptors that were opened for reading."""
    path = workdir / "locked"
    path.touch()
    words = [sys.executable, "-c", TRY, str(path)]
    locked, other = (os.open(path, os.O_RDONLY) for _ in range(2))
    fcntl.lockf(locked, fcntl.LOCK_SH)
    restart(cluster)
    assert subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode == 1
    os.close(other)
    assert subprocess.run(words, check=False).returncode == 0
    os.close(locked)


def check_that_others_are_believed(
    cluster: Cluster, workdir: Path, localdir: Path, go_on: Callable[[Cluster], int]
) -> None:
    """`go_on` makes another process serve the mount. Pages that the kernel kept under leases of the
    process before are dropped when another client writes."""
    path = workdir / "shared"
    path.write_bytes(b"before")
    assert path.read_bytes() == b"before" and path.stat().st_size == 6
    held = path.open("rb")
    assert os.pread(held.fileno(), 10, 0) == b"before"
    go_on(cluster)
    with cluster.second_client(localdir / "beside") as other:
        there = other / path.relative_to(cluster.mount_path)
        there.write_bytes(b"afterwards, longer")
        assert os.pread(held.fileno(), 100, 0) == b"afterwards, longer"
        assert path.stat().st_size == 18 and path.read_bytes() == b"afterwards, longer"
        there.rename(there.with_name("renamed"))
        assert not path.exists() and (workdir / "renamed").exists()
    held.close()


def test_other_clients_are_believed_afterwards(
    cluster: Cluster, workdir: Path, localdir: Path
) -> None:
    check_that_others_are_believed(cluster, workdir, localdir, restart)


@pytest.mark.full
def test_fio_goes_on(cluster: Cluster, workdir: Path, localdir: Path) -> None:
    words = (
        "fio",
        "--name=on",
        f"--directory={workdir}",
        "--size=32m",
        "--numjobs=2",
        "--rw=randrw",
        "--bsrange=4k-256k",
        "--ioengine=libaio",
        "--iodepth=8",
        "--time_based",
        "--runtime=10",
        "--verify=crc32c",
        "--verify_backlog=64",
        "--group_reporting",
    )
    fio = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=localdir
    )
    time.sleep(3)
    restart(cluster)
    time.sleep(2)
    restart(cluster)
    said, _ = fio.communicate(timeout=120)
    assert fio.returncode == 0 and "err= 0" in said, said


@pytest.mark.full
@pytest.mark.expects_warnings
def test_what_cannot_be_handed_over_goes_on(make_cluster: ClusterMaker, tmp_path: Path) -> None:
    """A server is away and bytes must be written: the mount goes on in its old process, and no byte
    is lost."""
    cluster = make_cluster(client_options=["timeout=120"])
    link_mount_helper()
    path = cluster.mount_path / "file"
    octets = os.urandom(1 << 20)
    pid = cluster.client_pid()
    assert pid is not None
    with path.open("wb") as file, cluster.paused(*cluster.storageservers):

        def write() -> None:
            file.write(octets)
            file.flush()
            os.fsync(file)

        written = threading.Thread(target=write)
        written.start()
        time.sleep(1)
        cli = Cli(cluster)
        ended = cli.run("client", "restart", cluster.mount_path, "--timeout", 3, code=1)
        assert "goes on as it is" in ended.stderr
        log = cluster.plan.state / "log" / "client.log"
        assert wait_until(lambda: "this process goes on" in log.read_text(), 60)
    written.join(60)
    assert generation_of(pid) == 0
    assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(octets).digest()
    assert restart(cluster) == 1 and path.read_bytes() == octets


def test_a_mount_of_relative_words_is_found(cluster: Cluster, tmp_path: Path) -> None:
    """Its directory, its key and its file are found, by the command line and by the next
    process."""
    point = tmp_path / "point"
    point.mkdir()
    (tmp_path / "own.key").write_bytes(cluster.plan.key_file.read_bytes())
    (tmp_path / "own.key").chmod(0o600)
    (tmp_path / "own.toml").write_text(f'log_file = "{tmp_path}/own.log"\n')
    words = (
        BIN / "mount.fuse.braidfs",
        cluster.plan.source(),
        "point",
        "-o",
        "key_file=own.key,config=own.toml",
    )
    subprocess.run(words, check=True, cwd=tmp_path, timeout=60)
    try:
        Cli(cluster).run("client", "restart", str(point))
        pid = client_pid(str(point))
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        (point / "file").touch()  # this waits for the next process
        assert client_pid(str(point)) not in (None, pid)
        log = tmp_path / "own.log"  # the next process answers before it says that it is mounted
        assert wait_until(lambda: log.read_text().count("event=mounted") == 3, 10)
    finally:
        mounts.unmount(point)


@pytest.mark.expects_warnings
def test_abort(cluster: Cluster, workdir: Path) -> None:
    """A program that waits for a server gets EIO at once; the mount goes on."""
    path = workdir / "file"
    octets = os.urandom(1 << 20)
    path.write_bytes(octets)
    subprocess.run(("sync", path), check=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    place = mmap.mmap(-1, 1 << 20)
    errors: list[int | None] = []

    def read() -> None:
        try:
            os.preadv(fd, [place], 0)
        except OSError as error:
            errors.append(error.errno)

    cli = Cli(cluster)
    with cluster.paused(*cluster.storageservers):
        reader = threading.Thread(target=read)
        reader.start()
        reader.join(1)
        assert reader.is_alive()
        (told,) = cli.json("client", "abort", cluster.mount_path)
        assert told["pid"] == cluster.client_pid()
        reader.join(10)
        assert errors == [errno.EIO]
    assert os.preadv(fd, [place], 0) == len(octets) and place[:] == octets
    os.close(fd)
    log = cluster.plan.state / "log" / "client.log"
    count = log.read_text().count("gave up")
    assert "told" in cli.text("client", "abort", cluster.mount_path)
    assert wait_until(lambda: log.read_text().count("gave up") > count, 10)


def test_wrong_places(cluster: Cluster, tmp_path: Path) -> None:
    cli = Cli(cluster)
    for verb in ("restart", "abort"):
        assert "no BraidFS is mounted" in cli.run("client", verb, tmp_path, code=2).stderr
    assert "--timeout" in cli.run("client", "restart", "--timeout", 0, code=2).stderr
