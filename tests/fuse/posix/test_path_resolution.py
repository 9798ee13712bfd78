"""path_resolution(7), symlink(7), inode flags of ioctl_iflags(2)."""

import ctypes
import os

import pytest

from tests.fuse.posix.calls import (
    FS_APPEND_FL,
    FS_IMMUTABLE_FL,
    FS_IOC_GETFLAGS,
    FS_IOC_SETFLAGS,
    c,
    fails,
)
from tests.fuse.posix.context import GROUP, USER, Folder, content_of, in_child


@pytest.mark.parametrize(
    "path",
    ["./file", "././file", "folder/../file", "folder/./../file", "//file", "folder//../file"],
)
def test_dots_and_slashes(d: Folder, path: str) -> None:
    """Dot is the directory itself, dot-dot its parent; several slashes are one."""
    d.folder()
    d.file(content=b"abc")
    assert content_of(f"{d.path}/{path}") == b"abc"


def test_dotdot_of_a_missing_folder(d: Folder) -> None:
    """ENOENT: dot-dot after a name that does not exist: paths are not simplified."""
    d.file()
    fails("ENOENT", c.open, d / "missing/../file", os.O_RDONLY)


def test_dotdot_of_a_file(d: Folder) -> None:
    """ENOTDIR: dot or dot-dot after the name of a file."""
    d.file()
    fails("ENOTDIR", c.open, d / "file/..", os.O_RDONLY)
    fails("ENOTDIR", c.open, d / "file/.", os.O_RDONLY)


def test_dotdot_follows_the_real_folder(d: Folder) -> None:
    """Dot-dot after a symbolic link is the parent of its target."""
    d.folder("a")
    d.folder("a/b")
    d.file("a/file", b"abc")
    d.link("a/b")
    assert content_of(d / "link/../file") == b"abc"


def test_dotdot_after_a_rename(d: Folder) -> None:
    """Dot-dot of a directory that moved is its new parent."""
    d.folder("a")
    d.folder("b")
    d.folder("a/x")
    at = d.fd(d / "a/x", os.O_RDONLY)
    os.rename(d / "a/x", d / "b/x")
    assert os.stat("..", dir_fd=at).st_ino == os.stat(d / "b").st_ino


@pytest.mark.parametrize("slashes", ["/", "//", "/."])
def test_trailing_slash_of_a_folder(d: Folder, slashes: str) -> None:
    """A pathname that ends in a slash resolves as if dot were appended: a directory."""
    d.folder()
    assert os.path.isdir(d / f"folder{slashes}")
    assert os.stat(d / f"folder{slashes}").st_ino == os.stat(d / "folder").st_ino


def test_trailing_slash_follows_links(d: Folder) -> None:
    """lstat() of a link with a trailing slash is the directory behind it."""
    d.folder()
    assert os.lstat(d.link("folder") + "/").st_ino == os.stat(d / "folder").st_ino


def test_trailing_slash_of_a_link_to_a_file(d: Folder) -> None:
    """ENOTDIR: a trailing slash after a link to a file."""
    d.file()
    fails("ENOTDIR", os.lstat, d.link("file") + "/")


