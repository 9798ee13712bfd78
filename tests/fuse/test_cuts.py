"""ftruncate of a file that one client writes returns at once and is reported to the metaserver
later (docs/decisions/0058-cuts-told-later.md). Nobody may see a difference, whichever program dies.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import prepare_apart, wait_until
from tests.fuse.looks import lanes_counted, seen_from

pytestmark = pytest.mark.mount

SIZE = 300_000
BUSY = (1, 3, 5)  # how much is written between the truncate and a kill
MORE_BUSY = range(6)


def cuts(cluster: Cluster) -> int:
    return lanes_counted(cluster, "cuts")


@pytest.fixture
def opened(workdir: Path) -> Iterator[int]:
    """A file of SIZE bytes, synced, whose attributes this client has cached."""
    fd = os.open(workdir / "file", os.O_CREAT | os.O_RDWR, 0o644)
    os.pwrite(fd, b"x" * SIZE, 0)
    os.fsync(fd)
    assert os.fstat(fd).st_size == SIZE
    yield fd
    os.close(fd)


def test_nobody_is_asked(cluster: Cluster, opened: int) -> None:
    before = cuts(cluster)
    for size in (SIZE // 2, SIZE, 5, 0, 77, SIZE, 4096, 4096):
        os.ftruncate(opened, size)
        assert os.fstat(opened).st_size == size
    assert cuts(cluster) - before >= 7
    assert os.pread(opened, SIZE, 0) == bytes(4096)


def test_what_asks_as_ever(cluster: Cluster, workdir: Path, opened: int) -> None:
    """These still ask the metaserver at once: a file that is not open, O_SYNC descriptors, set-id
    bits, extended attributes, protection."""
    path = workdir / "file"
    synced = os.open(path, os.O_RDWR | os.O_SYNC)
    before = cuts(cluster)
    os.truncate(path, 1000)
    os.ftruncate(synced, 900)
    os.close(synced)
    os.chmod(path, 0o4755)
    os.ftruncate(opened, 800)
    os.chmod(path, 0o644)
    os.setxattr(path, "user.name", b"value")
    os.ftruncate(opened, 700)
    assert cuts(cluster) == before
    assert path.stat().st_size == 700
    assert path.read_bytes() == b"x" * 700


def test_times_are_of_the_cut(opened: int) -> None:
    os.utime(opened, (1, 1))
    os.fstat(opened)
    begin = time.time()
    os.ftruncate(opened, 10)
    assert os.fstat(opened).st_mtime >= begin - 0.1
    os.utime(opened, (1, 1))
    os.fsync(opened)
    assert os.fstat(opened).st_mtime == 1


def test_bytes_are_those_of_a_local_file(
    cluster: Cluster, workdir: Path, other: Path, sized: Callable[[int, int], int]
) -> None:
    """It is written, truncated, read, synced, and observed by another client, in any order."""
    seed = int(os.environ.get("BRAIDFS_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    chance = random.Random(seed)
    before = cuts(cluster)
    path, elsewhere = workdir / "many", seen_from(other, cluster, workdir / "many")
    held = bytearray()
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    for step in range(sized(1500, 20_000)):
        what, at = chance.randrange(100), chance.randrange(SIZE)
        where = f"seed {seed}, step {step}"
        if what < 40:
            some = chance.randbytes(chance.choice((1, 100, 5000, 70_000)))
            os.pwrite(fd, some, at)
            held.extend(bytes(max(0, at + len(some) - len(held))))
            held[at : at + len(some)] = some
        elif what < 75:
            size = chance.choice((0, at, at // 100, len(held)))
            os.ftruncate(fd, size)
            del held[size:]
            held.extend(bytes(size - len(held)))
        elif what < 85:
            assert os.pread(fd, 50_000, at) == held[at : at + 50_000], where
        elif what < 90:
            assert os.fstat(fd).st_size == len(held), where
        elif what < 94:
            os.fsync(fd)
        elif what < 96:
            os.close(fd)
            fd = os.open(path, os.O_RDWR)
        elif what < 98:
            assert elsewhere.stat().st_size == len(held), where
        else:
            assert elsewhere.read_bytes() == held, where
    os.close(fd)
    assert path.read_bytes() == held, seed
    assert elsewhere.read_bytes() == held, seed
    assert cuts(cluster) > before


def test_many_cut_sync_and_read_at_once(workdir: Path) -> None:
    """A call that waits until a truncate is reported always ends, however often the file is
    truncated."""
    fd = os.open(workdir / "busy", os.O_CREAT | os.O_RDWR, 0o644)
    end = time.monotonic() + 3
    counts = dict.fromkeys(("cut", "sync", "read", "stat"), 0)

    def repeat(name: str, step: Callable[[], object]) -> None:
        while time.monotonic() < end:
            step()
            counts[name] += 1

    def cut() -> None:
        os.ftruncate(fd, random.randrange(SIZE))
        os.pwrite(fd, b"y" * 100, random.randrange(SIZE))

    steps: dict[str, Callable[[], object]] = {
        "cut": cut,
        "sync": lambda: os.fsync(fd),
        "read": lambda: os.pread(fd, SIZE, 0),
        "stat": lambda: os.fstat(fd),
    }
    threads = [threading.Thread(target=repeat, args=item) for item in steps.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    os.close(fd)
    assert all(count > 3 for count in counts.values()), counts


# ---- crashes -------------------------------------------------------------------------------------


@pytest.fixture
def own(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(settings=SHORT_SESSIONS)


@pytest.mark.expects_warnings
def test_nothing_comes_back_after_the_clients_death(own: Cluster, full: bool) -> None:
    """Bytes from before the truncate and from after it are never in one file."""
    path = own.mount_path / "file"
    cut_to = 1000
    for number in MORE_BUSY if full else BUSY:
        path.write_bytes(b"x" * SIZE)
        fd = os.open(path, os.O_RDWR)
        os.fsync(fd)
        os.fstat(fd)
        before = cuts(own)
        os.ftruncate(fd, cut_to)
        for _ in range(20 * number):
            os.pwrite(fd, b"y" * 3000, random.randrange(cut_to, SIZE))
            if random.random() < 0.2:
                os.ftruncate(fd, random.randrange(cut_to, SIZE))
            if number > 3:
                time.sleep(0.003)
        assert cuts(own) > before
        pid = own.client_pid()
        assert pid is not None
        mounts.kill_client(pid)
        own.unmount(lazy=True)
        with contextlib.suppress(OSError):
            os.close(fd)
        own.mount()
        held = path.read_bytes()
        assert held[:cut_to] == b"x" * cut_to
        rest = held[cut_to:]
        assert rest == b"x" * (SIZE - cut_to) or not rest.strip(b"y\0"), f"kill {number}"


@pytest.mark.expects_warnings
def test_nothing_is_lost_when_the_metaserver_is_killed(own: Cluster) -> None:
    prepare_apart()
    path = own.mount_path / "file"
    path.write_bytes(b"x" * SIZE)
    held = bytearray(b"x" * SIZE)
    fd = os.open(path, os.O_RDWR)

    def kill() -> None:
        own.metaserver.signal(signal.SIGKILL)
        assert wait_until(lambda: own.metaserver.pid() is None, 20)
        own.metaserver.start_apart()

    for number in range(4):
        killer = threading.Timer(0.03 * number, kill)
        killer.start()
        for _ in range(100):
            size, at = random.randrange(SIZE), random.randrange(SIZE)
            os.ftruncate(fd, size)
            del held[size:]
            held.extend(bytes(size - len(held)))
            os.pwrite(fd, b"%d" % number, at)
            held.extend(bytes(max(0, at + 1 - len(held))))
            held[at : at + 1] = b"%d" % number
        os.fsync(fd)
        killer.join()
        assert os.fstat(fd).st_size == len(held)
        assert path.read_bytes() == held
    os.close(fd)
    own.remount()
    assert path.read_bytes() == held
