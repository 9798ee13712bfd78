"""The options of a mount: what follows -o, as a frozen dataclass.

Words that belong to the kernel (nosuid, sync, ...) are kept for mount(2), those of mount(8) and
systemd are taken and ignored; anything unknown is
refused with the nearest known option. fsclient decides what the options do. What is the same for
all mounts of a host is in a file, client.toml (fsclient.config).
"""

import math
import typing
from dataclasses import dataclass, fields
from typing import Any, Final

from fscommon.config.toml import unknown_word
from fscommon.errors import ConfigError
from fscommon.limits import BUSY_POLL_US_MAX, INLINE_LENGTH_MAX

CONFIG_FILE: Final = "/etc/braidfs/client.toml"


@dataclass(frozen=True, slots=True)
class MountOptions:
    """Times in seconds, sizes in the unit of the name. lanes 0: as many as cores, at most 8.
    kernel_words: what mount(2) is told, comma-separated, in the order given."""

    key_file: str = "/etc/braidfs/cluster.key"
    config: str = CONFIG_FILE
    lanes: int = 0
    timeout: float = 60.0  # how long a request waits for a dead server before EIO
    hard: bool = False  # wait for ever instead
    ro: bool = False
    sealed: bool = False  # with ro, of a sealed tree: the kernel asks for nothing twice
    idmap: bool = False  # mounts of it may be idmapped: who asks is told with what is made alone
    readahead_kib: int = 4096
    dirty_mib: int = 256  # at most 1/8 of the memory that the process may have
    prefetch: str = "auto"  # or off: nothing is opened or read before a program asks for it
    read_mib: int = 256  # read ahead and not read yet; at most 1/32 of that memory
    busy_poll_us: int = 200
    inline: int = INLINE_LENGTH_MAX  # new files of so many bytes lie with the metaserver; 0: none
    cache_dir: str = ""  # on a disk of this node: what was read is kept there
    cache_size: str = ""  # as 200GiB
    passthrough: bool = False  # with ro: large sealed files are read there by the kernel itself
    kernel_words: str = ""
    former_words: tuple[str, ...] = ()  # options of former releases, which do nothing any more
    # Keys of client.toml that were options in former releases: name and value, as in that file.
    moved_words: tuple[tuple[str, Any], ...] = ()


_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "lanes": (0, 64),
    "timeout": (0.1, 1e6),
    "readahead_kib": (0, 1 << 20),
    "dirty_mib": (1, 1 << 20),
    "read_mib": (0, 1 << 20),
    "busy_poll_us": (0, BUSY_POLL_US_MAX),
    "inline": (0, INLINE_LENGTH_MAX),
}
_CHOICES: Final = {"prefetch": ("auto", "off")}
# Options of former releases: taken for one release more, and what to write in place of each.
FORMER_WORDS: Final = {
    "attr_timeout": "leases say how long attributes are believed",
    "entry_timeout": "leases say how long names are believed",
    "held_mib": "it is as much as dirty_mib",
    "warm_mib": "it is as much as dirty_mib",
    "stream_mib": "write read_mib, or prefetch=off",
    "announce_mib": "write read_mib, or prefetch=off",
    "open_ahead": "write prefetch=off to open nothing ahead",
    "fetch_ahead": "write prefetch=off to fetch nothing ahead",
    "open_fetch": "write prefetch=off to fetch nothing ahead",
    "io_uring": "requests come by /dev/fuse",
    "keeper": "each mount in the background has a keeper",
}
# Options that are keys of client.toml now. For one release more they are taken, and override the
# file for their mount. The values of a list are joined by "+".
MOVED_WORDS: Final[dict[str, type]] = {
    "transport": str,
    "rdma_devices": list,
    "rdma_subnets": list,
    "rdma_gid_index": int,
    "rdma_memory_mib": int,
    "tls": str,
    "tls_ca": str,
    "http_tls": bool,
    "tls_certificate": str,
    "tls_key": str,
    "metrics_listen": str,
    "log_file": str,
    "log_level": str,
}
_FIELDS_OF_NO_OPTION: Final = frozenset(("kernel_words", "former_words", "moved_words"))
_IGNORED_WORDS: Final = (
    "_netdev allow_other atime auto blksize bg default_permissions defaults diratime dirsync fg "
    "fsname group iversion lazytime loud mand nofail noatime noauto nodiratime nogroup noiversion "
    "nolazytime nomand noowner nostrictatime norelatime nouser nousers owner relatime rw silent "
    "strictatime subtype user users"
)
_WORDS_OF_THE_KERNEL: Final = "nosuid suid nodev dev noexec exec sync async nosymfollow symfollow"
_KERNEL_WORDS: Final = frozenset(_WORDS_OF_THE_KERNEL.split())
_IGNORED: Final = frozenset(_IGNORED_WORDS.split())
_IGNORED_PREFIXES: Final = ("x-", "X-", "comment=", "uhelper=", "helper=")


