"""The classic fsx operations by two processes on one file, against a copy in shared memory.

Each process has a descriptor of its own and takes turns under one lock, at random: whatever one of
them wrote, truncated or mapped, the other must read. Run by test_fsx.py, or by hand:
    python -m tests.stress.fsx FILE FILE --operations 100000 --seed 7
The first difference prints the offset, the last operations of each process with their numbers and
the file's size before them, and the command that repeats them.
With --notes how long each operation took is appended to a file (tests.cluster.workers).
Not fuzzing of concurrent writes without order: their outcome has no oracle.
"""

import argparse
import mmap
import multiprocessing
import os
import random
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.synchronize import Lock
from pathlib import Path

from tests.cluster.workers import READ, WRITE, Notes

FILE_MAX = 6 << 20
PIECE_MAX = 300_000
HEADER = struct.Struct("<QQ")  # it has the size and the number of operations done
OPERATIONS = (
    "read",
    "write",
    "mapread",
    "mapwrite",
    "truncate",
    "append",
    "sync",
    "reopen",
    "drop",
)
WEIGHTS = (30, 30, 10, 10, 8, 5, 3, 3, 3)
READING = ("read", "mapread")  # the others may write


class DifferenceError(Exception):
    """The file is not what it should be."""


@dataclass
class Player:
    """One of the two processes: its descriptor, its random generator, and the copy that
    both share."""

    path: Path
    copy: mmap.mmap
    chance: random.Random
    notes: Notes | None = None
    fd: int = -1
    history: deque[str] = field(default_factory=lambda: deque(maxlen=30))

    def __post_init__(self) -> None:
        self.fd = os.open(self.path, os.O_RDWR)

    @property
    def size(self) -> int:
        return int(HEADER.unpack_from(self.copy)[0])

    @size.setter
    def size(self, value: int) -> None:
        struct.pack_into("<Q", self.copy, 0, value)

    @property
    def done(self) -> int:
        return int(HEADER.unpack_from(self.copy)[1])

    def report(self, why: str) -> None:
        print(f"process {os.getpid()}: {why}", *self.history, sep="\n  ", file=sys.stderr)

    def wanted(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.size)
        return self.copy[HEADER.size + offset : HEADER.size + max(offset, end)]

    def put(self, offset: int, piece: bytes) -> None:
        place = HEADER.size + offset
        self.copy[place : place + len(piece)] = piece
        self.size = max(self.size, offset + len(piece))

    def step(self) -> None:
        name = self.chance.choices(OPERATIONS, WEIGHTS)[0]
        offset = self.chance.randrange(FILE_MAX)
        length = min(int(self.chance.paretovariate(0.4)), PIECE_MAX, FILE_MAX - offset)
        if self.chance.random() < 0.3:
            offset &= ~4095
        self.history.append(f"{self.done} {name} offset={offset} length={length} of {self.size}")
        began_s = time.monotonic()
        getattr(self, name)(offset, length)
        if self.notes:
            self.notes.add(began_s, READ if name in READING else WRITE)
        size = os.fstat(self.fd).st_size
        if size != self.size:
            raise DifferenceError(f"size is {size}, should be {self.size}")

    def compare(self, offset: int, got: bytes, wanted: bytes) -> None:
        if got == wanted:
            return
        first = next(
            (i for i, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]),
            min(len(got), len(wanted)),
        )
        raise DifferenceError(
            f"at offset {offset + first}: got {got[first : first + 16].hex()} ({len(got)} bytes),"
            f" wanted {wanted[first : first + 16].hex()} ({len(wanted)} bytes)"
        )

    def read(self, offset: int, length: int) -> None:
        self.compare(offset, os.pread(self.fd, length, offset), self.wanted(offset, length))

    def write(self, offset: int, length: int) -> None:
        piece = self.chance.randbytes(length)
        done = os.pwrite(self.fd, piece, offset)
        if done != length:
            raise DifferenceError(f"write of {length} bytes wrote {done}")
        self.put(offset, piece)

    def append(self, _offset: int, length: int) -> None:
        self.write(self.size, min(length, FILE_MAX - self.size))

    def truncate(self, offset: int, _length: int) -> None:
        os.ftruncate(self.fd, offset)
        if offset < self.size:
            place = HEADER.size + offset
            self.copy[place : HEADER.size + self.size] = bytes(self.size - offset)
        self.size = offset

    def _mapped(self, offset: int, length: int) -> tuple[int, int, int]:
        start = offset & ~(mmap.ALLOCATIONGRANULARITY - 1)
        end = min(offset + length, self.size)
        return start, offset - start, end - start

    def mapread(self, offset: int, length: int) -> None:
        start, low, high = self._mapped(offset, length)
        if high <= low:
            return
        with mmap.mmap(self.fd, high, access=mmap.ACCESS_READ, offset=start) as view:
            self.compare(offset, view[low:high], self.wanted(offset, length))

    def mapwrite(self, offset: int, length: int) -> None:
        start, low, high = self._mapped(offset, length)
        if high <= low:
            return
        piece = self.chance.randbytes(high - low)
        with mmap.mmap(self.fd, high, offset=start) as view:
            view[low:high] = piece
            if self.chance.random() < 0.5:
                view.flush()
        self.put(offset, piece)

    def sync(self, _offset: int, _length: int) -> None:
        os.fsync(self.fd)

    def reopen(self, _offset: int, _length: int) -> None:
        os.close(self.fd)
        self.fd = os.open(self.path, os.O_RDWR)

    def drop(self, _offset: int, _length: int) -> None:
        os.fsync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _play(
    path: Path, copy: mmap.mmap, lock: Lock, seed: int, operations: int, notes: Path | None
) -> None:
    player = Player(path, copy, random.Random(seed), Notes(notes) if notes else None)
    while True:
        with lock:
            done = player.done
            if done >= operations:
                if done > operations:
                    player.report("the other process found a difference")
                return
            try:
                player.step()
            except BaseException as error:
                HEADER.pack_into(copy, 0, player.size, operations + 1)  # the other stops, too
                player.report(f"operation {done}: {error!r}")
                lock.release()
                os._exit(1)
            HEADER.pack_into(copy, 0, player.size, done + 1)


def run(paths: Sequence[Path], operations: int, seed: int, notes: Path | None = None) -> bool:
    """Runs one process for each path, all of them paths of one file. True when no difference was
    found; else the report is on stderr."""
    words = " ".join(map(str, paths))
    print(f"repeat: python -m tests.stress.fsx {words} --operations {operations} --seed {seed}")
    path = paths[0]
    path.write_bytes(b"")
    copy = mmap.mmap(-1, HEADER.size + FILE_MAX)
    context = multiprocessing.get_context("fork")
    lock = context.Lock()
    players = [
        context.Process(target=_play, args=(path, copy, lock, seed * 2 + number, operations, notes))
        for number, path in enumerate(paths)
    ]
    for player in players:
        player.start()
    for player in players:
        player.join()
    size = HEADER.unpack_from(copy)[0]
    same = path.read_bytes() == copy[HEADER.size : HEADER.size + size]
    if not same:
        print("the file's bytes at the end differ from the copy's", file=sys.stderr)
    return same and all(player.exitcode == 0 for player in players)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.fsx")
    parser.add_argument("files", type=Path, nargs="+", help="of one file, a process for each")
    parser.add_argument("--operations", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--notes", type=Path)
    words = parser.parse_args()
    sys.exit(0 if run(words.files, words.operations, words.seed, words.notes) else 1)


if __name__ == "__main__":
    main()
