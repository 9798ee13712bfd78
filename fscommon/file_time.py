"""The clock that file systems stamp with: that of the kernel, of its last tick.

A client's kernel stamps with it too (utimensat with UTIME_NOW): by a finer clock a file could seem
made after it was touched. native/src/fuse/file_time.h is the same.
"""

import time

_REALTIME_COARSE = 5  # CLOCK_REALTIME_COARSE of clock_gettime(2); Python has no name for it


def file_time_ns() -> int:
    """Nanoseconds since 1970."""
    return time.clock_gettime_ns(_REALTIME_COARSE)
