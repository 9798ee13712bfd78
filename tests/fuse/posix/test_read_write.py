"""read(2), write(2), pread(2), pwrite(2), readv(2), writev(2) and the v2 calls."""

import ctypes
import mmap
import os
import resource
import signal
from functools import partial

import pytest

from tests.fuse.posix.calls import BAD, Iovec, c, fails
from tests.fuse.posix.context import (
    GROUP,
    USER,
    Folder,
    content_of,
    exit_code,
    in_child,
    mode_of,
    spawn,
    watch,
)

MIB = 1 << 20


def vector(*lengths: int) -> tuple[ctypes.Array[Iovec], list[ctypes.Array[ctypes.c_char]]]:
    buffers = [ctypes.create_string_buffer(length) for length in lengths]
    rows = [Iovec(ctypes.addressof(buffer), len(buffer)) for buffer in buffers]
    return (Iovec * len(rows))(*rows), buffers


def pattern(size: int) -> bytes:
    """Bytes of which no two pages are alike."""
    return b"".join(b"%016x" % index for index in range((size + 15) // 16))[:size]


def test_read_advances_the_offset(d: Folder) -> None:
    """The read starts at the file offset, which is incremented by the bytes read."""
    fd = d.new(b"abcdef")
    assert (os.read(fd, 2), os.read(fd, 3), os.read(fd, 9)) == (b"ab", b"cde", b"f")
    assert os.lseek(fd, 0, os.SEEK_CUR) == 6


def test_read_at_the_end(d: Folder) -> None:
    """If the offset is at or past the end of file, no bytes are read and zero is returned."""
    fd = d.new(b"abc")
    os.lseek(fd, 3, os.SEEK_SET)
    assert os.read(fd, 1) == b""
    os.lseek(fd, 1000, os.SEEK_SET)
    assert os.read(fd, 1) == b""


def test_read_of_nothing(d: Folder) -> None:
    """If count is zero, read() returns zero and has no other effect."""
    fd = d.new(b"abc")
    assert c.read(fd, bytes(1), 0) == 0
    assert os.lseek(fd, 0, os.SEEK_CUR) == 0


def test_read_is_short_at_the_end(d: Folder) -> None:
    """It is not an error if fewer bytes are read than requested, as near the end of file."""
    assert len(os.read(d.new(pattern(5000)), MIB)) == 5000


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 65_536, MIB - 1, MIB, MIB + 1, 5 * MIB + 3])
def test_write_reads_back(d: Folder, size: int) -> None:
    """A read() that can be proved to occur after a write() returns the new data."""
    bytes_ = pattern(size)
    fd = d.new()
    assert os.write(fd, bytes_) == size
    assert os.pread(fd, size + 1, 0) == bytes_
    os.close(fd)
    assert content_of(d / "file") == bytes_


@pytest.mark.parametrize("offset", [1, 4095, 65_535, MIB - 2, MIB, 4 * MIB - 1, 7 * MIB + 5])
def test_pwrite_at(d: Folder, offset: int) -> None:
    """pwrite() writes at the offset; a gap before it reads as zeros."""
    fd = d.new()
    assert os.pwrite(fd, b"abcdef", offset) == 6
    assert os.fstat(fd).st_size == offset + 6
    os.close(fd)
    found = content_of(d / "file")
    assert found[offset:] == b"abcdef"
    assert found[:offset].count(0) == offset


@pytest.mark.parametrize("offset", [0, 1000, 4096, MIB - 3, 2 * MIB])
def test_overwrite_in_the_middle(d: Folder, offset: int) -> None:
    """A write within the file changes those bytes alone."""
    whole = bytearray(pattern(3 * MIB))
    fd = d.new(bytes(whole))
    os.pwrite(fd, b"middle", offset)
    whole[offset : offset + 6] = b"middle"
    os.close(fd)
    assert content_of(d / "file") == whole


def test_two_large_files_do_not_mix(d: Folder) -> None:
    """The bytes of one file never show in another: every page knows its place."""
    one, two = pattern(4 * MIB), bytes(reversed(pattern(4 * MIB)))
    d.file("one", one)
    d.file("two", two)
    assert content_of(d / "one") == one
    assert content_of(d / "two") == two


