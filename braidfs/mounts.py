"""Where BraidFS is mounted on this node, and how a path of the cluster is called here.

    where("/data/imagenet/a.jpg")         the mount that has this path; None: it is not on BraidFS
    path("braid:///imagenet/a.jpg")       the path of this node by which that file is reached
    url("/data/imagenet/a.jpg")           the same file by a name that all nodes understand

Everything is read from /proc/self/mountinfo (proc_pid_mountinfo(5)), at each call, because mounts
come and go; no mount is asked, so a metaserver that does not answer holds up nothing but the
symbolic links of a path that lies on its mount. A mountpoint is followed as the kernel does it:
a later mount over the same place or over a folder above hides the earlier one.
"""

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

SCHEME: Final = "braid"
_FILE_SYSTEM_TYPE: Final = b"fuse.braidfs"
_MOUNTINFO: Final = "/proc/self/mountinfo"
_PREFIX: Final = f"{SCHEME}://"
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")  # of space, tab, newline and backslash
_SCHEMES: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DEFAULT_PORT: Final = ":7400"
_DELETED: Final = "//deleted"  # how the kernel marks a mounted folder that was removed

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of BraidFS. mountpoint: absolute, of this node. source: as it was mounted,
    HOST[:PORT][,HOST2...]:/SUBDIR. options: of the kernel; the first one is "ro" or "rw". folder:
    the path in the cluster that is seen at the mountpoint: the SUBDIR of its source and, of a bind
    mount, the folder below that."""

    mountpoint: str
    source: str
    options: tuple[str, ...]
    folder: str


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of mountinfo. mount: None, if it is of another file system."""

    number: int
    parent: int
    mountpoint: str
    mount: Mount | None


def where(path: AnyPath) -> Mount | None:
    """Returns the mount on which this path lies, after symbolic links; None if it does not lie on
    BraidFS. What does not exist lies where it would be created. Raises OSError where /proc is not
    mounted."""
    seen = _resolve(os.path.realpath(path), _lines())
    return seen.mount if seen else None


def path(url: AnyPath) -> str:
    """Returns the path of this node for `braid:///a/b`, the file /a/b of the cluster.

    With several mounts that show it, the one that shows the deepest folder is taken, then one that
    can be written. `braid://HOST/a/b` takes only mounts whose source names this metaserver. Nothing
    is decoded: a `%` or `?` is a part of a name. A path without a scheme is returned as it is.
    Raises LookupError, with a sentence, if no mount of this node shows the file, or mounts of
    several clusters do; ValueError, if the URL has another scheme."""
    text = os.fspath(url)
    if not text.startswith(_PREFIX):
        if scheme := _SCHEMES.match(text):
            raise ValueError(f"'{text}' begins with {scheme[0]}: expected {_PREFIX}/PATH")
        return text
    hosts, _, below = text.removeprefix(_PREFIX).partition("/")
    wanted = posixpath.normpath(f"/{below.lstrip('/')}")
    chosen = _choose(wanted, hosts, _visible(_lines()))
    return _join(chosen.mountpoint, posixpath.relpath(wanted, chosen.folder))


def url(path: AnyPath) -> str:
    """Returns `braid:///a/b` for a path on a mount of this node. Raises LookupError if it does not
    lie on BraidFS."""
    resolved = os.path.realpath(path)
    mount = where(resolved)
    if mount is None:
        raise LookupError(f"{resolved} does not lie on a mount of BraidFS")
    return _PREFIX + _join(mount.folder, posixpath.relpath(resolved, mount.mountpoint))


def has_device(device: int) -> bool:
    """Whether a BraidFS with this device (st_dev of its files) is mounted here. Raises OSError
    where /proc is not mounted."""
    number = b"%d:%d" % (os.major(device), os.minor(device))
    for line in Path(_MOUNTINFO).read_bytes().splitlines():
        before, _, after = line.partition(b" - ")
        is_same = before.split(b" ")[2:3] == [number]
        if is_same and after.split(b" ")[0] == _FILE_SYSTEM_TYPE:
            return True
    return False


def _lines() -> tuple[_Line, ...]:
    return _parse(Path(_MOUNTINFO).read_bytes())


