"""braidfs find: walks the namespace at the metaserver, with conditions of find(1) and more.

Directories are listed in pages, several at once. A page has attributes and layouts, so no inode
needs a request of its own. Results are printed as they are found, in no particular order.
"""

import fnmatch
import json
import math
import os
import stat as modes
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import click
import trio

from fscommon.errors import FsError, Status
from fscommon.file_time import true_time
from fscommon.layout.attributes import Attributes, unpack_attributes
from fscommon.layout.layout import is_inline, replicas_wanted, unpack_layout
from fscommon.observe.visible import visible_name
from fscommon.rpc.caller import Caller
from fscommon.wire.admin import InspectedEntry, InspectList, InspectListed
from fscommon.wire.messages import ClusterMap, Empty
from fscommon.wire.ops import Op

from .frame import Command, Reach, json_option, reaching
from .places import PATH_TEXT, Place, find_place, inspect_place
from .stat import kind_of
from .words import Age, Size, holds, shown

PAGE_ENTRIES: Final = 512
WALKERS: Final = 8  # directories listed at once
QUEUE_MAX: Final = 100_000  # directories that wait; beyond it the walk is depth-first
_TYPES: Final = {"f": modes.S_IFREG, "d": modes.S_IFDIR, "l": modes.S_IFLNK}