@pytest.mark.parametrize("size", [4096, MIB, MIB + 4096, 5 * MIB])
def test_read_from_the_disk(d: Folder, size: int) -> None:
    """fsync(2) flushes to the disk: O_DIRECT reads past every cache find the same bytes."""
    names = [d / "one", d / "two"]
    for name in names:
        fd = d.fd(name, os.O_CREAT | os.O_RDWR)
        os.write(fd, pattern(size))
        os.fsync(fd)
        os.close(fd)
    for name in names:
        block = mmap.mmap(-1, size)
        assert os.preadv(d.fd(name, os.O_RDONLY | os.O_DIRECT), [block], 0) == size
        assert block[:] == pattern(size)


def test_pread_leaves_the_offset(d: Folder) -> None:
    """pread() and pwrite() do not change the file offset."""
    fd = d.new(b"abcdef")
    assert os.pread(fd, 2, 3) == b"de"
    os.pwrite(fd, b"X", 5)
    assert os.lseek(fd, 0, os.SEEK_CUR) == 0


@pytest.mark.parametrize("name", ["pread", "pwrite"])
def test_negative_offset(d: Folder, name: str) -> None:
    """pread(2), pwrite(2) EINVAL: offset is negative."""
    fails("EINVAL", getattr(c, name), d.new(), bytes(1), 1, -1)


def test_write_advances_the_offset(d: Folder) -> None:
    """The file offset is incremented by the number of bytes actually written."""
    fd = d.new()
    os.write(fd, b"abc")
    os.write(fd, b"def")
    assert os.lseek(fd, 0, os.SEEK_CUR) == 6
    assert os.pread(fd, 9, 0) == b"abcdef"


def test_write_of_nothing(d: Folder) -> None:
    """If count is zero, write() returns zero without any other effect on a regular file."""
    fd = d.new(b"abc")
    before = watch(d / "file")
    assert c.write(fd, b"", 0) == 0
    assert (before.moved(), os.fstat(fd).st_size) == ("", 3)


def test_write_times(d: Folder) -> None:
    """write() marks mtime and ctime for update."""
    fd = d.new()
    before = watch(d / "file")
    os.write(fd, b"abc")
    os.close(fd)
    assert before.moved() == "mc"


def test_write_times_are_seen_by_fstat(d: Folder) -> None:
    """fstat() after write() shows the new size and times, before any close()."""
    fd = d.new()
    before = watch(d / "file")
    os.write(fd, b"abc")
    found = os.fstat(fd)
    assert found.st_size == 3
    assert found.st_mtime_ns > before.mtime
    assert found.st_ctime_ns > before.ctime


def test_read_time(d: Folder) -> None:
    """read() marks atime for update (relatime: when it is not later than mtime)."""
    path = d.file(content=b"abc")
    before = watch(path)
    assert content_of(path) == b"abc"
    assert before.moved() == "a"


def test_write_clears_set_id_bits(d: Folder) -> None:
    """A write by an unprivileged process clears the set-user-ID and set-group-ID bits."""
    path = d.file(content=b"abc", mode=0o6777)
    d.user(lambda: os.write(os.open(path, os.O_WRONLY), b"x"))
    assert mode_of(path) == 0o777


def test_write_by_root_keeps_set_id_bits(d: Folder) -> None:
    """A write by a process with CAP_FSETID leaves them."""
    path = d.file(content=b"abc", mode=0o6777)
    os.write(d.fd(path), b"x")
    assert mode_of(path) == 0o6777


def test_write_keeps_mandatory_locking_bit(d: Folder) -> None:
    """The set-group-ID bit without group execution is not cleared by write()."""
    path = d.file(content=b"abc", mode=0o2767)
    d.user(lambda: os.write(os.open(path, os.O_WRONLY), b"x"))
    assert mode_of(path) & 0o1777 == 0o767


@pytest.mark.parametrize("name", ["read", "pread", "readv", "write", "pwrite", "writev"])
def test_ebadf_closed(d: Folder, name: str) -> None:
    """EBADF: fd is not a valid file descriptor."""
    rows, _ = vector(4)
    tail = {"readv": (rows, 1), "writev": (rows, 1), "pread": (bytes(4), 4, 0)}
    tail["pwrite"] = tail["pread"]
    fails("EBADF", getattr(c, name), d.closed(), *tail.get(name, (bytes(4), 4)))


