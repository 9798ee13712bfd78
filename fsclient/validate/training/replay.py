"""The emulated GPUs of one node, and what makes their files.

It is a program of its own, which a worker starts: `python -m fsclient.validate.training.replay
ACTION {JSON}`. It forks one process for each GPU (or rank, or maker of files), which prepares,
tells on the descriptor `ready`, and waits for a byte on the descriptor `go`: so all of all nodes
begin together. A GPU's threads read the files of the next batches while it sleeps for the time of a
step. What each process has done is printed as one JSON list. Nothing here is announced to the file
system, and nothing of it is imported.
"""

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from .memory import pages
from .utilisation import Trace
from .workload import Format, Workload, parse

PIECE_BYTES: Final = 4 << 20  # of a read or a write
FOLDER_FILES: Final = 1000  # files of one folder of the data set
RESULT_BYTES_MAX: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_TIMERSLACK: Final = 29
_KILL: Final = 9


def path_of(folder: str, index: int) -> str:
    return f"{folder}/{index // FOLDER_FILES:05}/{index:08}"


# ---- the order of an epoch -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """What a thread reads at a time: `samples` samples of a file from `first` on."""

    file: int
    first: int
    samples: int


def reads_of(workload: Workload, files: Sequence[int]) -> list[Read]:
    """What one GPU reads of its files, in order: as many files at a time as it has readers."""
    each, found = workload.read_samples, []
    for at in range(0, len(files), workload.readers):
        open_files = files[at : at + workload.readers]
        for part in range(workload.reads_per_file):
            found += [Read(file, part * each, each) for file in open_files]
    return found


def ranges_of(workload: Workload, read: Read, file_bytes: int) -> list[tuple[int, int]]:
    """Offsets and lengths in the file."""
    if workload.format is Format.FILES:
        return [(0, file_bytes)]
    if workload.format is Format.RECORDS:
        size = workload.sample_bytes
        return [(read.first * size, read.samples * size)]
    found, start = [], 0
    for size in workload.columns:
        found.append((start + read.first * size, read.samples * size))
        start += size * workload.samples_per_file
    return found


# ---- an emulated GPU -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """What one GPU is to do: so many steps of compute_s seconds each, within limit_s seconds."""

    workload: Workload
    folder: str
    files: Sequence[int]
    steps: int
    compute_s: float
    limit_s: float


class Gpu:
    """Threads read what the next steps need, at most `readers` batches ahead; run() consumes."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._reads = reads_of(order.workload, order.files)
        self._per_step = order.workload.reads_per_step
        self._change = threading.Condition()
        self._next = 0  # the read that a thread takes next
        self._consumed = 0  # steps
        self._missing = [self._per_step] * order.steps
        self._error: Exception | None = None
        self._moved = [0, 0]

    def run(self) -> Trace:
        """One epoch. It ends early at the limit. Raises OSError of a read."""
        order = self._order
        for _ in range(order.workload.readers):
            threading.Thread(target=self._read_on, daemon=True).start()
        began = time.monotonic()
        deadline, ends = began + order.limit_s, []
        for step in range(order.steps):
            if not self._wait(step, deadline):
                break
            until = time.monotonic() + order.compute_s
            if until > deadline:
                break
            time.sleep(order.compute_s)
            ends.append(time.monotonic() - began)
        with self._change:
            bytes_, files = self._moved
        stopped = ends[-1] if len(ends) == order.steps else time.monotonic() - began
        return Trace.of_steps(began, ends, stopped, (bytes_, files))

    def _wait(self, step: int, deadline: float) -> bool:
        with self._change:
            while self._missing[step]:
                if self._error is not None:
                    raise self._error
                if not self._change.wait(max(0.0, deadline - time.monotonic())):
                    return False
            self._consumed = step + 1
            self._change.notify_all()
        return True

    def _read_on(self) -> None:
        buffer = pages(PIECE_BYTES)
        try:
            while (number := self._take()) is not None:
                moved = self._read(self._reads[number], buffer)
                with self._change:
                    self._moved[0] += moved
                    self._moved[1] += 1
                    self._missing[number // self._per_step] -= 1
                    if not self._missing[number // self._per_step]:
                        self._change.notify_all()
        except Exception as error:
            with self._change:
                self._error = error
                self._change.notify_all()

    def _take(self) -> int | None:
        ahead = self._order.workload.readers
        with self._change:
            while self._next < self._order.steps * self._per_step:
                if self._next < (self._consumed + ahead) * self._per_step:
                    self._next += 1
                    return self._next - 1
                self._change.wait()
        return None

    def _read(self, read: Read, buffer: memoryview) -> int:
        workload = self._order.workload
        path = path_of(self._order.folder, read.file)
        file, moved = os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0
        try:
            for offset, length in ranges_of(workload, read, workload.file_bytes(read.file)):
                _read_range(file, path, offset, length, buffer)
                moved += length
        finally:
            os.close(file)
        return moved


def _read_range(file: int, path: str, offset: int, length: int, buffer: memoryview) -> None:
    end = offset + length
    while offset < end:
        try:
            found = os.preadv(file, [buffer[: min(len(buffer), end - offset)]], offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        if not found:
            raise OSError(0, f"the file ends at byte {offset}: bytes were lost", path)
        offset += found


# ---- files -----------------------------------------------------------------------------------


def _write(path: str, size: int, pattern: memoryview, *, syncs: bool) -> None:
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        done = 0
        while done < size:
            at = done % (len(pattern) // 2)
            part = min(len(pattern) - at, PIECE_BYTES, size - done)
            done += os.write(file, pattern[at : at + part])
        if syncs:
            os.fsync(file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(file)


def make_files(workload: Workload, folder: str, indexes: Sequence[int]) -> int:
    """Writes files of the data set, with bytes that cannot be compressed. Returns their bytes."""
    pattern = memoryview(os.urandom(2 * PIECE_BYTES))
    made = 0
    for index in indexes:
        path = path_of(folder, index)
        Path(path).parent.mkdir(exist_ok=True)
        size = workload.file_bytes(index)
        _write(path, size, pattern[index % PIECE_BYTES // 2 :], syncs=False)
        made += size
    return made


def save(folder: str, rank: int, size: int) -> Trace:
    """Saves `size` bytes, the checkpoint of one rank, until they are on stable storage. Raises
    OSError with the file's name."""
    pattern = memoryview(os.urandom(2 * PIECE_BYTES))
    began = time.monotonic()
    _write(f"{folder}/rank-{rank:05}", size, pattern, syncs=True)
    return Trace.of_steps(began, [], time.monotonic() - began, (size, 1))


