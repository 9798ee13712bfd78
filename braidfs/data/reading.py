"""Reads many files in one call, into one piece of memory.

All files of a batch lie in one arena, each at a multiple of 4,096 bytes: the processor's copy
instruction is slow into other places. In a worker of a DataLoader the arena is memory that torch
shares, so that tensors of it go to the trainer without a copy and as one descriptor.

Memory is used again when the last view of it has gone (arenas.py).

A file may have changed since its size was noted. Each gets a byte more room than it needs: a file
that fills its room has grown, and is read again into a larger arena. Not here: the threads
(pools.py), tensors (torch.py), arrays (numpy.py).
"""

import errno
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from .arenas import Arena, new_arena
from .index import Index
from .pools import ROW, PoolOfProcess

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Errors = Literal["raise", "keep"]

_ALIGNMENT: Final = 4096
_READ_AGAIN_MAX: Final = 3  # of a file that grows and grows
_SHOWN_MAX: Final = 5  # failures in a message
_THREADS_MAX: Final = 8
_pool: Final = PoolOfProcess()


class Failure(NamedTuple):
    """A file of a batch that was not read. position: its place in the request. EBUSY: it grew each
    time that it was read."""

    position: int
    path: str
    errno: int

    def __str__(self) -> str:
        return f"{self.path}: {os.strerror(self.errno)}"


class FilesError(OSError):
    """Files of a batch could not be read. failures: all of them, in the order of the request; empty
    in a trainer, to which DataLoader hands only the text."""

    def __init__(self, message: str, failures: Sequence[Failure] = ()) -> None:
        super().__init__(message)
        self.failures = tuple(failures)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.failures)


class Batch(Sequence["memoryview | None"]):
    """Files that were read together, in the order of the request. Everything that it gives is a
    view of one piece of memory, which lives as long as the last view."""

    def __init__(self, arena: Arena, places: Sequence[int], sizes: Sequence[int]) -> None:
        self.arena = arena
        self.places = places
        """Where each file begins in the arena, in bytes."""
        self.sizes = sizes
        """Size of each file in bytes as it was read; -1: it was not read."""
        self.errors: tuple[Failure, ...] = ()
        """Files that were not read, with errors="keep"."""

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, position: Any) -> Any:
        """The bytes of a file, or None if it was not read; of a slice, a list of them."""
        if isinstance(position, slice):
            return [self[one] for one in range(*position.indices(len(self)))]
        size, place = self.sizes[position], self.places[position]
        return None if size < 0 else self.arena.view[place : place + size]

    def __iter__(self) -> Iterator["memoryview | None"]:
        return (self[position] for position in range(len(self)))

    def tensors(self) -> list[Any]:
        """Tensors of uint8, of the shape (size,), which share one storage; None for a file that was
        not read. Raises ImportError if there is no torch."""
        from .torch import tensors_of  # noqa: PLC0415  # few programs need it

        return tensors_of(self)

    def arrays(self) -> list[Any]:
        """Arrays of uint8, of the shape (size,); None for a file that was not read. Raises
        ImportError if there is no numpy."""
        from .numpy import arrays_of  # noqa: PLC0415  # few programs need it

        return arrays_of(self)


def read_files(
    files: "Index | Sequence[AnyPath]",
    rows: Iterable[int] | None = None,
    *,
    threads: int = 0,
    errors: Errors = "raise",
    shared: bool | None = None,
) -> Batch:
    """Reads whole files, several at a time, into one piece of memory.

    files: an index, with the rows of the files that are wanted; or paths, without rows. Rows may
    repeat. threads: how many files are read at a time; 0: twice the processors, at most 8.

    errors: "raise" raises FilesError after the batch ended, with all files that could not be read;
    "keep": these are None in the batch, and batch.errors names them. shared: whether the memory is
    one that torch shares with other processes, which is new each time; None: it is in a worker of a
    DataLoader. Raises MemoryError if the
    files are larger than the memory; what a signal's handler raises (KeyboardInterrupt) after the
    reads under way; DamagedIndexError for an index file that is not one."""
    if errors not in ("raise", "keep"):
        raise ValueError(f'errors is "raise" or "keep", not {errors!r}')
    threads = threads or min(_THREADS_MAX, 2 * (os.cpu_count() or 1))
    if isinstance(files, Index):
        if rows is None:
            raise TypeError("which files of the index? Give their rows")
        asked = [files.row(one) for one in rows]
        reading = _Reading([files.full_name(row) for row in asked], threads, shared)
        reading.sizes = [files.size(row) for row in asked]
    else:
        if rows is not None:
            raise TypeError("rows are those of an index: choose among paths yourself")
        reading = _Reading([_name(path) for path in files], threads, shared)
        reading.find_sizes(range(len(reading.names)))
    batch = reading.read()
    if batch.errors and errors == "raise":
        shown = "; ".join(map(str, batch.errors[:_SHOWN_MAX]))
        more = "; and others" if len(batch.errors) > _SHOWN_MAX else ""
        count = f"{len(batch.errors)} of {len(batch)} files could not be read"
        raise FilesError(f"{count}: {shown}{more}", batch.errors)
    return batch


