"""fallocate(2), posix_fallocate(3), copy_file_range(2), sendfile(2), splice(2)."""

import ctypes
import os

import pytest

from tests.fuse.posix.calls import (
    BAD,
    FALLOC_FL_COLLAPSE_RANGE,
    FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE,
    FALLOC_FL_ZERO_RANGE,
    c,
    fails,
)
from tests.fuse.posix.context import USER, Folder, content_of, mode_of, watch
from tests.fuse.posix.test_read_write import pattern

PUNCH = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
MIB = 1 << 20


def test_fallocate_grows(d: Folder) -> None:
    """The default operation extends the file if offset+len is greater than its size."""
    fd = d.new(b"abc")
    c.fallocate(fd, 0, 0, 10_000)
    assert os.fstat(fd).st_size == 10_000
    assert os.pread(fd, 99, 0) == b"abc" + bytes(96)


def test_fallocate_never_shrinks(d: Folder) -> None:
    """The size stays if offset+len is within the file; no byte changes."""
    fd = d.new(b"x" * 10_000)
    c.fallocate(fd, 0, 0, 5000)
    assert os.pread(fd, 20_000, 0) == b"x" * 10_000


def test_fallocate_keep_size(d: Folder) -> None:
    """FALLOC_FL_KEEP_SIZE: the file size will not be changed."""
    fd = d.new(b"abc")
    c.fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 10_000)
    assert os.fstat(fd).st_size == 3


@pytest.mark.parametrize(
    ("start", "length"), [(0, 4096), (4096, 8192), (100, 50), (5000, 9000), (MIB - 10, MIB + 20)]
)
def test_fallocate_punch_hole(d: Folder, start: int, length: int) -> None:
    """FALLOC_FL_PUNCH_HOLE: subsequent reads from this range will return zeros."""
    whole = bytearray(pattern(3 * MIB))
    fd = d.new(bytes(whole))
    c.fallocate(fd, PUNCH, start, length)
    whole[start : start + length] = bytes(length)
    assert os.pread(fd, 4 * MIB, 0) == whole
    os.close(fd)
    assert content_of(d / "file") == whole


def test_fallocate_punch_hole_beyond_the_end(d: Folder) -> None:
    """Punching beyond the end changes neither size nor bytes."""
    fd = d.new(b"abc")
    c.fallocate(fd, PUNCH, 2, 10_000)
    assert os.pread(fd, 99, 0) == b"ab\0"


@pytest.mark.parametrize("keep", [0, FALLOC_FL_KEEP_SIZE])
def test_fallocate_zero_range(d: Folder, keep: int) -> None:
    """FALLOC_FL_ZERO_RANGE zeros the range; with KEEP_SIZE the size stays."""
    fd = d.new(b"x" * 10_000)
    c.fallocate(fd, FALLOC_FL_ZERO_RANGE | keep, 5000, 10_000)
    assert os.fstat(fd).st_size == (10_000 if keep else 15_000)
    assert os.pread(fd, 10_000, 0) == b"x" * 5000 + bytes(5000)


def test_fallocate_times(d: Folder) -> None:
    """A fallocate() that grows the file marks mtime and ctime."""
    fd = d.new(b"abc")
    before = watch(d / "file")
    c.fallocate(fd, 0, 0, 10_000)
    os.close(fd)
    assert before.moved() == "mc"


@pytest.mark.parametrize(("start", "length"), [(-1, 10), (0, 0), (0, -1)])
def test_fallocate_einval(d: Folder, start: int, length: int) -> None:
    """EINVAL: offset was less than 0, or len was less than or equal to 0."""
    fails("EINVAL", c.fallocate, d.new(), 0, start, length)


def test_fallocate_efbig(d: Folder) -> None:
    """EFBIG: offset+len exceeds the maximum file size."""
    fails("EFBIG", c.fallocate, d.new(), 0, (1 << 63) - 10, 100)


def test_fallocate_ebadf(d: Folder) -> None:
    """EBADF: fd is not valid, or is not opened for writing."""
    fails("EBADF", c.fallocate, d.closed(), 0, 0, 10)
    fails("EBADF", c.fallocate, d.fd(d.file(), os.O_RDONLY), 0, 0, 10)


def test_fallocate_espipe(d: Folder) -> None:
    """ESPIPE: fd refers to a pipe or FIFO."""
    fails("ESPIPE", c.fallocate, d.fd(d.fifo(), os.O_RDWR), 0, 0, 10)


