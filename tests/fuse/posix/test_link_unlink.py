"""link(2), linkat(2), unlink(2), unlinkat(2)."""

import os
import stat

import pytest

from tests.fuse.posix.calls import AT_EMPTY_PATH, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, c, fails
from tests.fuse.posix.context import GROUP, OTHER, USER, Folder, content_of, watch
from tests.fuse.posix.test_mkdir_rmdir import make

SOURCES = pytest.mark.parametrize("kind", ["file", "fifo", "socket", "device", "dangling"])


def source(d: Folder, kind: str, name: str = "source") -> str:
    if kind in ("socket", "device"):
        bits = stat.S_IFSOCK if kind == "socket" else stat.S_IFCHR
        c.mknod(d / name, bits | 0o644, os.makedev(1, 3))
        return d / name
    return make(d, kind, name)


@SOURCES
def test_link(d: Folder, kind: str) -> None:
    """link() creates a new link to an existing file: one inode, one count more."""
    path = source(d, kind)
    c.link(path, d / "other")
    one, two = os.lstat(path), os.lstat(d / "other")
    assert (one.st_ino, one.st_nlink, one.st_mode) == (two.st_ino, 2, two.st_mode)
    assert (one.st_rdev, two.st_nlink) == (two.st_rdev, 2)


def test_link_is_the_same_file(d: Folder) -> None:
    """It is impossible to tell which name was the original: content and attributes are one."""
    path = d.file(content=b"abc")
    c.link(path, d / "other")
    with open(d / "other", "ab") as file:
        file.write(b"def")
    os.chmod(d / "other", 0o604)
    os.chown(d / "other", USER, GROUP)
    found = os.stat(path)
    assert content_of(path) == b"abcdef"
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o604, USER)


def test_link_counts_down(d: Folder) -> None:
    """Each unlink() takes one from the link count, which others see."""
    path = d.file(content=b"abc")
    for index in range(5):
        c.link(path, d / f"other{index}")
    assert os.stat(path).st_nlink == 6
    for index in range(5):
        c.unlink(d / f"other{index}")
        assert os.stat(path).st_nlink == 5 - index
    assert content_of(path) == b"abc"


def test_link_times(d: Folder) -> None:
    """link() marks ctime of the file, and mtime and ctime of the directory of the new entry."""
    path, folder = d.file(), d.folder()
    file, parent, top = watch(path), watch(folder), watch(d.path)
    c.link(path, d / "folder/other")
    assert (file.moved(), parent.moved(), top.moved()) == ("c", "mc", "")


@pytest.mark.parametrize("kind", ["file", "folder", "fifo", "link", "dangling"])
def test_link_eexist(d: Folder, kind: str) -> None:
    """EEXIST: newpath already exists."""
    fails("EEXIST", c.link, d.file("source"), make(d, kind))
    assert os.stat(d / "source").st_nlink == 1


def test_link_eexist_itself(d: Folder) -> None:
    """EEXIST: a file cannot be linked to its own name."""
    fails("EEXIST", c.link, d.file(), d / "file")


def test_link_eperm_folder(d: Folder) -> None:
    """EPERM: oldpath is a directory."""
    fails("EPERM", c.link, d.folder(), d / "other")
    d.user(lambda: fails("EPERM/EACCES", c.link, d / "folder", d / "other"))


def test_link_exdev(d: Folder) -> None:
    """EXDEV: oldpath and newpath are not on the same mounted file system."""
    fails("EXDEV", c.link, d.file(), f"{d.place.elsewhere}/other")


def test_link_does_not_follow(d: Folder) -> None:
    """link(): If oldpath is a symbolic link, it is not dereferenced."""
    d.file()
    c.link(d.link("file"), d / "other")
    assert os.readlink(d / "other") == "file"
    assert os.stat(d / "file").st_nlink == 1


def test_linkat_at_symlink_follow(d: Folder) -> None:
    """linkat() AT_SYMLINK_FOLLOW: oldpath is dereferenced if it is a symbolic link."""
    d.file()
    c.linkat(-100, d.link("file"), -100, d / "other", AT_SYMLINK_FOLLOW)
    assert os.stat(d / "file").st_nlink == 2
    assert not os.path.islink(d / "other")


def test_linkat_at_symlink_follow_enoent(d: Folder) -> None:
    """linkat() ENOENT: AT_SYMLINK_FOLLOW of a dangling symbolic link."""
    fails("ENOENT", c.linkat, -100, d.link("no"), -100, d / "other", AT_SYMLINK_FOLLOW)


