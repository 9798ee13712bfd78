"""The state of the machine before a measurement: the effects of earlier ones must not be
measured.
"""

import mmap
import os

from fscommon.machine import memory_bytes

_WARM_MAX = 2 << 30


def settle() -> None:
    """Afterwards nothing is left to be written, and the host of a virtual machine backs the memory
    that will be used.

    A guest that reports its free pages (free page reporting, Linux Documentation/mm) gives them
    back after seconds, and each page that is used again costs a fault on the host: writing 512 MiB
    to the page cache of ext4 took 1.06 s of system time instead of 0.15 where this was measured. So
    the pages that the next run takes from the kernel are touched and freed just before it, for all
    systems alike.
    """
    os.sync()
    size = min(_WARM_MAX, memory_bytes() // 8)
    mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()