def load(folder: str, rank: int, size: int) -> Trace:
    """Reads what save() wrote. Raises OSError with the file's name, also if bytes are missing."""
    path = f"{folder}/rank-{rank:05}"
    buffer = pages(PIECE_BYTES)
    began = time.monotonic()
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _read_range(file, path, 0, size, buffer)
    finally:
        os.close(file)
    return Trace.of_steps(began, [], time.monotonic() - began, (size, 1))


# ---- processes that begin together -----------------------------------------------------------

Work = Callable[[], object]


def _child(work: Work, ready: int, go: int, result: int) -> None:
    """Never returns."""
    code = 1
    try:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_PDEATHSIG, _KILL)  # no GPU outlives this program
        libc.prctl(_PR_SET_TIMERSLACK, 1)  # steps of a few ms end on time
        os.write(ready, b"r")
        if os.read(go, 1):
            try:
                told: dict[str, object] = {"done": work()}
            except OSError as error:
                what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
                told = {"error": what}
            except Exception as error:  # such as RuntimeError: no more threads for its readers
                told = {"error": f"{type(error).__name__}: {error}"}
            os.write(result, json.dumps(told, default=asdict).encode())
            code = 0
    finally:
        os._exit(code)


def run_all(works: Sequence[Work], ready: int, go: int) -> list[Any]:
    """Runs each in a process of its own. Raises OSError with the first failure."""
    results = []
    for work in works:
        read_end, write_end = os.pipe()
        if not os.fork():
            _child(work, ready, go, write_end)
        os.close(write_end)
        results.append(read_end)
    os.close(ready)
    os.close(go)
    found = []
    for result in results:
        with os.fdopen(result, "rb") as file:
            text = file.read(RESULT_BYTES_MAX)
        told = json.loads(text) if text else {"error": "a process ended before its work was done"}
        if "error" in told:
            raise OSError(told["error"])
        found.append(told["done"])
    return found


def _works(action: str, given: dict[str, Any]) -> list[Work]:
    folder: str = given["folder"]
    if action in ("save", "load"):
        rank_work = save if action == "save" else load
        Path(folder).mkdir(exist_ok=True)
        size = given["bytes"]
        return [
            lambda rank=rank: rank_work(folder, rank, size)  # type: ignore[misc]
            for rank in given["ranks"]
        ]
    workload = parse(given["name"], given["workload"].encode())
    if not isinstance(workload, Workload):
        raise OSError(f"{workload.name} reads no data set")
    if action == "make":
        Path(folder).mkdir(exist_ok=True)
        mine = range(given["first"], given["end"], given["step"])
        return [
            lambda part=part: make_files(workload, folder, part)  # type: ignore[misc]
            for part in (mine[number :: given["jobs"]] for number in range(given["jobs"]))
        ]
    files = list(range(given["files"]))
    Random(given["seed"]).shuffle(files)
    each = given["files"] // given["gpus"]
    return [
        Gpu(
            Order(
                workload,
                folder,
                files[rank * each : (rank + 1) * each],
                given["steps"],
                given["compute_s"],
                given["limit_s"],
            )
        ).run
        for rank in given["ranks"]
    ]


def main() -> None:
    action, given = sys.argv[1], json.loads(sys.argv[2])
    try:
        found = run_all(_works(action, given), given["ready"], given["go"])
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
