"""stat(2), lstat(2), fstat(2), fstatat(2), statx(2), statfs(2), statvfs(3), access(2)."""

import os
import stat
import time
from collections.abc import Callable

import pytest

from tests.fuse.posix.calls import (
    AT_EACCESS,
    AT_EMPTY_PATH,
    AT_SYMLINK_NOFOLLOW,
    BAD,
    SYS_FACCESSAT2,
    Statx,
    c,
    fails,
)
from tests.fuse.posix.context import GROUP, OTHER, USER, Folder, in_child
from tests.fuse.posix.test_mkdir_rmdir import make

STATX_BTIME, STATX_BASIC = 0x800, 0x7FF


@pytest.mark.parametrize(
    ("kind", "is_kind"), [("file", stat.S_ISREG), ("folder", stat.S_ISDIR), ("fifo", stat.S_ISFIFO)]
)
def test_type(d: Folder, kind: str, is_kind: Callable[[int], bool]) -> None:
    """st_mode contains the file type."""
    assert is_kind(os.stat(make(d, kind)).st_mode)


def test_lstat_shows_the_link(d: Folder) -> None:
    """lstat(): If path is a symbolic link, then it returns information about the link itself."""
    d.file(content=b"abc")
    assert stat.S_ISLNK(os.lstat(d.link("file")).st_mode)
    assert os.stat(d / "link").st_size == 3


def test_identity(d: Folder) -> None:
    """st_dev and st_ino identify a file uniquely."""
    one, two = os.stat(d.file("one")), os.stat(d.file("two"))
    assert one.st_dev == two.st_dev == os.stat(d.path).st_dev
    assert one.st_ino != two.st_ino


def test_three_ways_agree(d: Folder) -> None:
    """stat(), lstat() and fstat() show the same of one file."""
    fd = d.new(b"abc")
    os.fsync(fd)
    assert os.stat(d / "file") == os.lstat(d / "file") == os.fstat(fd)


def test_size_of_a_link(d: Folder) -> None:
    """st_size of a symbolic link is the length of the pathname it contains."""
    assert os.lstat(d.link("abcdef")).st_size == 6


def test_blksize(d: Folder) -> None:
    """st_blksize is the preferred block size for efficient I/O: at least a page."""
    assert os.stat(d.file()).st_blksize >= 4096


def test_blocks(d: Folder) -> None:
    """st_blocks counts 512-byte units."""
    fd = d.new(b"x" * 65_536)
    os.fsync(fd)
    assert os.fstat(fd).st_blocks >= 128


def test_blocks_of_a_sparse_file(d: Folder) -> None:
    """st_blocks may be smaller than st_size/512, as when the file has holes."""
    fd = d.new(b"x")
    os.ftruncate(fd, 1 << 30)
    os.fsync(fd)
    assert os.fstat(fd).st_blocks < 1000


def test_stat_needs_no_permission(d: Folder) -> None:
    """No permissions are required on the file itself."""
    path = d.file(mode=0o000)
    d.user(lambda: os.stat(path))


def test_fstat_ebadf(d: Folder) -> None:
    """fstat() EBADF: fd is not a valid open file descriptor."""
    fails("EBADF", c.fstat, d.closed(), bytes(256))


@pytest.mark.parametrize("name", ["stat", "lstat"])
def test_efault_buffer(d: Folder, name: str) -> None:
    """EFAULT: the buffer is a bad address."""
    fails("EFAULT", getattr(c, name), d.file(), BAD)


def test_fstatat_nofollow(d: Folder) -> None:
    """fstatat() AT_SYMLINK_NOFOLLOW: information about the link itself."""
    d.link("x")
    c.fstatat(-100, d / "link", bytes(256), AT_SYMLINK_NOFOLLOW)


def test_fstatat_empty_path(d: Folder) -> None:
    """fstatat() AT_EMPTY_PATH: operate on the file referred to by dirfd."""
    c.fstatat(d.new(), "", bytes(256), AT_EMPTY_PATH)


def test_fstatat_einval(d: Folder) -> None:
    """fstatat() EINVAL: Invalid flag specified in flags."""
    fails("EINVAL", c.fstatat, -100, d.file(), bytes(256), 0x40000)


