"""Times of files: the clock that file systems stamp with, and what records keep of others.

The clock is that of the kernel, of its last tick. A client's kernel stamps with it too (utimensat
with UTIME_NOW): by a finer clock a file could seem made after it was touched.
Records and messages keep a time as 64 bits with a sign, in nanoseconds since 1970. What ext4 can
keep, 1901 to 2446, are 2^34 seconds, which fit: beyond 2262 it is kept modulo 2^64
(docs/decisions/0056-file-times.md). native/src/core/file_time.h is the same.
"""

import time
from typing import Final

TIME_MIN_S: Final = -(1 << 31)
TIME_MAX_S: Final = (1 << 34) - (1 << 31) - 1
_SECOND: Final = 10**9
_MIN_NS: Final = TIME_MIN_S * _SECOND
_WRAP: Final = 1 << 64
_HALF: Final = 1 << 63
_REALTIME_COARSE: Final = 5  # CLOCK_REALTIME_COARSE of clock_gettime(2); Python has no name for it


def file_time_ns() -> int:
    """Now, in nanoseconds since 1970."""
    return time.clock_gettime_ns(_REALTIME_COARSE)


def kept_time(time_ns: int) -> int:
    """Nanoseconds since 1970 as they are kept; what lies beyond is the nearest time that can be, as
    Linux does it."""
    seconds = time_ns // _SECOND
    if not TIME_MIN_S < seconds < TIME_MAX_S:
        time_ns = (TIME_MIN_S if seconds <= TIME_MIN_S else TIME_MAX_S) * _SECOND
    return time_ns if time_ns < _HALF else time_ns - _WRAP


def true_time(kept_ns: int) -> int:
    """Nanoseconds since 1970 of what was kept. A record of before may have a time before 1901: it
    is one of 2^64 nanoseconds later."""
    return kept_ns if kept_ns >= _MIN_NS else kept_ns + _WRAP
