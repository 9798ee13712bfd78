"""Attributes that lanes set on files that are not open, in delegated directories: chmod -R, chown
-R, touch and the last step of rsync (docs/decisions/0024-settings.md).
"""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker
from tests.fuse.looks import seen_from, wait_delegated
from tests.fuse.test_removals import make, numbered
from tests.fuse.test_settings import OLD_NS, seen, settings, wanted

pytestmark = pytest.mark.mount

COUNT = 200


def set_by_name(path: Path, number: int) -> None:
    os.utime(path, ns=(OLD_NS + number, OLD_NS + 2 * number))
    os.chown(path, 12345, 23456)
    path.chmod(0o640)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def folder(cluster: Cluster, workdir: Path) -> Path:
    """Files that are not open, in a directory in which lanes set attributes."""
    new = workdir / "folder"
    new.mkdir()
    make(new, [*numbered(COUNT), "first"], b"content")
    cluster.remount()
    wait_delegated(cluster, "settings", lambda number: (new / "first").chmod(0o600 + number % 8))
    return new


def test_they_stay(cluster: Cluster, folder: Path) -> None:
    before = settings(cluster)
    for number in range(COUNT):
        set_by_name(folder / f"{number}", number)
        assert seen(folder / f"{number}") == wanted(number, 7)
    assert settings(cluster) - before > 3 * COUNT * 0.8
    cluster.remount()
    for number in range(COUNT):
        assert seen(folder / f"{number}") == wanted(number, 7)
        assert (folder / f"{number}").read_bytes() == b"content"


def test_a_tree_by_chmod(cluster: Cluster, workdir: Path) -> None:
    for number in range(20):
        inner = workdir / "tree" / f"{number % 4}" / f"{number}"
        inner.mkdir(parents=True)
        make(inner, numbered(20), b"content")
    cluster.remount()
    before = settings(cluster)
    subprocess.run(["chmod", "-R", "u=rwX,go=", workdir / "tree"], check=True, timeout=60)
    assert settings(cluster) - before > 100
    files = [path for path in (workdir / "tree").rglob("*") if path.is_file()]
    assert len(files) == 400
    assert {mode(path) for path in files} == {0o600}
    cluster.remount()
    assert {mode(path) for path in files} == {0o600}


def test_between_other_changes(folder: Path) -> None:
    """Attributes are set, then the file is renamed, set again, written and removed: the order is
    kept."""
    for number in range(50):
        path = folder / f"{number}"
        path.chmod(0o600)
        path.rename(folder / "aside")
        (folder / "aside").chmod(0o604)
        assert mode(folder / "aside") == 0o604
        if number % 2:
            with (folder / "aside").open("ab") as file:
                file.write(b" more")
            os.utime(folder / "aside", ns=(OLD_NS, OLD_NS))
            status = (folder / "aside").stat()
            assert (status.st_size, status.st_mtime_ns) == (12, OLD_NS)
            (folder / "aside").rename(path)
            assert mode(path) == 0o604
        else:
            (folder / "aside").unlink()
    assert sorted(os.listdir(folder)) == sorted(
        ["first", *(name for name in numbered(COUNT) if int(name) >= 50 or int(name) % 2)]
    )


def test_of_a_file_that_is_read_or_written(folder: Path) -> None:
    for number in range(30):
        path = folder / f"{number}"
        with path.open("rb") as reader, path.open("r+b", buffering=0) as writer:
            path.chmod(0o606)
            assert stat.S_IMODE(os.fstat(reader.fileno()).st_mode) == 0o606
            writer.write(b"CONTENT and more")
            os.utime(path, ns=(OLD_NS, OLD_NS))
            assert os.fstat(reader.fileno()).st_mtime_ns == OLD_NS
            assert reader.read() == b"CONTENT and more"
        status = path.stat()
        assert (status.st_size, status.st_mtime_ns) == (16, OLD_NS)
        path.chmod(0o600)
        assert mode(path) == 0o600


def test_another_client_sees_it_at_once(cluster: Cluster, folder: Path, other: Path) -> None:
    there = seen_from(other, cluster, folder)
    for number in range(20):
        set_by_name(folder / f"{number}", number)
        assert seen(there / f"{number}") == wanted(number, 7)
        (there / f"{number}").chmod(0o444)
        assert mode(folder / f"{number}") == 0o444


def test_what_another_client_has_open(cluster: Cluster, folder: Path, other: Path) -> None:
    there = seen_from(other, cluster, folder)
    fds = [os.open(there / f"{number}", os.O_RDONLY) for number in range(20)]
    for number, fd in enumerate(fds):
        for changed in (0o600, 0o640, 0o604):
            (folder / f"{number}").chmod(changed)
            assert stat.S_IMODE(os.fstat(fd).st_mode) == changed
        os.close(fd)


def test_two_clients_by_turns(cluster: Cluster, folder: Path, other: Path) -> None:
    """Each client sees what the other set last."""
    there = seen_from(other, cluster, folder)
    turn = threading.Semaphore(0)
    done = threading.Semaphore(0)
    seen_there: list[int] = []

    def work() -> None:
        for number in range(40):
            turn.acquire(timeout=60)
            seen_there.append(mode(there / "7"))
            (there / "7").chmod(0o500 + number)
            done.release()

    worker = threading.Thread(target=work)
    worker.start()
    seen_here = []
    for number in range(40):
        (folder / "7").chmod(0o700 + number)
        turn.release()
        done.acquire(timeout=60)
        seen_here.append(mode(folder / "7"))
    worker.join(60)
    assert seen_there == [0o700 + number for number in range(40)]
    assert seen_here == [0o500 + number for number in range(40)]


@pytest.mark.expects_warnings
def test_none_is_lost_with_the_metaserver(
    make_cluster: ClusterMaker, sized: Callable[[int, int], int]
) -> None:
    cluster = make_cluster()
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    make(folder, numbered(COUNT), b"content")
    cluster.remount()
    for round_ in range(sized(2, 20)):
        before = settings(cluster)
        for number in range(COUNT):
            (folder / f"{number}").chmod(0o600 + round_)
            if number == COUNT // 2:
                cluster.metaserver.signal(signal.SIGKILL)
                assert wait_until(lambda: cluster.metaserver.pid() is None, 20)
                cluster.metaserver.start()
        assert settings(cluster) > before
        assert {mode(folder / name) for name in numbered(COUNT)} == {0o600 + round_}
    cluster.remount()
    assert {mode(folder / name) for name in numbered(COUNT)} == {0o600 + round_}


def test_what_is_not_plain_goes_as_ever(folder: Path) -> None:
    """Links, extended attributes, flags, directories and special files are set by the metaserver as
    before."""
    os.link(folder / "0", folder / "link")
    os.setxattr(folder / "1", "user.note", b"value")
    os.mkfifo(folder / "pipe", 0o600)
    (folder / "folder").mkdir()
    subprocess.run(["chattr", "+i", folder / "2"], check=True, timeout=60)
    try:
        with pytest.raises(PermissionError):
            (folder / "2").chmod(0o640)
    finally:
        subprocess.run(["chattr", "-i", folder / "2"], check=True, timeout=60)
    for name in ("0", "link", "1", "pipe", "folder", "2"):
        (folder / name).chmod(0o640)
        assert mode(folder / name) == 0o640
    (folder / "link").chmod(0o604)
    assert mode(folder / "0") == 0o604
    with contextlib.suppress(FileNotFoundError):
        (folder / "none").chmod(0o640)
    shutil.rmtree(folder)
