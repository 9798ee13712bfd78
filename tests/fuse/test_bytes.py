"""File bytes: sparse, huge, truncated, across chunks and targets, mapped, copied onto itself."""

import errno
import mmap
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.mounts import cached_bytes

pytestmark = pytest.mark.mount

MIB = 1 << 20
TIB = 1 << 40


def test_empty_file(workdir: Path) -> None:
    path = workdir / "empty"
    path.touch()
    assert path.read_bytes() == b""
    assert path.stat().st_size == 0


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 4 * MIB, 9 * MIB + 5])
def test_every_size_reads_back(workdir: Path, size: int) -> None:
    wanted = random.Random(size).randbytes(size)
    path = workdir / "file"
    path.write_bytes(wanted)
    assert path.stat().st_size == size
    assert path.read_bytes() == wanted


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_WRONLY | os.O_APPEND])
def test_a_stream_of_writes_takes_no_page_cache(workdir: Path, flags: int) -> None:
    """Data sets stay cached while checkpoints are written, through a new handle and through one of
    an existing file."""
    wanted = random.Random(7).randbytes(9 * MIB + 5)
    path = workdir / "checkpoint"
    for _ in range(2):
        file = os.open(path, flags | os.O_CREAT | os.O_TRUNC, 0o600)
        for at in range(0, len(wanted), MIB):
            assert os.write(file, wanted[at : at + MIB]) == len(wanted[at : at + MIB])
        os.fsync(file)
        assert cached_bytes(path) == 0
        os.close(file)
        assert path.read_bytes() == wanted
        assert cached_bytes(path) >= len(wanted)


