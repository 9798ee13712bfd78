"""Bytes near the largest offsets: the call that writes bytes which no target can hold is refused,
holes of any size are read and truncated, and no call hangs.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fscommon.layout.layout import storable_end
from fscommon.limits import FILE_SIZE_MAX, OBJECT_BYTES_MAX
from tests.cluster.cluster import Cluster
from tests.fuse.looks import seen_from

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

CHUNK, BLOCK = 64 << 10, 4096
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def fallocate(fd: int, mode: int, at: int, length: int) -> None:
    if _libc.fallocate(fd, mode, at, length):
        raise OSError(ctypes.get_errno(), "fallocate")


def refused(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        call()
    assert caught.value.errno == number


@pytest.fixture(params=[1, 3])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def end(width: int) -> int:
    """The first offset of a file that no target can hold."""
    return storable_end(width.to_bytes(2, "little") + CHUNK.to_bytes(4, "little"))


@pytest.fixture
def place(workdir: Path, width: int) -> Path:
    os.setxattr(workdir, "braidfs.layout", f"chunk_size={CHUNK},stripe_width={width}".encode())
    return workdir


@pytest.fixture
def fd(place: Path) -> Iterator[int]:
    descriptor = os.open(place / "huge", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("offset", [FILE_SIZE_MAX - 1, 1 << 62, 1 << 50])
def test_a_write_of_what_cannot_be_held_is_refused(place: Path, fd: int, offset: int) -> None:
    for flags in (0, os.O_DSYNC, os.O_APPEND):
        other = os.open(place / "huge", os.O_RDWR | flags)
        if flags & os.O_APPEND:
            os.ftruncate(other, offset)
        refused(errno.EFBIG, lambda other=other: os.pwrite(other, b"a", offset))  # type: ignore[misc]
        os.fsync(other)
        os.close(other)
    direct = os.open(place / "huge", os.O_WRONLY | os.O_DIRECT)
    at = offset // BLOCK * BLOCK - BLOCK
    block = memoryview(bytearray(2 * BLOCK))
    refused(errno.EFBIG, lambda: os.pwrite(direct, block[:BLOCK], at))
    os.close(direct)
    assert os.fstat(fd).st_size == offset
    assert os.pread(fd, 1, offset - 1) == b"\0"
    assert os.pread(fd, 1, offset) == b""


def test_what_can_be_held_is_written_up_to_there(place: Path, fd: int, end: int) -> None:
    assert os.pwrite(fd, b"abcdefgh", end - 3) == 3
    refused(errno.EFBIG, lambda: os.pwrite(fd, b"x", end))
    os.fsync(fd)
    assert os.fstat(fd).st_size == end
    assert os.pread(fd, 10, end - 4) == b"\0abc"
    appending = os.open(place / "huge", os.O_WRONLY | os.O_APPEND)
    refused(errno.EFBIG, lambda: os.write(appending, b"more"))
    os.close(appending)
    os.ftruncate(fd, end + 2 * CHUNK)
    assert os.pread(fd, 10, end - 3) == b"abc" + bytes(7), "a hole is behind it"


def test_another_client_reads_and_seeks_there(
    cluster: Cluster, place: Path, fd: int, end: int, lasting: Path
) -> None:
    os.pwrite(fd, b"last", end - 4)
    os.ftruncate(fd, FILE_SIZE_MAX)
    os.fsync(fd)
    there = os.open(seen_from(lasting, cluster, place / "huge"), os.O_RDONLY)
    assert os.fstat(there).st_size == FILE_SIZE_MAX
    assert os.pread(there, 4, end - 4) == b"last"
    for at in (end, end + 12345, 1 << 50, 1 << 62, FILE_SIZE_MAX - 2):
        assert os.pread(there, 1, at) == b"\0"
        assert os.lseek(there, at, os.SEEK_HOLE) == at
        refused(errno.ENXIO, lambda at=at: os.lseek(there, at, os.SEEK_DATA))  # type: ignore[misc]
    assert end - BLOCK <= os.lseek(there, BLOCK, os.SEEK_DATA) <= end - 4
    assert os.lseek(there, end - 4, os.SEEK_HOLE) == end
    os.close(there)


def test_cuts_far_behind_what_can_be_held(fd: int, end: int) -> None:
    """A truncate to more than the length of an object must not be sent to the targets, which would
    refuse it without end."""
    os.pwrite(fd, b"first", 0)
    os.pwrite(fd, b"last", end - 4)
    for size in (FILE_SIZE_MAX, 1 << 62, 1 << 50, end + 5, end, end - 2):
        os.ftruncate(fd, size)
        assert os.fstat(fd).st_size == size
    os.pwrite(fd, b"F", 0)
    os.fsync(fd)
    os.ftruncate(fd, end)
    assert os.pread(fd, 9, end - 4) == b"la\0\0"
    assert os.pread(fd, 5, 0) == b"First"
    os.ftruncate(fd, 5)


def test_fallocate_there(fd: int, end: int) -> None:
    for mode in (0, KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE):
        refused(errno.EFBIG, lambda mode=mode: fallocate(fd, mode, end - 5, 6))  # type: ignore[misc]
        refused(errno.EFBIG, lambda mode=mode: fallocate(fd, mode, 1 << 62, 1))  # type: ignore[misc]
    assert os.fstat(fd).st_size == 0
    fallocate(fd, 0, end - 5, 5)
    assert os.fstat(fd).st_size == end
    os.pwrite(fd, b"data", 0)
    os.pwrite(fd, b"data", end - 4)
    os.ftruncate(fd, FILE_SIZE_MAX)
    fallocate(fd, KEEP_SIZE | PUNCH_HOLE, end - 3, FILE_SIZE_MAX - end)
    fallocate(fd, KEEP_SIZE | PUNCH_HOLE, 1 << 61, 1 << 61)
    assert os.pread(fd, 9, end - 4) == b"d" + bytes(8)
    assert os.pread(fd, 4, 0) == b"data"


def test_copies_there(place: Path, fd: int, end: int) -> None:
    sink = os.open(place / "sink", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"x" * 4 * CHUNK, 0)
    begin = end // BLOCK * BLOCK - 2 * CHUNK
    done = 0
    while done < 2 * CHUNK:
        done += os.copy_file_range(fd, sink, 4 * CHUNK - done, done, begin + done)
    assert done == end - begin
    refused(errno.EFBIG, lambda: os.copy_file_range(fd, sink, 4 * CHUNK - done, done, end))
    assert os.fstat(sink).st_size == end
    assert os.pread(sink, 3 * CHUNK, begin) == b"x" * 2 * CHUNK
    os.ftruncate(fd, 1 << 60)
    assert os.copy_file_range(fd, sink, 2 * CHUNK, 1 << 59, 0) > 0, "a hole that is nowhere"
    assert os.pread(sink, BLOCK, 0) == bytes(BLOCK)
    os.close(sink)


def test_the_bound_is_that_of_the_store(end: int, width: int) -> None:
    assert end == OBJECT_BYTES_MAX * width, "chunks of that size fill an object"
