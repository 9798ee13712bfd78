"""What a mount was asked for, and what its options come to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from fscommon.config.mount_options import MountOptions
from fscommon.config.tls import OFF, TlsSettings
from fscommon.errors import ConfigError
from fscommon.machine import memory_bytes
from fscommon.native import Datapath
from fscommon.net.rails import RdmaSettings
from fscommon.net.rdma import Wishes
from fscommon.observe.endpoint import HttpCertificate

from .pressure import memory_is_limited, memory_is_short
from .source import Source

WARM_PART: Final = 64  # of the memory that the machine has, or this process may have
WRITTEN_PART: Final = 8  # for bytes on their way to servers at most, and as much for those held
WRITTEN_MIN: Final = 1 << 20
READ_PART: Final = 4  # as many bytes of what is ready for writes are ready for reads besides
AHEAD_PART: Final = 32
SEQUENTIAL_PART: Final = 4  # of what may be read ahead: for sequential readers


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for. source_text is shown in the table of mounts."""

    source: Source
    source_text: str
    mountpoint: str
    options: MountOptions


def rdma_settings(options: MountOptions) -> RdmaSettings:
    """Raises ConfigError."""

    def words(joined: str) -> tuple[str, ...]:
        return tuple(filter(None, joined.split("+")))

    devices, subnets = words(options.rdma_devices), words(options.rdma_subnets)
    wishes = Wishes(devices, subnets, options.rdma_gid_index)
    transport = options.transport
    if options.tls != OFF and transport == "rdma":
        raise ConfigError("mount options: transport=rdma has no encryption: leave it out, or tls")
    if options.tls != OFF:
        transport = "tcp"
    try:
        return RdmaSettings(transport, wishes, options.rdma_memory_mib)
    except ValueError as error:
        raise ConfigError(f"mount options: {error}") from error


def tls_settings(options: MountOptions) -> TlsSettings:
    """Raises ConfigError."""
    try:
        return TlsSettings(options.tls, Path(options.tls_ca))
    except ValueError as error:
        raise ConfigError(f"mount options: {error}") from error


def http_certificate(options: MountOptions) -> HttpCertificate | None:
    """Of the metrics; None: they are plain. Raises ConfigError."""
    if not options.http_tls:
        return None
    if not options.metrics_listen:
        raise ConfigError("mount options: http_tls is of metrics: say metrics_listen, too")
    return HttpCertificate(Path(options.tls_certificate), Path(options.tls_key))


def written_bytes_max(mib: int) -> int:
    """Of what was written and is on its way, or held until it is durable."""
    return min(mib << 20, max(WRITTEN_MIN, memory_bytes() // WRITTEN_PART))


def prefetches(options: MountOptions) -> bool:
    """Whether anything may be opened or read before a program asks for it."""
    return options.prefetch == "auto"


def announced_bytes_max(options: MountOptions) -> int:
    """Of files that programs announced and have not read yet."""
    bytes_max = min(options.read_mib << 20, memory_bytes() // AHEAD_PART)
    return bytes_max if prefetches(options) else 0


def may_fetch_opened(options: MountOptions) -> bool:
    """Whether bytes may be put into the kernel's pages before a program asks for them: such pages
    count for this process's control group, not for the program's."""
    return prefetches(options) and not memory_is_limited()


def set_prefetch(datapath: Datapath, options: MountOptions) -> None:
    """What lanes may fetch, and have fetched, before a program asks."""
    datapath.io.stream_limit(announced_bytes_max(options) // SEQUENTIAL_PART)
    datapath.io.fetch_ahead(prefetches(options))
    datapath.io.open_fetch(may_fetch_opened(options))


async def rest_memory(datapath: Datapath, options: MountOptions) -> None:
    """Gives back buffers that nobody needed lately, but for those that stay ready, and makes what
    is missing of those; gives back all that are not in use where memory is short. In a thread, as
    fresh pages take their time."""

    def rest() -> None:
        is_short = memory_is_short()
        ready = 0 if is_short else min(options.dirty_mib << 20, memory_bytes() // WARM_PART)
        datapath.io.memory_rest(ready, ready // READ_PART, is_short)

    await trio.to_thread.run_sync(rest)
