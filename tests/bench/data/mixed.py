"""Case e: epochs while another process writes a checkpoint.

Readers go through the data set of case a in random order again and again, and drop each file from
this machine's cache when they have read it; a writer writes files of a checkpoint with fsync at the
end of each. Each runs alone for some seconds, then both at once, then both with the writer limited
to a quarter of its own rate. The results are the rates relative to those alone.
"""

import os
import time
from collections.abc import Iterator, Sequence
from random import Random

from tests.bench.data import buffers
from tests.bench.data.amounts import MIB, Amounts
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.places import NullPlace, Place
from tests.bench.data.small_files import FileSet, create, file_set
from tests.bench.data.workers import Work, together

READERS = 4
PACE = 0.25
SYNC_EVERY = 64 * MIB
EPOCH_ALONE = "epoch alone, 4 processes"
WRITER_ALONE = "checkpoint alone, 1 writer"
EPOCH_BESIDE = "epoch beside a checkpoint"
WRITER_BESIDE = "checkpoint beside an epoch"
RATES = "both relative rates together"
EPOCH_PACED = "epoch beside a checkpoint at a quarter of its rate, of alone"


def _rows(_: Amounts) -> Iterator[Row]:
    yield Row(EPOCH_ALONE, "files/s")
    yield Row(WRITER_ALONE, "MB/s")
    yield Row(EPOCH_BESIDE, "files/s")
    yield Row(WRITER_BESIDE, "MB/s")
    yield Row(RATES, "", (Bar(Than.VALUE, 1.0),))
    yield Row(EPOCH_PACED, "", (Bar(Than.VALUE, 0.7),))


def _reader(files: FileSet, share: Sequence[int], seconds: float, seed: int) -> Work:
    def work() -> float:
        end_s, count, random, order = time.monotonic() + seconds, 0, Random(seed), list(share)
        while True:
            random.shuffle(order)
            for index in order:
                if time.monotonic() >= end_s:
                    return count
                _read_once(files.paths[index], files.sizes[index])
                count += 1

    return work


def _read_once(path: str, size: int) -> None:
    with open(path, "rb", buffering=0) as file:
        if len(file.read()) != size:
            raise OSError(0, f"{path} is not as long as it was written")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _writer(place: Place, size: int, seconds: float, pace: float | None) -> Work:
    """Counts durable bytes; it writes at most `pace` bytes a second."""

    def work() -> float:
        began_s, total, number = time.monotonic(), 0, 0
        content = buffers.filled(MIB)
        while time.monotonic() < began_s + seconds:
            path = place.folder / f"checkpoint-{number % 2}"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            for offset in range(0, size, MIB):
                now_s = time.monotonic()
                if now_s >= began_s + seconds:
                    break
                if pace:
                    due_s = began_s + total / pace
                    time.sleep(max(0.0, min(due_s, began_s + seconds) - now_s))
                total += os.pwrite(file, content, offset)
                if pace and (offset + MIB) % SYNC_EVERY == 0:
                    os.fsync(file)
            os.fsync(file)
            os.close(file)
            number += 1
        return float(total)

    return work


def _run(place: Place, amounts: Amounts) -> Values:
    if isinstance(place, NullPlace):
        return {}
    seconds = float(2 * amounts.seconds)
    files = file_set(place.folder, amounts)
    create(files, place.folder, amounts)
    place.chill()
    order = range(len(files.paths))
    readers = [
        _reader(files, order[first::READERS], seconds, seed=first) for first in range(READERS)
    ]
    size = amounts.stream_bytes
    together(readers)  # so the servers are as warm in the first run as in the last
    epoch_alone = together(readers).rate
    writer_alone = together([_writer(place, size, seconds, None)]).rate
    epoch, writer = _both(readers, _writer(place, size, seconds, None))
    paced, _ = _both(readers, _writer(place, size, seconds, PACE * writer_alone))
    return {
        EPOCH_ALONE: epoch_alone,
        WRITER_ALONE: writer_alone / 1e6,
        EPOCH_BESIDE: epoch,
        WRITER_BESIDE: writer / 1e6,
        RATES: epoch / epoch_alone + writer / writer_alone,
        EPOCH_PACED: paced / epoch_alone,
    }


def _both(readers: Sequence[Work], writer: Work) -> tuple[float, float]:
    """The rate of the readers, and of the writer."""
    os.sync()
    shares = together([*readers, writer]).shares
    *reading, writing = shares
    seconds = max(one.ended_s for one in reading) - min(one.began_s for one in reading)
    return (
        sum(one.count for one in reading) / seconds,
        writing.count / (writing.ended_s - writing.began_s),
    )


MIXED = Case("e", "mixed", lambda amounts: tuple(_rows(amounts)), _run)
