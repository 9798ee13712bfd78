"""symlink(2), symlinkat(2), readlink(2), readlinkat(2)."""

import os
import stat

import pytest

from tests.fuse.posix.calls import BAD, c, fails
from tests.fuse.posix.context import GROUP, USER, Folder, umask, watch
from tests.fuse.posix.test_mkdir_rmdir import make


@pytest.mark.parametrize("target", ["target", "/", "..", "a/b/c", "x" * 255, "x/" * 1000, " "])
def test_symlink_holds_any_text(d: Folder, target: str) -> None:
    """symlink() creates a link which contains the string target; it need not exist."""
    c.symlink(target, d / "link")
    assert os.readlink(d / "link") == target
    assert os.lstat(d / "link").st_size == len(target)


def test_symlink_of_any_bytes(d: Folder) -> None:
    """The string is bytes, kept as they are."""
    target = bytes(range(1, 256))
    c.symlink(target, d / "link")
    assert os.readlink(os.fsencode(d / "link")) == target


def test_symlink_of_path_max(d: Folder) -> None:
    """A target of 4095 bytes is kept whole."""
    c.symlink("x" * 4095, d / "link")
    assert os.readlink(d / "link") == "x" * 4095


def test_symlink_enametoolong_target(d: Folder) -> None:
    """ENAMETOOLONG: target was too long."""
    fails("ENAMETOOLONG", c.symlink, "x" * 4096, d / "link")


def test_symlink_enoent_empty_target(d: Folder) -> None:
    """ENOENT: target is the empty string."""
    fails("ENOENT", c.symlink, "", d / "link")


def test_symlink_efault_target(d: Folder) -> None:
    """EFAULT: target points outside the accessible address space."""
    fails("EFAULT", c.symlink, BAD, d / "link")


@pytest.mark.parametrize("kind", ["file", "folder", "fifo", "link", "dangling"])
def test_symlink_eexist(d: Folder, kind: str) -> None:
    """EEXIST: linkpath already exists."""
    fails("EEXIST", c.symlink, "x", make(d, kind))


def test_symlink_eacces(d: Folder) -> None:
    """EACCES: Write access to the directory containing linkpath is denied."""
    d.user(lambda: fails("EACCES", c.symlink, "x", d / "link"))


def test_symlink_trailing_slash(d: Folder) -> None:
    """ENOENT: a trailing slash after the new name."""
    fails("ENOENT/ENOTDIR", c.symlink, "x", d / "link/")


def test_symlink_mode_is_777(d: Folder) -> None:
    """On Linux the permissions of a symbolic link are always 0777, whatever the umask."""
    with umask(0o077):
        c.symlink("x", d / "link")
    found = os.lstat(d / "link")
    assert stat.S_ISLNK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o777


def test_symlink_owner(d: Folder) -> None:
    """The link is owned by the effective user ID and group ID."""
    os.chmod(d.path, 0o777)
    d.user(lambda: c.symlink("x", d / "link"))
    assert (os.lstat(d / "link").st_uid, os.lstat(d / "link").st_gid) == (USER, GROUP)


def test_symlink_times(d: Folder) -> None:
    """symlink() marks the times of the link, and mtime and ctime of its directory."""
    before = watch(d.path)
    c.symlink("x", d / "link")
    assert before.moved() == "mc"
    assert os.lstat(d / "link").st_mtime_ns > before.mtime


def test_symlink_in_a_removed_folder(d: Folder) -> None:
    """ENOENT: the directory of linkpath has been removed."""
    at = d.fd(d.folder(), os.O_RDONLY)
    os.rmdir(d / "folder")
    fails("ENOENT", c.symlinkat, "x", at, "link")


def test_symlink_is_resolved_from_its_folder(d: Folder) -> None:
    """A relative target is resolved relative to the directory of the link."""
    d.folder()
    d.file("folder/file", b"abc")
    d.link("file", "folder/link")
    with open(d / "folder/link", "rb") as file:
        assert file.read() == b"abc"


