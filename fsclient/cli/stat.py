"""braidfs stat: one inode, its layout, and what each target holds of it (like lfs getstripe)."""

import stat as modes
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console

from fscommon.auth.handshake import HelloFields
from fscommon.errors import BraidError, FsError, Status
from fscommon.file_time import true_time
from fscommon.layout.attributes import Attributes
from fscommon.layout.layout import (
    VACANT,
    Layout,
    Replica,
    object_length,
    replicas_wanted,
    unpack_layout,
)
from fscommon.layout.template import unpack_default
from fscommon.observe.status import node_name, session_text
from fscommon.observe.visible import visible
from fscommon.rpc.caller import Caller
from fscommon.rpc.data import DataCaller
from fscommon.wire.messages import StatusReply, TargetEntry

from .cluster import status_of
from .frame import Command, Reach, json_option, reaching, show
from .places import PATH_TEXT, Found, Place, find_place, inspect_place
from .terminal import table
from .words import number, shown, size

_KINDS: Final = {
    modes.S_IFREG: "file",
    modes.S_IFDIR: "directory",
    modes.S_IFLNK: "symlink",
    modes.S_IFIFO: "fifo",
    modes.S_IFSOCK: "socket",
    modes.S_IFCHR: "character device",
    modes.S_IFBLK: "block device",
}


@dataclass(frozen=True, slots=True)
class Object:
    """What one target holds of the file. state: present, absent (a hole), or why it is unknown.
    target: VACANT for a replica that is missing. target_state: as in the map; "" if it is not
    there."""

    stripe_index: int
    target: int
    generation: int
    target_state: str
    node: str
    address: str
    expected: int  # bytes of a file without holes
    length: int
    allocated: int
    state: str

    def as_json(self) -> dict[str, Any]:
        return {
            "stripe_index": self.stripe_index,
            "target": self.target,
            "generation": self.generation,
            "target_state": self.target_state,
            "node": self.node,
            "address": self.address,
            "bytes_expected": self.expected,
            "bytes": self.length,
            "bytes_allocated": self.allocated,
            "state": self.state,
        }


@click.command(
    "stat",
    cls=Command,
    help=f"""Show the inode at PATH: attributes, layout, who has it open, and its objects.

    {PATH_TEXT} The storage servers themselves are asked for the objects. Of a file with replicas
    each one has a line, with its generation and the state of its target; a replica that the file
    lacks is `missing`.""",
    examples=[
        ("braidfs stat /data/train/shard-0001.tar", "A file, and where its bytes are."),
        ("braidfs stat :/train", "A directory, and the layout of new files in it."),
        ("braidfs stat --no-objects /data/big", "Without asking the storage servers."),
    ],
)
@click.argument("path")
@click.option("--objects/--no-objects", default=True, help="Ask the storage servers.")
@reaching
@json_option
def stat(reach: Reach, path: str, objects: bool, as_json: bool) -> None:
    place = find_place(path, reach)

    async def work(caller: Caller) -> tuple[Found, list[Object]]:
        found = await inspect_place(caller, place)
        return found, await _objects(caller, place, found, ask=objects)

    found, parts = place.reach.ask(work)
    show(stat_json(place, found, parts), as_json, lambda c: _print(c, place, found, parts))


async def _objects(caller: Caller, place: Place, found: Found, *, ask: bool) -> list[Object]:
    if not found.inspected.layout:
        return []
    layout = unpack_layout(found.inspected.layout)
    status = await status_of(caller, place.reach)
    rows = {row.target: row for row in status.map.targets}
    size_of_file = found.attributes.size
    return [
        await _object(place, size_of_file, layout, replica, rows, status, ask=ask)
        for replica in _places(layout)
    ]


def _places(layout: Layout) -> Iterator[Replica]:
    """Each replica, and for each that is missing one with the target VACANT; stripe by stripe."""
    found: defaultdict[int, list[Replica]] = defaultdict(list)
    for replica in layout.replicas():
        found[replica.stripe_index].append(replica)
    for index in range(layout.stripe_width):
        yield from found[index]
        for _ in range(missing_replicas(layout, len(found[index]))):
            yield Replica(index, VACANT)


def missing_replicas(layout: Layout, there: int) -> int:
    """How many replicas a stripe lacks that has so many."""
    return max(0, replicas_wanted(layout) - there)


async def _object(
    place: Place,
    file_size: int,
    layout: Layout,
    replica: Replica,
    rows: dict[int, TargetEntry],
    status: StatusReply,
    *,
    ask: bool,
) -> Object:
    row = rows.get(replica.target)
    length = allocated = 0
    state = "not asked"
    if replica.target == VACANT:
        state = "missing"
    elif row is None:
        state = "its target is unknown to the metaserver"
    elif ask:
        length, allocated, state = await _ask_object(place.reach, row, layout, replica)
    return Object(
        replica.stripe_index,
        replica.target,
        replica.generation,
        row.state if row else "",
        node_name(status, row.node) if row else "?",
        row.address if row else "?",
        0 if layout.inline else object_length(layout, replica.stripe_index, file_size),
        length,
        allocated,
        state,
    )


