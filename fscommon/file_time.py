"""Times of files: the clock that stamps them, and how records keep times given by others.

The clock is the kernel's, at its last tick. A client's kernel stamps with it as well (utimensat
with UTIME_NOW): with a finer clock a file could seem made after it was touched.

Records and messages keep a time as signed 64 bits, in nanoseconds since 1970. The times that ext4
can keep, 1901 to 2446, are 2^34 seconds, which fit into 64 bits: times after 2262 are kept modulo
2^64 (docs/decisions/0056-file-times.md). native/src/core/file_time.h has the same rules.
Pure, except the clock.
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
    """Nanoseconds since 1970 in the form that records keep. A time out of range becomes the nearest
    possible one, as in Linux."""
    seconds = time_ns // _SECOND
    if not TIME_MIN_S < seconds < TIME_MAX_S:
        time_ns = (TIME_MIN_S if seconds <= TIME_MIN_S else TIME_MAX_S) * _SECOND
    return time_ns if time_ns < _HALF else time_ns - _WRAP


def true_time(kept_ns: int) -> int:
    """Nanoseconds since 1970 of a kept time. A kept time before 1901 can come only from wrapping:
    it means the time 2^64 nanoseconds later."""
    return kept_ns if kept_ns >= _MIN_NS else kept_ns + _WRAP
