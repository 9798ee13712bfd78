"""One writer and many readers of one file, without a lock, and the exact rules for what readers may
see.

The writer writes a sequence of numbered records, each by one write call after the one before. What
a reader gets is *consistent* when it is a prefix of the sequence's bytes: it has no hole, no record
if an earlier one is missing, and no byte of a record whose write had not begun. It is *fresh* when
it has every record that was complete when the read began. And one descriptor never shows less than
it has shown before: its prefixes never become shorter.

The rewriter overwrites a file of equal blocks again and again, each time with the next generation.
A reader that reads the blocks from the end to the beginning must never find an older generation
than in a block that it read before, because the writer wrote the earlier block first.

Counters of begun and completed writes are in memory that all processes share. Each reader is a
process of its own, and ends with a sentence if it saw something else.
"""

import mmap
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from multiprocessing.process import BaseProcess
from pathlib import Path

LENGTHS = (1, 40, 4096, 777, 9000, 13, 65_536, 300)  # the lengths of records, in turn
CYCLE = sum(LENGTHS)
BLOCK = 4096
BLOCKS = 64
SECONDS_TO_END = 120.0


class InconsistentError(Exception):
    """A reader saw what the rules forbid."""


# ---- the sequence of records ---------------------------------------------------------------------


def record(number: int) -> bytes:
    length = LENGTHS[number % len(LENGTHS)]
    head = b"%d:" % number
    return (head + bytes([65 + number % 26]) * length)[:length]


def size_of(count: int) -> int:
    """The number of bytes in the first `count` records."""
    cycles, rest = divmod(count, len(LENGTHS))
    return cycles * CYCLE + sum(LENGTHS[:rest])


@dataclass
class Records:
    """The bytes of all records so far, generated as they are requested."""

    octets: bytearray = field(default_factory=bytearray)
    count: int = 0

    def begins_with(self, octets: bytes) -> bool:
        self._make(len(octets))
        return self.octets.startswith(octets)

    def between(self, begin: int, end: int) -> bytes:
        self._make(end)
        return bytes(self.octets[begin:end])

    def _make(self, size: int) -> None:
        while len(self.octets) < size:
            self.octets += record(self.count)
            self.count += 1


class Shared:
    """Counters in memory that is inherited by fork; each is stored at once, never in parts."""

    def __init__(self) -> None:
        self._counters = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    @property
    def begun(self) -> int:
        return self._counters[0]

    @property
    def done(self) -> int:
        return self._counters[1]

    @property
    def is_over(self) -> bool:
        return bool(self._counters[2])

    def begin(self, number: int) -> None:
        self._counters[0] = number

    def end(self, number: int) -> None:
        self._counters[1] = number

    def stop(self) -> None:
        self._counters[2] = 1


@dataclass(frozen=True, slots=True)
class Look:
    """One read of a file: what was complete before it, what was begun by its end, and the bytes."""

    done: int
    octets: bytes
    begun: int

    def check(self, sequence: Records, *, fresh: bool, least: int) -> None:
        size = len(self.octets)
        if size > size_of(self.begun):
            raise InconsistentError(f"{size} bytes, of which nobody wrote the last ones")
        if not sequence.begins_with(self.octets):
            raise InconsistentError(self._first_difference(sequence))
        if fresh and size < size_of(self.done):
            raise InconsistentError(f"{size} bytes, after {size_of(self.done)} had been written")
        if size < least:
            raise InconsistentError(f"{size} bytes, where {least} had been read before")

    def _first_difference(self, sequence: Records) -> str:
        return _difference(self.octets, sequence.between(0, len(self.octets)))


def _difference(got: bytes, wanted: bytes) -> str:
    at = next(i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b)
    begin = slice(at, at + 16)
    return f"at {at} of {len(got)}: {got[begin]!r} instead of {wanted[begin]!r}"


# ---- processes -----------------------------------------------------------------------------------


def write_records(path: Path, shared: Shared, flags: int, pause_s: float) -> str:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags)
    number = 0
    while not shared.is_over:
        piece = record(number)
        shared.begin(number + 1)
        if os.write(fd, piece) != len(piece):
            raise InconsistentError("a short write")
        shared.end(number + 1)
        number += 1
        time.sleep(pause_s)
    os.close(fd)
    return f"{number} records"


def read_opened_anew(path: Path, shared: Shared) -> str:
    """Opens, reads and closes in turn; each read must be fresh."""
    sequence, count = Records(), 0
    while not shared.is_over:
        done = shared.done
        octets = path.read_bytes()
        Look(done, octets, shared.begun).check(sequence, fresh=True, least=0)
        count += 1
    return f"{count} reads"


def read_opened_once(path: Path, shared: Shared) -> str:
    """Reads through one descriptor, which must never show less than before. A read that ends at the
    size of a moment ago is counted (docs/SEMANTICS.md, known gap)."""
    sequence, count, seen, short = Records(), 0, 0, 0
    fd = os.open(path, os.O_RDONLY)
    while not shared.is_over:
        done = shared.done
        octets = _whole(fd)
        Look(done, octets, shared.begun).check(sequence, fresh=False, least=seen)
        short += len(octets) < size_of(done)
        seen, count = len(octets), count + 1
    os.close(fd)
    return f"{count} reads, {short} ended early"


