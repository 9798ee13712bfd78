"""braidfs lock: who holds which lock, and who waits for one, from the metaserver's tables."""

from typing import Any

import click
from rich.console import Console

from fscommon.layout.lock_ranges import LOCK_END, LockType
from fscommon.observe.status import session_text
from fscommon.rpc.caller import Caller
from fscommon.wire.locks import LockQuery, LockReport, LockRow
from fscommon.wire.ops import Op

from .frame import Command, Group, Reach, json_option, reaching, show
from .terminal import table


@click.group(cls=Group)
def lock() -> None:
    """Locks of programs: flock(2) and fcntl(2)."""


@lock.command(
    "list",
    cls=Command,
    examples=[
        ("braidfs lock list", "All locks, of all mounts."),
        ("braidfs lock list --waiting", "What programs wait for."),
        ("braidfs lock list --inode $(stat -c %i FILE)", "Who has locked FILE."),
    ],
)
@click.option("--inode", type=click.IntRange(1), metavar="NUMBER", help="Only locks of this inode.")
@click.option("--waiting", is_flag=True, help="Only requests that wait.")
@reaching
@json_option
def list_command(reach: Reach, inode: int | None, waiting: bool, as_json: bool) -> None:
    """List the locks that are held or waited for: inode, range, process, mount."""
    rows = [
        row
        for row in reach.ask(lambda caller: _ask(caller, reach.timeout_s))
        if inode in (None, row.lock.ino) and (row.is_waiting or not waiting)
    ]
    show([_as_json(row) for row in rows], as_json, lambda console: _print(console, rows))


async def _ask(caller: Caller, timeout_s: float) -> list[LockRow]:
    rows: list[LockRow] = []
    while True:
        reply = await caller.call(Op.LOCK_LIST, LockQuery(skip=len(rows)), timeout_s)
        assert isinstance(reply, LockReport)
        rows += reply.locks
        if reply.end:
            return rows


def _as_json(row: LockRow) -> dict[str, Any]:
    held = row.lock
    return {
        "inode": held.ino,
        "kind": "flock" if held.is_flock else "fcntl",
        "type": LockType(held.type).name.lower(),
        "start": held.start,
        "end": None if held.end == LOCK_END else held.end,
        "pid": held.pid,
        "session": session_text(row.session),
        "client": row.node,
        "state": "waiting" if row.is_waiting else "held",
    }


def _print(console: Console, rows: list[LockRow]) -> None:
    cells = []
    for one in map(_as_json, rows):
        last = "end" if one["end"] is None else str(one["end"] - 1)
        cells.append(
            (
                str(one["inode"]),
                one["kind"],
                one["type"],
                str(one["start"]),
                last,
                str(one["pid"]),
                one["client"] or one["session"],
                one["state"],
            )
        )
    columns = ("inode", "kind", "type", "from", "to", "pid", "client", "state")
    console.print(table(columns, cells, right="inode,from,to,pid"))
