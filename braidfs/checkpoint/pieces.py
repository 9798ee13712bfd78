"""Large files, written from many places in memory and read into many places, by threads.

A file is written as a Layout: extents that follow each other without a gap, each of them bytes of
a Source. The layout is cut into pieces at multiples of the piece size, and each thread writes one
piece at a time, by one pwritev(2) straight from the memory of its sources. Reading is the same the
other way round: each Want is a range of a file and a place for its bytes; wants are sorted by
offset, those less than GAP_MAX apart share one preadv(2), and what lies between goes nowhere.

Nothing here knows torch, and nothing here makes bytes durable but write_layout, which ends with
fsync(2).
"""

import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from braidfs.checkpoint.damage import DamagedFile

ALIGNMENT = 4096
PIECE = 8 << 20
GAP_MAX = 1 << 20
_VECTORS_MAX = 1000  # Linux takes 1,024

Job = TypeVar("Job")


class Source(Protocol):
    """Bytes that a file gets. Threads take them, each byte exactly once."""

    @property
    def size(self) -> int: ...

    def take(self, begin: int, end: int) -> memoryview:
        """The bytes from begin to end. They stay valid until this thread has taken a piece more."""
        ...


class Held:
    """A source that is in memory already: bytes, or a view that keeps its owner alive."""

    def __init__(self, held: bytes | memoryview) -> None:
        self._view = memoryview(held)
        self.size = self._view.nbytes

    def take(self, begin: int, end: int) -> memoryview:
        return self._view[begin:end]


@dataclass(slots=True)
class Layout:
    """What a file will have, from its first byte to its last."""

    extents: list[tuple[int, Source]] = field(default_factory=list)
    size: int = 0

    def add(self, source: Source) -> int:
        """Appends a source; returns its offset."""
        offset = self.size
        if source.size:
            self.extents.append((offset, source))
            self.size += source.size
        return offset

    def align(self, alignment: int = ALIGNMENT) -> int:
        """Appends zeros up to a multiple of the alignment; returns the offset of what follows."""
        if rest := -self.size % alignment:
            self.add(Held(bytes(rest)))
        return self.size


_Part = tuple[Source, int, int]  # source, begin, end


def _pieces(layout: Layout, piece: int) -> Iterator[tuple[int, list[_Part]]]:
    """The layout in pieces: offset, and the parts of sources that follow each other from there. A
    piece has more than _VECTORS_MAX parts never: it is shorter then."""
    begin, size, parts = 0, 0, list[_Part]()
    for offset, source in layout.extents:
        done = 0
        while done < source.size:
            room = piece - (begin + size) % piece
            take = min(room, source.size - done)
            parts.append((source, done, done + take))
            done += take
            size += take
            if take == room or len(parts) == _VECTORS_MAX:
                yield begin, parts
                begin, size, parts = offset + done, 0, []
    if parts:
        yield begin, parts


class _Output:
    """The file that is written: one descriptor, or two when it is written past the page cache.

    With O_DIRECT a local file system wants aligned memory (EINVAL), which tensors are not: then
    pieces are copied to aligned memory of the thread before, and an unaligned end of the file is
    written by the other descriptor.
    """

    def __init__(self, fd: int, direct: int | None) -> None:
        self._fd = fd
        self._direct = direct
        self._copies = False
        self._local = threading.local()

    def write(self, offset: int, views: list[memoryview]) -> None:
        if self._direct is None:
            _write_all(self._fd, views, offset)
            return
        if not self._copies:
            try:
                _write_all(self._direct, views, offset)
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._copies = True
        self._write_aligned(self._direct, offset, views)

    def _write_aligned(self, direct: int, offset: int, views: list[memoryview]) -> None:
        size = sum(view.nbytes for view in views)
        buffer = self._buffer(size)
        position = 0
        for view in views:
            buffer[position : position + view.nbytes] = view
            position += view.nbytes
        whole = size - size % ALIGNMENT if offset % ALIGNMENT == 0 else 0
        if whole:
            _write_all(direct, [buffer[:whole]], offset)
        if whole < size:
            _write_all(self._fd, [buffer[whole:size]], offset + whole)

    def _buffer(self, size: int) -> memoryview:
        held: mmap.mmap | None = getattr(self._local, "buffer", None)
        if held is None or len(held) < size:
            held = self._local.buffer = mmap.mmap(-1, max(size, PIECE))
        return memoryview(held)


def _write_all(fd: int, views: list[memoryview], offset: int) -> None:
    while views:
        written = os.pwritev(fd, views, offset)
        offset += written
        views = _after(views, written)


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """The views without their first count bytes."""
    for number, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *views[number + 1 :]]
        count -= view.nbytes
    return []


def write_to(fd: int, layout: Layout, *, threads: int, piece: int, base: int = 0) -> None:
    """Writes the layout into an open file from the offset `base`, through the page cache."""
    _write(_Output(fd, None), layout, threads, piece, base)


