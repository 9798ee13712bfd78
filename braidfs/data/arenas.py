"""Memory for batches: of this process alone, used again and again, or shared by torch.

Fresh pages cost more than the reading itself: for files of 100 KiB from the page cache 62 µs of CPU
a file into a fresh mapping, 10 µs into one that was used before. So memory goes back when the last
view of it has gone, and a few pieces are kept for the next batches. Memory that torch shares goes
to the trainer, and nobody tells the worker when it is free: it is new each time.
"""

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

SPARE_BYTES_MAX: Final = 256 << 20
_SPARE_COUNT_MAX: Final = 4
_HUGE_PAGE: Final = 2 << 20  # sizes are multiples of it, so spares fit the next batch


class Arena(NamedTuple):
    """Memory of a batch. keeper: the object whose life is the memory's."""

    keeper: Any
    view: memoryview


def new_arena(size: int, *, shared: bool | None = None) -> Arena:
    """Memory of that many bytes, with anything in it. shared: torch hands it to other processes;
    None: in a worker of a DataLoader. Raises OSError, OverflowError or RuntimeError if there is
    none, ImportError if torch is to share it and is not there."""
    if shared is None:
        loading = sys.modules.get("torch.utils.data")
        shared = loading is not None and loading.get_worker_info() is not None
    if shared:
        from .torch import shared_arena  # noqa: PLC0415  # few programs need it

        return shared_arena(size)
    return _spares.arena(size)


def lent_view(address_of: Callable[[Any], Any], size: int, keeper: Any) -> tuple[Any, memoryview]:
    """An object of ctypes over memory, with the keeper tied to it, and its view."""
    memory = address_of(ctypes.c_char * size)
    memory.keeper = keeper  # every memoryview keeps `memory` alive
    return memory, memoryview(memory).cast("B")


class Spares:
    """Private memory of this process that no batch uses. Any thread may ask: lists are changed by
    single operations, and memory that two threads want goes to one of them."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._free: list[mmap.mmap] = []

    def arena(self, size: int) -> Arena:
        """Memory of at least that many bytes, whose view has exactly as many."""
        rounded = max(-(-size // _HUGE_PAGE), 1) * _HUGE_PAGE
        mapping = self._taken(rounded) or _fresh(rounded)
        memory, view = lent_view(lambda kind: kind.from_buffer(mapping), len(mapping), mapping)
        weakref.finalize(memory, self._give_back, mapping).atexit = False
        return Arena(memory, view[:size])

    def _taken(self, size: int) -> mmap.mmap | None:
        if self._pid != os.getpid():  # after a fork each page of them would be copied when written
            self._pid, self._free = os.getpid(), []
        for mapping in list(self._free):
            if len(mapping) >= size:
                try:
                    self._free.remove(mapping)
                except ValueError:  # another thread has it
                    continue
                return mapping
        return None

    def _give_back(self, mapping: mmap.mmap) -> None:
        if self._pid != os.getpid():
            return
        self._free.append(mapping)
        while len(self._free) > _SPARE_COUNT_MAX or sum(map(len, self._free)) > SPARE_BYTES_MAX:
            try:
                self._free.pop(0)  # the oldest is of another size, or there are too many
            except IndexError:
                return


def _fresh(size: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


_spares: Final = Spares()
