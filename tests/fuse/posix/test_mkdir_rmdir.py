"""mkdir(2) and rmdir(2)."""

import os
import stat

import pytest

from tests.fuse.posix.calls import AT_REMOVEDIR, c, fails
from tests.fuse.posix.context import (
    GROUP,
    OTHER,
    OTHER_GROUP,
    USER,
    Folder,
    in_child,
    mode_of,
    umask,
    watch,
)

KINDS = pytest.mark.parametrize("kind", ["file", "folder", "fifo", "link", "dangling"])


def make(d: Folder, kind: str, name: str = "name") -> str:
    makers = {
        "file": lambda: d.file(name),
        "folder": lambda: d.folder(name),
        "fifo": lambda: d.fifo(name),
        "link": lambda: d.link(d.folder("target"), name),
        "dangling": lambda: d.link("nowhere", name),
    }
    return makers[kind]()


def test_mkdir_makes_an_empty_folder(d: Folder) -> None:
    """The new directory shall be an empty directory."""
    c.mkdir(d / "new", 0o755)
    assert stat.S_ISDIR(os.stat(d / "new").st_mode)
    assert os.listdir(d / "new") == []


@pytest.mark.parametrize("mode", [0o000, 0o700, 0o755, 0o777, 0o1777], ids=oct)
@pytest.mark.parametrize("bits", [0o000, 0o022, 0o077], ids=oct)
def test_mkdir_mode(d: Folder, mode: int, bits: int) -> None:
    """The mode of the created directory is (mode & ~umask & 01777)."""
    with umask(bits):
        c.mkdir(d / "new", mode)
    assert mode_of(d / "new") == mode & ~bits & 0o1777


def test_mkdir_owner(d: Folder) -> None:
    """The directory is owned by the effective user ID and group ID of the process."""
    os.chmod(d.path, 0o777)
    d.user(lambda: c.mkdir(d / "new", 0o755))
    assert (os.stat(d / "new").st_uid, os.stat(d / "new").st_gid) == (USER, GROUP)


def test_mkdir_inherits_set_group_id(d: Folder) -> None:
    """In a set-group-ID parent, the new directory inherits the group and the bit."""
    os.chown(d.path, 0, OTHER_GROUP)
    os.chmod(d.path, 0o2777)
    d.user(lambda: c.mkdir(d / "new", 0o755))
    assert (os.stat(d / "new").st_gid, mode_of(d / "new")) == (OTHER_GROUP, 0o2755)


def test_mkdir_link_counts(d: Folder) -> None:
    """A directory has two links, and one more from each subdirectory."""
    before = os.stat(d.path).st_nlink
    c.mkdir(d / "new", 0o755)
    assert os.stat(d / "new").st_nlink == 2
    assert os.stat(d.path).st_nlink == before + 1
    c.mkdir(d / "new/below", 0o755)
    assert os.stat(d / "new").st_nlink == 3
    c.rmdir(d / "new/below")
    assert os.stat(d / "new").st_nlink == 2


def test_mkdir_times(d: Folder) -> None:
    """mkdir() marks all times of the directory, and mtime and ctime of its parent."""
    before = watch(d.path)
    c.mkdir(d / "new", 0o755)
    found = os.stat(d / "new")
    assert before.moved() == "mc"
    assert min(found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns) > before.mtime


@KINDS
def test_mkdir_eexist(d: Folder, kind: str) -> None:
    """EEXIST: path already exists (not necessarily as a directory), dangling links included."""
    fails("EEXIST", c.mkdir, make(d, kind), 0o755)


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_mkdir_eexist_of_dots(d: Folder, name: str) -> None:
    """EEXIST: dot and dot-dot always exist."""
    fails("EEXIST", c.mkdir, "/" if name == "/" else d / name, 0o755)


def test_mkdir_eexist_leaves_times(d: Folder) -> None:
    """A mkdir() that failed marks no time."""
    d.folder()
    before = watch(d.path)
    fails("EEXIST", c.mkdir, d / "folder", 0o755)
    assert before.moved() == ""


def test_mkdir_trailing_slash(d: Folder) -> None:
    """A trailing slash after the new name is allowed for directories."""
    c.mkdir(d / "new///", 0o755)
    assert os.path.isdir(d / "new")