def test_fallocate_punch_needs_keep_size(d: Folder) -> None:
    """EOPNOTSUPP: PUNCH_HOLE must be ORed with KEEP_SIZE."""
    fails("EOPNOTSUPP/EINVAL", c.fallocate, d.new(b"abc"), FALLOC_FL_PUNCH_HOLE, 0, 10)


def test_fallocate_collapse_unaligned(d: Folder) -> None:
    """EINVAL: COLLAPSE_RANGE of a range that is not a multiple of the block size."""
    fd = d.new(b"x" * 10_000)
    fails("EINVAL/EOPNOTSUPP", c.fallocate, fd, FALLOC_FL_COLLAPSE_RANGE, 1, 10)


def test_fallocate_clears_set_id_bits(d: Folder) -> None:
    """An unprivileged fallocate() clears the set-id bits, as a write does."""
    path = d.file(content=b"abc", mode=0o6777)
    d.user(lambda: c.fallocate(os.open(path, os.O_WRONLY), 0, 0, 100))
    assert mode_of(path) == 0o777


def test_posix_fallocate(d: Folder) -> None:
    """posix_fallocate(3) ensures that the range can be written; the size grows with it."""
    fd = d.new(b"abc")
    assert c.posix_fallocate(fd, 0, 10_000) == 0
    assert os.fstat(fd).st_size == 10_000
    assert os.pread(fd, 3, 0) == b"abc"


def copied(d: Folder, length: int, at_in: int = 0, at_out: int = 0) -> bytes:
    source, target = d.new(pattern(200_000), "source"), d.new(b"", "target")
    done = 0
    while done < length:
        part = os.copy_file_range(source, target, length - done, at_in + done, at_out + done)
        if part == 0:
            break
        done += part
    return content_of(d / "target")


@pytest.mark.parametrize("length", [1, 4096, 100_000, 200_000])
def test_copy_file_range(d: Folder, length: int) -> None:
    """copy_file_range() copies len bytes from one descriptor to the other."""
    assert copied(d, length) == pattern(200_000)[:length]


def test_copy_file_range_offsets(d: Folder) -> None:
    """The offsets say where to read and where to write; file offsets stay."""
    assert copied(d, 5000, 1234, 777) == bytes(777) + pattern(200_000)[1234:6234]


def test_copy_file_range_ends_with_the_file(d: Folder) -> None:
    """If the source offset is at or past the end of file, no bytes are copied: zero."""
    assert copied(d, 100_000, 150_000) == pattern(200_000)[150_000:]


def test_copy_file_range_moves_offsets(d: Folder) -> None:
    """If off_in is NULL, bytes are read from the file offset, which is adjusted."""
    source, target = d.new(b"abcdef", "source"), d.new(b"", "target")
    os.lseek(source, 2, os.SEEK_SET)
    assert os.copy_file_range(source, target, 3) == 3
    assert (os.lseek(source, 0, os.SEEK_CUR), os.lseek(target, 0, os.SEEK_CUR)) == (5, 3)
    assert content_of(d / "target") == b"cde"


def test_copy_file_range_times(d: Folder) -> None:
    """mtime and ctime of the target are marked."""
    source, target = d.new(b"abcdef", "source"), d.new(b"", "target")
    before = watch(d / "target")
    os.copy_file_range(source, target, 3)
    os.close(target)
    assert before.moved() == "mc"


def test_copy_file_range_ebadf(d: Folder) -> None:
    """EBADF: fd_in is not open for reading, fd_out not for writing, or open with O_APPEND."""
    path = d.file(content=b"abc")
    writer, reader = d.fd(path, os.O_WRONLY), d.fd(path, os.O_RDONLY)
    append = d.fd(d.file("other"), os.O_RDWR | os.O_APPEND)
    for source, target in ((writer, d.fd(d / "other")), (reader, reader), (reader, append)):
        fails("EBADF", os.copy_file_range, source, target, 3)


def test_copy_file_range_eisdir(d: Folder) -> None:
    """EISDIR: either descriptor refers to a directory."""
    fails("EISDIR", os.copy_file_range, d.fd(d.path, os.O_RDONLY), d.new(), 3)


def test_copy_file_range_einval_overlap(d: Folder) -> None:
    """EINVAL: both refer to the same file and the ranges overlap."""
    fd = d.new(b"x" * 1000)
    fails("EINVAL", os.copy_file_range, fd, fd, 500, 0, 100)


