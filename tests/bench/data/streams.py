"""Cases c and d: checkpoints, written by several writers at once and read back cold.

Each writer has a file of its own, writes it from the beginning in blocks of 1 or 16 MiB, and calls
fsync at the end. There are two rates: until the bytes are durable, and until the trainer may go on,
which is when its last write returned. On ext4 this runs twice, buffered and with O_DIRECT (space
allocated first, four writes of a file in flight), and the better one counts.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as counting
from pathlib import Path

from tests.bench.data import buffers
from tests.bench.data.amounts import GIB, MIB, Amounts, bytes_text
from tests.bench.data.bars import LOCAL, Bar, Row, Than
from tests.bench.data.case import Case, Values, empty
from tests.bench.data.cost import Spent, spending
from tests.bench.data.places import BraidPlace, KeptMounts, NullPlace, Place
from tests.bench.data.workers import Together, together
from tests.cluster.process import wait_until

READERS = (1, 4)
DIRECT_DEPTH = 4
KEEP_SECONDS_MAX = 120
LEAST_OF_LOCAL = {1: 0.65, 4: 0.75}  # the key is the number of writers
WRITE_CPU = "CPU per GiB written, 1 MiB sequential, 1 writer"
READ_CPU = "CPU per GiB read, 1 MiB sequential, 1 reader"
WRITE_SWITCHES = "context switches per MiB written"
READ_SWITCHES = "context switches per MiB read"

# Its arguments are file, bytes and block; it returns the time when the last write had returned.
Writer = Callable[[Path, int, int], float]


def file_of(place: Place, number: int) -> Path:
    """Null FUSE has files of these names."""
    return place.folder / f"f{number}"


def write_buffered(path: Path, size: int, block: int) -> float:
    content = buffers.filled(block)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    for offset in range(0, size, block):
        _write(file, content, offset)
    done_s = time.monotonic()
    os.fsync(file)
    os.close(file)
    return done_s


def write_direct(path: Path, size: int, block: int) -> float:
    """Each of the threads takes the next free block."""
    content = buffers.filled(block)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
    os.posix_fallocate(file, 0, size)
    numbers = counting()
    failures: list[OSError] = []

    def work() -> None:
        try:
            while (offset := next(numbers) * block) < size:
                _write(file, content, offset)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(DIRECT_DEPTH)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    if failures:
        raise failures[0]
    done_s = time.monotonic()
    os.fsync(file)
    os.close(file)
    return done_s


def _write(file: int, content: memoryview, offset: int) -> None:
    if os.pwrite(file, content, offset) != len(content):
        raise OSError(0, f"a short write at offset {offset}")


def read_file(path: Path, size: int, block: int) -> float:
    into = buffers.pages(block)
    file = os.open(path, os.O_RDONLY)
    total = 0
    while got := os.readv(file, [into]):
        total += got
    os.close(file)
    if total != size:
        raise OSError(0, f"{path} gave {total} bytes instead of {size}")
    return float(total)


def write_all(place: Place, writers: int, size: int, block: int, write: Writer) -> Together:
    """The count of each share is the time when its last write had returned."""
    paths = [file_of(place, number) for number in range(writers)]
    return together([partial(write, path, size, block) for path in paths])


def _checkpoint(writers: int, block: int) -> str:
    who = "1 writer" if writers == 1 else f"{writers} writers"
    return f"checkpoint, {who}, {bytes_text(block)} writes"


def _until_free(writers: int, block: int) -> str:
    return f"{_checkpoint(writers, block)}: until it goes on"


def _write_rows(amounts: Amounts) -> Iterator[Row]:
    for block in amounts.blocks:
        for writers in amounts.writers:
            least = LEAST_OF_LOCAL.get(writers)
            bars = (Bar(Than.LOCAL, least), Bar(Than.PEERS, 2.5)) if least else ()
            yield Row(_checkpoint(writers, block), "MB/s", bars)
            yield Row(_until_free(writers, block), "MB/s")
    yield Row(WRITE_CPU, "s", (Bar(Than.VALUE, 1.2, at_most=True),), less_is_better=True)
    yield Row(WRITE_SWITCHES, "", less_is_better=True)


def _write_run(place: Place, amounts: Amounts) -> Values:
    values: dict[str, float] = {}
    if isinstance(place, NullPlace):
        place.shape(max(amounts.writers), amounts.stream_bytes)
    ways = (write_buffered, write_direct) if place.name == LOCAL else (write_buffered,)
    for block in amounts.blocks:
        for writers in amounts.writers:
            seen: list[tuple[float, float]] = []
            for way in ways:
                empty(place)
                os.sync()
                with spending(place.serving()) as spent:
                    done = write_all(place, writers, amounts.stream_bytes, block, way)
                seen.append(_rates(done, writers * amounts.stream_bytes))
                if (writers, block) == (amounts.writers[0], MIB) and place.serving().client:
                    amount = writers * amounts.stream_bytes
                    values |= _cost(spent, amount, WRITE_CPU, WRITE_SWITCHES)
            values[_checkpoint(writers, block)] = max(one for one, _ in seen)
            values[_until_free(writers, block)] = max(one for _, one in seen)
    return values


def _rates(done: Together, size: int) -> tuple[float, float]:
    """The rates in MB/s until durable, and until the last write had returned."""
    began_s = min(one.began_s for one in done.shares)
    free_s = max(one.count for one in done.shares) - began_s
    return size / done.seconds / 1e6, size / max(free_s, 1e-9) / 1e6


def _cost(spent: Spent, size: int, cpu: str, switches: str) -> Values:
    return {cpu: spent.cpu_s / size * GIB, switches: spent.switches / size * MIB}


def _restore(readers: int) -> str:
    return f"restore, cold, {'1 reader' if readers == 1 else f'{readers} readers'}, 1 MiB reads"


def _kept(readers: int, passes: bool) -> str:
    how = "cache_dir and passthrough" if passes else "cache_dir"
    return f"{_restore(readers)}, after a remount with {how}"


def _read_rows(_: Amounts) -> Iterator[Row]:
    for readers in READERS:
        yield Row(_restore(readers), "MB/s", (Bar(Than.LOCAL, 0.7), Bar(Than.PEERS, 2.5)))
        for passes in (False, True):
            yield Row(_kept(readers, passes), "MB/s")
    yield Row(READ_CPU, "s", (Bar(Than.VALUE, 1.2, at_most=True),), less_is_better=True)
    yield Row(READ_SWITCHES, "", less_is_better=True)


def _read_run(place: Place, amounts: Amounts) -> Values:
    values: dict[str, float] = {}
    size = amounts.stream_bytes
    if isinstance(place, NullPlace):
        place.shape(max(READERS), size)
    write_all(place, max(READERS), size, MIB, write_buffered)
    for readers in READERS:
        place.chill()
        paths = [file_of(place, number) for number in range(readers)]
        with spending(place.serving()) as spent:
            done = together([partial(read_file, path, size, MIB) for path in paths])
        values[_restore(readers)] = done.rate / 1e6
        if readers == 1 and place.serving().client:
            values |= _cost(spent, size, READ_CPU, READ_SWITCHES)
    if isinstance(place, BraidPlace):
        values |= _kept_reads(place, size)
    return values


def _kept_reads(place: BraidPlace, size: int) -> Values:
    """The tree is sealed, the caches are filled, the place is mounted again, passthrough copies are
    checked by then, and the page cache is empty."""
    values: dict[str, float] = {}
    names = [file_of(place, number).name for number in range(max(READERS))]
    # Copies have at most half of it, and so have segments.
    room = 3 * len(names) * size + (1 << 30)
    with place.kept(place.folder, room) as kept:
        for passes in (False, True):
            _fill(kept, names, size, passes)
            for readers in READERS:
                rate = _read_kept(kept, names, size, passes, readers)
                values[_kept(readers, passes)] = rate / 1e6
            kept.clear()
    return values


def _read_kept(kept: KeptMounts, names: list[str], size: int, passes: bool, readers: int) -> float:
    with kept.mounted(passes) as (point, count):
        if passes:
            _wait(lambda: count("cache_copies_checked") == len(names))
        Path("/proc/sys/vm/drop_caches").write_text("3")
        paths = [point / name for name in names[:readers]]
        done = together([partial(read_file, path, size, MIB) for path in paths])
        if passes and count("passthrough_opens") != readers:
            raise OSError(0, "the kernel did not read them by itself")
    return done.rate


def _fill(kept: KeptMounts, names: list[str], size: int, passes: bool) -> None:
    """Reads until the cache has all of it; copies are made when it is read once more."""
    with kept.mounted(passes) as (point, count):

        def is_kept() -> bool:
            misses = count("cache_misses")
            for name in names:
                path = point / name
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                read_file(path, size, MIB)
            if not passes:
                return count("cache_misses") == misses
            return count("cache_copies") == len(names)

        _wait(is_kept)


def _wait(is_so: Callable[[], bool]) -> None:
    if not wait_until(is_so, KEEP_SECONDS_MAX):
        raise OSError(0, "the cache does not come to hold what was read")


WRITES = Case("c", "checkpoints", lambda amounts: tuple(_write_rows(amounts)), _write_run)
READS = Case("d", "restores", lambda amounts: tuple(_read_rows(amounts)), _read_run)
