"""braidfs df and du: space of the cluster, and of a tree according to the metaserver.

du is a walk inside the metaserver, a few hundred inodes per request: no directory is sent, and the
clients' caches stay as they are. A file with several names counts once.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from fscommon.limits import REPLICA_COUNT_MAX
from fscommon.observe.room import Room, room_with
from fscommon.observe.status import inodes_free, node_json
from fscommon.rpc.caller import Caller
from fscommon.wire.admin import Place as Stand
from fscommon.wire.admin import TreeSum, TreeSummed
from fscommon.wire.messages import StatusReply
from fscommon.wire.ops import Op

from .cluster import ask_status
from .frame import Command, Reach, json_option, reaching, show
from .places import PATH_TEXT, Place, find_place, inspect_place
from .terminal import table
from .words import bar, number, size


@click.command(
    "df",
    cls=Command,
    examples=[
        ("braidfs df", "The room in the cluster, by storage server."),
        ("braidfs df --json", "In bytes, for programs."),
    ],
)
@reaching
@json_option
def df(reach: Reach, as_json: bool) -> None:
    """Show how much room there is: the whole cluster and each storage server.

    Sizes are those of the targets. A byte of a file with several replicas takes room on as many of
    them, each in another failure domain: the last line says how much more fits with how many.
    """
    reply = ask_status(reach)
    show(_df_json(reply), as_json, lambda console: _print_df(console, reply))


def _of_node(reply: StatusReply, node: int) -> tuple[int, int, int]:
    """Bytes of a storage server: all, free, and free on targets that get new files."""
    rows = [row for row in reply.map.targets if row.node == node]
    open_ = [row for row in rows if row.state != "draining"]
    total, free = sum(row.bytes_total for row in rows), sum(row.bytes_free for row in rows)
    return total, free, sum(row.bytes_free for row in open_)


def _df_json(reply: StatusReply) -> dict[str, Any]:
    nodes = []
    for one in reply.nodes:
        total, _, available = _of_node(reply, one.node)
        seen = node_json(one)
        nodes.append(
            {
                "name": seen["name"],
                "state": seen["state"],
                "bytes_total": total,
                "bytes_available": available,
            }
        )
    used = reply.files.inodes_total - reply.files.inodes_free
    usable = room_with(reply, reply.replicas)
    return {
        "bytes_total": reply.files.bytes_total,
        "bytes_available": reply.files.bytes_available,
        "inodes_total": used + inodes_free(reply),
        "inodes_free": inodes_free(reply),
        "usable": {
            "replicas": usable.replicas,
            "bytes_total": usable.bytes_total,
            "bytes_available": usable.bytes_available,
        },
        "fits": {str(room.replicas): room.bytes_available for room in _rooms(reply)},
        "nodes": nodes,
    }


def _rooms(reply: StatusReply) -> list[Room]:
    return [room_with(reply, replicas) for replicas in range(1, REPLICA_COUNT_MAX + 1)]


def _print_df(console: Console, reply: StatusReply) -> None:
    files = reply.files
    rows = [
        (one.name, "up" if one.is_up else "down", *_df_row(*_of_node(reply, one.node)))
        for one in reply.nodes
    ]
    rows.append(("whole", "", *_df_row(files.bytes_total, files.bytes_free, files.bytes_available)))
    columns = ("server", "state", "used", "used ", "available", "size")
    console.print(table(columns, rows, right="used ,available,size"))
    used = reply.files.inodes_total - reply.files.inodes_free
    console.print(f"{number(used)} inodes, room for {number(inodes_free(reply))} more")
    if reply.replicas > 1:
        usable = room_with(reply, reply.replicas)
        console.print(
            f"usable: {size(usable.bytes_available)} of {size(usable.bytes_total)}, as new files "
            f"get {usable.replicas} replicas"
        )
    fits = ", ".join(f"{size(room.bytes_available)} with {room.replicas}" for room in _rooms(reply))
    console.print(f"room for more, by number of replicas: {fits}")


def _df_row(total: int, free: int, available: int) -> tuple[str, ...]:
    share = 1 - free / total if total else 0.0
    return f"{bar(share, 16)} {share:>4.0%}", size(total - free), size(available), size(total)


# ---- du --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Sums:
    files: int = 0
    directories: int = 0
    others: int = 0
    bytes: int = 0
    blocks: int = 0
    linked: set[int] = field(default_factory=set)  # files with several names that were counted

    def add(self, part: TreeSummed) -> None:
        self.files += part.files
        self.directories += part.directories
        self.others += part.others
        self.bytes += part.bytes
        self.blocks += part.blocks
        for one in part.linked:
            if one.ino not in self.linked:
                self.linked.add(one.ino)
                self.files += 1
                self.bytes += one.size
                self.blocks += one.blocks

    @property
    def inodes(self) -> int:
        return self.files + self.directories + self.others


@click.command(
    "du",
    cls=Command,
    help=f"""Sum up sizes below each PATH, according to the metaserver.

    {PATH_TEXT}""",
    examples=[
        ("braidfs du /data/train", "One tree."),
        ("braidfs du /data/*", "Several, one line each."),
        ("braidfs du :/ --json", "The whole file system, for programs."),
    ],
)
@click.argument("paths", nargs=-1, required=True)
@reaching
@json_option
def du(reach: Reach, paths: tuple[str, ...], as_json: bool) -> None:
    found = []
    with _progress(as_json) as tell:
        for path in paths:
            place = find_place(path, reach)
            found.append((path, place.reach.ask(_summing(place, tell))))
    seen = [{"path": path, **_du_json(sums)} for path, sums in found]
    show(seen, as_json, lambda console: _print_du(console, found))


class _progress:  # noqa: N801 - used as a function
    """Shows the progress of a walk in a line, on a terminal only; gives tell(count)."""

    def __init__(self, as_json: bool) -> None:
        self._shown = sys.stderr.isatty() and not as_json
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.completed:,} inodes"),
            console=Console(stderr=True),
            transient=True,
            disable=not self._shown,
        )

    def __enter__(self) -> Callable[[int], None]:
        self._progress.__enter__()
        task = self._progress.add_task("", total=None)
        return lambda count: self._progress.update(task, completed=count)

    def __exit__(self, *args: Any) -> None:
        self._progress.__exit__(*args)


def _summing(place: Place, tell: Callable[[int], None]) -> Callable[[Caller], Any]:
    async def work(caller: Caller) -> Sums:
        found = await inspect_place(caller, place)
        attributes = found.attributes
        is_directory = bool(found.inspected.inherited)
        sums = Sums(bytes=attributes.size, blocks=attributes.blocks)
        if not is_directory:
            sums.files = 1
            return sums
        sums.directories = 1
        stack: tuple[Stand, ...] = (Stand(attributes.ino, 0),)
        while stack:
            part: TreeSummed = await caller.call(Op.TREE_SUM, TreeSum(stack), place.reach.timeout_s)
            sums.add(part)
            stack = part.stack
            tell(sums.inodes)
        return sums

    return work


def _du_json(sums: Sums) -> dict[str, int]:
    return {
        "bytes": sums.bytes,
        "bytes_in_blocks": sums.blocks * 512,
        "files": sums.files,
        "directories": sums.directories,
        "others": sums.others,
    }


def _print_du(console: Console, found: list[tuple[str, Sums]]) -> None:
    rows = [
        (size(sums.bytes), number(sums.files), number(sums.directories), os.fspath(path))
        for path, sums in found
    ]
    console.print(
        table(("size", "files", "directories", "path"), rows, right="size,files,directories")
    )
