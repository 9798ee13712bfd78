"""Memory for reads and writes: it begins at a page boundary, like the memory of fio and IOR."""

import mmap
import os

from tests.bench.data.amounts import MIB


def pages(size: int) -> memoryview:
    """`size` bytes of zeros. A large bytearray begins 16 bytes after a page boundary, and then Zen
    3 takes five times as long to copy from other pages (see
    docs/measurements/2026-11-23-aligned-memory.md)."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def filled(size: int) -> memoryview:
    """`size` random bytes, which repeat from 1 MiB on."""
    memory, some = pages(size), os.urandom(min(size, MIB))
    for first in range(0, size, len(some)):
        count = min(len(some), size - first)
        memory[first : first + count] = some[:count]
    return memory
