"""lseek(2), SEEK_DATA and SEEK_HOLE included."""

import os

import pytest

from tests.fuse.posix.calls import c, fails
from tests.fuse.posix.context import Folder, watch

MIB = 1 << 20


@pytest.mark.parametrize(
    ("offset", "whence", "wanted"),
    [
        (4, os.SEEK_SET, 4),
        (0, os.SEEK_SET, 0),
        (3, os.SEEK_CUR, 5),
        (-2, os.SEEK_CUR, 0),
        (0, os.SEEK_CUR, 2),
        (0, os.SEEK_END, 6),
        (-6, os.SEEK_END, 0),
        (100, os.SEEK_END, 106),
        (1 << 40, os.SEEK_SET, 1 << 40),
    ],
)
def test_lseek(d: Folder, offset: int, whence: int, wanted: int) -> None:
    """The offset is set from the beginning, the current location, or the size of the file."""
    fd = d.new(b"abcdef")
    os.lseek(fd, 2, os.SEEK_SET)
    assert c.lseek(fd, offset, whence) == wanted
    assert c.lseek(fd, 0, os.SEEK_CUR) == wanted


@pytest.mark.parametrize(
    ("offset", "whence"), [(-1, os.SEEK_SET), (-3, os.SEEK_CUR), (-7, os.SEEK_END)]
)
def test_einval_negative(d: Folder, offset: int, whence: int) -> None:
    """EINVAL: the resulting file offset would be negative; the offset stays."""
    fd = d.new(b"abcdef")
    os.lseek(fd, 2, os.SEEK_SET)
    fails("EINVAL", c.lseek, fd, offset, whence)
    assert c.lseek(fd, 0, os.SEEK_CUR) == 2


@pytest.mark.parametrize("whence", [-1, 5, 99])
def test_einval_whence(d: Folder, whence: int) -> None:
    """EINVAL: whence is not valid."""
    fails("EINVAL", c.lseek, d.new(), 0, whence)


def test_ebadf(d: Folder) -> None:
    """EBADF: fd is not an open file descriptor."""
    fails("EBADF", c.lseek, d.closed(), 0, os.SEEK_SET)


def test_espipe(d: Folder) -> None:
    """ESPIPE: fd is associated with a pipe, socket, or FIFO."""
    fails("ESPIPE", c.lseek, d.fd(d.fifo(), os.O_RDWR), 0, os.SEEK_SET)


def test_beyond_the_end_changes_nothing(d: Folder) -> None:
    """lseek() allows the offset to be set beyond the end, but this does not change the size."""
    fd = d.new(b"abc")
    before = watch(d / "file")
    c.lseek(fd, 1000, os.SEEK_SET)
    assert (os.fstat(fd).st_size, before.moved()) == (3, "")


def test_write_beyond_the_end_leaves_a_hole(d: Folder) -> None:
    """If data is later written there, reads of the gap return null bytes."""
    fd = d.new(b"abc")
    c.lseek(fd, 10, os.SEEK_SET)
    os.write(fd, b"def")
    assert os.pread(fd, 99, 0) == b"abc" + bytes(7) + b"def"


def test_seek_end_sees_what_was_written(d: Folder) -> None:
    """SEEK_END counts what another descriptor has written."""
    fd = d.new()
    other = d.fd(d / "file")
    os.write(other, b"abc")
    assert c.lseek(fd, 0, os.SEEK_END) == 3


def sparse(d: Folder) -> int:
    """Data in [1 MiB, 1 MiB + 64 KiB) of 4 MiB."""
    fd = d.new()
    os.ftruncate(fd, 4 * MIB)
    os.pwrite(fd, b"x" * 65_536, MIB)
    os.fsync(fd)
    return fd


def test_seek_data(d: Folder) -> None:
    """SEEK_DATA: the next location greater than or equal to offset containing data."""
    assert c.lseek(sparse(d), 0, os.SEEK_DATA) == MIB


def test_seek_data_inside(d: Folder) -> None:
    """SEEK_DATA: If offset points to data, then the file offset is set to offset."""
    assert c.lseek(sparse(d), MIB + 100, os.SEEK_DATA) == MIB + 100


def test_seek_hole(d: Folder) -> None:
    """SEEK_HOLE: the next hole in the file greater than or equal to offset."""
    assert c.lseek(sparse(d), MIB, os.SEEK_HOLE) == MIB + 65_536


def test_seek_hole_inside(d: Folder) -> None:
    """SEEK_HOLE: If offset points into the middle of a hole, it is set to offset."""
    assert c.lseek(sparse(d), 5000, os.SEEK_HOLE) == 5000


def test_seek_hole_at_the_end(d: Folder) -> None:
    """SEEK_HOLE: If there is no hole past offset, it is adjusted to the end of the file."""
    assert c.lseek(d.new(b"x" * 8192), 0, os.SEEK_HOLE) == 8192


def test_seek_data_enxio_only_a_hole(d: Folder) -> None:
    """ENXIO: whence is SEEK_DATA and offset is within a hole at the end of the file."""
    fails("ENXIO", c.lseek, sparse(d), 2 * MIB, os.SEEK_DATA)


@pytest.mark.parametrize("whence", [os.SEEK_DATA, os.SEEK_HOLE], ids=["SEEK_DATA", "SEEK_HOLE"])
def test_seek_enxio_beyond_the_end(d: Folder, whence: int) -> None:
    """ENXIO: offset is beyond the end of the file."""
    fails("ENXIO", c.lseek, d.new(b"abc"), 4, whence)
    fails("ENXIO", c.lseek, d.fd(d / "file"), -1, whence)


def test_seek_data_sets_the_offset(d: Folder) -> None:
    """The found location becomes the file offset."""
    fd = sparse(d)
    c.lseek(fd, 0, os.SEEK_DATA)
    assert os.read(fd, 1) == b"x"
    assert c.lseek(fd, 0, os.SEEK_CUR) == MIB + 1


def test_seek_directory_beginning(d: Folder) -> None:
    """lseek() of a directory to 0 lists it again (as rewinddir(3))."""
    d.file()
    fd = d.fd(d.path, os.O_RDONLY)
    assert c.lseek(fd, 0, os.SEEK_SET) == 0
    assert c.getdents64(fd, bytes(4096), 4096) > 0
    assert c.getdents64(fd, bytes(4096), 4096) == 0
    c.lseek(fd, 0, os.SEEK_SET)
    assert c.getdents64(fd, bytes(4096), 4096) > 0
