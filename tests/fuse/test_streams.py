"""Sequential readers of large files are read ahead of, and read the right bytes
(docs/decisions/0040-streams.md).
"""

import mmap
import os
import threading
from pathlib import Path
from random import Random

import pytest

from tests.cluster.cluster import Cluster
from tests.fuse.looks import lanes_counted, seen_from

pytestmark = pytest.mark.mount

MIB = 1 << 20
SIZE = 24 * MIB + 4711


@pytest.fixture
def content() -> bytes:
    return Random(1).randbytes(SIZE)


@pytest.fixture
def large(cluster: Cluster, workdir: Path, content: bytes) -> Path:
    """A large file, for a client that has not seen it."""
    path = workdir / "large"
    path.write_bytes(content)
    cluster.remount()
    return path


def test_a_reader_finds_what_it_wants(cluster: Cluster, large: Path, content: bytes) -> None:
    before = lanes_counted(cluster, "stream_reads")
    read = lanes_counted(cluster, "bytes_read")
    assert large.read_bytes() == content
    assert lanes_counted(cluster, "stream_reads") - before >= 8
    assert lanes_counted(cluster, "bytes_read") - read < SIZE + 4 * MIB, "each byte once"


def test_direct_and_mapped_readers(cluster: Cluster, large: Path, content: bytes) -> None:
    before = lanes_counted(cluster, "stream_reads")
    file = os.open(large, os.O_RDONLY | os.O_DIRECT)
    into = mmap.mmap(-1, MIB)
    for offset in range(0, SIZE, MIB):
        count = os.preadv(file, [into], offset)
        assert into[:count] == content[offset : offset + MIB]
    os.close(file)
    assert lanes_counted(cluster, "stream_reads") - before >= 16
    with large.open("rb") as mapped, mmap.mmap(mapped.fileno(), 0, prot=mmap.PROT_READ) as seen:
        assert seen[:] == content


def test_several_readers_of_one_file(large: Path, content: bytes) -> None:
    wrong: list[int] = []

    def read(begin: int) -> None:
        with large.open("rb", buffering=0) as file:
            for offset in range(begin, begin + 8 * MIB, MIB // 2):
                if os.pread(file.fileno(), MIB // 2, offset) != content[offset : offset + MIB // 2]:
                    wrong.append(offset)

    readers = [
        threading.Thread(target=read, args=(8 * MIB * part % (16 * MIB),)) for part in range(4)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert not wrong and not any(reader.is_alive() for reader in readers)


def test_what_another_client_changes_is_seen(
    cluster: Cluster, large: Path, content: bytes, lasting: Path
) -> None:
    """The change is in the stretch that was read ahead."""
    file = os.open(large, os.O_RDONLY | os.O_DIRECT)
    into = mmap.mmap(-1, MIB)
    expected = bytearray(content)
    for part in range(8):
        assert os.preadv(file, [into], part * MIB) == MIB
    with seen_from(lasting, cluster, large).open("r+b") as writer:
        for part in range(8, 20):
            os.pwrite(writer.fileno(), b"changed", part * MIB + 12345)
            expected[part * MIB + 12345 : part * MIB + 12352] = b"changed"
    for part in range(8, 22):
        assert os.preadv(file, [into], part * MIB) == MIB
        assert into[:] == expected[part * MIB : (part + 1) * MIB], part
    os.truncate(seen_from(lasting, cluster, large), 22 * MIB + 100)
    assert os.preadv(file, [into], 22 * MIB) == 100
    assert os.preadv(file, [into], 23 * MIB) == 0
    os.close(file)


def test_what_this_client_changes_is_seen(large: Path, content: bytes) -> None:
    expected = bytearray(content)
    with large.open("r+b", buffering=0) as file:
        for part in range(22):
            assert (
                os.pread(file.fileno(), MIB, part * MIB) == expected[part * MIB : (part + 1) * MIB]
            )
            later = (part + 3) % 22 * MIB + 777
            os.pwrite(file.fileno(), b"%d" % part, later)
            expected[later : later + len(b"%d" % part)] = b"%d" % part
    assert large.read_bytes() == expected


def test_it_may_be_turned_off(
    cluster: Cluster, large: Path, content: bytes, tmp_path: Path
) -> None:
    with cluster.second_client(tmp_path / "off", options="prefetch=off") as off:
        assert seen_from(off, cluster, large).read_bytes() == content