def test_readers_see_what_a_write_only_handle_wrote_over(workdir: Path) -> None:
    """This holds also for pages and mappings that are older than the write."""
    path = workdir / "file"
    path.write_bytes(b"a" * 3 * MIB)
    with (
        path.open("rb") as reader,
        mmap.mmap(reader.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        assert mapped[MIB] == mapped[-1] == ord("a")
        file = os.open(path, os.O_WRONLY)
        assert os.pwrite(file, b"b" * MIB, MIB - 10) == MIB
        assert mapped[MIB - 11 : MIB - 9] == b"ab"
        assert os.pread(reader.fileno(), 2, MIB - 11) == b"ab"
        assert os.pwrite(file, b"c" * 100, 3 * MIB) == 100
        assert os.pread(reader.fileno(), 101, 3 * MIB - 1) == b"a" + b"c" * 100
        os.close(file)
    assert path.read_bytes() == b"a" * (MIB - 10) + b"b" * MIB + b"a" * (MIB + 10) + b"c" * 100


def test_writes_that_span_chunks_and_targets(workdir: Path) -> None:
    wanted = bytearray(11 * MIB)
    chance = random.Random(1)
    with (workdir / "file").open("w+b", buffering=0) as file:
        file.truncate(len(wanted))
        for _ in range(200):
            offset = chance.randrange(len(wanted))
            piece = chance.randbytes(min(chance.randrange(1, 3 * MIB), len(wanted) - offset))
            assert os.pwrite(file.fileno(), piece, offset) == len(piece)
            wanted[offset : offset + len(piece)] = piece
        assert os.pread(file.fileno(), len(wanted), 0) == wanted
    assert (workdir / "file").read_bytes() == wanted


def test_holes_read_as_zeros(workdir: Path) -> None:
    path = workdir / "sparse"
    with path.open("wb") as file:
        for chunk in (0, 3, 17):
            file.seek(chunk * MIB + 77)
            file.write(b"mark")
    content = path.read_bytes()
    assert len(content) == 17 * MIB + 81
    for chunk in (0, 3, 17):
        assert content[chunk * MIB + 77 : chunk * MIB + 81] == b"mark"
    assert content.count(0) == len(content) - 12


def test_file_of_more_than_a_tebibyte(workdir: Path) -> None:
    path = workdir / "huge"
    with path.open("w+b", buffering=0) as file:
        for offset in (0, TIB - 3, TIB + 5 * MIB + 9):
            os.pwrite(file.fileno(), b"abcdef", offset)
        assert os.fstat(file.fileno()).st_size == TIB + 5 * MIB + 15
        assert os.pread(file.fileno(), 12, TIB - 6) == bytes(3) + b"abcdef" + bytes(3)
        assert os.pread(file.fileno(), 4096, 700 << 30) == bytes(4096)
        assert os.pread(file.fileno(), 100, TIB + 5 * MIB + 9) == b"abcdef"
    assert path.stat().st_blocks * 512 <= path.stat().st_size + MIB
    os.truncate(path, 3)
    assert path.read_bytes() == b"abc"


def test_size_beyond_63_bits_is_refused(workdir: Path) -> None:
    fd = os.open(workdir / "file", os.O_CREAT | os.O_RDWR)
    with pytest.raises(OSError) as caught:
        os.pwrite(fd, b"x", (1 << 63) - 1)
    assert caught.value.errno in (errno.EFBIG, errno.EINVAL, errno.EOVERFLOW)
    os.close(fd)


@pytest.mark.parametrize(
    "size", [0, 1, 4095, 4096, 5000, MIB - 1, MIB, MIB + 1, 2 * MIB + 1, 4 * MIB, 5 * MIB + 4097]
)
def test_truncate_down_then_up_leaves_zeros(workdir: Path, size: int) -> None:
    path = workdir / "file"
    wanted = random.Random(7).randbytes(6 * MIB)
    path.write_bytes(wanted)
    os.truncate(path, size)
    assert path.read_bytes() == wanted[:size]
    os.truncate(path, 6 * MIB)
    assert path.read_bytes() == wanted[:size] + bytes(6 * MIB - size)


def test_truncate_of_an_open_file_with_unwritten_bytes(workdir: Path) -> None:
    with (workdir / "file").open("w+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"z" * (3 * MIB), 0)
        os.ftruncate(file.fileno(), MIB + 10)
        os.pwrite(file.fileno(), b"end", 2 * MIB)
        wanted = b"z" * (MIB + 10) + bytes(MIB - 10) + b"end"
        assert os.pread(file.fileno(), 4 * MIB, 0) == wanted
    assert (workdir / "file").read_bytes() == wanted


def test_truncate_up_only_changes_the_size(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"head")
    os.truncate(path, 40 * MIB + 3)
    assert path.stat().st_size == 40 * MIB + 3
    with path.open("rb") as file:
        assert file.read(6) == b"head\0\0"
        file.seek(40 * MIB)
        assert file.read() == bytes(3)


def test_read_past_the_end(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"x" * 5000)
    fd = os.open(path, os.O_RDONLY)
    assert os.pread(fd, 100, 5000) == b""
    assert os.pread(fd, 100, 4990) == b"x" * 10
    assert os.pread(fd, 100, 10 * MIB) == b""
    os.close(fd)


def test_seek_end_and_current(workdir: Path) -> None:
    with (workdir / "file").open("w+b", buffering=0) as file:
        file.write(b"0123456789")
        assert file.seek(-3, os.SEEK_END) == 7
        assert file.read() == b"789"
        assert file.seek(2, os.SEEK_CUR) == 12
        file.write(b"x")
    assert (workdir / "file").read_bytes() == b"0123456789\0\0x"


def test_shared_mapping_reaches_the_file(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(bytes(3 * MIB))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[MIB - 2 : MIB + 2] = b"span"
        view[3 * MIB - 1] = 255
        view.flush()
        assert os.pread(file.fileno(), 4, MIB - 2) == b"span"
    content = path.read_bytes()
    assert content[MIB - 2 : MIB + 2] == b"span" and content[-1] == 255


def test_shared_mapping_without_msync_is_there_after_close(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(bytes(100_000))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[50_000:50_005] = b"later"
    assert path.read_bytes()[50_000:50_005] == b"later"


def test_private_mapping_leaves_the_file_alone(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"original" * 1000)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        view[:7] = b"changed"
        assert view[:8] == b"changedl"
    assert path.read_bytes() == b"original" * 1000


def test_mapping_sees_a_write_of_the_same_client(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"a" * 8192)
    with path.open("r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as view:
        assert view[0] == ord("a")
        os.pwrite(file.fileno(), b"b" * 10, 4000)
        assert view[3999:4011] == b"a" + b"b" * 10 + b"a"


def test_mapping_beyond_the_end_is_sigbus(workdir: Path) -> None:
    path = workdir / "file"
    path.write_bytes(b"x" * 10_000)
    program = (
        "import mmap, os, sys\n"
        "f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0)\n"
        "os.truncate(sys.argv[1], 100); m[9000]\n"
    )
    result = subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=60)
    assert result.returncode == -signal.SIGBUS


def test_program_runs_from_the_mount(workdir: Path) -> None:
    shutil.copy("/bin/true", workdir / "true")
    assert subprocess.run([workdir / "true"], check=False, timeout=60).returncode == 0


def test_copy_of_a_file_onto_itself(workdir: Path) -> None:
    path = workdir / "file"
    wanted = random.Random(3).randbytes(3 * MIB + 17)
    path.write_bytes(wanted)
    fd = os.open(path, os.O_RDWR)
    for offset in range(0, len(wanted), 100_000):
        os.pwrite(fd, os.pread(fd, 100_000, offset), offset)
    # The same bytes are written again, shifted by a file's length.
    for offset in range(0, len(wanted), 100_000):
        os.pwrite(fd, os.pread(fd, 100_000, offset)[: len(wanted) - offset], offset + len(wanted))
    os.close(fd)
    assert path.read_bytes() == wanted * 2


def test_copy_file_range_and_sendfile(workdir: Path) -> None:
    wanted = random.Random(4).randbytes(2 * MIB + 5)
    (workdir / "a").write_bytes(wanted)
    with (workdir / "a").open("rb") as source, (workdir / "b").open("wb") as sink:
        done = 0
        while count := os.copy_file_range(source.fileno(), sink.fileno(), 1 << 20, done, done):
            done += count
    with (workdir / "a").open("rb") as source, (workdir / "c").open("wb") as sink:
        done = 0
        while count := os.sendfile(sink.fileno(), source.fileno(), done, 1 << 20):
            done += count
    assert (workdir / "b").read_bytes() == wanted
    assert (workdir / "c").read_bytes() == wanted


def test_many_small_sequential_writes(workdir: Path) -> None:
    chance = random.Random(5)
    pieces = [chance.randbytes(chance.randrange(1, 700)) for _ in range(3000)]
    with (workdir / "file").open("wb", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
    assert (workdir / "file").read_bytes() == b"".join(pieces)


def test_small_writes_backwards(workdir: Path) -> None:
    with (workdir / "file").open("wb", buffering=0) as file:
        for number in reversed(range(500)):
            os.pwrite(file.fileno(), b"%07d\n" % number, number * 8)
    assert (workdir / "file").read_bytes() == b"".join(b"%07d\n" % n for n in range(500))


def test_overwrites_after_fsync(workdir: Path) -> None:
    """Durable blocks are replaced in another way than new ones: whole, partial, several."""
    chance = random.Random(6)
    wanted = bytearray(chance.randbytes(4 * MIB))
    with (workdir / "file").open("w+b", buffering=0) as file:
        file.write(wanted)
        for _ in range(30):
            os.fsync(file.fileno())
            offset = chance.randrange(len(wanted) - 5000)
            piece = chance.randbytes(chance.choice([1, 100, 4096, 5000, MIB]))[
                : len(wanted) - offset
            ]
            os.pwrite(file.fileno(), piece, offset)
            wanted[offset : offset + len(piece)] = piece
            assert os.pread(file.fileno(), 9000, max(0, offset - 100)) == bytes(
                wanted[max(0, offset - 100) :][:9000]
            )
    assert (workdir / "file").read_bytes() == wanted


def test_file_size_limit_of_the_process(workdir: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    program = (
        "import errno, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
        "assert os.write(fd, b'x' * 20000) == 10000\n"
        "try: os.write(fd, b'x'); sys.exit(1)\n"
        "except OSError as e: sys.exit(e.errno != errno.EFBIG)\n"
    )
    command = [sys.executable, "-c", program, str(workdir / "file")]
    assert subprocess.run(command, preexec_fn=limit, check=False, timeout=60).returncode == 0
    assert (workdir / "file").stat().st_size == 10_000


def test_fdatasync_and_sync_file(workdir: Path) -> None:
    with (workdir / "file").open("wb", buffering=0) as file:
        file.write(b"x" * 300_000)
        os.fdatasync(file.fileno())
        file.write(b"y" * 300_000)
        os.fsync(file.fileno())
    directory = os.open(workdir, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    assert (workdir / "file").stat().st_size == 600_000


def test_vectored_and_zero_length(workdir: Path) -> None:
    fd = os.open(workdir / "file", os.O_CREAT | os.O_RDWR)
    assert os.writev(fd, [b"one", b"", b"two" * 1000]) == 3003
    assert os.write(fd, b"") == 0
    assert os.pread(fd, 0, 0) == b""
    first, second = bytearray(3), bytearray(3000)
    assert os.preadv(fd, [first, second], 0) == 3003
    assert bytes(first + second) == b"one" + b"two" * 1000
    os.close(fd)
