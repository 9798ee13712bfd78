"""Programs that work on a mount while servers fail: each is a process with files of its own.

A worker makes, locks, writes, syncs, renames, reads and removes files, as fast as its pace allows,
and keeps other files open. It notes how long each operation took, and what was answered as durable:
afterwards none of that may be missing. An error ends it, and is reported. The process that tests
has no files of the mount open, because a program that it starts would have to close them first.
"""

import fcntl
import multiprocessing
import os
import struct
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple, TypeVar

from tests.cluster.process import PATIENCE, wait_until

T = TypeVar("T")

HELD_FILES = 20  # kept open by each worker, and read from the storage servers again and again
_HELD_SIZE = 100_000
_FILL = b"k" * 700
_PACE_S = 0.05
_KEPT_MAX = 1500  # names; then the oldest is replaced
_STOP_S_MAX = 120.0 * PATIENCE
_ROW = struct.Struct("ddc")
NAMES, READ, WRITE = b"n", b"r", b"w"  # what an operation is of: names and locks, bytes
_CONTEXT = multiprocessing.get_context("fork")


class Wait(NamedTuple):
    """One operation. Times are of CLOCK_MONOTONIC, which is one for all processes."""

    began_s: float
    ended_s: float
    kind: bytes


class Notes:
    """A local file to which processes append how long each operation took."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)

    def add(self, began_s: float, kind: bytes, ended_s: float | None = None) -> None:
        """ended_s: None means now."""
        ended_s = time.monotonic() if ended_s is None else ended_s
        os.write(self._fd, _ROW.pack(began_s, ended_s, kind))


@dataclass(frozen=True, slots=True)
class Outcome:
    """kept: what must be in the folder, by name. synced: how many changes were answered as durable.
    error: what ended the worker, "" if nothing did."""

    kept: dict[str, bytes]
    synced: int
    error: str


class Worker:
    """folder: on a mount; the worker makes it. notes: a local file that does not exist yet. make:
    what the worker does."""

    def __init__(
        self, folder: Path, notes: Path, make: "Callable[[Tools], Work] | None" = None
    ) -> None:
        self.folder = folder
        self._notes = notes
        self._stop = _CONTEXT.Event()
        self._pipe, theirs = _CONTEXT.Pipe(duplex=False)
        notes.touch()
        work = (make or Names)(Tools(folder, notes, self._stop))
        self._process = _CONTEXT.Process(target=work.run, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def waits(self, since_s: float = 0.0) -> list[Wait]:
        """The operations that ended after that time."""
        raw = self._notes.read_bytes()
        whole = raw[: len(raw) - len(raw) % _ROW.size]
        return [row for row in map(Wait._make, _ROW.iter_unpack(whole)) if row.ended_s > since_s]

    @property
    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def tell_to_stop(self) -> None:
        """It ends after its present step."""
        self._stop.set()

    def stop(self) -> Outcome:
        self.tell_to_stop()
        if not self._pipe.poll(_STOP_S_MAX):
            self._process.kill()
            return Outcome({}, 0, f"the worker in {self.folder} does not come to an end")
        outcome: Outcome = self._pipe.recv()
        self._process.join()
        return outcome


@dataclass(frozen=True, slots=True)
class Tools:
    """What a worker's process has. folder: on a mount; it does not exist yet."""

    folder: Path
    notes_path: Path
    stop: Event


class Work:
    """What the process of a worker does, until it is told to stop."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.folder = tools.folder
        self.kept: dict[str, bytes] = {}
        self.synced = 0

    def run(self, pipe: Connection) -> None:
        error = ""
        try:
            self.notes = Notes(self.tools.notes_path)
            self.folder.mkdir()
            self.begin()
            number = 0
            while not self.tools.stop.is_set():
                began_s = time.monotonic()
                self.step(number)
                number += 1
                time.sleep(max(0.0, began_s + _PACE_S - time.monotonic()))
        except BaseException:
            error = traceback.format_exc()
        pipe.send(Outcome(self.kept, self.synced, error))
        os._exit(0)

    def begin(self) -> None:
        """Before the first step."""

    def step(self, number: int) -> None:
        raise NotImplementedError

    def timed(self, act: Callable[[], T], kind: bytes = NAMES) -> T:
        began_s = time.monotonic()
        result = act()
        self.notes.add(began_s, kind)
        return result


class Names(Work):
    """Makes, locks, writes, renames, reads and removes files, and keeps others open."""

    def begin(self) -> None:
        self._folder_fd = os.open(self.folder, os.O_RDONLY)
        self._held = [self._hold(f"held{number}") for number in range(HELD_FILES)]

    def _hold(self, name: str) -> tuple[int, bytes]:
        content = os.urandom(_HELD_SIZE)
        (self.folder / name).write_bytes(content)
        fd = os.open(self.folder / name, os.O_RDONLY)
        os.fsync(fd)
        self.kept[name] = content
        self.synced += 1
        self._read_held(fd, content)
        return fd, content

    def _read_held(self, fd: int, content: bytes) -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, _HELD_SIZE + 1, 0) == content, "an open file has other bytes"

    def step(self, number: int) -> None:
        content = _FILL + str(number).encode()
        made, path = self.folder / f"made{number}", self.folder / f"f{number % _KEPT_MAX}"
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
        fd = self.timed(lambda: os.open(made, flags, 0o644))
        self.timed(lambda: fcntl.lockf(fd, fcntl.LOCK_EX))
        self.timed(lambda: os.write(fd, content))
        self.timed(lambda: os.fsync(fd))
        self.timed(lambda: made.rename(path))
        self.timed(lambda: os.fsync(self._folder_fd))
        self.kept[path.name] = content
        self.synced += 2
        assert self.timed(lambda: os.pread(fd, 2000, 0)) == content
        self.timed(lambda: os.close(fd))
        if number % 3 == 2:
            gone = f"f{(number - 1) % _KEPT_MAX}"
            del self.kept[gone]
            self.timed((self.folder / gone).unlink)
        held, bytes_of_held = self._held[number % HELD_FILES]
        self.timed(lambda: self._read_held(held, bytes_of_held))


def answered(worker: Worker, since_s: float, *, is_sudden: bool) -> float:
    """How long the worker waited for its next answer after a fault: the operation that waited
    longest tells. is_sudden: the fault was at that moment; otherwise the wait begins with the
    operation."""
    rows = worker.waits(since_s)
    longest = max(rows, key=lambda row: row.ended_s - max(row.began_s, since_s))
    return longest.ended_s - (since_s if is_sudden else max(longest.began_s, since_s))


def all_go_on(workers: list[Worker], seconds: float, count: int = 30) -> bool:
    """Whether each does so many operations more within that time. Raises AssertionError if one has
    ended."""
    began_s = time.monotonic()

    def go_on() -> bool:
        for worker in workers:
            assert not worker.has_ended, worker.stop().error
        return all(len(worker.waits(began_s)) >= count for worker in workers)

    return wait_until(go_on, seconds)
