"""mknod(2), mknodat(2), mkfifo(3)."""

import os
import socket
import stat

import pytest

from tests.fuse.posix.calls import c, fails
from tests.fuse.posix.context import (
    GROUP,
    OTHER_GROUP,
    USER,
    Folder,
    content_of,
    in_child,
    mode_of,
    umask,
    watch,
)
from tests.fuse.posix.test_mkdir_rmdir import make

TYPES = pytest.mark.parametrize(
    "kind", [stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK], ids=oct
)


@TYPES
def test_mknod_type(d: Folder, kind: int) -> None:
    """The mode argument specifies both the type and the permissions of the file."""
    c.mknod(d / "node", kind | 0o640, os.makedev(7, 99))
    found = os.lstat(d / "node")
    assert found.st_mode == kind | 0o640
    assert (found.st_nlink, found.st_size) == (1, 0)
    if kind in (stat.S_IFCHR, stat.S_IFBLK):
        assert found.st_rdev == os.makedev(7, 99)


@TYPES
def test_mknod_umask(d: Folder, kind: int) -> None:
    """The permissions are (mode & ~umask)."""
    with umask(0o027):
        c.mknod(d / "node", kind | 0o777, os.makedev(1, 3))
    assert mode_of(d / "node") == 0o750


@TYPES
def test_mknod_eexist(d: Folder, kind: int) -> None:
    """EEXIST: path already exists. This includes dangling symbolic links."""
    fails("EEXIST", c.mknod, d.file(), kind | 0o644, 0)
    fails("EEXIST", c.mknod, d.link("nowhere"), kind | 0o644, 0)


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_mkfifo_eexist(d: Folder, kind: str) -> None:
    """mkfifo(3) EEXIST: path already exists."""
    fails("EEXIST", c.mkfifo, make(d, kind), 0o644)


@TYPES
def test_mknod_eperm(d: Folder, kind: int) -> None:
    """EPERM: devices need CAP_MKNOD; regular files, FIFOs and sockets do not."""
    os.chmod(d.path, 0o777)

    def body() -> None:
        if kind in (stat.S_IFCHR, stat.S_IFBLK):
            fails("EPERM", c.mknod, d / "node", kind | 0o644, os.makedev(1, 3))
        else:
            c.mknod(d / "node", kind | 0o644, 0)

    d.user(body)


@TYPES
def test_mknod_times(d: Folder, kind: int) -> None:
    """The times of the node, and mtime and ctime of its directory, are marked."""
    before = watch(d.path)
    c.mknod(d / "node", kind | 0o644, os.makedev(1, 3))
    assert before.moved() == "mc"
    assert os.lstat(d / "node").st_ctime_ns > before.ctime


def test_mknod_zero_type_is_regular(d: Folder) -> None:
    """Zero file type is equivalent to type S_IFREG."""
    c.mknod(d / "node", 0o644, 0)
    assert stat.S_ISREG(os.stat(d / "node").st_mode)


def test_mknod_eperm_directory(d: Folder) -> None:
    """EPERM (Linux) or EINVAL: mknod() cannot create directories."""
    fails("EPERM/EINVAL", c.mknod, d / "node", stat.S_IFDIR | 0o755, 0)


def test_mknod_einval(d: Folder) -> None:
    """EINVAL: mode requested creation of something other than a file, device, FIFO or socket."""
    fails("EINVAL/EPERM", c.mknod, d / "node", stat.S_IFLNK | 0o644, 0)


def test_mknod_eacces(d: Folder) -> None:
    """EACCES: The parent directory does not allow write permission to the process."""
    d.user(lambda: fails("EACCES", c.mknod, d / "node", stat.S_IFREG | 0o644, 0))
    d.user(lambda: fails("EACCES", c.mkfifo, d / "node", 0o644))


def test_mknod_owner(d: Folder) -> None:
    """The node is owned by the effective user ID; a set-group-ID parent gives its group."""
    d.folder(mode=0o777)
    d.folder("shared", mode=0o2777, owner=(0, OTHER_GROUP))
    d.user(lambda: c.mkfifo(d / "folder/fifo", 0o644))
    d.user(lambda: c.mkfifo(d / "shared/fifo", 0o644))
    assert (os.stat(d / "folder/fifo").st_uid, os.stat(d / "folder/fifo").st_gid) == (USER, GROUP)
    assert os.stat(d / "shared/fifo").st_gid == OTHER_GROUP


def test_mknod_regular_is_a_file(d: Folder) -> None:
    """A file that mknod() made can be written and read."""
    c.mknod(d / "node", stat.S_IFREG | 0o644, 0)
    os.write(d.fd(d / "node"), b"abc")
    assert content_of(d / "node") == b"abc"


def test_mknod_trailing_slash(d: Folder) -> None:
    """ENOENT: a trailing slash after the new name."""
    fails("ENOENT/ENOTDIR", c.mknod, d / "node/", stat.S_IFREG | 0o644, 0)


def test_mknod_large_device_numbers(d: Folder) -> None:
    """Major numbers of 12 bits and minor numbers of 20 bits are kept."""
    number = os.makedev(4095, 1_048_575)
    c.mknod(d / "node", stat.S_IFCHR | 0o644, number)
    assert os.stat(d / "node").st_rdev == number


def test_fifo_carries_bytes(d: Folder) -> None:
    """Once you have created a FIFO, any process can open it for reading or writing."""
    d.fifo()

    def body() -> None:
        os.write(os.open(d / "fifo", os.O_WRONLY), b"abc")

    reader = d.fd(d / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    in_child(body)
    assert os.read(reader, 9) == b"abc"


def test_fifo_permissions(d: Folder) -> None:
    """EACCES: the permissions of a FIFO are those of its inode."""
    d.fifo(mode=0o600)
    d.user(lambda: fails("EACCES", c.open, d / "fifo", os.O_RDONLY | os.O_NONBLOCK))


def test_socket_bind(d: Folder) -> None:
    """unix(7): bind() makes a node of type socket, and connect() finds its listener."""

    def body() -> None:
        os.chdir(d.path)
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind("socket")
            server.listen()
            client.connect("socket")
            fails("EADDRINUSE", lambda: socket.socket(socket.AF_UNIX).bind("socket"))

    in_child(body)
    assert stat.S_ISSOCK(os.stat(d / "socket").st_mode)


def test_socket_connect_refused(d: Folder) -> None:
    """unix(7) ECONNREFUSED: no process listens at the node."""

    def body() -> None:
        os.chdir(d.path)
        c.mknod("socket", stat.S_IFSOCK | 0o666, 0)
        with socket.socket(socket.AF_UNIX) as client:
            fails("ECONNREFUSED", client.connect, "socket")

    in_child(body)
