"""Calls that pyfuse3 does not offer: fallocate, lseek for holes, O_TMPFILE, inode flags, statx,
copy_file_range, renameat2.

Most also hold on ext4 (BRAIDFS_TEST_DIR).
"""

import ctypes
import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

MIB = 1 << 20
KEEP_SIZE, PUNCH_HOLE, COLLAPSE_RANGE, ZERO_RANGE, INSERT_RANGE, UNSHARE = 1, 2, 8, 16, 32, 64
GET_FLAGS, SET_FLAGS = 0x80086601, 0x40086602
IMMUTABLE, APPEND, NODUMP = 0x10, 0x20, 0x40
OURS = IMMUTABLE | APPEND | NODUMP

libc = ctypes.CDLL(None, use_errno=True)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    arguments = (ctypes.c_int(fd), ctypes.c_int(mode), ctypes.c_long(offset), ctypes.c_long(length))
    if libc.fallocate(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


@pytest.fixture
def file(workdir: Path) -> Iterator[int]:
    fd = os.open(workdir / "file", os.O_RDWR | os.O_CREAT, 0o644)
    yield fd
    os.close(fd)


def refused(call: Callable[..., object], *arguments: object) -> int | None:
    """The errno of a call that must fail."""
    with pytest.raises(OSError) as caught:
        call(*arguments)
    return caught.value.errno


# ---- fallocate ----------------------------------------------------------------------------------


def test_fallocate_makes_the_file_longer_with_zeros(file: int) -> None:
    os.pwrite(file, b"begin", 0)
    fallocate(file, 0, 0, 3 * MIB)
    assert os.fstat(file).st_size == 3 * MIB
    assert os.pread(file, 8, 0) == b"begin\0\0\0"
    assert os.pread(file, 8, 2 * MIB) == bytes(8)
    fallocate(file, 0, 0, 10)
    assert os.fstat(file).st_size == 3 * MIB, "never shorter"


def test_keep_size_keeps_it(file: int) -> None:
    os.pwrite(file, b"12345", 0)
    fallocate(file, KEEP_SIZE, 0, MIB)
    assert os.fstat(file).st_size == 5
    assert os.pread(file, 100, 0) == b"12345"


def test_punched_bytes_are_zeros_and_the_rest_stays(file: int) -> None:
    content = os.urandom(5 * MIB)
    os.pwrite(file, content, 0)
    begin, length = MIB - 1000, 2 * MIB + 1777
    fallocate(file, PUNCH_HOLE | KEEP_SIZE, begin, length)
    expected = content[:begin] + bytes(length) + content[begin + length :]
    assert os.pread(file, 6 * MIB, 0) == expected
    os.fsync(file)
    assert os.fstat(file).st_size == 5 * MIB


def test_a_hole_may_reach_behind_the_end(file: int) -> None:
    os.pwrite(file, b"x" * 10_000, 0)
    fallocate(file, PUNCH_HOLE | KEEP_SIZE, 5000, 1 << 40)
    assert os.pread(file, 20_000, 0) == b"x" * 5000 + bytes(5000)
    fallocate(file, PUNCH_HOLE | KEEP_SIZE, 1 << 40, MIB)
    assert os.fstat(file).st_size == 10_000


def test_written_over_a_hole_reads_back(file: int) -> None:
    os.pwrite(file, b"a" * MIB, 0)
    fallocate(file, PUNCH_HOLE | KEEP_SIZE, 0, MIB)
    os.pwrite(file, b"b" * 100, 5000)
    os.fsync(file)
    assert os.pread(file, 200, 4950) == bytes(50) + b"b" * 100 + bytes(50)


def test_zero_range_with_and_without_keep_size(file: int) -> None:
    os.pwrite(file, b"x" * 10_000, 0)
    fallocate(file, ZERO_RANGE, 8000, 4000)
    assert os.fstat(file).st_size == 12_000
    assert os.pread(file, 20_000, 0) == b"x" * 8000 + bytes(4000)
    fallocate(file, ZERO_RANGE | KEEP_SIZE, 0, 1 << 20)
    assert os.pread(file, 20_000, 0) == bytes(12_000)


def test_punching_changes_the_times(file: int) -> None:
    os.pwrite(file, b"x" * 10_000, 0)
    os.fsync(file)
    before = os.fstat(file)
    time.sleep(0.02)  # the clock of the file system ticks
    fallocate(file, PUNCH_HOLE | KEEP_SIZE, 0, 4096)
    after = os.fstat(file)
    assert after.st_mtime_ns > before.st_mtime_ns
    assert after.st_ctime_ns > before.st_ctime_ns


def test_errnos_of_fallocate(workdir: Path, file: int) -> None:
    os.pwrite(file, b"x" * 100, 0)
    assert refused(fallocate, file, 0, 0, 0) == errno.EINVAL
    assert refused(fallocate, file, 0, -1, 10) == errno.EINVAL
    assert refused(fallocate, file, PUNCH_HOLE, 0, 10) == errno.EOPNOTSUPP
    assert refused(fallocate, file, 0, (1 << 63) - 5, 100) == errno.EFBIG
    read_only = os.open(workdir / "file", os.O_RDONLY)
    assert refused(fallocate, read_only, 0, 0, 10) == errno.EBADF
    os.close(read_only)
    folder = os.open(workdir, os.O_RDONLY)
    assert refused(fallocate, folder, 0, 0, 10) in (errno.EBADF, errno.EISDIR)
    os.close(folder)


@pytest.mark.skipif("BRAIDFS_TEST_DIR" in os.environ, reason="ext4 has these modes")
def test_modes_that_are_refused(file: int) -> None:
    os.pwrite(file, b"x" * 100_000, 0)
    for mode in (COLLAPSE_RANGE, INSERT_RANGE, UNSHARE):
        assert refused(fallocate, file, mode, 4096, 4096) == errno.EOPNOTSUPP
    assert os.fstat(file).st_size == 100_000


@pytest.mark.skipif("BRAIDFS_TEST_DIR" in os.environ, reason="asks for more than our cluster has")
def test_more_than_there_is_is_enospc(workdir: Path, file: int) -> None:
    room = os.statvfs(workdir)
    beyond = (room.f_bavail + 1) * room.f_frsize + MIB
    assert refused(fallocate, file, 0, 0, beyond) == errno.ENOSPC
    assert os.fstat(file).st_size == 0


# ---- holes --------------------------------------------------------------------------------------


def test_seek_finds_data_and_holes(file: int) -> None:
    os.pwrite(file, b"x" * 8192, 4 * MIB)
    os.pwrite(file, b"y" * 4096, 70 * MIB)
    os.ftruncate(file, 80 * MIB)
    assert os.lseek(file, 0, os.SEEK_DATA) == 4 * MIB
    assert os.lseek(file, 4 * MIB + 1, os.SEEK_DATA) == 4 * MIB + 1
    assert os.lseek(file, 4 * MIB, os.SEEK_HOLE) == 4 * MIB + 8192
    assert os.lseek(file, 5 * MIB, os.SEEK_DATA) == 70 * MIB
    assert os.lseek(file, 70 * MIB, os.SEEK_HOLE) == 70 * MIB + 4096
    assert os.lseek(file, 0, os.SEEK_HOLE) == 0
    assert refused(os.lseek, file, 71 * MIB, os.SEEK_DATA) == errno.ENXIO
    assert refused(os.lseek, file, 80 * MIB, os.SEEK_HOLE) == errno.ENXIO
    assert refused(os.lseek, file, -1, os.SEEK_DATA) == errno.ENXIO


def test_a_dense_file_has_its_only_hole_at_its_end(file: int) -> None:
    os.pwrite(file, b"x" * (9 * MIB + 17), 0)
    assert os.lseek(file, 0, os.SEEK_HOLE) == 9 * MIB + 17
    assert os.lseek(file, 9 * MIB + 16, os.SEEK_DATA) == 9 * MIB + 16


def test_punched_holes_are_found(file: int) -> None:
    os.pwrite(file, b"x" * (4 * MIB), 0)
    fallocate(file, PUNCH_HOLE | KEEP_SIZE, MIB, MIB)
    assert os.lseek(file, 0, os.SEEK_HOLE) == MIB
    assert os.lseek(file, MIB, os.SEEK_DATA) == 2 * MIB


# ---- copy_file_range ----------------------------------------------------------------------------


def test_copy_file_range(workdir: Path, file: int) -> None:
    content = os.urandom(3 * MIB + 5)
    os.pwrite(file, content, 0)
    copy = os.open(workdir / "copy", os.O_RDWR | os.O_CREAT)
    at = 0
    while at < len(content):
        at += os.copy_file_range(file, copy, len(content) - at, at, at)
    assert os.pread(copy, 4 * MIB, 0) == content
    assert os.copy_file_range(file, copy, 100, len(content), 0) == 0
    os.close(copy)


# ---- O_TMPFILE ----------------------------------------------------------------------------------


def give_name(fd: int, path: Path) -> None:
    here, follow = -100, 0x400
    if libc.linkat(here, b"/proc/self/fd/%d" % fd, here, os.fsencode(path), follow) != 0:
        raise OSError(ctypes.get_errno(), "linkat")


def test_a_file_without_a_name_gets_one(workdir: Path) -> None:
    fd = os.open(workdir, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"content")
    assert os.listdir(workdir) == []
    assert os.fstat(fd).st_nlink == 0
    give_name(fd, workdir / "named")
    assert os.fstat(fd).st_nlink == 1
    os.close(fd)
    assert (workdir / "named").read_bytes() == b"content"
    assert (workdir / "named").stat().st_mode & 0o7777 == 0o640


def test_a_file_without_a_name_is_gone_when_closed(workdir: Path) -> None:
    fd = os.open(workdir, os.O_TMPFILE | os.O_WRONLY, 0o600)
    os.write(fd, b"x" * MIB)
    os.close(fd)
    assert os.listdir(workdir) == []


def test_o_excl_forbids_a_name(workdir: Path) -> None:
    fd = os.open(workdir, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    assert refused(give_name, fd, workdir / "named") == errno.ENOENT
    os.close(fd)


def test_a_linked_file_may_be_removed_and_is_an_orphan_then(workdir: Path) -> None:
    fd = os.open(workdir, os.O_TMPFILE | os.O_RDWR, 0o600)
    give_name(fd, workdir / "named")
    (workdir / "named").unlink()
    os.write(fd, b"still here")
    assert os.pread(fd, 100, 0) == b"still here"
    assert refused(give_name, fd, workdir / "again") == errno.ENOENT
    os.close(fd)


# ---- inode flags --------------------------------------------------------------------------------


def get_flags(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return int(struct.unpack("<I", fcntl.ioctl(fd, GET_FLAGS, bytes(4)))[0])
    finally:
        os.close(fd)


def set_flags(path: Path, flags: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        others = struct.unpack("<I", fcntl.ioctl(fd, GET_FLAGS, bytes(4)))[0] & ~OURS
        fcntl.ioctl(fd, SET_FLAGS, struct.pack("<I", others | flags))
    finally:
        os.close(fd)


@pytest.fixture
def marked(workdir: Path) -> Iterator[Path]:
    """A file whose flags are removed at the end."""
    path = workdir / "marked"
    path.write_bytes(b"content")
    os.chmod(path, 0o644)
    yield path
    for left in (path, workdir):
        set_flags(left, 0)


def test_flags_are_kept(marked: Path) -> None:
    assert get_flags(marked) & OURS == 0
    set_flags(marked, NODUMP)
    assert get_flags(marked) & OURS == NODUMP
    set_flags(marked, 0)
    assert get_flags(marked) & OURS == 0


def test_an_immutable_file_does_not_change(marked: Path, workdir: Path) -> None:
    set_flags(marked, IMMUTABLE)
    assert refused(os.open, marked, os.O_WRONLY) == errno.EPERM
    assert refused(os.open, marked, os.O_RDWR | os.O_APPEND) == errno.EPERM
    assert refused(os.truncate, marked, 0) == errno.EPERM
    assert refused(os.chmod, marked, 0o600) == errno.EPERM
    assert refused(os.chown, marked, 1, 1) == errno.EPERM
    assert refused(os.utime, marked, (1, 1)) == errno.EPERM
    assert refused(os.unlink, marked) == errno.EPERM
    assert refused(os.rename, marked, workdir / "moved") == errno.EPERM
    assert refused(os.link, marked, workdir / "linked") == errno.EPERM
    assert refused(os.setxattr, marked, "user.a", b"v") == errno.EPERM
    assert marked.read_bytes() == b"content"


def test_a_refused_writer_of_an_immutable_file_leaves_readers_alone(marked: Path) -> None:
    set_flags(marked, IMMUTABLE)
    with marked.open("rb") as first:
        assert refused(os.open, marked, os.O_WRONLY) == errno.EPERM
        with marked.open("rb") as second:
            assert first.read() == second.read() == b"content"


def test_who_had_an_immutable_file_open_goes_on(marked: Path) -> None:
    with marked.open("r+b") as writer:
        set_flags(marked, IMMUTABLE)
        writer.write(b"CON")
        writer.flush()
        assert refused(os.open, marked, os.O_WRONLY) == errno.EPERM
        assert marked.read_bytes() == b"CONtent"
    assert marked.read_bytes() == b"CONtent"
    set_flags(marked, 0)


def test_an_append_only_file_grows_at_its_end(marked: Path, workdir: Path) -> None:
    set_flags(marked, APPEND)
    assert refused(os.open, marked, os.O_WRONLY) == errno.EPERM
    assert refused(os.open, marked, os.O_WRONLY | os.O_APPEND | os.O_TRUNC) == errno.EPERM
    assert refused(os.truncate, marked, 0) == errno.EPERM
    assert refused(os.unlink, marked) == errno.EPERM
    assert refused(os.rename, marked, workdir / "moved") == errno.EPERM
    with marked.open("ab") as end:
        end.write(b", more")
    assert marked.read_bytes() == b"content, more"


def test_an_immutable_folder_keeps_its_names(marked: Path, workdir: Path) -> None:
    set_flags(workdir, IMMUTABLE)
    assert refused(os.mkdir, workdir / "new") == errno.EPERM
    assert refused(os.open, workdir / "new", os.O_CREAT | os.O_WRONLY) == errno.EPERM
    assert refused(os.unlink, marked) == errno.EPERM
    marked.write_bytes(b"changed")


def test_an_append_only_folder_takes_names_and_gives_none_back(marked: Path, workdir: Path) -> None:
    set_flags(workdir, APPEND)
    (workdir / "new").touch()
    assert refused(os.unlink, workdir / "new") == errno.EPERM
    assert refused(os.rename, marked, workdir / "moved") == errno.EPERM


def test_unknown_ioctls_are_enotty(file: int) -> None:
    assert not os.isatty(file)
    assert refused(fcntl.ioctl, file, 0x5401, bytes(64)) == errno.ENOTTY


# ---- statx, rename, sync ------------------------------------------------------------------------

STATX_BTIME = 0x800


def birth_time(path: Path) -> float | None:
    buffer = ctypes.create_string_buffer(256)
    asked = ctypes.c_uint(STATX_BTIME | 0x7FF)
    assert libc.statx(-100, os.fsencode(path), 0, asked, buffer) == 0
    mask = struct.unpack_from("<I", buffer.raw)[0]
    seconds, nanoseconds = struct.unpack_from("<qI", buffer.raw, 80)
    return float(seconds) + nanoseconds / 1e9 if mask & STATX_BTIME else None


def test_birth_time(workdir: Path) -> None:
    before = time.time()
    path = workdir / "born"
    path.touch()
    os.utime(path, (1, 1))
    born = birth_time(path)
    assert born is not None
    assert before - 1 < born < time.time() + 1
    status = path.stat()
    assert status.st_mtime == 1
    assert status.st_mode & 0o170000 == 0o100000


def rename_with(old: Path, new: Path, flags: int) -> None:
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), ctypes.c_uint(flags)) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


@pytest.mark.skipif("BRAIDFS_TEST_DIR" in os.environ, reason="ext4 has whiteouts")
def test_whiteouts_are_refused(workdir: Path) -> None:
    (workdir / "old").touch()
    assert refused(rename_with, workdir / "old", workdir / "new", 4) == errno.EINVAL
    assert [p.name for p in workdir.iterdir()] == ["old"]


def test_syncfs(workdir: Path, file: int) -> None:
    os.pwrite(file, b"x" * MIB, 0)
    assert libc.syncfs(file) == 0
