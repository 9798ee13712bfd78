"""What a mount is to be, and the values that follow from its options."""

from dataclasses import dataclass
from typing import Final

import trio

from fscommon.config.mount_options import MountOptions
from fscommon.machine import memory_bytes
from fscommon.native import Datapath
from fscommon.native_ports import IoPort

from .config import ClientConfig
from .pressure import memory_is_limited, memory_is_short
from .source import Source

WARM_PART: Final = 64  # of the memory that the machine has, or this process may have
WRITTEN_PART: Final = 8  # for bytes on their way to servers at most, and as much for those held
WRITTEN_MIN: Final = 1 << 20
READ_PART: Final = 4  # as many bytes of what is ready for writes are ready for reads besides
AHEAD_PART: Final = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """A mount to make. source_text: shown in the table of mounts. config: client.toml, and options
    of former releases that override it."""

    source: Source
    source_text: str
    mountpoint: str
    options: MountOptions
    config: ClientConfig


def written_bytes_max(mib: int) -> int:
    """The most bytes that are written and in flight, or held until they are durable."""
    return min(mib << 20, max(WRITTEN_MIN, memory_bytes() // WRITTEN_PART))


def prefetches(options: MountOptions) -> bool:
    """Whether files may be opened or read before a program does so."""
    return options.prefetch == "auto"


def prefetched_bytes_max(options: MountOptions) -> int:
    """The most bytes that may be in this process's memory before a program reads them."""
    bytes_max = min(options.read_mib << 20, memory_bytes() // AHEAD_PART)
    return bytes_max if prefetches(options) else 0


def may_fill_pages(options: MountOptions) -> bool:
    """Whether the kernel's pages may be filled before a program reads them: such pages count for
    this process's control group, not for the program's."""
    return prefetches(options) and not memory_is_limited()


def set_prefetch(datapath: Datapath, options: MountOptions) -> None:
    """Tells lanes what they may fetch before a program reads it."""
    datapath.io.prefetch(prefetched_bytes_max(options), may_fill_pages(options))


async def rest_memory(io: IoPort, options: MountOptions) -> None:
    """Frees buffers that were not used lately, except those that stay ready, and makes missing ones
    of those; frees all unused ones when memory is short. It works in a thread, as new pages take
    time."""

    def rest() -> None:
        is_short = memory_is_short()
        ready = 0 if is_short else min(options.dirty_mib << 20, memory_bytes() // WARM_PART)
        io.memory_rest(ready, ready // READ_PART, is_short)

    await trio.to_thread.run_sync(rest)
