"""Files that lanes create in directories with a layout of their own: they have that layout, also
right after anybody has changed it (docs/decisions/0013-delegation.md)."""

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.mirrors import mirrored
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker
from tests.fuse.looks import lanes_counted, seen_from, wait_delegated

pytestmark = pytest.mark.mount

NAME = "braidfs.layout"
COUNT = 200
KIB = 1024


def births(cluster: Cluster) -> int:
    return lanes_counted(cluster, "births")


def make(path: Path) -> Path:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    return path


def set_chunk(folder: Path, kib: int) -> None:
    os.setxattr(folder, NAME, f"chunk_size={kib}KiB".encode())


def layout(path: Path) -> dict[str, int]:
    words = (word.partition("=") for word in os.getxattr(path, NAME).decode().split(","))
    return {name: int(value) for name, _, value in words if name != "targets"}


def chunk(path: Path) -> int:
    return layout(path)["chunk_size"] // KIB


def delegated(cluster: Cluster, folder: Path, prefix: str = "first") -> None:
    wait_delegated(cluster, "births", lambda number: make(folder / f"{prefix}-{number}"))


@pytest.fixture
def folder(cluster: Cluster, workdir: Path) -> Path:
    """A directory with chunks of 128 KiB, in which lanes create files."""
    new = workdir / "folder"
    new.mkdir()
    set_chunk(new, 128)
    delegated(cluster, new)
    return new


def test_lanes_create_files_with_the_directorys_layout(cluster: Cluster, folder: Path) -> None:
    before = births(cluster)
    files = [make(folder / f"{number}") for number in range(COUNT)]
    assert births(cluster) - before > COUNT * 0.9
    (folder / "0").write_bytes(bytes(300 * KIB))
    (folder / "1").write_bytes(b"small")
    assert {chunk(path) for path in files} == {128}
    cluster.remount()
    assert {chunk(path) for path in files} == {128}
    assert (folder / "0").read_bytes() == bytes(300 * KIB)
    assert (folder / "1").read_bytes() == b"small"


def test_directories_of_several_layouts_keep_theirs(cluster: Cluster, workdir: Path) -> None:
    sizes = (64, 128, 192, 256)
    for kib in sizes:
        (workdir / f"{kib}").mkdir()
        set_chunk(workdir / f"{kib}", kib)
        delegated(cluster, workdir / f"{kib}")
    (workdir / "plain").mkdir()
    delegated(cluster, workdir / "plain")
    before = births(cluster)
    for number in range(COUNT // 2):
        for kib in sizes:
            make(workdir / f"{kib}" / f"{number}")
        make(workdir / "plain" / f"{number}")
    assert births(cluster) - before > (len(sizes) + 1) * COUNT // 2 * 0.8
    for kib in sizes:
        assert {chunk(path) for path in (workdir / f"{kib}").iterdir()} == {kib}
    assert len({chunk(path) for path in (workdir / "plain").iterdir()}) == 1


def test_the_next_file_after_a_change_here_has_the_new_layout(
    cluster: Cluster, folder: Path
) -> None:
    before = births(cluster)
    for number, kib in enumerate((64, 192, 64, 128, 256) * 4):
        set_chunk(folder, kib)
        for turn in range(8):
            assert chunk(make(folder / f"{number}-{turn}")) == kib
    assert births(cluster) > before, "lanes go on"
    os.removexattr(folder, NAME)
    usual = chunk(make(folder / "usual"))
    assert usual not in (64, 128, 192, 256)
    delegated(cluster, folder, "plain")
    set_chunk(folder, 64)
    assert chunk(make(folder / "again")) == 64


def test_a_change_while_files_are_created_holds_once_it_is_answered(folder: Path) -> None:
    stop = threading.Event()
    failed: list[BaseException] = []

    def create(worker: int) -> None:
        number = 0
        try:
            while not stop.is_set():
                make(folder / f"{worker}-{number}")
                number += 1
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=create, args=(worker,)) for worker in range(2)]
    for worker in workers:
        worker.start()
    try:
        for number in range(60):
            kib = (64, 192, 320)[number % 3]
            set_chunk(folder, kib)
            made = [make(folder / f"mine-{number}-{turn}") for turn in range(3)]
            assert [chunk(path) for path in made] == [kib] * 3
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert not failed


