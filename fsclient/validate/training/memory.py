"""Memory to read into, also for benchmarks: it begins at a page, like the memory of fio and IOR."""

import mmap


def pages(size: int) -> memoryview:
    """`size` bytes of zeros. A large bytearray begins 16 bytes after a page boundary, and then Zen
    3 takes five times as long to copy from other pages (see
    docs/measurements/2026-11-23-aligned-memory.md)."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
