"""utimensat(2), futimens(3), utime(2), and who may set which time."""

import os
import time

import pytest

from tests.fuse.posix.calls import (
    AT_EMPTY_PATH,
    AT_SYMLINK_NOFOLLOW,
    BAD,
    UTIME_NOW,
    UTIME_OMIT,
    c,
    fails,
    times,
)
from tests.fuse.posix.context import GROUP, OTHER, USER, Folder, times_of, watch
from tests.fuse.posix.test_mkdir_rmdir import make

CALLS = pytest.mark.parametrize("name", ["utimensat", "futimens"])
SECOND = 1_000_000_000


def stamp(d: Folder, name: str, path: str, value: object) -> None:
    if name == "futimens":
        c.futimens(d.fd(path, os.O_RDONLY | os.O_NONBLOCK), value)
    else:
        c.utimensat(-100, path, value, 0)


@CALLS
@pytest.mark.parametrize("kind", ["file", "folder", "fifo"])
def test_both_are_set(d: Folder, name: str, kind: str) -> None:
    """times[0] specifies the new last access time, times[1] the new last modification time."""
    path = make(d, kind)
    stamp(d, name, path, times((1_000_000, 1), (2_000_000, 2)))
    found = times_of(path)
    assert (found.atime, found.mtime) == (1_000_000 * SECOND + 1, 2_000_000 * SECOND + 2)


@CALLS
@pytest.mark.parametrize("value", [0, 1, 999_999_999])
def test_nanoseconds(d: Folder, name: str, value: int) -> None:
    """Times are kept to the nanosecond."""
    stamp(d, name, d.file(), times((5, value), (6, value)))
    assert times_of(d / "file").mtime == 6 * SECOND + value


@CALLS
@pytest.mark.parametrize("seconds", [-1, -2_000_000_000, 4_294_967_296, 8_000_000_000])
def test_far_times(d: Folder, name: str, seconds: int) -> None:
    """Times before 1970 and after 2106 are kept."""
    stamp(d, name, d.file(), times((seconds, 0), (seconds, 0)))
    assert times_of(d / "file").mtime == seconds * SECOND


@CALLS
def test_ctime_is_marked(d: Folder, name: str) -> None:
    """The file's last status change timestamp is set to the current time."""
    path = d.file()
    before = watch(path)
    stamp(d, name, path, times((1, 0), (1, 0)))
    assert os.stat(path).st_ctime_ns > before.ctime


@CALLS
def test_null_is_now(d: Folder, name: str) -> None:
    """If times is NULL, then both timestamps are set to the current time."""
    path = d.file()
    before = watch(path)
    stamp(d, name, path, None)
    assert before.moved() == "amc"
    assert abs(times_of(path).mtime - time.time_ns()) < 60 * SECOND


@CALLS
def test_utime_now(d: Folder, name: str) -> None:
    """UTIME_NOW: the corresponding file timestamp is set to the current time."""
    path = d.file()
    os.utime(path, ns=(1, 1))
    stamp(d, name, path, times((0, UTIME_NOW), (7, 0)))
    found = times_of(path)
    assert found.mtime == 7 * SECOND
    assert abs(found.atime - time.time_ns()) < 60 * SECOND


@CALLS
@pytest.mark.parametrize("which", [0, 1])
def test_utime_omit(d: Folder, name: str, which: int) -> None:
    """UTIME_OMIT: the corresponding file timestamp is left unchanged."""
    path = d.file()
    os.utime(path, ns=(11, 22))
    pair = [(5, 0), (6, 0)]
    pair[which] = (123, UTIME_OMIT)
    stamp(d, name, path, times(*pair))
    found = times_of(path)
    assert (found.atime, found.mtime) == ((11, 6 * SECOND), (5 * SECOND, 22))[which]


@CALLS
def test_omit_both(d: Folder, name: str) -> None:
    """If both are UTIME_OMIT, nothing changes, ctime included; permission is not needed."""
    path = d.file(mode=0o444)
    before = watch(path)
    both = times((0, UTIME_OMIT), (0, UTIME_OMIT))
    stamp(d, name, path, both)
    d.user(lambda: stamp(d, name, path, both))
    assert before.moved() == ""


@CALLS
@pytest.mark.parametrize("value", [-1, SECOND, UTIME_NOW + 1])
def test_einval_nanoseconds(d: Folder, name: str, value: int) -> None:
    """EINVAL: Invalid value in one of the tv_nsec fields."""
    fails("EINVAL", stamp, d, name, d.file(), times((1, value), (1, 0)))
    fails("EINVAL", stamp, d, name, d / "file", times((1, 0), (1, value)))


@CALLS
def test_efault(d: Folder, name: str) -> None:
    """EFAULT: times pointed to an invalid address."""
    fails("EFAULT", stamp, d, name, d.file(), BAD)


