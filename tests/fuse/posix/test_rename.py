"""rename(2), renameat(2), renameat2(2)."""

import os
import threading

import pytest

from tests.fuse.posix.calls import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, c, fails
from tests.fuse.posix.context import GROUP, OTHER, USER, Folder, content_of, in_child, watch
from tests.fuse.posix.test_mkdir_rmdir import make

KINDS = ["file", "folder", "fifo", "dangling"]


@pytest.mark.parametrize("kind", KINDS)
def test_rename(d: Folder, kind: str) -> None:
    """rename() renames a file, moving it between directories if required."""
    path = make(d, kind)
    d.folder("to")
    ino = os.lstat(path).st_ino
    c.rename(path, d / "to/new")
    assert not os.path.lexists(path)
    assert os.lstat(d / "to/new").st_ino == ino


def _make_anew(d: Folder, kind: str, name: str) -> str:
    return d.link(d.path, name) if kind == "link" else make(d, kind, name)


@pytest.mark.parametrize("kind", ["file", "fifo", "link", "dangling"])
@pytest.mark.parametrize("target", ["file", "fifo", "link", "dangling"])
def test_rename_replaces(d: Folder, kind: str, target: str) -> None:
    """If newpath already exists, it will be atomically replaced, whatever kind of file it is."""
    d.folder("a")
    d.folder("b")
    path = _make_anew(d, kind, "a/old")
    _make_anew(d, target, "b/new")
    ino = os.lstat(path).st_ino
    c.rename(path, d / "b/new")
    assert os.lstat(d / "b/new").st_ino == ino
    assert os.listdir(d / "a") == []


def test_rename_keeps_the_file(d: Folder) -> None:
    """Attributes, content, other links and open descriptors of oldpath are unaffected."""
    path = d.file(content=b"abc", mode=0o604, owner=(USER, GROUP))
    c.link(path, d / "other")
    fd = d.fd(path)
    c.rename(path, d / "new")
    found = os.stat(d / "new")
    assert (found.st_mode & 0o777, found.st_uid, found.st_nlink) == (0o604, USER, 2)
    assert (content_of(d / "other"), os.read(fd, 9)) == (b"abc", b"abc")


def test_rename_replaced_file_lives_for_its_descriptors(d: Folder) -> None:
    """Open file descriptors for the replaced file are unaffected."""
    fd = d.fd(d.file("new", b"replaced"))
    c.rename(d.file("old", b"abc"), d / "new")
    assert (os.read(fd, 9), os.fstat(fd).st_nlink) == (b"replaced", 0)


def test_rename_replaced_file_loses_a_link(d: Folder) -> None:
    """The replaced name is one link less of its file."""
    c.link(d.file("new"), d / "other")
    c.rename(d.file("old"), d / "new")
    assert os.stat(d / "other").st_nlink == 1


def test_rename_same_file(d: Folder) -> None:
    """If oldpath and newpath are links to the same file, rename() does nothing, successfully."""
    path = d.file()
    c.link(path, d / "other")
    c.rename(path, d / "other")
    assert sorted(os.listdir(d.path)) == ["file", "other"]
    c.rename(path, path)
    assert os.stat(path).st_nlink == 2


def test_rename_folder_replaces_an_empty_one(d: Folder) -> None:
    """oldpath can specify a directory: newpath must not exist or be an empty directory."""
    d.folder("old")
    d.file("old/file")
    d.folder("new")
    c.rename(d / "old", d / "new")
    assert os.listdir(d / "new") == ["file"]


@pytest.mark.parametrize("kind", ["file", "folder", "dangling"])
def test_rename_enotempty(d: Folder, kind: str) -> None:
    """ENOTEMPTY or EEXIST: newpath is a nonempty directory."""
    d.folder("old")
    d.folder("new")
    make(d, kind, "new/name")
    fails("ENOTEMPTY/EEXIST", c.rename, d / "old", d / "new")
    assert os.path.isdir(d / "old")
    assert os.path.lexists(d / "new/name")


@pytest.mark.parametrize("kind", ["file", "fifo", "dangling"])
def test_rename_eisdir(d: Folder, kind: str) -> None:
    """EISDIR: newpath is an existing directory, but oldpath is not a directory."""
    path = make(d, kind)
    fails("EISDIR", c.rename, path, d.folder())
    assert os.path.lexists(path)


@pytest.mark.parametrize("kind", ["file", "fifo", "link", "dangling"])
def test_rename_enotdir(d: Folder, kind: str) -> None:
    """ENOTDIR: oldpath is a directory, and newpath exists but is not a directory."""
    fails("ENOTDIR", c.rename, d.folder(), make(d, kind))
    assert os.path.isdir(d / "folder")