def test_mkdir_eacces(d: Folder) -> None:
    """EACCES: The parent directory does not allow write permission to the process."""
    d.user(lambda: fails("EACCES", c.mkdir, d / "new", 0o755))
    assert not os.path.exists(d / "new")


def test_mkdir_eacces_without_search(d: Folder) -> None:
    """EACCES: write without search permission on the parent is not enough."""
    d.folder(mode=0o766)
    d.user(lambda: fails("EACCES", c.mkdir, d / "folder/new", 0o755))


def test_mkdir_enoent_in_a_removed_folder(d: Folder) -> None:
    """ENOENT: the working directory has been removed."""

    def body() -> None:
        os.chdir(d.folder())
        os.rmdir(d / "folder")
        fails("ENOENT", c.mkdir, "new", 0o755)

    in_child(body)


def test_mkdir_of_255_bytes(d: Folder) -> None:
    """A name may have NAME_MAX (255) bytes."""
    c.mkdir(d / ("n" * 255), 0o755)
    assert os.listdir(d.path) == ["n" * 255]


def test_mkdir_of_any_bytes(d: Folder) -> None:
    """A name may have any bytes but NUL and slash."""
    name = bytes(range(1, 47)) + bytes(range(48, 256))
    c.mkdir(os.fsencode(d.path) + b"/" + name, 0o755)
    assert os.listdir(os.fsencode(d.path)) == [name]


def test_names_are_case_sensitive(d: Folder) -> None:
    """Names that differ in case or in their Unicode normal form are different names."""
    for name in ("name", "Name", "NAME", "\u00e9", "e\u0301"):
        c.mkdir(d / name, 0o755)
    assert len(os.listdir(d.path)) == 5


def test_mkdir_on_a_mount_point(d: Folder) -> None:
    """EEXIST: a mounted folder exists."""
    fails("EEXIST", c.mkdir, d.place.busy, 0o755)


def test_rmdir(d: Folder) -> None:
    """rmdir() deletes a directory, which must be empty."""
    c.rmdir(d.folder())
    assert os.listdir(d.path) == []


@pytest.mark.parametrize("kind", ["file", "folder", "dangling"])
def test_rmdir_enotempty(d: Folder, kind: str) -> None:
    """ENOTEMPTY: path contains entries other than . and .. ."""
    d.folder()
    make(d, kind, "folder/name")
    fails("ENOTEMPTY/EEXIST", c.rmdir, d / "folder")
    assert os.path.lexists(d / "folder/name")


@pytest.mark.parametrize("kind", ["file", "fifo", "link", "dangling"])
def test_rmdir_enotdir(d: Folder, kind: str) -> None:
    """ENOTDIR: path is not a directory; a symbolic link to one is not."""
    fails("ENOTDIR", c.rmdir, make(d, kind))
    assert os.path.lexists(d / "name")


def test_rmdir_einval_dot(d: Folder) -> None:
    """EINVAL: path has . as last component."""
    fails("EINVAL", c.rmdir, d.folder() + "/.")


def test_rmdir_enotempty_dotdot(d: Folder) -> None:
    """ENOTEMPTY: path has .. as last component."""
    d.folder()
    fails("ENOTEMPTY/EINVAL/EEXIST", c.rmdir, d.folder("folder/below") + "/..")


def test_rmdir_ebusy_mount_point(d: Folder) -> None:
    """EBUSY: path is in use as a mount point."""
    fails("EBUSY", c.rmdir, d.place.busy)


def test_rmdir_trailing_slash(d: Folder) -> None:
    """A trailing slash after a directory's name is allowed."""
    c.rmdir(d.folder() + "/")
    assert os.listdir(d.path) == []


def test_rmdir_trailing_slash_of_a_link(d: Folder) -> None:
    """ENOTDIR: a symbolic link to a directory with a trailing slash is not removed."""
    d.folder()
    fails("ENOTDIR", c.rmdir, d.link("folder") + "/")


def test_rmdir_times(d: Folder) -> None:
    """rmdir() marks mtime and ctime of the parent directory."""
    d.folder()
    before = watch(d.path)
    c.rmdir(d / "folder")
    assert before.moved() == "mc"


