"""truncate(2) and ftruncate(2)."""

import os

import pytest

from tests.fuse.posix.calls import c, fails
from tests.fuse.posix.context import GROUP, OTHER, USER, Folder, content_of, mode_of, watch
from tests.fuse.posix.test_read_write import pattern

MIB = 1 << 20
BOTH = pytest.mark.parametrize("name", ["truncate", "ftruncate"])


def truncate(d: Folder, name: str, size: int) -> None:
    c.truncate(d / "file", size) if name == "truncate" else c.ftruncate(d.fd(d / "file"), size)


@BOTH
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, MIB - 1, MIB, MIB + 1, 3 * MIB - 7])
def test_shrink(d: Folder, name: str, size: int) -> None:
    """If the file previously was larger than this size, the extra data is lost."""
    bytes_ = pattern(3 * MIB)
    d.file(content=bytes_)
    truncate(d, name, size)
    assert os.stat(d / "file").st_size == size
    assert content_of(d / "file") == bytes_[:size]


@BOTH
@pytest.mark.parametrize("size", [4, 4096, MIB + 1, 5 * MIB])
def test_grow(d: Folder, name: str, size: int) -> None:
    """If the file previously was shorter, it is extended, and the extended part reads as nulls."""
    d.file(content=b"abc")
    truncate(d, name, size)
    assert content_of(d / "file") == b"abc" + bytes(size - 3)


@BOTH
def test_shrink_then_grow(d: Folder, name: str) -> None:
    """Bytes that were cut never come back."""
    d.file(content=b"x" * 10_000)
    truncate(d, name, 5000)
    truncate(d, name, 10_000)
    assert content_of(d / "file") == b"x" * 5000 + bytes(5000)


@BOTH
def test_leaves_the_offset(d: Folder, name: str) -> None:
    """The file offset is not changed."""
    d.file(content=b"abcdef")
    fd = d.fd(d / "file")
    os.lseek(fd, 4, os.SEEK_SET)
    truncate(d, name, 2)
    assert os.lseek(fd, 0, os.SEEK_CUR) == 4
    assert os.read(fd, 1) == b""


@BOTH
def test_times(d: Folder, name: str) -> None:
    """If the size changed, mtime and ctime are marked for update."""
    d.file(content=b"abc")
    before = watch(d / "file")
    truncate(d, name, 2)
    assert before.moved() == "mc"


@BOTH
def test_times_of_the_same_size(d: Folder, name: str) -> None:
    """POSIX: upon successful completion mtime and ctime are marked, also of an equal size."""
    d.file(content=b"abc")
    before = watch(d / "file")
    truncate(d, name, 3)
    assert before.moved() == "mc"


@BOTH
def test_einval_negative(d: Folder, name: str) -> None:
    """EINVAL: The argument length is negative."""
    d.file(content=b"abc")
    fails("EINVAL", truncate, d, name, -1)
    assert content_of(d / "file") == b"abc"


@BOTH
def test_efbig(d: Folder, name: str) -> None:
    """EFBIG or EINVAL: The argument length is larger than the maximum file size."""
    d.file()
    fails("EFBIG/EINVAL", truncate, d, name, (1 << 63) - 1)


@BOTH
def test_clears_set_id_bits(d: Folder, name: str) -> None:
    """An unprivileged truncate clears the set-user-ID and set-group-ID bits."""
    d.file(content=b"abc", mode=0o6777)
    d.user(lambda: truncate(d, name, 1))
    assert mode_of(d / "file") == 0o777


@BOTH
def test_is_seen_by_other_descriptors(d: Folder, name: str) -> None:
    """The size is that of the file: every descriptor sees it."""
    fd = d.new(b"abcdef")
    truncate(d, name, 3)
    assert os.pread(fd, 9, 0) == b"abc"
    assert os.lseek(fd, 0, os.SEEK_END) == 3


@BOTH
def test_unwritten_bytes_are_cut(d: Folder, name: str) -> None:
    """What was just written through a descriptor is cut too."""
    fd = d.new()
    os.write(fd, pattern(200_000))
    truncate(d, name, 100_001)
    os.pwrite(fd, b"end", 150_000)
    assert os.pread(fd, 200_000, 0) == pattern(100_001) + bytes(49_999) + b"end"


def test_truncate_eisdir(d: Folder) -> None:
    """EISDIR: The named file is a directory."""
    fails("EISDIR", c.truncate, d.folder(), 0)


def test_truncate_einval_fifo(d: Folder) -> None:
    """EINVAL: path is not a regular file."""
    fails("EINVAL", c.truncate, d.fifo(), 0)


def test_truncate_eacces(d: Folder) -> None:
    """EACCES: The named file is not writable by the user."""
    d.file(content=b"abc", mode=0o644)
    d.user(lambda: fails("EACCES", c.truncate, d / "file", 0))
    assert content_of(d / "file") == b"abc"


def test_truncate_needs_no_read_permission(d: Folder) -> None:
    """Write permission is enough."""
    d.file(content=b"abc", mode=0o200, owner=(USER, GROUP))
    d.user(lambda: c.truncate(d / "file", 1))
    assert os.stat(d / "file").st_size == 1


def test_truncate_follows_links(d: Folder) -> None:
    """truncate() of a symbolic link truncates its target."""
    d.file(content=b"abc")
    c.truncate(d.link("file"), 1)
    assert content_of(d / "file") == b"a"


def test_ftruncate_einval_read_only(d: Folder) -> None:
    """EBADF or EINVAL: fd is not open for writing."""
    fails("EBADF/EINVAL", c.ftruncate, d.fd(d.file(content=b"abc"), os.O_RDONLY), 0)
    assert content_of(d / "file") == b"abc"


def test_ftruncate_ebadf(d: Folder) -> None:
    """EBADF: fd is not a valid file descriptor."""
    fails("EBADF", c.ftruncate, d.closed(), 0)


def test_ftruncate_einval_folder(d: Folder) -> None:
    """EINVAL: fd does not reference a regular file."""
    fails("EINVAL", c.ftruncate, d.fd(d.path, os.O_RDONLY), 0)


def test_ftruncate_after_the_mode_was_taken(d: Folder) -> None:
    """With ftruncate() the file must be open for writing; its mode does not matter."""
    d.file(content=b"abc", mode=0o600, owner=(USER, GROUP))

    def body() -> None:
        fd = os.open(d / "file", os.O_RDWR)
        os.chmod(d / "file", 0o400)
        c.ftruncate(fd, 1)
        fails("EACCES", c.truncate, d / "file", 0)

    d.user(body)
    assert content_of(d / "file") == b"a"


def test_ftruncate_of_an_unlinked_file(d: Folder) -> None:
    """A file without a name can be truncated."""
    fd = d.new(b"abcdef")
    os.unlink(d / "file")
    c.ftruncate(fd, 3)
    assert os.pread(fd, 9, 0) == b"abc"


def test_truncate_of_the_owner_without_write(d: Folder) -> None:
    """EACCES: being the owner does not give write permission."""
    d.file(content=b"abc", mode=0o077, owner=(USER, GROUP))
    d.user(lambda: fails("EACCES", c.truncate, d / "file", 0))


def test_truncate_by_another_user(d: Folder) -> None:
    """Write permission of others is enough."""
    d.file(content=b"abc", mode=0o002, owner=(OTHER, GROUP + 1))
    d.user(lambda: c.truncate(d / "file", 0))


def test_blocks_are_given_back(d: Folder) -> None:
    """A file truncated to zero occupies no blocks."""
    d.file(content=b"x" * MIB)
    c.truncate(d / "file", 0)
    assert os.stat(d / "file").st_blocks == 0