def test_copy_file_range_einval_kind(d: Folder) -> None:
    """EINVAL: either descriptor is not a regular file, or flags is not 0."""
    fails("EINVAL", os.copy_file_range, d.fd(d.fifo(), os.O_RDWR), d.new(), 3)
    fails("EINVAL", c.copy_file_range, d.fd(d / "file"), None, d.fd(d / "file"), None, 1, 7)


def test_copy_file_range_within_a_file(d: Folder) -> None:
    """Ranges of one file that do not overlap are copied."""
    fd = d.new(b"abcdef")
    assert os.copy_file_range(fd, fd, 3, 0, 3) == 3
    assert os.pread(fd, 9, 0) == b"abcabc"


def test_sendfile_from(d: Folder) -> None:
    """sendfile(2) copies from a file to a descriptor."""
    source = d.new(pattern(50_000), "source")
    reader, writer = os.pipe()
    d.fds += [reader, writer]
    assert os.sendfile(writer, source, 100, 30_000) > 0
    assert os.read(reader, 30_000) == pattern(50_000)[100:30_100]


def test_sendfile_to(d: Folder) -> None:
    """The target may be a regular file."""
    source, target = d.new(pattern(50_000), "source"), d.new(b"", "target")
    done = 0
    while done < 50_000:
        done += os.sendfile(target, source, done, 50_000 - done)
    assert content_of(d / "target") == pattern(50_000)


def test_sendfile_errors(d: Folder) -> None:
    """EBADF: wrong access modes. EFAULT: a bad address of the offset."""
    fd, reader = d.new(b"abc"), d.fd(d / "file", os.O_RDONLY)
    fails("EBADF", os.sendfile, reader, fd, 0, 3)
    fails("EBADF", os.sendfile, fd, d.closed(), 0, 3)
    fails("EFAULT", c.sendfile, fd, reader, BAD, 3)


def test_splice(d: Folder) -> None:
    """splice(2) moves bytes between a file and a pipe, both ways."""
    source, target = d.new(b"abcdef", "source"), d.new(b"", "target")
    reader, writer = os.pipe()
    d.fds += [reader, writer]
    offset = ctypes.c_int64(1)
    assert c.splice(source, ctypes.byref(offset), writer, None, 4, 0) == 4
    assert offset.value == 5
    assert c.splice(reader, None, target, None, 4, 0) == 4
    assert content_of(d / "target") == b"bcde"


def test_splice_errors(d: Folder) -> None:
    """EINVAL: neither is a pipe, or the target is append-only. ESPIPE: an offset of a pipe."""
    source = d.new(b"abcdef")
    append = d.fd(d.file("other"), os.O_RDWR | os.O_APPEND)
    reader, writer = os.pipe()
    d.fds += [reader, writer]
    os.write(writer, b"x")
    fails("EINVAL", c.splice, source, None, append, None, 4, 0)
    fails("EINVAL", c.splice, reader, None, append, None, 4, 0)
    fails("ESPIPE", c.splice, source, None, writer, ctypes.byref(ctypes.c_int64(0)), 4, 0)


def test_tmpfile_read_and_write(d: Folder) -> None:
    """O_TMPFILE: an unnamed inode that can be written and read; it has no name."""
    fd = d.fd(d.path, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"abc")
    assert (os.pread(fd, 9, 0), os.listdir(d.path)) == (b"abc", [])
    assert (os.fstat(fd).st_nlink, os.fstat(fd).st_mode & 0o777) == (0, 0o640)


def test_tmpfile_is_linked(d: Folder) -> None:
    """O_TMPFILE: linkat(2) gives the file a name."""
    fd = d.fd(d.path, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"abc")
    c.linkat(fd, "", -100, d / "file", 0x1000)
    assert (content_of(d / "file"), os.stat(d / "file").st_nlink) == (b"abc", 1)


def test_tmpfile_exclusive_is_not_linked(d: Folder) -> None:
    """O_TMPFILE with O_EXCL prevents the file from being linked: ENOENT."""
    fd = d.fd(d.path, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o640)
    fails("ENOENT", c.linkat, fd, "", -100, d / "file", 0x1000)


def test_tmpfile_eacces(d: Folder) -> None:
    """O_TMPFILE needs write permission on the directory."""
    flags = os.O_TMPFILE | os.O_RDWR
    d.user(lambda: fails("EACCES", c.open, d.path, flags, 0o600), uid=USER)