def test_the_first_layout_of_a_directory_holds_at_once(cluster: Cluster, workdir: Path) -> None:
    for number in range(10):
        folder = workdir / f"{number}"
        folder.mkdir()
        delegated(cluster, folder)
        stop = threading.Event()

        def create(at: Path = folder, ends: threading.Event = stop) -> None:
            count = 0
            while not ends.is_set():
                make(at / f"{count}")
                count += 1

        worker = threading.Thread(target=create)
        worker.start()
        try:
            set_chunk(folder, 64)
            assert chunk(make(folder / "mine")) == 64
        finally:
            stop.set()
            worker.join()


def test_the_next_file_after_a_change_elsewhere_has_the_new_layout(
    cluster: Cluster, folder: Path, other: Path
) -> None:
    there = seen_from(other, cluster, folder)
    for kib in (64, 192):
        set_chunk(there, kib)
        assert chunk(make(folder / f"{kib}")) == kib
        assert chunk(make(there / f"{kib}-there")) == kib
    os.removexattr(there, NAME)
    assert chunk(make(folder / "usual")) not in (64, 128, 192)


def test_new_directories_inherit_and_lanes_create_in_them_at_once(
    cluster: Cluster, folder: Path, other: Path
) -> None:
    before = births(cluster)
    for number in range(20):
        (folder / f"{number}" / "in").mkdir(parents=True)
        for new in (folder / f"{number}", folder / f"{number}" / "in"):
            make(new / "empty")
            (new / "written").write_bytes(b"x" * 5000)
    assert births(cluster) - before > 80 * 0.9
    there = seen_from(other, cluster, folder)
    for number in range(20):
        for new in (there / f"{number}", there / f"{number}" / "in"):
            assert chunk(new) == chunk(new / "empty") == chunk(new / "written") == 128
            assert (new / "written").read_bytes() == b"x" * 5000


def test_new_directories_inherit_what_their_parent_has_then(cluster: Cluster, folder: Path) -> None:
    for number, kib in enumerate((64, 192, 256) * 4):
        set_chunk(folder, kib)
        (folder / f"{number}").mkdir()
        files = [make(folder / f"{number}" / f"{turn}") for turn in range(5)]
        assert {chunk(path) for path in files} == {kib}


def test_a_default_acl_takes_the_old_way(cluster: Cluster, folder: Path) -> None:
    words = (b"\x01\0\x07\0", b"\x04\0\x05\0", b"\x20\0\0\0")
    acl = b"\x02\0\0\0" + b"".join(word + b"\xff" * 4 for word in words)
    os.setxattr(folder, "system.posix_acl_default", acl)
    before = births(cluster)
    files = [make(folder / f"{number}") for number in range(20)]
    assert births(cluster) == before
    assert {path.stat().st_mode & 0o777 for path in files} == {0o640}
    assert {chunk(path) for path in files} == {128}


@pytest.mark.expects_warnings
def test_it_goes_on_when_the_metaserver_is_killed(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster()
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    set_chunk(folder, 128)
    delegated(cluster, folder)
    for number in range(COUNT):
        if number == COUNT // 2:
            cluster.metaserver.signal(signal.SIGKILL)
            assert wait_until(lambda: cluster.metaserver.pid() is None, 20)
            cluster.metaserver.start()
        make(folder / f"{number}")
    before = births(cluster)
    delegated(cluster, folder, "after")
    assert births(cluster) > before
    cluster.remount()
    assert {chunk(path) for path in folder.iterdir()} == {128}


@pytest.mark.timeout(300)
def test_lanes_create_files_with_replicas(make_cluster: ClusterMaker) -> None:
    cluster = mirrored(make_cluster, replicas=1)
    folder = cluster.mount_path / "d"
    folder.mkdir()
    os.setxattr(folder, NAME, b"replicas=2")
    delegated(cluster, folder)
    before = births(cluster)
    files = [make(folder / f"{number}") for number in range(COUNT)]
    for path in files[:20]:
        path.write_bytes(os.urandom(20 * KIB))
    (folder / "sub").mkdir()
    files.append(make(folder / "sub" / "file"))
    assert births(cluster) - before > COUNT * 0.9
    assert {layout(path)["replicas"] for path in files} == {2}
    os.setxattr(folder, NAME, b"replicas=1")
    assert layout(make(folder / "one"))["replicas"] == 1