def test_rmdir_failed_leaves_times(d: Folder) -> None:
    """A rmdir() that failed marks no time."""
    d.folder()
    d.file("folder/file")
    before, folder = watch(d.path), watch(d / "folder")
    fails("ENOTEMPTY", c.rmdir, d / "folder")
    assert (before.moved(), folder.moved()) == ("", "")


def test_rmdir_eacces(d: Folder) -> None:
    """EACCES: Write access to the directory containing path was not allowed."""
    d.folder(owner=(USER, GROUP))
    d.user(lambda: fails("EACCES", c.rmdir, d / "folder"))
    assert os.path.isdir(d / "folder")


def test_rmdir_needs_no_permission_on_the_folder(d: Folder) -> None:
    """Write access to the parent is enough; the directory itself may be inaccessible."""
    os.chmod(d.path, 0o777)
    d.folder(mode=0o000)
    d.user(lambda: c.rmdir(d / "folder"))
    assert os.listdir(d.path) == []


def test_rmdir_eperm_sticky(d: Folder) -> None:
    """EPERM: the parent has the sticky bit and neither it nor path is the caller's."""
    os.chmod(d.path, 0o1777)
    d.folder(owner=(OTHER, GROUP), mode=0o777)
    d.user(lambda: fails("EPERM/EACCES", c.rmdir, d / "folder"))
    assert os.path.isdir(d / "folder")


def test_rmdir_sticky_by_the_owner(d: Folder) -> None:
    """The owner of a directory in a sticky folder may remove it."""
    os.chmod(d.path, 0o1777)
    d.folder(owner=(USER, GROUP))
    d.user(lambda: c.rmdir(d / "folder"))


def test_rmdir_of_an_open_folder(d: Folder) -> None:
    """A directory that is removed while it is open has no entries, and takes none."""
    fd = d.fd(d.folder(), os.O_RDONLY)
    c.rmdir(d / "folder")
    assert os.listdir(fd) == []
    assert os.fstat(fd).st_nlink == 0
    fails("ENOENT", c.openat, fd, "new", os.O_CREAT | os.O_RDWR, 0o644)


def test_rmdir_of_the_working_directory(d: Folder) -> None:
    """ENOENT: getcwd(3) of a working directory that has been unlinked."""

    def body() -> None:
        os.chdir(d.folder())
        os.rmdir(d / "folder")
        fails("ENOENT", os.getcwd)

    in_child(body)


def test_rmdir_then_mkdir_is_a_new_folder(d: Folder) -> None:
    """The name can be used again at once, and for another inode."""
    first = os.stat(d.folder()).st_ino
    fd = d.fd(d / "folder", os.O_RDONLY)
    c.rmdir(d / "folder")
    c.mkdir(d / "folder", 0o700)
    assert os.stat(d / "folder").st_ino != first == os.fstat(fd).st_ino


def test_unlinkat_at_removedir(d: Folder) -> None:
    """unlinkat(2) AT_REMOVEDIR: the equivalent of rmdir(2)."""
    d.folder()
    at = d.fd(d.path, os.O_RDONLY)
    c.unlinkat(at, "folder", AT_REMOVEDIR)
    assert os.listdir(d.path) == []


def test_unlinkat_at_removedir_enotdir(d: Folder) -> None:
    """unlinkat(2) ENOTDIR: AT_REMOVEDIR of a file."""
    fails("ENOTDIR", c.unlinkat, -100, d.file(), AT_REMOVEDIR)


def test_unlinkat_at_removedir_enotempty(d: Folder) -> None:
    """unlinkat(2) ENOTEMPTY: AT_REMOVEDIR of a directory that has entries."""
    d.folder()
    d.file("folder/file")
    fails("ENOTEMPTY", c.unlinkat, -100, d / "folder", AT_REMOVEDIR)


def test_deep_folders(d: Folder) -> None:
    """A tree may be deeper than PATH_MAX: each step is relative."""

    def body() -> None:
        os.chdir(d.path)
        for _ in range(40):
            c.mkdir("n" * 200, 0o755)
            os.chdir("n" * 200)
        for _ in range(40):
            os.chdir("..")
            c.rmdir("n" * 200)

    in_child(body)
    assert os.listdir(d.path) == []
