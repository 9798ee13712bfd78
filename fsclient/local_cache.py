"""The local cache of a mount: a directory on this node's own disk in which native keeps read bytes.

Only the options are here; native/src/cache has the cache (docs/decisions/0035-local-cache.md).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from fscommon.config.mount_options import MountOptions
from fscommon.config.toml import parse_size
from fscommon.errors import ConfigError
from fscommon.native_ports import IoPort
from fscommon.observe.log import Log
from fscommon.wire.messages import ClusterMap, Empty
from fscommon.wire.ops import Op

from .meta.client import MetaClient

SIZE_DEFAULT = 10 << 30
SIZE_MIN = 64 << 20
CAP_SYS_ADMIN: Final = 1 << 21


def cache_size(options: MountOptions) -> int:
    """The cache's size in bytes; 0: no cache. Raises ConfigError."""
    if not options.cache_dir:
        if options.cache_size:
            raise ConfigError("the mount option 'cache_size' needs cache_dir=DIRECTORY beside it")
        return 0
    if not options.cache_dir.startswith("/"):
        raise ConfigError(f"the mount option 'cache_dir={options.cache_dir}' is no absolute path")
    try:
        size = parse_size(options.cache_size) if options.cache_size else SIZE_DEFAULT
    except ValueError as error:
        raise ConfigError(f"the mount option 'cache_size': {error}") from error
    if size < SIZE_MIN:
        raise ConfigError(f"the mount option 'cache_size={options.cache_size}' is less than 64MiB")
    if options.passthrough and size < 2 * SIZE_MIN:
        raise ConfigError(
            f"the mount option 'cache_size={options.cache_size}' is less than 128MiB, "
            "half of which is for what passes through"
        )
    return size


def check_passthrough(options: MountOptions, status: Path = Path("/proc/self/status")) -> None:
    """Raises ConfigError if this process lacks the capability that passthrough needs."""
    if not options.passthrough:
        return
    try:
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        capabilities = int(lines["CapEff"], 16)
    except (OSError, KeyError, ValueError):
        return
    if not capabilities & CAP_SYS_ADMIN:
        raise ConfigError("the mount option 'passthrough' needs CAP_SYS_ADMIN: mount as root")


async def open_cache(
    options: MountOptions,
    native: IoPort,
    meta: MetaClient,
    known: Callable[[], ClusterMap | None],
    *,
    needed: bool = True,
) -> None:
    """Opens the cache, before lanes start. known: returns the map once the metaserver has sent it.
    Raises ConfigError; but a mount that does not need the cache, as it serves already, goes on
    without it."""
    try:
        size = cache_size(options)
        if size:
            check_passthrough(options)
            cluster = await _cluster(meta, known)
            native.cache_open(options.cache_dir, size, cluster, options.passthrough)
    except (ConfigError, ValueError) as error:
        if needed:
            raise ConfigError(str(error)) from error
        Log("cache").warning("the mount goes on without its local cache", because=str(error))


async def _cluster(meta: MetaClient, known: Callable[[], ClusterMap | None]) -> bytes:
    """Returns the uuid of the file system."""
    if known() is None:
        await meta.call(Op.BARRIER, Empty(), Empty)  # the map was requested before this
    cluster_map = known()
    if cluster_map is None:
        raise ConfigError("cache_dir: the metaserver does not say which file system this is")
    return cluster_map.cluster