@CALLS
def test_now_by_a_writer(d: Folder, name: str) -> None:
    """Write access is enough to set both times to now."""
    path = d.file(mode=0o666)
    before = watch(path)
    d.user(lambda: stamp(d, name, path, None))
    assert before.moved() == "amc"


@CALLS
def test_eacces_now(d: Folder, name: str) -> None:
    """EACCES: times is NULL, and the caller is neither owner nor may write."""
    path = d.file(mode=0o444)
    d.user(lambda: fails("EACCES", stamp, d, name, path, None))
    both = times((0, UTIME_NOW), (0, UTIME_NOW))
    d.user(lambda: fails("EACCES", stamp, d, name, path, both))


@CALLS
@pytest.mark.parametrize(
    "pair", [((1, 0), (1, 0)), ((0, UTIME_NOW), (0, UTIME_OMIT)), ((0, UTIME_OMIT), (0, UTIME_NOW))]
)
def test_eperm_of_a_writer(d: Folder, name: str, pair: tuple[tuple[int, int], ...]) -> None:
    """EPERM: the caller is not the owner and attempts anything but both times to now."""
    path = d.file(mode=0o666, owner=(OTHER, GROUP))
    before = watch(path)
    d.user(lambda: fails("EPERM", stamp, d, name, path, times(*pair)))
    assert before.moved() == ""


@CALLS
def test_owner_without_write(d: Folder, name: str) -> None:
    """The owner may set any times, write permission or not."""
    path = d.file(mode=0o444, owner=(USER, GROUP))
    d.user(lambda: stamp(d, name, path, times((1, 0), (2, 0))))
    d.user(lambda: stamp(d, name, path, None))


def test_futimens_ebadf(d: Folder) -> None:
    """futimens() EBADF: The file descriptor is not valid."""
    fails("EBADF", c.futimens, d.closed(), None)


def test_utimensat_follows(d: Folder) -> None:
    """utimensat() follows a symbolic link."""
    d.file()
    c.utimensat(-100, d.link("file"), times((1, 0), (2, 0)), 0)
    assert times_of(d / "file").mtime == 2 * SECOND


def test_utimensat_nofollow(d: Folder) -> None:
    """AT_SYMLINK_NOFOLLOW: update the timestamps of the symbolic link itself."""
    d.file()
    before = watch(d / "file")
    c.utimensat(-100, d.link("file"), times((1, 0), (2, 0)), AT_SYMLINK_NOFOLLOW)
    assert (times_of(d / "link").mtime, before.moved()) == (2 * SECOND, "")


def test_utimensat_einval(d: Folder) -> None:
    """EINVAL: Invalid value in flags."""
    fails("EINVAL", c.utimensat, -100, d.file(), None, 0x40000)


def test_utimensat_of_the_descriptor(d: Folder) -> None:
    """AT_EMPTY_PATH operates on the file behind the descriptor."""
    c.utimensat(d.new(), "", times((1, 0), (2, 0)), AT_EMPTY_PATH)
    assert times_of(d / "file").mtime == 2 * SECOND


def test_set_mtime_stays_after_close(d: Folder) -> None:
    """A time that was set after a write is not overwritten by the close()."""
    fd = d.new()
    os.write(fd, b"abc")
    c.futimens(fd, times((1, 0), (2, 0)))
    os.close(fd)
    assert times_of(d / "file").mtime == 2 * SECOND


def test_write_after_a_set_mtime(d: Folder) -> None:
    """A later write marks mtime again."""
    fd = d.new()
    c.futimens(fd, times((1, 0), (2, 0)))
    os.write(fd, b"abc")
    os.close(fd)
    assert times_of(d / "file").mtime > 1_000_000 * SECOND


def test_times_outlive_a_rename(d: Folder) -> None:
    """atime and mtime belong to the file, not to its name."""
    path = d.file()
    os.utime(path, ns=(11, 22))
    os.rename(path, d / "new")
    assert (times_of(d / "new").atime, times_of(d / "new").mtime) == (11, 22)


def test_readdir_time(d: Folder) -> None:
    """readdir() marks atime of the directory (relatime: when it is not later than mtime)."""
    d.folder()
    d.file("folder/file")
    before = watch(d / "folder")
    os.listdir(d / "folder")
    assert before.moved() == "a"


def test_stat_marks_nothing(d: Folder) -> None:
    """stat(), access() and open() for reading mark no time."""
    path = d.file(content=b"abc")
    before = watch(path)
    os.stat(path)
    os.access(path, os.R_OK)
    os.close(os.open(path, os.O_RDONLY))
    assert before.moved() == ""


def test_failed_calls_mark_nothing(d: Folder) -> None:
    """A call that failed marks no time."""
    path = d.file(content=b"abc")
    before = watch(path)
    d.user(lambda: fails("EPERM", c.chmod, path, 0o777))
    d.user(lambda: fails("EPERM", c.chown, path, 1, 1))
    d.user(lambda: fails("EACCES", c.truncate, path, 0))
    assert before.moved() == ""