async def _ask_object(
    reach: Reach, row: TargetEntry, layout: Layout, replica: Replica
) -> tuple[int, int, str]:
    try:
        async with reach.open_caller(row.address, HelloFields("server", "braidfs stat")) as caller:
            seen = await DataCaller(caller).stat(
                row.target, layout.file_id, replica.object_number, timeout_s=reach.timeout_s
            )
            return seen.length, seen.allocated, "present"
    except FsError as error:
        if error.status is Status.NO_OBJECT:
            is_durable = layout.durable_stripes >> replica.stripe_index & 1
            return 0, 0, "lost" if is_durable else "absent"
        return 0, 0, f"no answer: {error}"
    except BraidError as error:
        return 0, 0, f"no answer: {error}"


def stat_json(place: Place, found: Found, objects: list[Object]) -> dict[str, Any]:
    attributes, inspected = found.attributes, found.inspected
    seen: dict[str, Any] = {
        "path": place.shown,
        "ino": attributes.ino,
        "type": kind_of(attributes),
        "mode": f"{modes.S_IMODE(attributes.mode):04o}",
        "uid": attributes.uid,
        "gid": attributes.gid,
        "nlink": attributes.nlink,
        "size": attributes.size,
        "blocks": attributes.blocks,
        "atime_ns": true_time(attributes.atime_ns),
        "mtime_ns": true_time(attributes.mtime_ns),
        "ctime_ns": true_time(attributes.ctime_ns),
        "btime_ns": true_time(attributes.btime_ns),
        "data_version": attributes.data_version,
        "change_version": attributes.change_version,
        "xattrs": attributes.xattr_count,
        "truncating": inspected.truncating,
        "open_by": [
            {"session": session_text(one.session), "writable": one.writable}
            for one in inspected.openers
        ],
    }
    if inspected.link:
        seen["link"] = shown(inspected.link)
    if inspected.inherited:
        default = unpack_default(inspected.inherited)
        seen["new_files"] = {**asdict(default), "set_here": inspected.own}
    if inspected.layout:
        seen["layout"] = layout_json(unpack_layout(inspected.layout))
        seen["objects"] = [one.as_json() for one in objects]
    return seen


def layout_json(layout: Layout) -> dict[str, Any]:
    return {
        "file_id": layout.file_id,
        "chunk_size": layout.chunk_size,
        "stripe_width": layout.stripe_width,
        "replicas": replicas_wanted(layout),
        "places": layout.replica_count,
        "targets": list(layout.targets),
        "generations": list(layout.generations) or [0] * len(layout.targets),
        "truncate_epoch": layout.truncate_epoch,
        "inline": len(layout.inline),
    }


def kind_of(attributes: Attributes) -> str:
    return _KINDS.get(modes.S_IFMT(attributes.mode), "unknown")


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).astimezone().isoformat(" ", "milliseconds")


def _print(console: Console, place: Place, found: Found, objects: list[Object]) -> None:
    attributes, inspected = found.attributes, found.inspected
    print_ = console.print
    what = f"{kind_of(attributes)}, {number(attributes.size)} bytes"
    print_(f"{visible(place.shown)}: {what}", markup=False)
    print_(
        f"inode {attributes.ino}  {modes.filemode(attributes.mode)}  links {attributes.nlink}  "
        f"owner {attributes.uid}:{attributes.gid}  xattrs {attributes.xattr_count}"
    )
    print_(f"modified {_time(true_time(attributes.mtime_ns))}   made {_time(attributes.btime_ns)}")
    if inspected.link:
        print_(f"points to {visible(shown(inspected.link))}", markup=False)
    if inspected.inherited:
        default = unpack_default(inspected.inherited)
        whose = "set here" if inspected.own else "of the cluster"
        replicas = f", {default.replicas} replicas" if default.replicas > 1 else ""
        print_(
            f"new files: chunks of {size(default.chunk_size)}, "
            f"{default.stripe_width} targets{replicas} ({whose})"
        )
    for one in inspected.openers:
        how = "for writing" if one.writable else "for reading"
        print_(f"open {how} by session {session_text(one.session)}")
    if inspected.layout:
        _print_layout(console, unpack_layout(inspected.layout), objects)


def _print_layout(console: Console, layout: Layout, objects: list[Object]) -> None:
    wanted = replicas_wanted(layout)
    replicas = f"{wanted} replicas, " if layout.is_replicated else ""
    console.print(
        f"layout: chunks of {size(layout.chunk_size)} over {layout.stripe_width} targets, "
        f"{replicas}file id {layout.file_id}, truncate epoch {layout.truncate_epoch}\n"
    )
    if layout.inline:
        count = number(len(layout.inline))
        console.print(f"its first {count} bytes are with the metaserver; it has no objects\n")
        return
    rows = [_object_row(one) for one in objects]
    columns = ["stripe", "target", "server", "address", "bytes", "allocated", "object"]
    if layout.is_replicated:
        columns[2:2] = ["generation", "state"]
        for row, one in zip(rows, objects, strict=True):
            row[2:2] = [str(one.generation), one.target_state or "-"]
    right = "stripe,target,generation,bytes,allocated"
    console.print(table(tuple(columns), [tuple(row) for row in rows], right=right))


def _object_row(one: Object) -> list[str]:
    return [
        str(one.stripe_index),
        "-" if one.target == VACANT else str(one.target),
        one.node,
        one.address,
        number(one.length),
        number(one.allocated),
        one.state,
    ]
