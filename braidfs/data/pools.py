"""Threads that find the sizes of files and read whole files into memory, many at a time.

The native module _braidfs_reader does that without the GIL. Where it is missing, threads of Python
do the same: `Pool` says what both of them promise, and one set of tests runs against both.

Each process has a pool of its own, made at its first batch: the threads of a parent are not in the
child of a fork. Not here: where files lie in the memory, and what an error means (reading.py).
"""

import errno
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

ROW: Final = 3  # numbers of a table's row: place, room, result
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_THREADS_MAX: Final = 256


class Pool(Protocol):
    """What both kinds of threads do.

    names: paths, each of which ends with a NUL. table: a writable buffer with a row of three
    numbers of 64 bits for each: place and room in bytes in the arena, and the result, a count of
    bytes or -errno. Several threads may call at once. An exception of a signal's handler is raised
    after the reads under way; files that were not begun have -ECANCELED then."""

    def sizes(self, names: bytes, table: object, threads: int) -> None:
        """Each result becomes the size of a regular file. -EISDIR: it is a directory, -EINVAL: it
        is neither. Raises ValueError if names, table and threads do not fit together."""

    def read(self, names: bytes, table: object, arena: object, threads: int) -> None:
        """Reads each file to its end, or until its room is full. Raises ValueError as sizes(), and
        for a place outside of the arena."""


class PythonPool:
    """A Pool of Python's threads, which are started when they are first needed."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._started = 0
        self._mutex = threading.Lock()

    def sizes(self, names: bytes, table: object, threads: int) -> None:
        rows = _Rows(names, table)
        self._run(_Job(len(rows.names), rows.find_size), rows, threads)

    def read(self, names: bytes, table: object, arena: object, threads: int) -> None:
        rows = _Rows(names, table)
        view = _writable(arena)
        rows.check_places(len(view))
        self._run(_Job(len(rows.names), lambda index: rows.read(index, view)), rows, threads)

    def _run(self, job: "_Job", rows: "_Rows", threads: int) -> None:
        if not 1 <= threads <= _THREADS_MAX:
            raise ValueError(f"threads is from 1 to {_THREADS_MAX}")
        rows.cancel_all()
        useful = min(threads, len(rows.names))
        self._start(useful)
        job.begin(useful)
        for _ in range(useful):
            self._jobs.put(job)
        job.wait()

    def _start(self, wanted: int) -> None:
        with self._mutex:
            while self._started < wanted:
                name = f"braidfs-reader-{self._started}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._started += 1

    def _serve(self) -> None:
        while True:
            self._jobs.get().work()


class _Job:
    """Files that several threads work off."""

    def __init__(self, count: int, one: Callable[[int], None]) -> None:
        self._left = deque(range(count))
        self._one = one
        self._working = 0
        self._over = threading.Condition()
        self._error: BaseException | None = None

    def begin(self, threads: int) -> None:
        self._working = threads

    def work(self) -> None:
        try:
            while True:
                index = self._left.popleft()
                self._one(index)
        except IndexError:
            pass  # nothing is left
        except BaseException as error:  # it is for the caller, not for this thread
            self._left.clear()
            self._error = error
        finally:
            with self._over:
                self._working -= 1
                self._over.notify_all()

    def wait(self) -> None:
        try:
            self._wait()
        except BaseException:  # a signal: no file is begun, and memory is not given back too early
            self._left.clear()
            self._wait()
            raise
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        with self._over:
            self._over.wait_for(lambda: self._working == 0)


class _Rows:
    """Names and table of a batch, as _braidfs_reader takes them."""

    def __init__(self, names: bytes, table: object) -> None:
        if names and names[-1] != 0:
            raise ValueError("the last name does not end with a NUL")
        self.names = names.split(b"\0")[:-1]
        self._table = _writable(table).cast("q")
        if len(self._table) != ROW * len(self.names):
            raise ValueError(f"there are {len(self.names)} names for another number of rows")

    def check_places(self, arena: int) -> None:
        for at in range(0, len(self._table), ROW):
            place, room = self._table[at], self._table[at + 1]
            if place < 0 or room < 0 or place + room > arena:
                raise ValueError("a row of the table lies outside of the arena")

    def cancel_all(self) -> None:
        for at in range(0, len(self._table), ROW):
            self._table[at + 2] = -errno.ECANCELED

    def find_size(self, index: int) -> None:
        try:
            seen = os.stat(self.names[index])  # noqa: PTH116  # a name of bytes
        except OSError as error:
            result = -(error.errno or errno.EIO)
        else:
            kind = stat.S_IFMT(seen.st_mode)
            other = -errno.EISDIR if kind == stat.S_IFDIR else -errno.EINVAL
            result = seen.st_size if kind == stat.S_IFREG else other
        self._table[ROW * index + 2] = result

    def read(self, index: int, arena: memoryview) -> None:
        at = ROW * index
        place, room = self._table[at], self._table[at + 1]
        try:
            result = _read_whole(self.names[index], arena[place : place + room])
        except OSError as error:
            result = -(error.errno or errno.EIO)
        self._table[at + 2] = result


def _writable(given: object) -> memoryview:
    view = memoryview(given).cast("B")  # type: ignore[arg-type]  # any buffer
    if view.readonly:
        raise BufferError("this buffer cannot be written")
    return view


def _read_whole(name: bytes, into: memoryview) -> int:
    fd = os.open(name, _FLAGS)
    try:
        done = 0
        while done < len(into):
            count = os.preadv(fd, [into[done:]], done)
            if count == 0:
                break
            done += count
        return done
    finally:
        os.close(fd)


def new_pool() -> Pool:
    """A native pool; where the native module is missing, one of Python's threads."""
    try:
        from _braidfs_reader import Pool as NativePool  # noqa: PLC0415  # it is optional
    except ImportError:
        return PythonPool()
    return NativePool()


class PoolOfProcess:
    """The one pool of this process, also after a fork. Any thread may ask."""

    def __init__(self, make: Callable[[], Pool] = new_pool) -> None:
        self.make = make
        self._pools: dict[int, Pool] = {}

    def get(self) -> Pool:
        # It takes no lock, which a thread of a parent might hold for ever. A pool that loses the
        # race has started no thread. The parent's stays in the dictionary and is never touched.
        pid = os.getpid()
        return self._pools.get(pid) or self._pools.setdefault(pid, self.make())
