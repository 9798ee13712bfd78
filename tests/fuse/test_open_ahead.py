"""Files that were opened ahead: lanes answer their first open, and nobody else sees a difference
(docs/decisions/0019-open-ahead.md).
"""

import errno
import os
from pathlib import Path

import pytest

from fsclient.fs.ahead import OPENS_MIN, PAGE_COUNT_FIRST
from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.fuse.looks import lanes_counted, may_read, seen_from

from .test_opens import opens, stored

pytestmark = pytest.mark.mount

COUNT = 40
STRANGER = 12345


EMPTY = (3, 22, 23, 24)


def content(number: int) -> bytes:
    return b"" if number in EMPTY else b"%d\n" % number * (1 + 97 * number)


@pytest.fixture
def folder(cluster: Cluster, workdir: Path, lasting: Path) -> Path:
    """Files of which a client that had not seen them read the first half, one after another, until
    lanes had the rest."""
    folder = workdir / "set"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"{number}").write_bytes(content(number))
    cluster.remount()
    read_until_opened_ahead(cluster, folder, COUNT // 2)
    return folder


def given(cluster: Cluster) -> int:
    return lanes_counted(cluster, "children_known")


def used(cluster: Cluster) -> int:
    return lanes_counted(cluster, "children_used")


def read_until_opened_ahead(cluster: Cluster, folder: Path, wanted: int) -> None:
    """Reads files of the first half, one more each time that the directory could not be
    delegated."""
    before = given(cluster)
    for number in range(COUNT // 2):
        assert (folder / f"{number}").read_bytes() == content(number)
        if number < OPENS_MIN - 1:
            continue
        if wait_until(lambda: given(cluster) >= before + wanted, 1):
            return
    pytest.fail(f"{given(cluster) - before} files were opened ahead")


def test_first_opens_are_answered_by_lanes(cluster: Cluster, folder: Path) -> None:
    before = opens(cluster), used(cluster)
    for number in range(COUNT // 2, COUNT):
        assert (folder / f"{number}").read_bytes() == content(number)
    assert opens(cluster) - before[0] == COUNT // 2
    assert used(cluster) - before[1] == COUNT // 2


def test_what_another_client_does_is_seen(cluster: Cluster, folder: Path, lasting: Path) -> None:
    there = seen_from(lasting, cluster, folder)
    (there / "30").write_bytes(b"new")
    assert (folder / "30").read_bytes() == b"new"
    os.truncate(there / "31", 7)
    assert (folder / "31").read_bytes() == content(31)[:7]
    (there / "32").unlink()
    with pytest.raises(FileNotFoundError):
        (folder / "32").read_bytes()
    (there / "33").rename(there / "moved")
    with pytest.raises(FileNotFoundError):
        (folder / "33").read_bytes()
    assert (folder / "moved").read_bytes() == content(33)
    (there / "34").replace(there / "35")
    assert (folder / "35").read_bytes() == content(34)
    assert may_read(folder / "20", STRANGER)
    (there / "21").chmod(0o600)
    assert not may_read(folder / "21", STRANGER)
    for number in range(36, COUNT):
        assert (folder / f"{number}").read_bytes() == content(number)


def test_an_empty_file_that_gets_another_layout_and_bytes(
    cluster: Cluster, folder: Path, lasting: Path
) -> None:
    """The layout and the bytes are set on the other client and on this one, and not while the file
    is open."""
    there = seen_from(lasting, cluster, folder)
    for number, place in ((22, there), (23, folder)):
        os.setxattr(place / f"{number}", "braidfs.layout", b"chunk_size=128KiB")
        (place / f"{number}").write_bytes(b"new" * 100_000)
        assert (folder / f"{number}").read_bytes() == b"new" * 100_000
    with (folder / "24").open("rb") as reader:
        assert reader.read() == b""
        with pytest.raises(OSError) as refused:
            os.setxattr(there / "24", "braidfs.layout", b"chunk_size=128KiB")
        assert refused.value.errno == errno.EBUSY, "the metaserver has heard that it is open"
        (there / "24").write_bytes(b"new" * 100_000)
        assert reader.read() == b"new" * 100_000


def test_what_is_done_here_is_seen(cluster: Cluster, folder: Path) -> None:
    os.truncate(folder / "30", 0)
    assert (folder / "30").read_bytes() == b""
    (folder / "31").write_bytes(b"new")
    assert (folder / "31").read_bytes() == b"new"
    (folder / "32").unlink()
    assert not (folder / "32").exists()
    (folder / "33").replace(folder / "34")
    assert (folder / "34").read_bytes() == content(33)
    (folder / "21").chmod(0o600)
    assert not may_read(folder / "21", STRANGER)
    with (folder / "35").open("ab") as writer:
        writer.write(b"more")
    assert (folder / "35").read_bytes() == content(35) + b"more"


def test_space_of_a_removed_file_comes_back(cluster: Cluster, workdir: Path, lasting: Path) -> None:
    folder = workdir / "set"
    folder.mkdir()
    before = stored(cluster)
    with (folder / "large").open("wb") as large:
        large.write(os.urandom(48 << 20))
        os.fsync(large.fileno())
    for number in range(COUNT // 2):
        (folder / f"{number}").write_bytes(content(number))
    cluster.remount()
    read_until_opened_ahead(cluster, folder, COUNT // 2 + 1 - OPENS_MIN)
    assert wait_until(lambda: stored(cluster) > before + (32 << 20), 30)
    (seen_from(lasting, cluster, folder) / "large").unlink()
    # Each of the four targets may have written 4 MiB of its log meanwhile.
    assert wait_until(lambda: stored(cluster) < before + (24 << 20), 60), stored(cluster) - before


@pytest.mark.expects_warnings
def test_it_outlasts_a_restart_of_the_metaserver(
    cluster: Cluster, folder: Path, lasting: Path
) -> None:
    with (folder / "39").open("rb", buffering=0) as reader:
        cluster.metaserver.kill()
        cluster.metaserver.start()
        (seen_from(lasting, cluster, folder) / "39").unlink()
        assert reader.read() == content(39)
    for number in range(30, 39):
        assert (folder / f"{number}").read_bytes() == content(number)
    assert not (folder / "39").exists()


def test_a_few_reads_open_little(cluster: Cluster, workdir: Path) -> None:
    folder = workdir / "set"
    folder.mkdir()
    for number in range(2 * PAGE_COUNT_FIRST):
        (folder / f"{number}").write_bytes(b"content")
    cluster.remount()
    for number in range(OPENS_MIN):
        assert (folder / f"{number}").read_bytes() == b"content"
    assert wait_until(lambda: given(cluster) > 0, 10)
    assert given(cluster) <= PAGE_COUNT_FIRST
