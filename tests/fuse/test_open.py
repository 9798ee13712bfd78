"""open(2) flags, and what they promise for the descriptor."""

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.mount


def _errno(call: Callable[..., object], *arguments: object) -> int | None:
    with pytest.raises(OSError) as caught:
        call(*arguments)
    return caught.value.errno


def test_exclusive_create_succeeds_once(workdir: Path) -> None:
    path = workdir / "lock"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    assert _errno(os.open, path, os.O_CREAT | os.O_EXCL | os.O_WRONLY) == errno.EEXIST


def test_exclusive_create_by_many_threads_has_one_winner(workdir: Path) -> None:
    winners: list[int] = []

    def race(round_: int) -> None:
        try:
            fd = os.open(workdir / f"{round_}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return
        winners.append(round_)
        os.close(fd)

    for round_ in range(20):
        threads = [threading.Thread(target=race, args=(round_,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(winners) == list(range(20))


def test_exclusive_create_does_not_follow_a_symlink(workdir: Path) -> None:
    (workdir / "link").symlink_to("nowhere")
    assert _errno(os.open, workdir / "link", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == errno.EEXIST


def test_create_follows_a_dangling_symlink(workdir: Path) -> None:
    (workdir / "link").symlink_to("target")
    (workdir / "link").write_bytes(b"through")
    assert (workdir / "target").read_bytes() == b"through"


def test_append_ignores_the_position(workdir: Path) -> None:
    path = workdir / "log"
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
    os.write(fd, b"one")
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"two")
    assert os.pread(fd, 10, 0) == b"onetwo"
    os.close(fd)


def test_append_from_two_descriptors_loses_nothing(workdir: Path) -> None:
    path = workdir / "log"
    fds = [os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND) for _ in range(2)]
    for number in range(200):
        os.write(fds[number % 2], b"%06d\n" % number)
    for fd in fds:
        os.close(fd)
    assert path.read_bytes() == b"".join(b"%06d\n" % number for number in range(200))


def test_append_after_truncate_starts_at_the_new_end(workdir: Path) -> None:
    path = workdir / "log"
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)
    os.write(fd, b"a" * 5000)
    os.ftruncate(fd, 10)
    os.write(fd, b"b")
    assert os.pread(fd, 100, 0) == b"a" * 10 + b"b"
    os.close(fd)


def test_truncate_at_open(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"x" * 3_000_000)
    fd = os.open(path, os.O_RDWR | os.O_TRUNC)
    assert os.fstat(fd).st_size == 0
    os.pwrite(fd, b"y", 2_000_000)
    os.close(fd)
    assert path.read_bytes() == bytes(2_000_000) + b"y"


def test_truncate_at_open_is_seen_by_an_older_descriptor(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"x" * 100_000)
    old = os.open(path, os.O_RDWR)
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    assert os.fstat(old).st_size == 0
    assert os.pread(old, 10, 0) == b""
    os.pwrite(old, b"new", 5)
    os.close(old)
    assert path.read_bytes() == bytes(5) + b"new"


def test_read_only_descriptor_refuses_write_and_the_other_way(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"abc")
    reader = os.open(path, os.O_RDONLY)
    writer = os.open(path, os.O_WRONLY)
    assert _errno(os.write, reader, b"x") == errno.EBADF
    assert _errno(os.read, writer, 1) == errno.EBADF
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("flag", [os.O_SYNC, os.O_DSYNC])
def test_synchronous_writes(workdir: Path, flag: int) -> None:
    path = workdir / "file"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | flag)
    for number in range(5):
        assert os.pwrite(fd, b"%d" % number * 4096, number * 4096) == 4096
    os.close(fd)
    assert path.read_bytes() == b"".join(b"%d" % number * 4096 for number in range(5))


def test_direct_io_round_trip(workdir: Path) -> None:
    path = workdir / "file"
    size = 3 << 20
    with mmap.mmap(-1, size) as buffer:
        buffer.write(os.urandom(size))
        wanted = bytes(buffer)
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT)
        assert os.pwritev(fd, [buffer], 0) == size
        buffer.seek(0)
        buffer.write(bytes(size))
        assert os.preadv(fd, [buffer], 0) == size
        assert bytes(buffer) == wanted
        os.close(fd)
    assert path.read_bytes() == wanted


def test_direct_and_buffered_descriptors_agree(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"a" * 16384)
    with path.open("rb") as buffered, mmap.mmap(-1, 4096) as page:
        assert buffered.read(1) == b"a"  # now the bytes are in the page cache
        page.write(b"b" * 4096)
        direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        os.pwritev(direct, [page], 4096)
        os.close(direct)
        assert os.pread(buffered.fileno(), 4096, 4096) == b"b" * 4096
        assert os.pread(buffered.fileno(), 4096, 8192) == b"a" * 4096


def test_directory_and_nofollow_flags(workdir: Path) -> None:
    (workdir / "file").touch()
    (workdir / "link").symlink_to("file")
    assert _errno(os.open, workdir / "file", os.O_DIRECTORY) == errno.ENOTDIR
    assert _errno(os.open, workdir / "link", os.O_NOFOLLOW) == errno.ELOOP
    assert _errno(os.open, workdir, os.O_WRONLY) == errno.EISDIR
    assert _errno(os.open, workdir / "none", os.O_RDONLY) == errno.ENOENT
    assert _errno(os.open, workdir / "file" / "below", os.O_RDONLY) == errno.ENOTDIR
    os.close(os.open(workdir / "link", os.O_PATH | os.O_NOFOLLOW))


def test_create_mode_minds_the_umask(workdir: Path) -> None:
    before = os.umask(0o027)
    try:
        os.close(os.open(workdir / "file", os.O_CREAT | os.O_WRONLY, 0o777))
        (workdir / "folder").mkdir()
    finally:
        os.umask(before)
    assert (workdir / "file").stat().st_mode & 0o7777 == 0o750
    assert (workdir / "folder").stat().st_mode & 0o7777 == 0o750


def test_create_with_a_mode_that_forbids_writing_still_writes(workdir: Path) -> None:
    fd = os.open(workdir / "file", os.O_CREAT | os.O_WRONLY, 0o400)
    os.write(fd, b"once")
    os.close(fd)
    assert (workdir / "file").read_bytes() == b"once"


def test_descriptor_survives_rename_and_chmod(workdir: Path) -> None:
    with (workdir / "a").open("w+b") as file:
        file.write(b"before")
        file.flush()
        (workdir / "a").rename(workdir / "b")
        (workdir / "b").chmod(0)
        file.write(b" after")
        file.flush()
        file.seek(0)
        assert file.read() == b"before after"
    assert (workdir / "b").read_bytes() == b"before after"


def test_dup_and_fcntl_flags(workdir: Path) -> None:
    fd = os.open(workdir / "file", os.O_CREAT | os.O_RDWR)
    other = os.dup(fd)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.write(fd, b"x")
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(other, b"y")
    os.close(fd)
    os.close(other)
    assert (workdir / "file").read_bytes() == b"xy"


def test_thousands_of_open_descriptors(workdir: Path) -> None:
    fds = [os.open(workdir / f"{number}", os.O_CREAT | os.O_RDWR) for number in range(900)]
    for number, fd in enumerate(fds):
        os.write(fd, b"%d" % number)
    for number, fd in enumerate(fds):
        assert os.pread(fd, 10, 0) == b"%d" % number
        os.close(fd)