def _name(path: AnyPath) -> bytes:
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"a path with a NUL in it: {path!r}")
    return name


class _Reading:
    """One call of read_files."""

    def __init__(self, names: list[bytes], threads: int, shared: bool | None) -> None:
        self.names = names
        self.sizes: list[int] = [0] * len(names)
        """Of each file the expected size, or -errno."""
        self._threads = threads
        self._shared = shared
        self._pool = _pool.get()

    def find_sizes(self, positions: Iterable[int]) -> None:
        chosen = list(positions)
        table = array("q", bytes(8 * ROW * len(chosen)))
        self._pool.sizes(self._packed(chosen), table, self._threads)
        for position, result in zip(chosen, table[2::ROW], strict=True):
            self.sizes[position] = result

    def read(self) -> Batch:
        wanted = [position for position, size in enumerate(self.sizes) if size >= 0]
        arena, places = self._lay_out(wanted)
        grown = self._read_into(arena, places, wanted)
        for _ in range(_READ_AGAIN_MAX):
            if not grown:
                break
            self.find_sizes(grown)
            grown = [position for position in grown if self.sizes[position] >= 0]
            old_arena, old_places = arena, places
            done = [position for position in wanted if self.sizes[position] >= 0]
            arena, places = self._lay_out(done)
            for position in set(done).difference(grown):
                size, old, new = self.sizes[position], old_places[position], places[position]
                arena.view[new : new + size] = old_arena.view[old : old + size]
            grown = self._read_into(arena, places, grown)
        for position in grown:
            self.sizes[position] = -errno.EBUSY
        return self._batch(arena, places)

    def _lay_out(self, positions: Sequence[int]) -> tuple[Arena, list[int]]:
        """A new arena, and where each file begins there."""
        places, end = [0] * len(self.names), 0
        for position in positions:
            places[position] = end
            end += _room(self.sizes[position])
        try:
            return new_arena(end, shared=self._shared), places
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise MemoryError(f"{len(positions)} files have {end:,} bytes: {error}") from error

    def _read_into(self, arena: Arena, places: list[int], positions: list[int]) -> list[int]:
        """Reads these files and notes their sizes, or -errno. Returns those that have grown."""
        table = array("q")
        for position in positions:
            table.extend((places[position], _room(self.sizes[position]), 0))
        self._pool.read(self._packed(positions), table, arena.view, self._threads)
        grown = []
        for position, room, result in zip(positions, table[1::ROW], table[2::ROW], strict=True):
            if result == room:
                grown.append(position)
            else:
                self.sizes[position] = result
        return grown

    def _packed(self, positions: Sequence[int]) -> bytes:
        return b"".join([self.names[position] + b"\0" for position in positions])

    def _batch(self, arena: Arena, places: list[int]) -> Batch:
        failures = tuple(
            Failure(position, os.fsdecode(self.names[position]), -size)
            for position, size in enumerate(self.sizes)
            if size < 0
        )
        for failure in failures:
            self.sizes[failure.position] = -1
        batch = Batch(arena, places, self.sizes)
        batch.errors = failures
        return batch


def _room(size: int) -> int:
    return (size + _ALIGNMENT) // _ALIGNMENT * _ALIGNMENT  # of a byte more than the size