@pytest.mark.parametrize("name", ["read", "pread", "readv"])
def test_ebadf_not_readable(d: Folder, name: str) -> None:
    """EBADF: fd is not open for reading."""
    rows, _ = vector(4)
    tail = {"readv": (rows, 1), "pread": (bytes(4), 4, 0), "read": (bytes(4), 4)}[name]
    fails("EBADF", getattr(c, name), d.fd(d.file(), os.O_WRONLY), *tail)


@pytest.mark.parametrize("name", ["write", "pwrite", "writev"])
def test_ebadf_not_writable(d: Folder, name: str) -> None:
    """EBADF: fd is not open for writing."""
    rows, _ = vector(4)
    tail = {"writev": (rows, 1), "pwrite": (bytes(4), 4, 0), "write": (bytes(4), 4)}[name]
    fails("EBADF", getattr(c, name), d.fd(d.file(), os.O_RDONLY), *tail)


@pytest.mark.parametrize("name", ["read", "pread", "readv"])
def test_eisdir(d: Folder, name: str) -> None:
    """EISDIR: fd refers to a directory."""
    rows, _ = vector(4)
    tail = {"readv": (rows, 1), "pread": (bytes(4), 4, 0), "read": (bytes(4), 4)}[name]
    fails("EISDIR", getattr(c, name), d.fd(d.path, os.O_RDONLY), *tail)


@pytest.mark.parametrize("name", ["read", "write", "pread", "pwrite"])
def test_efault(d: Folder, name: str) -> None:
    """EFAULT: buf is outside the accessible address space."""
    fd = d.new(b"abc")
    fails("EFAULT", getattr(c, name), fd, BAD, 3, *([0] if name[0] == "p" else []))


def test_efault_write_leaves_the_file(d: Folder) -> None:
    """A write() that failed with EFAULT changed nothing."""
    fd = d.new(b"abc")
    fails("EFAULT", c.write, fd, BAD, 3)
    assert os.pread(fd, 9, 0) == b"abc"


@pytest.mark.parametrize("name", ["readv", "writev"])
@pytest.mark.parametrize("count", [-1, 1025])
def test_vector_count(d: Folder, name: str, count: int) -> None:
    """EINVAL: The vector count is less than zero or greater than the permitted maximum."""
    rows, _ = vector(*[1] * 1026)
    fails("EINVAL", getattr(c, name), d.new(), rows, count)


def test_vector_of_iov_max(d: Folder) -> None:
    """IOV_MAX (1024) buffers are written in one call."""
    rows, _ = vector(*[3] * 1024)
    assert c.writev(d.new(), rows, 1024) == 1024 * 3


def test_vector_of_nothing(d: Folder) -> None:
    """A vector of no buffers transfers nothing."""
    rows, _ = vector(1)
    assert c.writev(d.new(), rows, 0) == 0


@pytest.mark.parametrize("name", ["readv", "writev"])
def test_vector_overflow(d: Folder, name: str) -> None:
    """EINVAL: The sum of the iov_len values overflows an ssize_t value."""
    buffer = ctypes.create_string_buffer(1)
    rows = (Iovec * 2)(*[Iovec(ctypes.addressof(buffer), 1 << 63)] * 2)
    fails("EINVAL", getattr(c, name), d.new(), rows, 2)


def test_writev_in_order(d: Folder) -> None:
    """Buffers are processed in array order."""
    assert os.writev(d.new(), [b"abc", b"", b"def", b"g"]) == 7
    assert content_of(d / "file") == b"abcdefg"


def test_readv_in_order(d: Folder) -> None:
    """readv() completely fills the first buffer before proceeding to the next."""
    buffers = [bytearray(2), bytearray(3), bytearray(9)]
    assert os.readv(d.new(b"abcdefg"), buffers) == 7
    assert buffers == [b"ab", b"cde", b"fg" + bytes(7)]


def test_preadv_and_pwritev(d: Folder) -> None:
    """preadv() and pwritev() transfer at the offset and leave the file offset."""
    fd = d.new(b"abcdef")
    os.pwritev(fd, [b"X", b"YZ"], 2)
    buffers = [bytearray(2), bytearray(3)]
    assert os.preadv(fd, buffers, 1) == 5
    assert buffers == [b"bX", b"YZf"]
    assert os.lseek(fd, 0, os.SEEK_CUR) == 0