def test_path_of_4095_bytes(d: Folder) -> None:
    """A path may have PATH_MAX - 1 bytes."""
    d.file(content=b"abc")
    filler = 4095 - len(d.path) - len("/file")
    path = d.path + "/" * (filler % 2) + "/." * (filler // 2) + "/file"
    assert len(path) == 4095
    assert content_of(path) == b"abc"
    fails("ENAMETOOLONG", c.open, path[:-4] + "/file", os.O_RDONLY)


def test_forty_links_in_a_path(d: Folder) -> None:
    """At most 40 symbolic links are followed in one path: ELOOP for more."""
    d.file(content=b"abc")
    d.link(".", "here")
    assert content_of(d.path + "/here" * 40 + "/file") == b"abc"
    fails("ELOOP", c.open, d.path + "/here" * 41 + "/file", os.O_RDONLY)


def test_search_permission_of_each_folder(d: Folder) -> None:
    """EACCES: each directory on the way must be searchable, the last one too."""
    d.folder("a", mode=0o711)
    d.folder("a/b", mode=0o711)
    d.folder("a/b/c", mode=0o711)
    path = d.file("a/b/c/file")
    d.user(lambda: os.close(os.open(path, os.O_RDONLY)))
    for name in ("a", "a/b", "a/b/c"):
        os.chmod(d / name, 0o700)
        d.user(lambda: fails("EACCES", c.open, path, os.O_RDONLY))
        os.chmod(d / name, 0o711)


def test_search_permission_of_the_class(d: Folder) -> None:
    """The owner's bits count for the owner, even if others have more."""
    d.folder(mode=0o077, owner=(USER, GROUP))
    d.file("folder/file")
    d.user(lambda: fails("EACCES", c.open, d / "folder/file", os.O_RDONLY))


def test_open_folder_needs_no_search_above(d: Folder) -> None:
    """openat() relative to a descriptor needs search permission of that directory alone."""
    d.folder("a", mode=0o700)
    d.folder("a/b", mode=0o755)
    d.file("a/b/file")
    at = d.fd(d / "a/b", os.O_RDONLY)
    d.user(lambda: os.close(os.open("file", os.O_RDONLY, dir_fd=at)))


def test_working_directory(d: Folder) -> None:
    """A relative path starts at the working directory."""
    d.folder()
    d.file("folder/file", b"abc")

    def body() -> None:
        os.chdir(d / "folder")
        assert content_of("file") == content_of("../folder/file") == b"abc"

    in_child(body)


def test_chroot(d: Folder) -> None:
    """chroot(2): an absolute path starts at the root of the process; dot-dot stays there."""
    d.folder()
    d.file("folder/file", b"abc")
    d.link("/file", "folder/link")

    def body() -> None:
        os.chroot(d / "folder")
        os.chdir("/")
        assert content_of("/file") == content_of("/../../file") == content_of("/link") == b"abc"

    in_child(body)


@pytest.mark.parametrize("protected", ["link", "file"])
def test_sticky_world_writable(d: Folder, protected: str) -> None:
    """proc(5) fs.protected_*: with 0 or the owner's own files, nothing is refused."""
    d.folder(mode=0o1777)
    d.file("folder/file", b"abc", mode=0o666, owner=(USER, GROUP))
    os.symlink("file", d / "folder/link")
    os.lchown(d / "folder/link", USER, GROUP)
    d.user(lambda: os.close(os.open(d / f"folder/{protected}", os.O_RDWR)))


def flags_of(fd: int) -> int:
    value = ctypes.c_int()
    c.ioctl(fd, FS_IOC_GETFLAGS, ctypes.byref(value))
    return value.value


def set_flags(fd: int, flags: int) -> None:
    c.ioctl(fd, FS_IOC_SETFLAGS, ctypes.byref(ctypes.c_int(flags)))


def clear_flag(fd: int, flag: int) -> None:
    set_flags(fd, flags_of(fd) & ~flag)


def with_flag(d: Folder, flag: int) -> int:
    """A descriptor of a file that has the flag; the flag is taken away after the case."""
    fd = d.new(b"abc")
    set_flags(fd, flags_of(fd) | flag)
    return fd


def test_getflags(d: Folder) -> None:
    """FS_IOC_GETFLAGS: a new file is neither immutable nor append-only."""
    assert flags_of(d.new()) & (FS_APPEND_FL | FS_IMMUTABLE_FL) == 0


@pytest.mark.parametrize("flag", [FS_APPEND_FL, FS_IMMUTABLE_FL], ids=["append", "immutable"])
def test_setflags(d: Folder, flag: int) -> None:
    """FS_IOC_SETFLAGS sets a flag, and takes it away."""
    fd = with_flag(d, flag)
    assert flags_of(fd) & flag
    set_flags(fd, flags_of(fd) & ~flag)
    assert not flags_of(fd) & flag


CHANGES = {
    "open": lambda path: os.close(os.open(path, os.O_WRONLY)),
    "truncate": lambda path: os.truncate(path, 0),
    "chmod": lambda path: os.chmod(path, 0o600),
    "chown": lambda path: os.chown(path, 1, 1),
    "link": lambda path: os.link(path, path + "2"),
    "unlink": lambda path: os.unlink(path),
    "rename": lambda path: os.rename(path, path + "2"),
    "setxattr": lambda path: os.setxattr(path, "user.x", b"v"),
    "utimes": lambda path: os.utime(path, ns=(1, 1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_immutable(d: Folder, change: str) -> None:
    """EPERM: an immutable file cannot be changed, removed, linked or renamed, by root either."""
    fd = with_flag(d, FS_IMMUTABLE_FL)
    fails("EPERM", CHANGES[change], d / "file")
    clear_flag(fd, FS_IMMUTABLE_FL)


@pytest.mark.parametrize("change", ["open", "truncate", "unlink", "rename", "link", "chmod"])
def test_append_only(d: Folder, change: str) -> None:
    """EPERM: an append-only file can be opened in append mode for writing, and no more."""
    fd = with_flag(d, FS_APPEND_FL)
    fails("EPERM", CHANGES[change], d / "file")
    appender = d.fd(d / "file", os.O_WRONLY | os.O_APPEND)
    os.write(appender, b"def")
    assert content_of(d / "file") == b"abcdef"
    clear_flag(fd, FS_APPEND_FL)


def test_setflags_eperm(d: Folder) -> None:
    """EPERM: FS_IMMUTABLE_FL needs CAP_LINUX_IMMUTABLE; others are the owner's."""
    path = d.file(owner=(USER, GROUP))
    d.user(lambda: fails("EPERM", set_flags, os.open(path, os.O_RDONLY), FS_IMMUTABLE_FL))