LOST: Final = "lost"
NO_STATES: Final[Mapping[int, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Wanted:
    name: str | None = None
    kind: int | None = None
    size: tuple[str, int] | None = None
    age: tuple[str, float] | None = None
    uid: int | None = None
    target: int | None = None
    degraded: bool = False
    lost: bool = False

    @property
    def needs_map(self) -> bool:
        return self.degraded or self.lost

    def takes(
        self,
        name: bytes,
        attributes: Attributes,
        layout: bytes,
        now_s: float,
        states: Mapping[int, str] = NO_STATES,
    ) -> bool:
        """states: of every target of the cluster."""
        if self.name is not None and not fnmatch.fnmatchcase(os.fsdecode(name), self.name):
            return False
        if self.kind is not None and modes.S_IFMT(attributes.mode) != self.kind:
            return False
        if self.size is not None and not holds(self.size[0], attributes.size, self.size[1]):
            return False
        if self.uid is not None and attributes.uid != self.uid:
            return False
        if not self._takes_layout(layout, states):
            return False
        age_s = now_s - true_time(attributes.mtime_ns) / 1e9
        return self.age is None or _is_of_age(self.age, age_s)

    def _takes_layout(self, layout: bytes, states: Mapping[int, str]) -> bool:
        if self.target is not None and not _lies_on(layout, self.target):
            return False
        if self.degraded and not is_degraded(layout, states):
            return False
        return not self.lost or is_lost(layout, states)


def _is_of_age(age: tuple[str, float], seconds: float) -> bool:
    sign, bound = age
    if sign:
        return holds(sign, seconds, bound)
    return math.floor(seconds / 86400) == math.floor(bound / 86400)


def _lies_on(layout: bytes, target: int) -> bool:
    return bool(layout) and target in unpack_layout(layout).targets


def _stripes(layout: bytes) -> Iterator[tuple[int, ...]]:
    """The targets of each stripe of a file that has objects."""
    if layout and not is_inline(layout):
        whole = unpack_layout(layout)
        count = whole.replica_count
        for at in range(0, len(whole.targets), count):
            yield whole.targets[at : at + count]


def is_degraded(layout: bytes, states: Mapping[int, str]) -> bool:
    """Whether a stripe has fewer replicas on targets of the cluster than it is to have."""
    wanted = replicas_wanted(unpack_layout(layout)) if layout else 0
    return any(
        sum(states.get(target, LOST) != LOST for target in targets) < wanted
        for targets in _stripes(layout)
    )


def is_lost(layout: bytes, states: Mapping[int, str]) -> bool:
    """Whether a stripe has no replica on a target that answers."""
    return any(
        all(states.get(target, LOST) in ("down", LOST) for target in targets)
        for targets in _stripes(layout)
    )


@click.command(
    "find",
    cls=Command,
    help=f"""List what is below PATH and meets every condition given.

    {PATH_TEXT}""",
    examples=[
        ("braidfs find /data --size +10G", "Large files."),
        ("braidfs find :/ --target 7 -0 | xargs -0 -n1 echo", "Files with an object on a target."),
        ("braidfs find /data/ckpt --name '*.pt' --mtime +30d", "Old checkpoints."),
        ("braidfs find /data --type f --uid 1000 --json", "One JSON object a line."),
        ("braidfs find :/ --degraded", "Files that lack replicas."),
        ("braidfs find :/ --lost", "Files that nobody can read now."),
    ],
)
@click.argument("path")
@click.option("--name", metavar="PATTERN", help="The last name matches this shell pattern.")
@click.option(
    "--type",
    "kind",
    type=click.Choice(["f", "d", "l"]),
    callback=lambda _ctx, _param, word: _TYPES.get(word),
    help="Files, directories or symbolic links.",
)
@click.option(
    "--size",
    type=Size(),
    metavar="[+|-]N[K|M|G|T]",
    help="At least (+), at most (-), or exactly this large.",
)
@click.option(
    "--mtime",
    "age",
    type=Age(),
    metavar="[+|-]N[s|m|h|d|w]",
    help="Changed longer ago (+) or more recently (-); days without a unit.",
)
@click.option("--uid", type=click.IntRange(0, 2**32 - 1), help="Owned by this user id.")
@click.option("--target", type=click.IntRange(1), help="Files with an object on this target.")
@click.option(
    "--degraded",
    is_flag=True,
    help="Files with fewer replicas of a stripe than they are to have. A replica on a target that "
    "is down counts; one on a target that is lost, or that the cluster does not have, does not.",
)
@click.option(
    "--lost",
    is_flag=True,
    help="Files with a stripe that has no replica on a target that is there and up: they cannot be "
    "read whole before such a target comes back.",
)
@click.option("--depth", type=click.IntRange(0), help="Not deeper than this below PATH.")
@click.option("-0", "--null", "is_null", is_flag=True, help="End each path with NUL, for xargs -0.")
@reaching
@json_option
def find(
    reach: Reach, path: str, depth: int | None, is_null: bool, as_json: bool, **conditions: Any
) -> None:
    wanted = Wanted(**conditions)
    place = find_place(path, reach)
    write = _write_json if as_json else _write_whole if is_null else _write_path
    walk = Walk(place, wanted, depth, write)
    place.reach.ask(walk.run)
    sys.stdout.flush()


Write = Callable[[bytes, Attributes, bytes], None]


def _write_path(path: bytes, attributes: Attributes, layout: bytes) -> None:
    sys.stdout.buffer.write(visible_name(path).encode() + b"\n")


def _write_whole(path: bytes, attributes: Attributes, layout: bytes) -> None:
    sys.stdout.buffer.write(path + b"\0")


def _write_json(path: bytes, attributes: Attributes, layout: bytes) -> None:
    seen: dict[str, Any] = {
        "path": shown(path),
        "ino": attributes.ino,
        "type": kind_of(attributes),
        "size": attributes.size,
        "uid": attributes.uid,
        "gid": attributes.gid,
        "mode": f"{modes.S_IMODE(attributes.mode):04o}",
        "mtime_ns": true_time(attributes.mtime_ns),
    }
    if layout:
        whole = unpack_layout(layout)
        seen["targets"] = list(whole.targets)
        seen["replicas"] = replicas_wanted(whole)
    sys.stdout.write(json.dumps(seen) + "\n")


@dataclass(frozen=True, slots=True)
class _Directory:
    ino: int
    path: bytes
    depth: int


class Walk:
    """A walk of everything below a place. Tasks of one trio thread share its queue. states: those
    that targets are taken to have; empty: they are asked for."""

    def __init__(
        self,
        place: Place,
        wanted: Wanted,
        depth: int | None,
        write: Write,
        states: Mapping[int, str] = NO_STATES,
    ) -> None:
        self._place = place
        self._wanted = wanted
        self._depth = math.inf if depth is None else depth
        self._write = write
        self._queue: deque[_Directory] = deque()
        self._busy = 0
        self._changed = trio.Event()
        self._now_s = time.time()
        self._states = states

    async def run(self, caller: Caller) -> None:
        if self._wanted.needs_map and not self._states:
            seen: ClusterMap = await caller.call(
                Op.CLUSTER_MAP, Empty(), self._place.reach.timeout_s
            )
            self._states = {row.target: row.state for row in seen.targets}
        found = await inspect_place(caller, self._place)
        path = os.fsencode(self._place.shown)
        name = self._place.names[-1] if self._place.names else b""
        self._see(name, path, found.attributes, found.inspected.layout, 0)
        async with trio.open_nursery() as nursery:
            for _ in range(WALKERS):
                nursery.start_soon(self._work, caller)

    async def _work(self, caller: Caller) -> None:
        while self._queue or self._busy:
            if not self._queue:
                await self._changed.wait()
                continue
            deep_first = len(self._queue) > QUEUE_MAX
            directory = self._queue.pop() if deep_first else self._queue.popleft()
            self._busy += 1
            try:
                await self._list(caller, directory)
            finally:
                self._busy -= 1
                self._changed.set()
                self._changed = trio.Event()

    async def _list(self, caller: Caller, directory: _Directory) -> None:
        cookie = 0
        while True:
            request = InspectList(directory.ino, cookie, PAGE_ENTRIES)
            try:
                reply: InspectListed = await caller.call(
                    Op.INSPECT_LIST, request, self._place.reach.timeout_s
                )
            except FsError as error:
                if error.status is Status.ESTALE:  # removed meanwhile
                    return
                raise
            for entry in reply.entries:
                self._see_entry(directory, entry)
            if reply.end:
                return
            cookie = reply.entries[-1].cookie

    def _see_entry(self, directory: _Directory, entry: InspectedEntry) -> None:
        path = directory.path.rstrip(b"/") + b"/" + entry.name
        attributes = unpack_attributes(entry.attributes)
        self._see(entry.name, path, attributes, entry.layout, directory.depth + 1)

    def _see(
        self, name: bytes, path: bytes, attributes: Attributes, layout: bytes, depth: int
    ) -> None:
        if self._wanted.takes(name, attributes, layout, self._now_s, self._states):
            self._write(path, attributes, layout)
        if modes.S_ISDIR(attributes.mode) and depth < self._depth:
            self._queue.append(_Directory(attributes.ino, path, depth))
