"""Files that lanes open for reading by themselves, because their bytes are leased: no observer may
see a difference (docs/decisions/0017-kept-open.md).
"""

import fcntl
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.fuse.looks import lanes_counted, may_read, seen_from

pytestmark = pytest.mark.mount

COUNT = 50
Lock = Callable[[int, int], None]


def opens(cluster: Cluster) -> int:
    """How many files lanes have opened since the mount."""
    return lanes_counted(cluster, "opens")


@pytest.fixture
def file(cluster: Cluster, workdir: Path) -> Path:
    """A file that lanes open by themselves."""
    path = workdir / "file"
    path.write_bytes(b"content")
    kept(cluster, path)
    return path


def kept(cluster: Cluster, path: Path) -> None:
    def is_opened_by_lanes() -> bool:
        before = opens(cluster)
        path.read_bytes()
        return opens(cluster) > before

    assert wait_until(is_opened_by_lanes, 20)


def test_a_file_that_was_read_is_opened_by_lanes(cluster: Cluster, file: Path) -> None:
    before = opens(cluster)
    for _ in range(COUNT):
        assert file.read_bytes() == b"content"
    assert opens(cluster) - before == COUNT


def test_permissions_count(cluster: Cluster, file: Path) -> None:
    file.chmod(0)
    assert not may_read(file, 12345)


def test_what_is_written_here_is_read(cluster: Cluster, file: Path) -> None:
    for number in range(20):
        content = b"%d" % number * 3000
        file.write_bytes(content)
        assert file.read_bytes() == content
        kept(cluster, file)
        os.truncate(file, 5)
        assert file.read_bytes() == content[:5]
        with file.open("ab") as writer:
            writer.write(b"more")
            writer.flush()
            assert file.read_bytes() == content[:5] + b"more"


def test_what_is_added_to_a_file_that_was_cut_comes_behind_the_cut(workdir: Path) -> None:
    """Lanes remember a file for a while after it was closed, with the size that it had."""
    for number in range(60):
        path = workdir / f"cut-{number}"
        path.write_bytes(b"x" * 3000)
        time.sleep(number * 0.0005)
        os.truncate(path, 5)
        with path.open("ab") as writer:
            writer.write(b"more")
        assert path.read_bytes() == b"xxxxxmore", f"{number * 0.5} ms after it was closed"


def test_what_another_client_writes_is_read(cluster: Cluster, file: Path, other: Path) -> None:
    there = seen_from(other, cluster, file)
    for number in range(15):
        content = b"%d" % number * (number * 1000 + 1)
        there.write_bytes(content)
        assert file.read_bytes() == content


def test_a_handle_of_lanes_sees_what_is_written_later(
    cluster: Cluster, file: Path, other: Path
) -> None:
    there = seen_from(other, cluster, file)
    with file.open("rb", buffering=0) as reader:
        assert reader.read() == b"content"
        there.write_bytes(b"CONTENTS")
        assert os.pread(reader.fileno(), 100, 0) == b"CONTENTS"
        with there.open("r+b", buffering=0) as writer:
            for number in range(10):
                writer.seek(0)
                writer.write(b"%8d" % number)
                assert os.pread(reader.fileno(), 100, 0) == b"%8d" % number


def test_a_file_that_another_client_removed_is_read_on(
    cluster: Cluster, file: Path, other: Path
) -> None:
    with file.open("rb", buffering=0) as reader:
        seen_from(other, cluster, file).unlink()
        assert not file.exists()
        assert os.fstat(reader.fileno()).st_nlink == 0
        assert reader.read() == b"content"


@pytest.mark.parametrize("removed_by_other", [False, True])
def test_space_of_a_removed_file_comes_back(
    cluster: Cluster, workdir: Path, other: Path, removed_by_other: bool
) -> None:
    path = workdir / "large"
    before = stored(cluster)
    path.write_bytes(os.urandom(48 << 20))
    kept(cluster, path)
    with path.open("rb") as reader:
        os.fsync(reader.fileno())
    assert wait_until(lambda: stored(cluster) > before + (32 << 20), 30)
    (seen_from(other, cluster, path) if removed_by_other else path).unlink()
    # Each of the four targets may have written 4 MiB of its log meanwhile.
    assert wait_until(lambda: stored(cluster) < before + (24 << 20), 60), stored(cluster) - before


def stored(cluster: Cluster) -> int:
    """Bytes in the targets. (Free space is that of the whole disk, which other programs
    also fill.)"""
    words = ["du", "-s", "--block-size=1", str(cluster.plan.state / "targets")]
    return int(subprocess.run(words, check=False, capture_output=True).stdout.split()[0])


@pytest.mark.parametrize("lock", [fcntl.flock, fcntl.lockf])
def test_a_lock_through_such_a_handle_ends_with_it(
    cluster: Cluster, file: Path, other: Path, lock: Lock
) -> None:
    with file.open("rb") as reader, seen_from(other, cluster, file).open("r+b") as rival:
        lock(reader.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            lock(rival.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        reader.close()
        assert wait_until(lambda: locked(lock, rival.fileno()), 10)


def locked(lock: Lock, fd: int) -> bool:
    try:
        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.mark.expects_warnings
def test_it_outlasts_a_restart_of_the_metaserver(cluster: Cluster, file: Path, other: Path) -> None:
    with file.open("rb", buffering=0) as reader:
        cluster.metaserver.kill()
        cluster.metaserver.start()
        seen_from(other, cluster, file).unlink()
        assert reader.read() == b"content"
        assert os.pread(reader.fileno(), 3, 4) == b"ent"
    assert not file.exists()
