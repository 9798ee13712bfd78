"""Mounts of sealed trees (docs/decisions/0033): a READ opens its file by itself."""

import errno
import fcntl
import mmap
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.numbers import native_counters
from tests.cluster.ports import free_port
from tests.cluster.process import wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

FILES, FOLDERS = 60, 6
BIG = 5 << 20


@pytest.fixture
def tree(workdir: Path) -> Iterator[Path]:
    """A sealed tree: small files in folders, and a large one."""
    top = workdir / "set"
    for number in range(FOLDERS):
        (top / f"{number}").mkdir(parents=True)
    for number in range(FILES):
        (top / f"{number % FOLDERS}/{number}").write_bytes(_content(number))
    (top / "big").write_bytes(Random(1).randbytes(BIG))
    (top / "empty").touch()
    _braidfs("seal", top)
    yield top
    _braidfs("unseal", top)


@pytest.fixture
def point(localdir: Path) -> Iterator[Path]:
    point = localdir / "sealed"
    point.mkdir()
    yield point
    while mounts.is_mounted(point):
        mounts.unmount(point, lazy=True)


def _content(number: int) -> bytes:
    return Random(number).randbytes(1 + number * 1000)


def _braidfs(*words: object) -> None:
    subprocess.run([BIN / "braidfs", *map(str, words)], check=True, capture_output=True, timeout=60)


def _folder(cluster: Cluster, tree: Path) -> str:
    return f"/{tree.relative_to(cluster.mount_path)}"


def _read_all(mounted: Path) -> None:
    order = list(range(FILES))
    Random(2).shuffle(order)

    def check(number: int) -> bool:
        place = mounted / f"{number % FOLDERS}/{number}"
        # With a buffer, Python asks whether the file is a tty.
        with place.open("rb", buffering=0) as file:
            return file.readall() == _content(number)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(check, order))


@contextmanager
def _sealed_mount(cluster: Cluster, tree: Path, point: Path) -> Iterator[tuple[Path, int]]:
    """The tree mounted as a sealed one, and the port of that client's metrics."""
    port = free_port()
    with cluster.second_client(
        point,
        folder=_folder(cluster, tree),
        options="ro,sealed",
        settings={"metrics_listen": f"127.0.0.1:{port}"},
    ) as mounted:
        yield mounted, port


def test_a_warm_epoch_asks_nothing(cluster: Cluster, tree: Path, point: Path) -> None:
    """The bytes are those that were written, and the second time the kernel needs no request."""
    with _sealed_mount(cluster, tree, point) as (mounted, port):
        _read_all(mounted)
        assert (mounted / "empty").read_bytes() == b""
        counted = native_counters(port)
        assert counted["reads"] >= FILES
        _read_all(mounted)
        asked = native_counters(port)["fuse_answers"] - counted["fuse_answers"]
        assert asked < FILES / 4, asked  # a few requests are possible for the directories


def test_large_files_and_maps(cluster: Cluster, tree: Path, point: Path) -> None:
    content = (tree / "big").read_bytes()
    options = "ro,sealed"
    with cluster.second_client(point, folder=_folder(cluster, tree), options=options) as mounted:
        random = Random(3)
        with (mounted / "big").open("rb", buffering=0) as file:
            for _ in range(50):
                offset, size = random.randrange(BIG), random.randrange(1, 300_000)
                assert os.pread(file.fileno(), size, offset) == content[offset : offset + size]
            assert os.pread(file.fileno(), 10, BIG) == b""
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                assert mapped[:] == content
            # The kernel itself handles this lock, among the processes of this mount.
            fcntl.flock(file, fcntl.LOCK_EX)
            with (mounted / "big").open("rb") as other, pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert sorted(os.listdir(mounted)) == sorted([*map(str, range(FOLDERS)), "big", "empty"])
        with pytest.raises(OSError, match="Read-only") as failure:
            (mounted / "0/0").open("r+b")
        assert failure.value.errno == errno.EROFS


def test_what_is_unsealed_is_stale(cluster: Cluster, tree: Path, point: Path) -> None:
    """Its bytes may change from now on, so they are not fetched any more; cached bytes are dropped
    when they change."""
    options = "ro,sealed"
    with cluster.second_client(point, folder=_folder(cluster, tree), options=options) as mounted:
        assert (mounted / "1/1").read_bytes() == _content(1)
        _braidfs("unseal", tree / "1")
        assert (mounted / "1/1").read_bytes() == _content(1)
        (tree / "1/1").write_bytes(b"other bytes")
        for number in (7, 1, 7, 1):
            with pytest.raises(OSError) as failure:
                (mounted / f"1/{number}").read_bytes()
            assert failure.value.errno == errno.ESTALE
        assert (mounted / "2/2").read_bytes() == _content(2)
        _braidfs("seal", tree / "1")
        assert (mounted / "1/7").read_bytes() == _content(7)
        assert (mounted / "1/1").read_bytes() == b"other bytes"


@pytest.mark.expects_warnings  # connections end here
def test_a_killed_client(cluster: Cluster, tree: Path, point: Path) -> None:
    """Readers wait for the next process, which does not keep the files open that the last one had
    open."""
    with _sealed_mount(cluster, tree, point) as (mounted, port):
        before = mounts.client_pid(mounted)
        assert before is not None
        with ThreadPoolExecutor(1) as pool:
            with cluster.paused(*cluster.storageservers):
                reading = pool.submit(_read_all, mounted)
                assert wait_until(lambda: native_counters(port)["handles"] > 0, 10)
                os.kill(before, signal.SIGKILL)
            reading.result(60)
        _read_all(mounted)
        assert mounts.client_pid(mounted) not in (None, before)
        assert native_counters(port)["handles"] == 0


@pytest.mark.parametrize(
    ("folder", "options", "why"),
    [("", "ro,sealed", "braidfs seal"), ("set", "sealed", "needs 'ro'")],
)
def test_mounts_that_are_refused(
    cluster: Cluster, tree: Path, point: Path, folder: str, options: str, why: str
) -> None:
    source = cluster.plan.source(_folder(cluster, tree.parent / folder))
    command = mounts.mount_command(source, point, f"{cluster.plan.options()},{options}")
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert why in done.stderr
    assert not mounts.is_mounted(point)