def parse_mount_options(text: str) -> MountOptions:
    """Raises ConfigError. Later words win, as with mount(8)."""
    hints = typing.get_type_hints(MountOptions)
    known = {field.name for field in fields(MountOptions)} - _FIELDS_OF_NO_OPTION
    values: dict[str, Any] = {}
    kernel_words = []
    former_words = []
    moved_words: dict[str, Any] = {}
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, equals, value = word.partition("=")
        if name in known:
            values[name] = _convert(hints[name], name, value if equals else None)
        elif name == "rw":
            values["ro"] = False
        elif name in _KERNEL_WORDS:
            kernel_words.append(name)
        elif name in FORMER_WORDS:
            former_words.append(name)
        elif name in MOVED_WORDS:
            moved_words[name] = _convert(MOVED_WORDS[name], name, value if equals else None)
        elif name not in _IGNORED and not word.startswith(_IGNORED_PREFIXES):
            raise ConfigError(unknown_word("mount option", name, known))
    if values.get("sealed") and not values.get("ro"):
        raise ConfigError("the mount option 'sealed' needs 'ro' beside it")
    if values.get("passthrough"):
        _check_passthrough(values)
    return MountOptions(
        **values,
        kernel_words=",".join(kernel_words),
        former_words=tuple(former_words),
        moved_words=tuple(moved_words.items()),
    )


def _check_passthrough(values: dict[str, Any]) -> None:
    for needed, shown in (("ro", "ro"), ("cache_dir", "cache_dir=DIRECTORY")):
        if not values.get(needed):
            raise ConfigError(f"the mount option 'passthrough' needs '{shown}' beside it")
    if values.get("sealed"):
        raise ConfigError(
            "the mount options 'passthrough' and 'sealed' exclude each other: "
            "a sealed mount has no open files that could pass through"
        )


def _convert(kind: type, name: str, value: str | None) -> Any:
    if kind is bool:
        if value is not None:
            raise ConfigError(f"the mount option '{name}' takes no value")
        return True
    if not value:
        raise ConfigError(f"the mount option '{name}' needs a value: {name}=...")
    if name in _CHOICES and value not in _CHOICES[name]:
        choices = " or ".join(_CHOICES[name])
        raise ConfigError(f"the mount option '{name}={value}' is not {choices}")
    if kind is list:
        return [part for part in value.split("+") if part]
    return value if kind is str else _number(kind, name, value)


def _number(kind: type, name: str, value: str) -> int | float:
    try:
        number: int | float = int(value) if kind is int else float(value)
    except ValueError:
        raise ConfigError(f"the mount option '{name}={value}' is not a number") from None
    low, high = _BOUNDS.get(name, (-math.inf, math.inf))
    if not math.isfinite(number) or not low <= number <= high:
        raise ConfigError(f"the mount option '{name}={value}' is not from {low:g} to {high:g}")
    return number