def read_mapped(path: Path, shared: Shared) -> str:
    """Maps as many bytes as stat says, after an open."""
    sequence, count = Records(), 0
    while not shared.is_over:
        done = shared.done
        fd = os.open(path, os.O_RDONLY)
        size = os.fstat(fd).st_size
        if size:
            with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as view:
                Look(done, view[:], shared.begun).check(sequence, fresh=True, least=0)
        os.close(fd)
        count += 1
    return f"{count} reads"


def follow(path: Path, shared: Shared) -> str:
    """Does what tail -f does: reads on from its position, until it finds nothing more."""
    sequence, place, count = Records(), 0, 0
    fd = os.open(path, os.O_RDONLY)
    while not shared.is_over:
        octets = os.read(fd, 1 << 16)
        if place + len(octets) > size_of(shared.begun):
            raise InconsistentError(f"read beyond what was written, at {place}")
        wanted = sequence.between(place, place + len(octets))
        if octets != wanted:
            raise InconsistentError(f"from {place}: {_difference(octets, wanted)}")
        place, count = place + len(octets), count + bool(octets)
    os.close(fd)
    return f"{count} pieces"


def stat_opened_once(path: Path, shared: Shared) -> str:
    return _sizes(path, shared, anew=False)


def stat_opened_anew(path: Path, shared: Shared) -> str:
    return _sizes(path, shared, anew=True)


def _sizes(path: Path, shared: Shared, *, anew: bool) -> str:
    """The size must include everything that was written before, and never be smaller than a size
    seen before."""
    count, seen = 0, 0
    fd = os.open(path, os.O_RDONLY)
    while not shared.is_over:
        done = size_of(shared.done)
        if anew:
            os.close(fd)
            fd = os.open(path, os.O_RDONLY)
        size = os.fstat(fd).st_size
        if size < max(done, seen):
            raise InconsistentError(f"a size of {size}: {done} were written, {seen} told before")
        seen, count = size, count + 1
    os.close(fd)
    return f"{count} sizes"


def _whole(fd: int) -> bytes:
    pieces, place = [], 0
    while piece := os.pread(fd, 1 << 20, place):
        pieces.append(piece)
        place += len(piece)
    return b"".join(pieces)


# ---- generations ---------------------------------------------------------------------------------


def block(generation: int) -> bytes:
    return b"%016d" % generation * (BLOCK // 16)


def rewrite(path: Path, shared: Shared, pause_s: float) -> str:
    fd = os.open(path, os.O_WRONLY)
    generation = 1
    while not shared.is_over:
        for number in range(BLOCKS):
            os.pwrite(fd, block(generation), number * BLOCK)
        shared.end(generation)
        generation += 1
        time.sleep(pause_s)
    os.close(fd)
    return f"{generation - 1} generations"


def read_backwards(path: Path, shared: Shared, *, anew: bool, is_writers: bool) -> str:
    """Reads block by block, from the last to the first. On the writer's own client a block may have
    two generations, as on any local disk, because Linux copies into the very page from which it
    copies."""
    count = 0
    fd = os.open(path, os.O_RDONLY)
    while not shared.is_over:
        if anew:
            os.close(fd)
            fd = os.open(path, os.O_RDONLY)
        newest = shared.done
        for number in reversed(range(BLOCKS)):
            octets = os.pread(fd, BLOCK, number * BLOCK)
            found = {int(octets[at : at + 16]) for at in range(0, BLOCK, 16)}
            if len(found) > 1 and not is_writers:
                raise InconsistentError(f"block {number} is of the generations {found}")
            if min(found) < newest:
                raise InconsistentError(f"block {number} is of {found}, after {newest} was seen")
            newest = max(found)
        count += 1
    os.close(fd)
    return f"{count} passes"


# ---- all together --------------------------------------------------------------------------------


def run(parts: Sequence[Callable[[Shared], str]], seconds: float) -> list[str]:
    """Runs each part in a process, for so many seconds; returns their reports. Raises
    InconsistentError."""
    context = multiprocessing.get_context("fork")
    shared = Shared()
    started: list[tuple[ForkProcess, Connection]] = []
    for part in parts:
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_perform, args=(part, shared, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, mine))
    time.sleep(seconds)
    shared.stop()
    said = []
    for process, mine in started:
        if not mine.poll(SECONDS_TO_END):
            raise InconsistentError("a reader or writer does not come to an end")
        said.append(_last_words(process, mine))
    if wrong := [sentence for sentence in said if sentence.startswith("wrong: ")]:
        raise InconsistentError("; ".join(wrong))
    return said


def _last_words(process: BaseProcess, pipe: Connection) -> str:
    try:
        words = str(pipe.recv())
    except EOFError:
        words = ""
    process.join()
    return words or f"wrong: a process ended with {process.exitcode}"


def _perform(part: Callable[[Shared], str], shared: Shared, done: Connection) -> None:
    try:
        done.send(part(shared))
    except BaseException as error:
        shared.stop()
        name = getattr(getattr(part, "func", part), "__name__", "")
        done.send(f"wrong: {name}: {error!r}")
    os._exit(0)