def test_rename_einval_below_itself(d: Folder) -> None:
    """EINVAL: an attempt was made to make a directory a subdirectory of itself."""
    d.folder()
    d.folder("folder/below")
    fails("EINVAL", c.rename, d / "folder", d / "folder/new")
    fails("EINVAL", c.rename, d / "folder", d / "folder/below/new")
    fails("EINVAL", c.rename, d / "folder", d / "folder/below")


def test_rename_enotempty_of_its_parent(d: Folder) -> None:
    """ENOTEMPTY: newpath is an ancestor of oldpath."""
    d.folder()
    d.folder("folder/below")
    fails("ENOTEMPTY/EEXIST", c.rename, d / "folder/below", d / "folder")


@pytest.mark.parametrize("name", [".", ".."])
def test_rename_ebusy_dots(d: Folder, name: str) -> None:
    """EBUSY or EINVAL: the last component of either path is dot or dot-dot."""
    d.folder()
    fails("EBUSY/EINVAL", c.rename, d / f"folder/{name}", d / "new")
    fails("EBUSY/EINVAL/ENOTEMPTY/EEXIST", c.rename, d / "folder", d / f"folder/{name}")


def test_rename_ebusy_mount_point(d: Folder) -> None:
    """EBUSY: a directory is in use as a mount point."""
    fails("EBUSY", c.rename, d.place.busy, d / "new")
    fails("EBUSY", c.rename, d.folder(), d.place.busy)


def test_rename_exdev(d: Folder) -> None:
    """EXDEV: oldpath and newpath are not on the same mounted file system."""
    fails("EXDEV", c.rename, d.file(), f"{d.place.elsewhere}/new")
    fails("EXDEV", c.rename, d.folder(), f"{d.place.elsewhere}/new")


def test_rename_times(d: Folder) -> None:
    """rename() marks mtime and ctime of both parent directories, and ctime of the file."""
    d.folder("a")
    d.folder("b")
    d.file("a/old")
    a, b, top = watch(d / "a"), watch(d / "b"), watch(d.path)
    before = watch(d / "a/old")
    c.rename(d / "a/old", d / "b/new")
    after = os.stat(d / "b/new")
    assert (a.moved(), b.moved(), top.moved()) == ("mc", "mc", "")
    assert (after.st_mtime_ns, after.st_ctime_ns > before.ctime) == (before.mtime, True)


def test_rename_replaced_ctime(d: Folder) -> None:
    """The ctime of a file that lost its name to rename() is marked."""
    c.link(d.file("new"), d / "other")
    before = watch(d / "other")
    c.rename(d.file("old"), d / "new")
    assert before.moved() == "c"


def test_rename_failed_leaves_times(d: Folder) -> None:
    """A rename() that failed changes nothing."""
    d.file("old")
    d.folder("new")
    before, old = watch(d.path), watch(d / "old")
    fails("EISDIR", c.rename, d / "old", d / "new")
    assert (before.moved(), old.moved()) == ("", "")


def test_rename_folder_link_counts(d: Folder) -> None:
    """A directory that moves takes its dot-dot link from one parent to the other."""
    d.folder("a")
    d.folder("b")
    d.folder("a/old")
    c.rename(d / "a/old", d / "b/new")
    assert (os.stat(d / "a").st_nlink, os.stat(d / "b").st_nlink) == (2, 3)
    assert os.stat(d / "b/new/..").st_ino == os.stat(d / "b").st_ino


def test_rename_folder_over_folder_link_counts(d: Folder) -> None:
    """A replaced directory is one link less of its parent."""
    d.folder("a")
    d.folder("b")
    d.folder("a/old")
    d.folder("b/new")
    c.rename(d / "a/old", d / "b/new")
    assert (os.stat(d / "a").st_nlink, os.stat(d / "b").st_nlink) == (2, 3)


def test_rename_eacces_old_parent(d: Folder) -> None:
    """EACCES: Write permission is denied for the directory containing oldpath."""
    d.file(owner=(USER, GROUP))
    d.folder("open", mode=0o777)
    d.user(lambda: fails("EACCES", c.rename, d / "file", d / "open/new"))


def test_rename_eacces_new_parent(d: Folder) -> None:
    """EACCES: Write permission is denied for the directory containing newpath."""
    d.folder("open", mode=0o777)
    d.file("open/file", owner=(USER, GROUP))
    d.user(lambda: fails("EACCES", c.rename, d / "open/file", d / "new"))