def test_linkat_einval(d: Folder) -> None:
    """linkat() EINVAL: An invalid flag value was specified in flags."""
    fails("EINVAL", c.linkat, -100, d.file(), -100, d / "other", 0x80)


def test_linkat_at_empty_path(d: Folder) -> None:
    """linkat() AT_EMPTY_PATH: create a link to the file referenced by olddirfd."""
    fd = d.new(b"abc")
    c.linkat(fd, "", -100, d / "other", AT_EMPTY_PATH)
    assert os.stat(d / "other").st_ino == os.fstat(fd).st_ino


def test_linkat_proc_self_fd(d: Folder) -> None:
    """linkat() AT_SYMLINK_FOLLOW of /proc/self/fd/N links the open file."""
    fd = d.new(b"abc")
    c.linkat(-100, f"/proc/self/fd/{fd}", -100, d / "other", AT_SYMLINK_FOLLOW)
    assert os.stat(d / "other").st_ino == os.fstat(fd).st_ino


def test_linkat_enoent_of_an_unlinked_file(d: Folder) -> None:
    """linkat() ENOENT: the file behind the descriptor has a link count of zero."""
    fd = d.new(b"abc")
    os.unlink(d / "file")
    fails("ENOENT", c.linkat, fd, "", -100, d / "other", AT_EMPTY_PATH)


def test_linkat_relative_to_two_folders(d: Folder) -> None:
    """linkat(): both paths are relative to their own descriptors."""
    d.folder("one")
    d.folder("two")
    d.file("one/file")
    one, two = (d.fd(d / name, os.O_RDONLY) for name in ("one", "two"))
    c.linkat(one, "file", two, "other", 0)
    assert os.listdir(two) == ["other"]


def test_link_eacces_new_parent(d: Folder) -> None:
    """EACCES: Write access to the directory containing newpath is denied."""
    path = d.file(owner=(USER, GROUP))
    d.user(lambda: fails("EACCES", c.link, path, d / "other"))
    assert os.stat(path).st_nlink == 1


def test_link_eacces_old_prefix(d: Folder) -> None:
    """EACCES: Search permission is denied for a directory in the path prefix of oldpath."""
    os.chmod(d.path, 0o777)
    d.folder(mode=0o700)
    d.file("folder/file", mode=0o666)
    d.user(lambda: fails("EACCES", c.link, d / "folder/file", d / "other"))


def test_link_new_parent_is_missing(d: Folder) -> None:
    """ENOENT: A directory component in newpath does not exist."""
    fails("ENOENT", c.link, d.file(), d / "missing/other")


def test_link_new_parent_is_removed(d: Folder) -> None:
    """ENOENT: the directory of newpath has been removed."""
    at = d.fd(d.folder(), os.O_RDONLY)
    os.rmdir(d / "folder")
    fails("ENOENT", c.linkat, -100, d.file(), at, "other", 0)


def test_link_trailing_slash(d: Folder) -> None:
    """ENOENT or ENOTDIR: a trailing slash after the new name of a file."""
    fails("ENOENT/ENOTDIR", c.link, d.file(), d / "other/")
    fails("ENOTDIR", c.link, d / "file/", d / "other")


def test_link_of_many_names(d: Folder) -> None:
    """LINK_MAX is well above a hundred; all the names are one file."""
    path = d.file()
    for index in range(120):
        c.link(path, d / f"n{index}")
    assert os.stat(path).st_nlink == 121


@pytest.mark.parametrize("kind", ["file", "fifo", "link", "dangling"])
def test_unlink(d: Folder, kind: str) -> None:
    """unlink() deletes a name; a symbolic link is removed itself."""
    c.unlink(make(d, kind))
    assert not os.path.lexists(d / "name")
    assert kind != "link" or os.path.isdir(d / "target")


def test_unlink_eisdir(d: Folder) -> None:
    """EISDIR (POSIX: EPERM): path refers to a directory."""
    fails("EISDIR/EPERM", c.unlink, d.folder())
    assert os.path.isdir(d / "folder")


def test_unlink_eisdir_dot(d: Folder) -> None:
    """EISDIR or EINVAL: the last component is dot."""
    fails("EISDIR/EINVAL/EPERM", c.unlink, d / ".")


def test_unlink_ebusy(d: Folder) -> None:
    """EBUSY or EISDIR: path is in use as a mount point."""
    fails("EBUSY/EISDIR", c.unlink, d.place.busy)


def test_unlink_enotdir_trailing_slash(d: Folder) -> None:
    """ENOTDIR: a trailing slash after the name of a file."""
    fails("ENOTDIR", c.unlink, d.file() + "/")
    assert os.path.exists(d / "file")


