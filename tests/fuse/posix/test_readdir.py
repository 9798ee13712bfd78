"""getdents64(2), opendir(3), readdir(3), telldir(3), seekdir(3), rewinddir(3)."""

import ctypes
import os
import struct

import pytest

from tests.fuse.posix.calls import BAD, LIBC, c, fails
from tests.fuse.posix.context import Folder
from tests.fuse.posix.test_mkdir_rmdir import make

LIBC.opendir.restype = ctypes.c_void_p
LIBC.readdir.restype = ctypes.c_void_p
LIBC.readdir.argtypes = LIBC.closedir.argtypes = LIBC.rewinddir.argtypes = (ctypes.c_void_p,)
LIBC.telldir.restype = ctypes.c_long
LIBC.telldir.argtypes = (ctypes.c_void_p,)
LIBC.seekdir.argtypes = (ctypes.c_void_p, ctypes.c_long)


def dents(fd: int, size: int = 32_768) -> list[tuple[str, int, int]]:
    """One getdents64(): name, inode, type."""
    buffer = ctypes.create_string_buffer(size)
    length = c.getdents64(fd, buffer, size)
    raw, found, at = buffer.raw[:length], [], 0
    while at < length:
        ino, _offset, record, kind = struct.unpack_from("<QqHB", raw, at)
        name = raw[at + 19 : at + record].split(b"\0", 1)[0]
        found.append((os.fsdecode(name), ino, kind))
        at += record
    return found


def all_dents(fd: int, size: int = 32_768) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    while part := dents(fd, size):
        found += part
    return found


class Stream:
    """A DIR of the C library."""

    def __init__(self, path: str) -> None:
        self.dir = LIBC.opendir(os.fsencode(path))

    def read(self) -> str | None:
        entry = LIBC.readdir(self.dir)
        return os.fsdecode(ctypes.string_at(entry + 19)) if entry else None

    def rest(self) -> list[str]:
        return list(iter(self.read, None))


def filled(d: Folder, count: int) -> str:
    folder = d.folder()
    for index in range(count):
        os.close(os.open(f"{folder}/n{index:04}", os.O_CREAT | os.O_RDWR))
    return folder


def test_dot_and_dotdot(d: Folder) -> None:
    """An empty directory lists . and .. with their inode numbers."""
    found = {name: ino for name, ino, _ in all_dents(d.fd(d.folder(), os.O_RDONLY))}
    assert found == {".": os.stat(d / "folder").st_ino, "..": os.stat(d.path).st_ino}


@pytest.mark.parametrize(
    ("kind", "code"), [("file", 8), ("folder", 4), ("fifo", 1), ("dangling", 10)]
)
def test_types(d: Folder, kind: str, code: int) -> None:
    """d_type is the type of the file, d_ino its inode number."""
    path = make(d, kind)
    found = {name: (ino, kind) for name, ino, kind in all_dents(d.fd(d.path, os.O_RDONLY))}
    assert found["name"] == (os.lstat(path).st_ino, code)


@pytest.mark.parametrize("size", [400, 1024, 4096])
def test_small_buffers(d: Folder, size: int) -> None:
    """Each entry comes exactly once, however small the buffer."""
    folder = filled(d, 120)
    names = [name for name, _, _ in all_dents(d.fd(folder, os.O_RDONLY), size)]
    assert sorted(names) == [".", "..", *(f"n{index:04}" for index in range(120))]


def test_einval_buffer(d: Folder) -> None:
    """EINVAL: Result buffer is too small."""
    filled(d, 1)
    fails("EINVAL", c.getdents64, d.fd(d / "folder", os.O_RDONLY), bytes(10), 10)


def test_enotdir(d: Folder) -> None:
    """ENOTDIR: File descriptor does not refer to a directory."""
    fails("ENOTDIR", c.getdents64, d.new(), bytes(4096), 4096)


def test_ebadf(d: Folder) -> None:
    """EBADF: Invalid file descriptor."""
    fails("EBADF", c.getdents64, d.closed(), bytes(4096), 4096)


def test_efault(d: Folder) -> None:
    """EFAULT: Argument points outside the calling process's address space."""
    fails("EFAULT", c.getdents64, d.fd(d.path, os.O_RDONLY), BAD, 4096)


def test_enoent_removed(d: Folder) -> None:
    """ENOENT: No such directory (it was removed); nothing is listed."""
    fd = d.fd(d.folder(), os.O_RDONLY)
    os.rmdir(d / "folder")
    fails("ENOENT", c.getdents64, fd, bytes(4096), 4096)


def test_zero_at_the_end(d: Folder) -> None:
    """On end of directory, 0 is returned, again and again."""
    fd = d.fd(filled(d, 3), os.O_RDONLY)
    all_dents(fd)
    assert (dents(fd), dents(fd)) == ([], [])