def test_rename_eacces_folder_itself(d: Folder) -> None:
    """EACCES: oldpath is a directory without write permission, and its .. must change."""
    d.folder("a", mode=0o777)
    d.folder("b", mode=0o777)
    d.folder("a/old", mode=0o755)
    d.user(lambda: fails("EACCES", c.rename, d / "a/old", d / "b/new"))
    d.user(lambda: c.rename(d / "a/old", d / "a/new"))


STICKY_SOURCE = [(0, OTHER, False), (0, USER, True), (USER, OTHER, True)]


@pytest.mark.parametrize(("folder", "file", "may"), STICKY_SOURCE)
def test_rename_sticky_source(d: Folder, folder: int, file: int, may: bool) -> None:
    """EPERM: the directory of oldpath is sticky, and neither it nor the file is the caller's."""
    d.folder("to", mode=0o777)
    d.folder(mode=0o1777, owner=(folder, 0))
    path = d.file("folder/file", mode=0o666, owner=(file, 0))
    if may:
        d.user(lambda: c.rename(path, d / "to/new"))
    else:
        d.user(lambda: fails("EPERM/EACCES", c.rename, path, d / "to/new"))
    assert os.path.exists(d / "to/new") is may


@pytest.mark.parametrize(("folder", "file", "may"), STICKY_SOURCE)
def test_rename_sticky_target(d: Folder, folder: int, file: int, may: bool) -> None:
    """EPERM: newpath exists in a sticky directory, and neither of them is the caller's."""
    d.folder("from", mode=0o777)
    path = d.file("from/file", owner=(USER, 0))
    d.folder(mode=0o1777, owner=(folder, 0))
    d.file("folder/new", mode=0o666, owner=(file, 0))
    if may:
        d.user(lambda: c.rename(path, d / "folder/new"))
    else:
        d.user(lambda: fails("EPERM/EACCES", c.rename, path, d / "folder/new"))
    assert os.path.exists(path) is not may


def test_rename_trailing_slash_of_a_folder(d: Folder) -> None:
    """Trailing slashes after the names of a directory are allowed."""
    d.folder()
    c.rename(d / "folder/", d / "new/")
    assert os.path.isdir(d / "new")


def test_rename_trailing_slash_of_a_file(d: Folder) -> None:
    """ENOTDIR: a trailing slash after the name of a file, old or new."""
    d.file()
    fails("ENOTDIR", c.rename, d / "file/", d / "new")
    fails("ENOTDIR", c.rename, d / "file", d / "new/")


def test_rename_old_is_missing(d: Folder) -> None:
    """ENOENT: the link named by oldpath does not exist; newpath is left alone."""
    d.file("new", b"abc")
    fails("ENOENT", c.rename, d / "missing", d / "new")
    assert content_of(d / "new") == b"abc"


def test_rename_into_a_removed_folder(d: Folder) -> None:
    """ENOENT: the directory of newpath has been removed."""
    at = d.fd(d.folder(), os.O_RDONLY)
    os.rmdir(d / "folder")
    fails("ENOENT", c.renameat, -100, d.file(), at, "new")


def test_rename_working_directory(d: Folder) -> None:
    """A process in a directory that moves goes with it."""
    d.folder("a")
    d.folder("a/b")

    def body() -> None:
        os.chdir(d / "a/b")
        os.rename(d / "a", d / "x")
        assert os.getcwd().endswith("/x/b")
        assert os.listdir("..") == ["b"]

    in_child(body)


def test_rename_is_atomic(d: Folder) -> None:
    """There is no point at which another process finds newpath missing."""
    d.file("new", b"0")
    ended = threading.Event()
    missed: list[OSError] = []

    def look() -> None:
        while not ended.is_set():
            try:
                os.close(os.open(d / "new", os.O_RDONLY))
            except OSError as error:
                missed.append(error)

    looker = threading.Thread(target=look)
    looker.start()
    for index in range(30):
        c.rename(d.file(f"old{index}", b"1"), d / "new")
    ended.set()
    looker.join()
    assert missed == []


def test_renameat_relative_to_two_folders(d: Folder) -> None:
    """renameat(): each path is relative to its own descriptor."""
    d.folder("a")
    d.folder("b")
    d.file("a/old")
    a, b = (d.fd(d / name, os.O_RDONLY) for name in ("a", "b"))
    c.renameat(a, "old", b, "new")
    assert (os.listdir(a), os.listdir(b)) == ([], ["new"])


def test_noreplace(d: Folder) -> None:
    """RENAME_NOREPLACE: renames when newpath does not exist."""
    c.renameat2(-100, d.file(content=b"abc"), -100, d / "new", RENAME_NOREPLACE)
    assert content_of(d / "new") == b"abc"