def write_layout(path: Path, layout: Layout, *, threads: int, piece: int, direct: bool) -> None:
    """Makes the file at path, or replaces its content, and makes its bytes durable. With `direct`
    they go past the page cache (O_DIRECT) where the file system offers that.

    Raises OSError with the file's name."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    past: int | None = None
    try:
        past = _open_direct(path) if direct else None
        _write(_Output(fd, past), layout, threads, piece, 0)
        os.fsync(fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        for one in (fd, past):
            if one is not None:
                os.close(one)


def _open_direct(path: Path) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.EINVAL:  # this file system has no O_DIRECT
            return None
        raise


def _write(output: _Output, layout: Layout, threads: int, piece: int, base: int) -> None:
    def write_one(one: tuple[int, list[_Part]]) -> None:
        offset, parts = one
        views = [source.take(begin, end) for source, begin, end in parts]
        output.write(base + offset, views)

    in_parallel(write_one, _pieces(layout, piece), threads)


def in_parallel(run: Callable[[Job], None], jobs: Iterable[Job], threads: int) -> None:
    """Runs all jobs, up to `threads` at a time, each thread the next one that none has begun. After
    one failed no other begins, and its exception is raised when those that run have ended."""
    source = iter(jobs)
    lock = threading.Lock()
    failed = threading.Event()

    def work() -> None:
        while not failed.is_set():
            with lock:
                try:
                    job = next(source)
                except StopIteration:
                    return
            try:
                run(job)
            except BaseException:
                failed.set()
                raise

    if threads <= 1:
        work()
        return
    with ThreadPoolExecutor(threads, "braidfs-checkpoint") as pool:
        running = [pool.submit(work) for _ in range(threads)]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            failed.set()  # also after an interrupt: what runs ends, nothing begins
    for one in running:
        one.result()


@dataclass(slots=True)
class Want:
    """A range of a file, and what becomes of its bytes: `place` gives the memory that they are read
    into, right before, and `done` gets that memory, right after, both in the reading thread.
    One thread reads a want, so those who want much make several (cut)."""

    file: str
    offset: int
    size: int
    place: Callable[[], memoryview]
    done: Callable[[memoryview], None] | None = None

    @property
    def end(self) -> int:
        return self.offset + self.size


def cut(file: str, offset: int, view: memoryview, piece: int) -> Iterator[Want]:
    """Wants that fill the view from the offset on, cut at multiples of the piece size."""
    position = 0
    while position < view.nbytes:
        size = min(piece - (offset + position) % piece, view.nbytes - position)
        part = view[position : position + size]
        yield Want(file, offset + position, size, partial(_same, part))
        position += size


def _same(view: memoryview) -> memoryview:
    return view


class Inputs:
    """The files of one folder that are read: each is opened once, and its size is known."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> "Inputs":
        return self

    def __exit__(self, *_: object) -> None:
        for fd, _size in self._open.values():
            os.close(fd)
        self._open.clear()

    def size(self, file: str) -> int:
        return self._of(file)[1]

    def check(self, file: str, end: int) -> None:
        """Raises DamagedFile when the file ends before."""
        _, size = self._of(file)
        if size < end:
            raise DamagedFile(self._folder / file, f"it has {size} bytes, and should have {end}")

    def read(self, file: str, views: list[memoryview], offset: int) -> None:
        fd, _ = self._of(file)
        if (end := read_all(fd, views, offset)) is not None:
            raise DamagedFile(self._folder / file, f"it ends at {end} while it is read")

    def _of(self, file: str) -> tuple[int, int]:
        found = self._open.get(file)
        if found is None:
            try:
                fd = os.open(self._folder / file, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise DamagedFile(self._folder / file, "it is missing") from error
            found = self._open[file] = (fd, os.fstat(fd).st_size)
        return found


def read_all(fd: int, views: list[memoryview], offset: int) -> int | None:
    """Fills the views from the offset on; returns where the file ended, if it did before."""
    while views:
        count = os.preadv(fd, views, offset)
        if count == 0:
            return offset
        offset += count
        views = _after(views, count)
    return None


def read_wants(inputs: Inputs, wants: Sequence[Want], *, threads: int, piece: int) -> None:
    """Reads all wants. Raises DamagedFile before it reads a byte when a file is too short."""
    for want in wants:
        inputs.check(want.file, want.end)
    local = threading.local()

    def gap(size: int) -> memoryview:
        held: bytearray | None = getattr(local, "gap", None)
        if held is None:
            held = local.gap = bytearray(GAP_MAX)
        return memoryview(held)[:size]

    def read(group: list[Want]) -> None:
        places = [want.place() for want in group]
        views, end = list[memoryview](), group[0].offset
        for want, place in zip(group, places, strict=True):
            if want.offset > end:
                views.append(gap(want.offset - end))
            views.append(place)
            end = want.end
        inputs.read(group[0].file, views, group[0].offset)
        for want, place in zip(group, places, strict=True):
            if want.done is not None:
                want.done(place)

    in_parallel(read, _grouped(wants, piece), threads)


def _grouped(wants: Sequence[Want], piece: int) -> Iterator[list[Want]]:
    group: list[Want] = []
    for want in sorted(wants, key=lambda one: (one.file, one.offset)):
        if group and not _joins(group, want, piece):
            yield group
            group = []
        group.append(want)
    if group:
        yield group


def _joins(group: list[Want], want: Want, piece: int) -> bool:
    first, last = group[0], group[-1]
    return (
        want.file == first.file
        and 0 <= want.offset - last.end < GAP_MAX
        and want.end - first.offset <= piece
        and 2 * len(group) < _VECTORS_MAX
    )