def test_names_that_come_while_it_is_open(d: Folder) -> None:
    """An entry that was made before the directory was opened or rewound is listed."""
    fd = d.fd(filled(d, 3), os.O_RDONLY)
    all_dents(fd)
    os.mkdir(d / "folder/new")
    os.lseek(fd, 0, os.SEEK_SET)
    assert "new" in [name for name, _, _ in all_dents(fd)]


def test_entries_that_stay_come_once(d: Folder) -> None:
    """Entries removed or added while reading may show or not; all others come exactly once."""
    folder = filled(d, 60)
    fd = d.fd(folder, os.O_RDONLY)
    names = [name for name, _, _ in dents(fd, 400)]
    for index in range(0, 60, 2):
        os.unlink(f"{folder}/n{index:04}")
        os.mkdir(f"{folder}/x{index}")
    names += [name for name, _, _ in all_dents(fd, 400)]
    stay = [f"n{index:04}" for index in range(1, 60, 2)]
    assert [names.count(name) for name in stay] == [1] * 30


def test_remove_while_reading(d: Folder) -> None:
    """Unlinking each entry as it comes empties the directory."""
    folder = filled(d, 100)
    fd = d.fd(folder, os.O_RDONLY)
    while part := dents(fd, 500):
        for name, _, _ in part:
            if name not in (".", ".."):
                os.unlink(f"{folder}/{name}")
    assert os.listdir(folder) == []


def test_rename_while_listing(d: Folder) -> None:
    """A file that is replaced by rename() keeps being listed."""
    folder = filled(d, 5)
    for _ in range(5):
        d.file("new")
        os.rename(d / "new", f"{folder}/n0001")
        assert os.listdir(folder).count("n0001") == 1


def test_rewinddir(d: Folder) -> None:
    """rewinddir() causes the stream to refer to the current state of the directory."""
    stream = Stream(filled(d, 3))
    assert len(stream.rest()) == 5
    os.mkdir(d / "folder/new")
    os.unlink(d / "folder/n0001")
    LIBC.rewinddir(stream.dir)
    assert sorted(stream.rest()) == [".", "..", "n0000", "n0002", "new"]
    LIBC.closedir(stream.dir)


def test_seekdir_and_telldir(d: Folder) -> None:
    """seekdir() returns to a location of telldir(): the same entries follow."""
    stream = Stream(filled(d, 50))
    for _ in range(20):
        stream.read()
    place = LIBC.telldir(stream.dir)
    rest = stream.rest()
    assert len(rest) == 32
    LIBC.seekdir(stream.dir, place)
    assert stream.rest() == rest
    LIBC.closedir(stream.dir)


def test_telldir_outlives_changes(d: Folder) -> None:
    """A location stays good when entries come and go elsewhere."""
    folder = filled(d, 50)
    stream = Stream(folder)
    seen = [stream.read() for _ in range(20)]
    place = LIBC.telldir(stream.dir)
    rest = stream.rest()
    for name in seen:
        if name not in (".", "..") and name:
            os.unlink(f"{folder}/{name}")
    LIBC.seekdir(stream.dir, place)
    assert stream.rest() == rest
    LIBC.closedir(stream.dir)


def test_two_streams_are_independent(d: Folder) -> None:
    """Each open() of a directory has its own position."""
    folder = filled(d, 20)
    one, two = d.fd(folder, os.O_RDONLY), d.fd(folder, os.O_RDONLY)
    first = dents(one, 400)
    assert dents(two, 400) == first
    assert len(first) + len(all_dents(one)) == 22


def test_fdopendir(d: Folder) -> None:
    """fdopendir(3) lists the directory of a descriptor."""
    fd = d.fd(filled(d, 3), os.O_RDONLY)
    assert sorted(os.listdir(fd)) == ["n0000", "n0001", "n0002"]


def test_opendir_eacces(d: Folder) -> None:
    """opendir(3) EACCES: Permission denied."""
    d.folder(mode=0o711)
    d.user(lambda: fails("EACCES", os.listdir, d / "folder"))


@pytest.mark.parametrize("name", ["n" * 255, "\n", "a b", "é" * 127, "-rf", "*"])
def test_names_as_they_are(d: Folder, name: str) -> None:
    """A name is listed byte for byte."""
    d.file(name)
    assert os.listdir(d.path) == [name]


def test_hundreds_of_names(d: Folder) -> None:
    """A larger directory is listed whole, and its entries are found."""
    folder = d.folder()
    at = d.fd(folder, os.O_RDONLY)
    for index in range(400):
        c.mknodat(at, f"name-{index}", 0o100644, 0)
    assert len(os.listdir(folder)) == 400
    assert all(entry.is_file() for entry in os.scandir(folder))
