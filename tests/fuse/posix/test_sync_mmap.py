"""fsync(2), fdatasync(2), syncfs(2), sync_file_range(2); mmap(2), msync(2), munmap(2)."""

import ctypes
import mmap
import os
import signal

import pytest

from tests.fuse.posix.calls import c, fails
from tests.fuse.posix.context import Folder, content_of, exit_code, in_child, spawn, watch

PAGE = 4096
SYNCS = pytest.mark.parametrize("name", ["fsync", "fdatasync", "syncfs"])


@SYNCS
def test_sync_succeeds(d: Folder, name: str) -> None:
    """The call returns zero, and the bytes stay what they were."""
    fd = d.new(b"abc")
    assert getattr(c, name)(fd) == 0
    assert os.pread(fd, 9, 0) == b"abc"


@SYNCS
def test_sync_ebadf(d: Folder, name: str) -> None:
    """EBADF: fd is not a valid open file descriptor."""
    fails("EBADF", getattr(c, name), d.closed())


@SYNCS
def test_sync_of_a_reader(d: Folder, name: str) -> None:
    """A descriptor that is not open for writing can be synced."""
    assert getattr(c, name)(d.fd(d.file(content=b"abc"), os.O_RDONLY)) == 0


@SYNCS
def test_sync_of_a_folder(d: Folder, name: str) -> None:
    """A directory can be synced: its entries reach the disk."""
    d.file()
    assert getattr(c, name)(d.fd(d.path, os.O_RDONLY)) == 0


@SYNCS
def test_sync_of_an_unlinked_file(d: Folder, name: str) -> None:
    """A file without a name can be synced."""
    fd = d.new(b"abc")
    os.unlink(d / "file")
    assert getattr(c, name)(fd) == 0


@pytest.mark.parametrize("name", ["fsync", "fdatasync"])
def test_sync_einval_fifo(d: Folder, name: str) -> None:
    """EROFS, EINVAL: fd is bound to a FIFO, which does not support synchronization."""
    fails("EINVAL/EROFS", getattr(c, name), d.fd(d.fifo(), os.O_RDWR))


def test_sync_marks_no_time(d: Folder) -> None:
    """fsync() marks no time of its own."""
    fd = d.new(b"abc")
    os.fsync(fd)
    before = watch(d / "file")
    os.fsync(fd)
    assert before.moved() == ""


@pytest.mark.parametrize("flags", [1, 2, 4, 7])
def test_sync_file_range(d: Folder, flags: int) -> None:
    """sync_file_range() returns 0 for each combination of its three flags."""
    assert c.sync_file_range(d.new(b"x" * 10_000), 0, 5000, flags) == 0


def test_sync_file_range_einval(d: Folder) -> None:
    """sync_file_range() EINVAL: flags specifies an invalid bit; or offset is invalid."""
    fails("EINVAL", c.sync_file_range, d.new(), 0, 0, 8)
    fails("EINVAL", c.sync_file_range, d.fd(d / "file"), -1, 0, 0)


def test_sync_file_range_espipe(d: Folder) -> None:
    """sync_file_range() ESPIPE: fd refers to something other than a file or directory."""
    fails("ESPIPE", c.sync_file_range, d.fd(d.fifo(), os.O_RDWR), 0, 0, 2)


def test_sync_file_range_ebadf(d: Folder) -> None:
    """sync_file_range() EBADF: fd is not a valid file descriptor."""
    fails("EBADF", c.sync_file_range, d.closed(), 0, 0, 2)


def test_fadvise(d: Folder) -> None:
    """posix_fadvise(2) takes each advice; EINVAL for others, ESPIPE for a FIFO."""
    fd = d.new(b"abc")
    for advice in range(6):
        assert c.posix_fadvise(fd, 0, 0, advice) == 0
    assert c.posix_fadvise(fd, 0, 0, 99) == 22
    assert c.posix_fadvise(d.fd(d.fifo(), os.O_RDWR), 0, 0, 0) == 29