def test_pwritev2_append(d: Folder) -> None:
    """pwritev2() RWF_APPEND: append data to the end of the file."""
    fd = d.new(b"abc")
    os.pwritev(fd, [b"def"], 0, getattr(os, "RWF_APPEND", 16))
    assert os.pread(fd, 9, 0) == b"abcdef"


@pytest.mark.parametrize("flag", [os.RWF_SYNC, os.RWF_DSYNC], ids=["RWF_SYNC", "RWF_DSYNC"])
def test_pwritev2_sync(d: Folder, flag: int) -> None:
    """pwritev2() RWF_SYNC, RWF_DSYNC: a per-write equivalent of O_SYNC, O_DSYNC."""
    fd = d.new()
    assert os.pwritev(fd, [b"abc"], 0, flag) == 3
    assert os.pread(fd, 9, 0) == b"abc"


def test_preadv2_unknown_flag(d: Folder) -> None:
    """EOPNOTSUPP: An unknown flag is specified in flags."""
    rows, _ = vector(4)
    fails("EOPNOTSUPP", c.preadv2, d.new(b"abc"), rows, 1, 0, 1 << 20)


def test_efbig(d: Folder) -> None:
    """EFBIG: an attempt was made to write at a position past the maximum allowed offset."""
    fd = d.new()
    fails("EFBIG/EINVAL", os.pwrite, fd, b"abc", (1 << 63) - 2)


def test_efbig_resource_limit(d: Folder) -> None:
    """EFBIG and SIGXFSZ: an attempt was made to exceed the process's file size limit."""

    def body() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGXFSZ})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        fd = os.open(d.file(), os.O_RDWR)
        assert os.write(fd, b"x" * 150) == 100
        assert signal.sigtimedwait({signal.SIGXFSZ}, 0) is None
        for call in (lambda: os.write(fd, b"x"), lambda: os.ftruncate(fd, 101)):
            fails("EFBIG", call)
            assert signal.sigtimedwait({signal.SIGXFSZ}, 1) is not None

    in_child(body)


def test_sparse_file(d: Folder) -> None:
    """A file may be extended by writing beyond its end; the hole reads as zeros."""
    fd = d.new()
    os.pwrite(fd, b"end", 1 << 40)
    assert os.fstat(fd).st_size == (1 << 40) + 3
    assert os.pread(fd, 4096, 1 << 39) == bytes(4096)
    assert os.pread(fd, 9, 1 << 40) == b"end"


def test_descriptors_share_the_bytes(d: Folder) -> None:
    """What is written through one descriptor is read through another at once."""
    path = d.file()
    writer, reader = d.fd(path), d.fd(path)
    for index in range(10):
        os.write(writer, b"%d" % index)
        assert os.read(reader, 2) == b"%d" % index


def test_processes_share_the_bytes(d: Folder) -> None:
    """What another process wrote is read without closing."""
    fd = d.new()
    in_child(lambda: os.pwrite(os.open(d / "file", os.O_WRONLY), b"child", 0))
    assert os.read(fd, 9) == b"child"


def test_offset_is_shared_after_fork(d: Folder) -> None:
    """fork(2): the child shares the open file description, offset included."""
    fd = d.new(b"abcdef")
    in_child(lambda: os.read(fd, 4))
    assert os.read(fd, 9) == b"ef"


def test_append_by_processes_loses_nothing(d: Folder) -> None:
    """O_APPEND: the offset and the write are one atomic step, for several processes."""
    path = d.file()

    def body(letter: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        for _ in range(25):
            os.write(fd, bytes([letter]) * 100)

    pids = [spawn(partial(body, letter)) for letter in b"abcd"]
    assert [exit_code(pid) for pid in pids] == [0] * 4
    found = content_of(path)
    rows = [found[at : at + 100] for at in range(0, len(found), 100)]
    assert sorted(rows) == sorted(bytes([letter]) * 100 for letter in b"abcd" * 25)


def test_write_after_owner_changed(d: Folder) -> None:
    """A descriptor stays writable whatever happens to the owner of the file."""
    path = d.file(mode=0o600, owner=(USER, GROUP))
    fd = d.fd(path)
    os.chown(path, 0, 0)
    assert os.write(fd, b"abc") == 3