@lru_cache(maxsize=1)  # programs ask for thousands of paths while no mount changes
def _parse(mountinfo: bytes) -> tuple[_Line, ...]:
    """mountinfo: the content of /proc/PID/mountinfo."""
    return tuple(map(_parse_line, mountinfo.split(b"\n")[:-1]))


def _parse_line(line: bytes) -> _Line:
    before, _, after = line.partition(b" - ")
    number, parent, _device, root, mountpoint, options = before.split(b" ")[:6]
    kind, source, of_all = after.split(b" ")[:3]
    place = _text(mountpoint)
    mount = None
    if kind == _FILE_SYSTEM_TYPE:
        name = _text(source)
        folder = _join(f"/{name.partition(':/')[2].strip('/')}", _text(root).lstrip("/"))
        mount = Mount(place, name, _options(_text(options), _text(of_all)), folder)
    return _Line(int(number), int(parent), place, mount)


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda found: bytes((int(found[1], 8),)), field))


def _options(of_mount: str, of_all: str) -> tuple[str, ...]:
    """Both lists as one. Who may write is told by each of them: `ro` in one of them is enough."""
    listed = [*of_mount.split(","), *of_all.split(",")]
    access = "ro" if "ro" in listed else "rw"
    return tuple(dict.fromkeys([access, *(one for one in listed if one not in ("ro", "rw"))]))


def _resolve(place: str, lines: Sequence[_Line]) -> _Line | None:
    """The line of the mount that has this absolute path: from the root downwards, at each folder
    the mounts are entered that are mounted there on the one that was entered before."""
    numbers = {line.number for line in lines}
    # The parent of the root mount is not listed, or is itself; in a chroot several are like that.
    tops = {
        line.mountpoint: line
        for line in lines
        if line.parent not in numbers or line.parent == line.number
    }
    on = {(line.parent, line.mountpoint): line for line in lines if line not in tops.values()}
    current: _Line | None = None
    for folder in _folders(place):
        entered = current and on.get((current.number, folder))
        step = entered or tops.get(folder)
        while step is not None and step is not current:
            current = step
            step = on.get((current.number, folder))
    return current


def _folders(place: str) -> Iterable[str]:
    """/, /a and /a/b of /a/b."""
    yield "/"
    names = [name for name in place.split("/") if name]
    yield from (f"/{'/'.join(names[: count + 1])}" for count in range(len(names)))


def _visible(lines: Sequence[_Line]) -> list[Mount]:
    """The mounts of BraidFS that no other mount hides."""
    return [
        line.mount
        for line in lines
        if line.mount
        and not line.mount.folder.endswith(_DELETED)
        and _resolve(line.mountpoint, lines) is line
    ]


def _choose(wanted: str, hosts: str, mounts: Sequence[Mount]) -> Mount:
    """wanted: an absolute path in the cluster. hosts: of its URL; may be empty."""
    name = f"{_PREFIX}{hosts}{wanted}"
    if not mounts:
        raise LookupError(f"no BraidFS is mounted on this node: there is no path for {name}")
    named = [mount for mount in mounts if not hosts or _addresses(hosts) & _of(mount)]
    found = [mount for mount in named if _is_below(wanted, mount.folder)]
    if not found:
        shown = ", ".join(f"{one.source} at {one.mountpoint}" for one in mounts)
        raise LookupError(f"no mount of this node shows {name}: there are {shown}")
    found.sort(key=lambda one: (-len(one.folder), one.options[0] == "ro"))
    if any(not _of(one) & _of(found[0]) for one in found):
        places = " and ".join(one.mountpoint for one in found)
        raise LookupError(
            f"mounts of several clusters show {name}, at {places}: name a metaserver,"
            f" as in {_PREFIX}HOST{wanted}"
        )
    return found[0]


def _of(mount: Mount) -> set[str]:
    return _addresses(mount.source.partition(":/")[0])


def _addresses(hosts: str) -> set[str]:
    return {host.removesuffix(_DEFAULT_PORT) for host in hosts.split(",")}


def _is_below(wanted: str, folder: str) -> bool:
    return folder in ("/", wanted) or wanted.startswith(f"{folder}/")


def _join(folder: str, below: str) -> str:
    """below: relative; "." and the empty text are the folder itself."""
    return folder if below in ("", ".") else f"{folder.rstrip('/')}/{below}"