def test_shared_mapping_is_written(d: Folder) -> None:
    """MAP_SHARED: updates are carried through to the underlying file; msync() makes it so."""
    fd = d.new(bytes(3 * PAGE))
    with mmap.mmap(fd, 3 * PAGE) as memory:
        memory[PAGE : PAGE + 3] = b"abc"
        memory.flush()
        assert os.pread(fd, 3, PAGE) == b"abc"
    os.close(fd)
    assert content_of(d / "file")[PAGE : PAGE + 3] == b"abc"


def test_munmap_carries_through(d: Folder) -> None:
    """What was stored in a shared mapping is in the file after munmap() and close()."""
    fd = d.new(bytes(PAGE))
    memory = mmap.mmap(fd, PAGE)
    memory[:3] = b"abc"
    memory.close()
    os.close(fd)
    assert content_of(d / "file")[:3] == b"abc"


def test_mapping_outlives_close(d: Folder) -> None:
    """Closing the file descriptor does not unmap the region."""
    fd = d.new(b"abc" + bytes(PAGE - 3))
    with mmap.mmap(fd, PAGE) as memory:
        os.close(fd)
        assert memory[:3] == b"abc"
        memory[:3] = b"xyz"
    assert content_of(d / "file")[:3] == b"xyz"


def test_mapping_outlives_unlink(d: Folder) -> None:
    """A mapping keeps the file alive when its name is gone."""
    fd = d.new(b"abc" + bytes(PAGE - 3))
    with mmap.mmap(fd, PAGE) as memory:
        os.close(fd)
        os.unlink(d / "file")
        assert memory[:3] == b"abc"


def test_private_mapping_is_not_written(d: Folder) -> None:
    """MAP_PRIVATE: updates are not carried through to the underlying file."""
    fd = d.new(bytes(PAGE))
    with mmap.mmap(fd, PAGE, mmap.MAP_PRIVATE) as memory:
        memory[:3] = b"abc"
        assert memory[:3] == b"abc"
    assert os.pread(fd, 3, 0) == bytes(3)


def test_write_is_seen_in_a_mapping(d: Folder) -> None:
    """write() to the file is visible in a shared mapping of it."""
    fd = d.new(bytes(PAGE))
    with mmap.mmap(fd, PAGE) as memory:
        assert memory[:3] == bytes(3)
        os.pwrite(fd, b"abc", 0)
        assert memory[:3] == b"abc"


def test_mappings_are_shared_by_processes(d: Folder) -> None:
    """MAP_SHARED: updates are visible to other processes mapping the same region."""
    fd = d.new(bytes(PAGE))
    with mmap.mmap(fd, PAGE) as memory:

        def body() -> None:
            with mmap.mmap(os.open(d / "file", os.O_RDWR), PAGE) as other:
                other[:3] = b"abc"

        in_child(body)
        assert memory[:3] == b"abc"