def test_unlink_eacces(d: Folder) -> None:
    """EACCES: Write access to the directory containing path is not allowed, owner or not."""
    d.file(owner=(USER, GROUP), mode=0o666)
    d.user(lambda: fails("EACCES", c.unlink, d / "file"))
    assert os.path.exists(d / "file")


def test_unlink_needs_no_permission_on_the_file(d: Folder) -> None:
    """Write access to the parent is enough: the file may belong to another user and be
    inaccessible."""
    os.chmod(d.path, 0o777)
    d.file(mode=0o000)
    d.user(lambda: c.unlink(d / "file"))
    assert os.listdir(d.path) == []


STICKY = [
    # owner of the folder, owner of the file, may USER remove it?
    (0, 0, False),
    (0, OTHER, False),
    (OTHER, OTHER, False),
    (OTHER, USER, True),
    (0, USER, True),
    (USER, OTHER, True),
    (USER, 0, True),
]


@pytest.mark.parametrize(("folder", "file", "may"), STICKY)
def test_unlink_sticky(d: Folder, folder: int, file: int, may: bool) -> None:
    """EPERM: the parent is sticky and neither it nor the file belongs to the caller."""
    d.folder(mode=0o1777, owner=(folder, 0))
    d.file("folder/file", mode=0o666, owner=(file, GROUP))
    call = (lambda: c.unlink(d / "folder/file")) if may else None
    d.user(call or (lambda: fails("EPERM/EACCES", c.unlink, d / "folder/file")))
    assert os.path.exists(d / "folder/file") is not may


def test_unlink_sticky_by_root(d: Folder) -> None:
    """The sticky bit does not restrict a process with CAP_FOWNER."""
    d.folder(mode=0o1777, owner=(OTHER, 0))
    c.unlink(d.file("folder/file", owner=(USER, 0)))


def test_unlink_times(d: Folder) -> None:
    """unlink() marks mtime and ctime of the parent directory."""
    d.file()
    before = watch(d.path)
    c.unlink(d / "file")
    assert before.moved() == "mc"


def test_unlink_marks_ctime_of_the_file(d: Folder) -> None:
    """If the link count of the file is not 0, its ctime is marked."""
    path = d.file()
    c.link(path, d / "other")
    before = watch(path)
    c.unlink(d / "other")
    assert before.moved() == "c"


def test_unlink_failed_leaves_times(d: Folder) -> None:
    """An unlink() that failed marks no time."""
    d.folder()
    before = watch(d.path)
    fails("EISDIR", c.unlink, d / "folder")
    assert before.moved() == ""


def test_unlink_of_an_open_file(d: Folder) -> None:
    """If any processes have the file open, it remains until the last descriptor is closed."""
    fd = d.new(b"abc")
    c.unlink(d / "file")
    assert os.fstat(fd).st_nlink == 0
    os.pwrite(fd, b"def", 3)
    assert os.pread(fd, 9, 0) == b"abcdef"
    os.ftruncate(fd, 2)
    os.fchmod(fd, 0o600)
    assert (os.fstat(fd).st_size, os.fstat(fd).st_mode & 0o777) == (2, 0o600)


def test_unlink_of_an_open_fifo(d: Folder) -> None:
    """For a FIFO the name is removed, but processes that have it open may go on."""
    d.fifo()
    reader = d.fd(d / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = d.fd(d / "fifo", os.O_WRONLY)
    c.unlink(d / "fifo")
    os.write(writer, b"abc")
    assert os.read(reader, 9) == b"abc"


def test_unlink_twice(d: Folder) -> None:
    """ENOENT: the name is gone."""
    c.unlink(d.file())
    fails("ENOENT", c.unlink, d / "file")


def test_unlinkat_einval(d: Folder) -> None:
    """unlinkat() EINVAL: An invalid flag value was specified in flags."""
    fails("EINVAL", c.unlinkat, -100, d.file(), AT_REMOVEDIR | 0x1)


def test_unlinkat_eisdir(d: Folder) -> None:
    """unlinkat() EISDIR: path refers to a directory and AT_REMOVEDIR was not specified."""
    fails("EISDIR/EPERM", c.unlinkat, -100, d.folder(), 0)


def test_unlink_keeps_the_other_links_data(d: Folder) -> None:
    """The content lives as long as one name does."""
    path = d.file(content=b"abc" * 5000)
    c.link(path, d / "other")
    c.unlink(path)
    assert content_of(d / "other") == b"abc" * 5000
