"""Both kinds of reading threads do the same: results, checks, interrupts, forks."""

import errno
import os
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from braidfs.data.pools import Pool, PoolOfProcess, PythonPool, new_pool

from .data_sets import KINDS, make_pool, native_pool


@pytest.fixture(params=KINDS)
def pool(request: pytest.FixtureRequest) -> Pool:
    return make_pool(request.param)


def packed(*paths: Path | str) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def test_the_native_module_is_used_where_it_is_there() -> None:
    assert type(new_pool()) is type(native_pool())


def test_sizes(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"four")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    names = [tmp_path / name for name in ("file", "link", "missing", "fifo")] + [tmp_path]
    table = array("q", [0, 0, 7] * len(names))
    pool.sizes(packed(*names), table, 3)
    assert list(table[2::3]) == [4, 4, -errno.ENOENT, -errno.EINVAL, -errno.EISDIR]


def test_reads_into_places(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"aaaa")
    (tmp_path / "b").write_bytes(b"bb")
    arena = bytearray(b"." * 16)
    table = array("q", [8, 8, 0, 0, 4, 0, 0, 0, 0])
    pool.read(packed(tmp_path / "a", tmp_path / "b", tmp_path), table, arena, 4)
    assert bytes(arena) == b"bb......aaaa...."
    assert list(table[2::3]) == [4, 2, 0]


def test_a_full_room_ends_the_reading(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"aaaa")
    arena = bytearray(b"." * 8)
    table = array("q", [2, 3, 0])
    pool.read(packed(tmp_path / "a"), table, arena, 1)
    assert bytes(arena) == b"..aaa..."
    assert table[2] == 3


def test_what_cannot_be_read(pool: Pool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    arena = bytearray(8)
    table = array("q", [0, 8, 0] * 3)
    names = packed(tmp_path / "fifo", tmp_path, tmp_path / "missing")
    pool.read(names, table, arena, 2)
    assert list(table[2::3]) == [-errno.ESPIPE, -errno.EISDIR, -errno.ENOENT]


@pytest.mark.parametrize("row", [(-1, 1), (0, 9), (9, 0), (0, -1), (4, 5), (2**63 - 1, 2**63 - 1)])
def test_places_outside_of_the_arena_are_refused(pool: Pool, row: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="outside of the arena"):
        pool.read(packed("/dev/null"), array("q", [*row, 0]), bytearray(8), 1)


@pytest.mark.parametrize(
    "names, rows", [(b"/a", 1), (b"/a\0/b", 2), (b"/a\0", 2), (b"/a\0/b\0", 1), (b"", 1)]
)
def test_names_and_rows_fit_together(pool: Pool, names: bytes, rows: int) -> None:
    with pytest.raises(ValueError, match="name"):
        pool.sizes(names, array("q", [0, 0, 0] * rows), 1)


def test_other_buffers_are_refused(pool: Pool) -> None:
    with pytest.raises((ValueError, TypeError)):
        pool.sizes(b"/\0", array("q", [0, 0]), 1)
    with pytest.raises((BufferError, TypeError)):
        pool.sizes(b"/\0", bytes(24), 1)
    with pytest.raises((BufferError, TypeError)):
        pool.read(b"/\0", array("q", [0, 1, 0]), b"readonly", 1)
    with pytest.raises(ValueError, match="threads"):
        pool.sizes(b"/\0", array("q", [0, 0, 0]), 0)
    with pytest.raises(ValueError, match="threads"):
        pool.sizes(b"/\0", array("q", [0, 0, 0]), 257)


def test_nothing_is_done_for_no_file(pool: Pool) -> None:
    pool.sizes(b"", array("q"), 8)
    pool.read(b"", array("q"), bytearray(1), 8)


def test_several_threads_of_a_program_read_at_once(pool: Pool, tmp_path: Path) -> None:
    contents = [bytes([65 + number]) * (100 * number) for number in range(20)]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
    names = packed(*(tmp_path / str(number) for number in range(20)))
    wrong = []

    def read() -> None:
        for _ in range(30):
            arena = bytearray(2048 * 20)
            table = array("q")
            for number in range(20):
                table.extend((2048 * number, 2048, 0))
            pool.read(names, table, arena, 3)
            for number, content in enumerate(contents):
                place = 2048 * number
                if arena[place : place + table[3 * number + 2]] != content:
                    wrong.append(number)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Raises KeyboardInterrupt in the main thread, as Ctrl-C does, after so many seconds."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_ends_a_batch(
    pool: Pool, tmp_path: Path, alarm: Callable[[float], None]
) -> None:
    count, size = 40_000, 4 << 20  # it would take a minute
    (tmp_path / "file").write_bytes(bytes(size))
    table = array("q", [0, size, 0] * count)
    arena, names = bytearray(size), packed(tmp_path / "file") * count
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        alarm(1.0)
        pool.read(names, table, arena, 1)
    assert time.monotonic() - begun < 15
    read = list(table[2::3]).index(-errno.ECANCELED)
    assert set(table[2 : 3 * read : 3]) <= {size}
    assert set(table[3 * read + 2 :: 3]) == {-errno.ECANCELED}
    table = array("q", [0, size, 0])
    pool.read(packed(tmp_path / "file"), table, arena, 1)  # the pool goes on
    assert table[2] == size


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_has_threads_of_its_own(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"four")
    pools = PoolOfProcess(lambda: make_pool(kind))

    def size() -> int:
        table = array("q", [0, 0, 0])
        pools.get().sizes(packed(tmp_path / "file"), table, 2)
        return table[2]

    assert size() == 4
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that waits for threads that it has not
        os._exit(size())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
    assert size() == 4
    assert pools.get() is pools.get()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_native_pool_of_the_parent_is_refused_and_ends_quietly() -> None:
    pool = native_pool()
    pool.sizes(b"/\0", array("q", [0, 0, 0]), 2)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            pool.sizes(b"/\0", array("q", [0, 0, 0]), 2)
        except RuntimeError:
            del pool
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_threads_are_as_many_as_were_asked_for() -> None:
    pool = PythonPool()
    before = threading.active_count()
    pool.sizes(b"/\0" * 9, array("q", [0, 0, 0] * 9), 4)
    pool.sizes(b"/\0" * 9, array("q", [0, 0, 0] * 9), 2)
    assert threading.active_count() - before == 4