def statx(path: str, mask: int = STATX_BASIC | STATX_BTIME, flags: int = 0) -> Statx:
    found = Statx()
    c.statx(-100, path, flags, mask, found)
    return found


def test_statx_agrees_with_stat(d: Folder) -> None:
    """statx() shows what stat() shows."""
    path = d.file(content=b"abc", mode=0o604, owner=(USER, GROUP))
    one, two = statx(path), os.stat(path)
    assert (one.mode, one.uid, one.gid) == (two.st_mode, two.st_uid, two.st_gid)
    assert (one.ino, one.size, one.nlink) == (two.st_ino, two.st_size, two.st_nlink)
    assert one.mtime.seconds * 10**9 + one.mtime.nanoseconds == two.st_mtime_ns
    assert one.mask & STATX_BASIC == STATX_BASIC


def test_statx_birth_time(d: Folder) -> None:
    """STATX_BTIME: stx_btime, the time of creation, which never changes."""
    path = d.file()
    first = statx(path)
    assert first.mask & STATX_BTIME
    assert abs(first.btime.seconds - time.time()) < 60
    os.utime(path, ns=(1, 1))
    second = statx(path)
    assert (first.btime.seconds, first.btime.nanoseconds) == (
        second.btime.seconds,
        second.btime.nanoseconds,
    )


def test_statx_einval_mask(d: Folder) -> None:
    """EINVAL: Reserved flag specified in mask."""
    fails("EINVAL", statx, d.file(), 0x80000000)


def test_statx_einval_flags(d: Folder) -> None:
    """EINVAL: Invalid flag specified in flags."""
    fails("EINVAL", statx, d.file(), STATX_BASIC, 0x40000)


@pytest.mark.parametrize("sync", [0x0000, 0x2000, 0x4000], ids=["as_stat", "force", "dont"])
def test_statx_sync(d: Folder, sync: int) -> None:
    """AT_STATX_SYNC_AS_STAT, AT_STATX_FORCE_SYNC and AT_STATX_DONT_SYNC all know the file."""
    assert statx(d.file(content=b"abc"), STATX_BASIC, sync).size == 3


def test_statx_efault(d: Folder) -> None:
    """EFAULT: statxbuf points to a location outside the accessible address space."""
    fails("EFAULT", c.statx, -100, d.file(), 0, STATX_BASIC, BAD)


def test_statx_nofollow(d: Folder) -> None:
    """statx() AT_SYMLINK_NOFOLLOW shows the link."""
    assert stat.S_ISLNK(statx(d.link("x"), STATX_BASIC, AT_SYMLINK_NOFOLLOW).mode)


def test_statvfs_numbers(d: Folder) -> None:
    """statvfs(): blocks free <= blocks, available <= free, names of 255 bytes."""
    found = os.statvfs(d.path)
    assert 0 < found.f_bavail <= found.f_bfree <= found.f_blocks
    assert found.f_namemax == 255
    assert found.f_bsize >= 512
    assert found.f_ffree <= found.f_files


def test_statvfs_read_only(d: Folder) -> None:
    """statvfs(): ST_RDONLY says that the file system is mounted read-only."""
    assert os.statvfs(d.place.readonly).f_flag & os.ST_RDONLY
    assert not os.statvfs(d.path).f_flag & os.ST_RDONLY


def test_statvfs_any_file(d: Folder) -> None:
    """statfs(): path is the pathname of any file within the mounted file system.

    The total of f_files is not compared: like that of XFS, it follows the free room of a disk
    that others write to.
    """
    one, two = os.statvfs(d.file()), os.statvfs(d.path)
    assert (one.f_bsize, one.f_frsize, one.f_blocks) == (two.f_bsize, two.f_frsize, two.f_blocks)
    assert (one.f_fsid, one.f_namemax) == (two.f_fsid, two.f_namemax)
    assert min(one.f_files, two.f_files) > 0


def test_fstatfs(d: Folder) -> None:
    """fstatfs() returns the same information about an open file."""
    one, two = os.fstatvfs(d.new()), os.statvfs(d.path)
    assert (one.f_blocks, one.f_bsize) == (two.f_blocks, two.f_bsize)