@pytest.mark.parametrize("kind", ["file", "folder", "fifo", "link", "dangling"])
def test_noreplace_eexist(d: Folder, kind: str) -> None:
    """EEXIST: flags contains RENAME_NOREPLACE and newpath already exists."""
    path = d.file("old")
    fails("EEXIST", c.renameat2, -100, path, -100, make(d, kind), RENAME_NOREPLACE)
    assert os.path.exists(path)


def test_noreplace_eexist_same_name(d: Folder) -> None:
    """EEXIST: RENAME_NOREPLACE onto itself."""
    fails("EEXIST", c.renameat2, -100, d.file(), -100, d / "file", RENAME_NOREPLACE)


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("two", KINDS)
def test_exchange(d: Folder, one: str, two: str) -> None:
    """RENAME_EXCHANGE: atomically exchange oldpath and newpath; they may be of different types."""
    d.folder("a")
    d.folder("b")
    first, second = make(d, one, "a/one"), make(d, two, "b/two")
    before = os.lstat(first).st_ino, os.lstat(second).st_ino
    c.renameat2(-100, first, -100, second, RENAME_EXCHANGE)
    assert (os.lstat(second).st_ino, os.lstat(first).st_ino) == before
    counts = os.stat(d / "a").st_nlink, os.stat(d / "b").st_nlink
    assert counts == (2 + (two == "folder"), 2 + (one == "folder"))


def test_exchange_nonempty_folders(d: Folder) -> None:
    """RENAME_EXCHANGE: one could be a non-empty directory."""
    d.folder()
    d.file("folder/inside")
    d.file(content=b"abc")
    c.renameat2(-100, d / "folder", -100, d / "file", RENAME_EXCHANGE)
    assert (os.listdir(d / "file"), content_of(d / "folder")) == (["inside"], b"abc")


def test_exchange_enoent(d: Folder) -> None:
    """ENOENT: flags contains RENAME_EXCHANGE and newpath does not exist."""
    fails("ENOENT", c.renameat2, -100, d.file(), -100, d / "new", RENAME_EXCHANGE)
    assert os.path.exists(d / "file")


def test_exchange_einval_below_itself(d: Folder) -> None:
    """EINVAL: a directory cannot be exchanged with something below it."""
    d.folder()
    d.file("folder/file")
    fails("EINVAL", c.renameat2, -100, d / "folder", -100, d / "folder/file", RENAME_EXCHANGE)
    fails(
        "EINVAL/ENOTEMPTY",
        c.renameat2,
        *(-100, d / "folder/file", -100, d / "folder", RENAME_EXCHANGE),
    )


def test_exchange_times(d: Folder) -> None:
    """RENAME_EXCHANGE marks both parents, and ctime of both files."""
    d.folder("a")
    d.folder("b")
    d.file("a/one")
    d.file("b/two")
    a, b = watch(d / "a"), watch(d / "b")
    one, two = watch(d / "a/one"), watch(d / "b/two")
    c.renameat2(-100, d / "a/one", -100, d / "b/two", RENAME_EXCHANGE)
    assert (a.moved(), b.moved()) == ("mc", "mc")
    assert os.stat(d / "b/two").st_ctime_ns > one.ctime
    assert os.stat(d / "a/one").st_ctime_ns > two.ctime


def test_flags_einval(d: Folder) -> None:
    """EINVAL: an invalid flag was specified, or flags that exclude each other."""
    path = d.file()
    fails("EINVAL", c.renameat2, -100, path, -100, d / "new", 64)
    both = RENAME_NOREPLACE | RENAME_EXCHANGE
    fails("EINVAL", c.renameat2, -100, path, -100, d / "new", both)
    both = RENAME_WHITEOUT | RENAME_EXCHANGE
    fails("EINVAL", c.renameat2, -100, path, -100, d / "new", both)
    assert os.path.exists(path)


def test_whiteout(d: Folder) -> None:
    """RENAME_WHITEOUT leaves a character device 0/0 at oldpath."""
    path = d.file()
    c.renameat2(-100, path, -100, d / "new", RENAME_WHITEOUT)
    assert os.lstat(path).st_rdev == 0


def test_whiteout_unprivileged(d: Folder) -> None:
    """RENAME_WHITEOUT needs no CAP_MKNOD since Linux 5.8: a whiteout is no device to open."""
    os.chmod(d.path, 0o777)
    d.file(owner=(USER, GROUP))
    d.user(lambda: c.renameat2(-100, d / "file", -100, d / "new", RENAME_WHITEOUT))