def test_symlink_to_dotdot(d: Folder) -> None:
    """A target may lead up and down again."""
    d.folder()
    d.file("top", b"abc")
    d.link("../folder/../top", "folder/link")
    with open(d / "folder/link", "rb") as file:
        assert file.read() == b"abc"


@pytest.mark.parametrize("kind", ["file", "folder", "fifo"])
def test_readlink_einval(d: Folder, kind: str) -> None:
    """EINVAL: The named file is not a symbolic link."""
    fails("EINVAL", c.readlink, make(d, kind), bytes(10), 10)


def test_readlink_einval_size(d: Folder) -> None:
    """EINVAL: bufsiz is not positive."""
    fails("EINVAL", c.readlink, d.link("x"), bytes(10), 0)


def test_readlink_efault(d: Folder) -> None:
    """EFAULT: buf extends outside the accessible address space."""
    fails("EFAULT", c.readlink, d.link("x"), BAD, 10)


def test_readlink_truncates(d: Folder) -> None:
    """readlink() will (silently) truncate the contents to bufsiz, and appends no NUL."""
    buffer = bytearray(b"-" * 10)
    import ctypes  # noqa: PLC0415

    array = (ctypes.c_char * 10).from_buffer(buffer)
    assert c.readlink(d.link("abcdef"), array, 3) == 3
    assert bytes(buffer) == b"abc-------"


def test_readlink_returns_the_length(d: Folder) -> None:
    """On success, the number of bytes placed in buf is returned."""
    assert c.readlink(d.link("abcdef"), bytes(100), 100) == 6


def test_readlink_needs_no_permission_on_the_link(d: Folder) -> None:
    """The owner of a link does not matter for reading it."""
    d.link("x")
    d.user(lambda: os.readlink(d / "link"))


def test_readlink_eacces_prefix(d: Folder) -> None:
    """EACCES: Search permission is denied for a component of the path prefix."""
    d.folder(mode=0o600)
    d.link("x", "folder/link")
    d.user(lambda: fails("EACCES", os.readlink, d / "folder/link"))


def test_readlinkat_empty_path(d: Folder) -> None:
    """readlinkat(): an empty path operates on the link that dirfd refers to."""
    fd = d.fd(d.link("x"), os.O_PATH | os.O_NOFOLLOW)
    assert c.readlinkat(fd, "", bytes(10), 10) == 1


def test_readlinkat_empty_path_of_a_file(d: Folder) -> None:
    """readlinkat() ENOENT or EINVAL: an empty path and a descriptor that is no link."""
    fails("ENOENT/EINVAL", c.readlinkat, d.new(), "", bytes(10), 10)


def test_link_to_a_folder_lists_it(d: Folder) -> None:
    """opendir() of a symbolic link to a directory opens the directory."""
    d.folder()
    d.file("folder/file")
    assert os.listdir(d.link("folder")) == ["file"]


def test_symlink_chain_of_folders(d: Folder) -> None:
    """Symbolic links in the middle of a path are followed, one after another."""
    d.folder("a")
    d.folder("a/b")
    d.file("a/b/file", b"abc")
    d.link("a", "x")
    d.link("../x/b", "a/y")
    with open(d / "x/y/file", "rb") as file:
        assert file.read() == b"abc"


def test_rename_of_a_link_leaves_its_target(d: Folder) -> None:
    """rename() of a symbolic link renames the link."""
    d.file(content=b"abc")
    os.rename(d.link("file"), d / "moved")
    assert os.readlink(d / "moved") == "file"
    assert os.path.exists(d / "file")


def test_relinked_target_is_seen(d: Folder) -> None:
    """A link that is replaced leads to the new target at once."""
    d.file("one", b"1")
    d.file("two", b"2")
    d.link("one")
    with open(d / "link", "rb") as file:
        assert file.read() == b"1"
    d.link("two", "new")
    os.rename(d / "new", d / "link")
    with open(d / "link", "rb") as file:
        assert file.read() == b"2"