def test_fstatfs_ebadf(d: Folder) -> None:
    """fstatfs() EBADF: fd is not a valid open file descriptor."""
    fails("EBADF", c.fstatfs, d.closed(), bytes(256))


@pytest.mark.parametrize("name", ["statfs", "statvfs"])
def test_statfs_efault(d: Folder, name: str) -> None:
    """EFAULT: buf points to an invalid address."""
    if name == "statfs":
        fails("EFAULT", c.statfs, d.path, BAD)
    else:
        fails("EFAULT", c.statfs, BAD, bytes(256))


MODES = {"R_OK": os.R_OK, "W_OK": os.W_OK, "X_OK": os.X_OK}


@pytest.mark.parametrize("who", ["owner", "group", "others"])
@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("given", [True, False])
def test_access(d: Folder, who: str, name: str, given: bool) -> None:
    """access() EACCES: the requested access would be denied to the file."""
    shift = {"owner": 6, "group": 3, "others": 0}[who]
    wanted = MODES[name]
    bits = wanted if given else 7 & ~wanted
    owner = {"owner": (USER, 0), "group": (OTHER, GROUP), "others": (OTHER, 0)}[who]
    path = d.file(mode=bits << shift, owner=owner)
    d.user(lambda: fails("success" if given else "EACCES", c.access, path, wanted))


@pytest.mark.parametrize("mode", [0o000, 0o666])
def test_access_root_execute(d: Folder, mode: int) -> None:
    """Root may read and write anything, but execute only what has an execute bit."""
    path = d.file(mode=mode)
    assert c.access(path, os.R_OK | os.W_OK) == 0
    fails("EACCES", c.access, path, os.X_OK)
    os.chmod(path, 0o001)
    assert c.access(path, os.X_OK) == 0


def test_access_einval(d: Folder) -> None:
    """EINVAL: mode was incorrectly specified."""
    fails("EINVAL", c.access, d.file(), 8)


def test_access_uses_the_real_ids(d: Folder) -> None:
    """The check is done using the calling process's real UID, AT_EACCESS the effective one."""
    path = d.file(mode=0o600)

    def body() -> None:
        os.setresuid(USER, 0, 0)
        fails("EACCES", c.access, path, os.R_OK)
        c.syscall(SYS_FACCESSAT2, -100, path, os.R_OK, AT_EACCESS)

    in_child(body)


def test_faccessat_nofollow(d: Folder) -> None:
    """faccessat2() AT_SYMLINK_NOFOLLOW: information about the link itself."""
    c.syscall(SYS_FACCESSAT2, -100, d.link("nowhere"), os.F_OK, AT_SYMLINK_NOFOLLOW)


def test_faccessat_einval(d: Folder) -> None:
    """faccessat2() EINVAL: Invalid flag specified in flags."""
    fails("EINVAL", c.syscall, SYS_FACCESSAT2, -100, d.file(), os.F_OK, 0x40000)


def test_chdir_eacces(d: Folder) -> None:
    """chdir(2) EACCES: Search permission is denied for the directory itself."""
    d.folder(mode=0o744)
    d.user(lambda: fails("EACCES", os.chdir, d / "folder"))


def test_chdir_enotdir(d: Folder) -> None:
    """chdir(2) ENOTDIR: path is not a directory."""
    fails("ENOTDIR", c.chdir, d.file())


def test_fchdir(d: Folder) -> None:
    """fchdir(2) changes to the directory of the descriptor; ENOTDIR, EBADF otherwise."""

    def body() -> None:
        os.fchdir(os.open(d.path, os.O_RDONLY))
        assert os.getcwd() == os.path.realpath(d.path)
        fails("ENOTDIR", c.fchdir, d.new())
        fails("EBADF", c.fchdir, d.closed())

    in_child(body)


def test_getcwd_below(d: Folder) -> None:
    """getcwd(3) names the directory, also after a rename above it."""
    d.folder("a")
    d.folder("a/b")

    def body() -> None:
        os.chdir(d / "a/b")
        os.rename(d / "a", d / "c")
        assert os.getcwd() == os.path.realpath(d / "c/b")

    in_child(body)