def test_the_rest_of_the_last_page_is_zero(d: Folder) -> None:
    """The remaining bytes in the partial page at the end are zeroed, and not written out."""
    fd = d.new(b"abc")
    with mmap.mmap(fd, 0) as memory:
        assert len(memory) == 3
    address = c.mmap(None, PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    assert ctypes.string_at(address, 5) == b"abc\0\0"
    ctypes.memset(address + 3, 120, 10)
    c.munmap(address, PAGE)
    os.fsync(fd)
    assert os.pread(fd, 99, 0) == b"abc"


def test_sigbus_beyond_the_end(d: Folder) -> None:
    """SIGBUS: attempted access to a page of the buffer that lies beyond the end of the file."""
    fd = d.new(b"abc")

    def body() -> None:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        address = c.mmap(None, 2 * PAGE, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        ctypes.string_at(address + PAGE, 1)

    assert exit_code(spawn(body)) == -signal.SIGBUS


def test_mmap_times(d: Folder) -> None:
    """mtime and ctime of a file mapped MAP_SHARED are marked between a store and msync()."""
    fd = d.new(bytes(PAGE))
    os.fsync(fd)
    before = watch(d / "file")
    with mmap.mmap(fd, PAGE) as memory:
        memory[:3] = b"abc"
        memory.flush()
    os.close(fd)
    assert before.moved().lstrip("a") == "mc"


def test_mapping_of_a_hole(d: Folder) -> None:
    """A mapped hole reads as zeros, and takes what is stored there."""
    fd = d.new()
    os.ftruncate(fd, 1 << 21)
    with mmap.mmap(fd, 1 << 21) as memory:
        assert memory[1 << 20] == 0
        memory[1 << 20] = 65
    os.close(fd)
    assert content_of(d / "file").rstrip(b"\0")[-1:] == b"A"


def test_truncate_below_a_mapping(d: Folder) -> None:
    """After a truncation and growth, a mapping shows zeros where the bytes were cut."""
    fd = d.new(b"x" * 3 * PAGE)
    with mmap.mmap(fd, 3 * PAGE) as memory:
        assert memory[2 * PAGE] == 120
        os.ftruncate(fd, PAGE)
        os.ftruncate(fd, 3 * PAGE)
        assert memory[2 * PAGE] == 0


READ, WRITE, SHARED, PRIVATE = mmap.PROT_READ, mmap.PROT_WRITE, mmap.MAP_SHARED, mmap.MAP_PRIVATE


def test_mmap_eacces_not_readable(d: Folder) -> None:
    """EACCES: A file mapping was requested, but fd is not open for reading."""
    fd = d.fd(d.file(content=b"abc"), os.O_WRONLY)
    fails("EACCES", c.mmap, None, PAGE, READ, SHARED, fd, 0)


def test_mmap_eacces_not_writable(d: Folder) -> None:
    """EACCES: MAP_SHARED and PROT_WRITE is set, but fd is not open in read/write mode."""
    fd = d.fd(d.file(content=b"abc"), os.O_RDONLY)
    fails("EACCES", c.mmap, None, PAGE, READ | WRITE, SHARED, fd, 0)


def test_mmap_eacces_append_only(d: Folder) -> None:
    """EACCES: a descriptor for writing alone, with PROT_WRITE."""
    fd = d.fd(d.file(content=b"abc"), os.O_WRONLY)
    fails("EACCES", c.mmap, None, PAGE, WRITE, SHARED, fd, 0)


def test_mmap_einval(d: Folder) -> None:
    """EINVAL: the offset is not aligned, the length is 0, or no type of mapping is given."""
    fd = d.new(b"abc")
    fails("EINVAL", c.mmap, None, PAGE, READ, SHARED, fd, 1)
    fails("EINVAL", c.mmap, None, 0, READ, SHARED, fd, 0)
    fails("EINVAL", c.mmap, None, PAGE, READ, 0, fd, 0)


def test_mmap_ebadf(d: Folder) -> None:
    """EBADF: fd is not a valid file descriptor."""
    fails("EBADF", c.mmap, None, PAGE, READ, SHARED, d.closed(), 0)


def test_mmap_enodev_folder(d: Folder) -> None:
    """ENODEV: the file does not support memory mapping, as a directory."""
    fails("ENODEV/EACCES", c.mmap, None, PAGE, READ, PRIVATE, d.fd(d.path, os.O_RDONLY), 0)


def test_msync_einval(d: Folder) -> None:
    """msync(2) EINVAL: both MS_SYNC and MS_ASYNC; ENOMEM: memory that is not mapped."""
    fd = d.new(bytes(PAGE))
    address = c.mmap(None, PAGE, READ, SHARED, fd, 0)
    fails("EINVAL", c.msync, address, PAGE, 1 | 4)
    fails("EINVAL", c.msync, address + 1, PAGE, 4)
    assert c.msync(address, PAGE, 4) == 0
    assert c.munmap(address, PAGE) == 0
    fails("ENOMEM", c.msync, address, PAGE, 4)
