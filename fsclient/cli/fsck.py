"""braidfs fsck --stray: objects on targets that belong to no file.

The list of file ids comes first, from a snapshot of the metaserver's records, then that of the
objects of each target. An id that no file has is never given to one later: a new file gets a new
id. Only a client that has not told of its new file yet has objects of an id that the metaserver
does not have, for some milliseconds; so objects count from an age on that is much longer.
"""

import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import click
from rich.console import Console

from fscommon.auth.handshake import HelloFields
from fscommon.errors import BraidError, FsError, ProtocolError, TransportError
from fscommon.layout.attributes import ATTRIBUTES_SIZE, unpack_attributes
from fscommon.layout.layout import unpack_layout
from fscommon.rpc.caller import Caller
from fscommon.rpc.data import DataCaller
from fscommon.rpc.snapshot import read_snapshot
from fscommon.wire.messages import StatusReply, TargetEntry
from fscommon.wire.objects import DIRECTORIES, ObjectList, ObjectListing, ObjectRow
from fscommon.wire.ops import Op

from .cluster import status_of
from .frame import EXIT_DONE, EXIT_UNHEALTHY, Command, Reach, json_option, reaching, run_trio, show
from .terminal import table
from .words import Age, counted, duration, number, size

_AGE_S_MIN: Final = 600.0
_SHOWN: Final = 20
_AT_ONCE: Final = 256  # objects of one request to delete


@dataclass(frozen=True, slots=True)
class _Stray:
    target: int
    row: ObjectRow

    @property
    def name(self) -> tuple[int, int, int]:
        return self.target, self.row.file_id, self.row.stripe_index


@dataclass(slots=True)
class _Found:
    objects: int = 0  # that were looked at
    strays: list[_Stray] = field(default_factory=list)
    unread: dict[int, str] = field(default_factory=dict)  # targets, and why
    deleted: int = 0
    not_deleted: dict[int, str] = field(default_factory=dict)  # targets, and why


@click.command(
    cls=Command,
    examples=[
        ("braidfs fsck --stray", "After a restore: what the backup does not know, for example."),
        ("braidfs fsck --stray --older 30d --json", "All of them, for a program."),
        ("braidfs fsck --stray --delete", "And give their room back. Nothing brings them back."),
    ],
    exits={EXIT_UNHEALTHY: "not all targets could be read, or not all objects be deleted"},
)
@click.option("--stray", is_flag=True, help="Look for objects on targets that belong to no file.")
@click.option(
    "--older",
    type=Age(),
    default="1d",
    show_default=True,
    metavar="AGE",
    help="Only objects that nobody has changed for so long, 10 minutes at least.",
)
@click.option("--delete", is_flag=True, help="Delete the objects that are listed.")
@reaching
@json_option
def fsck(reach: Reach, stray: bool, older: tuple[str, float], delete: bool, as_json: bool) -> int:
    """Check that what lies on targets belongs to files.

    A stray object is one of a file that the metaserver does not know: a file that was made after
    the backup that was restored, or one that a client could not tell of before it died. Nothing
    deletes such objects by itself. All targets should be up. Records of files are checked with
    `python3 -m metaserver.fsck` while the metaserver does not run.
    """
    if not stray:
        raise click.UsageError("say what is to be checked: --stray")
    if older[0] or older[1] < _AGE_S_MIN:
        raise click.BadParameter(f"--older is an age of {duration(_AGE_S_MIN)} at least")
    found = run_trio(_check, reach, older[1], delete)
    show(_as_json(found), as_json, lambda console: _print(console, found, delete=delete))
    return EXIT_UNHEALTHY if found.unread or found.not_deleted else EXIT_DONE


async def _check(reach: Reach, older_s: float, delete: bool) -> _Found:
    async def known(caller: Caller) -> tuple[StatusReply, set[int]]:
        reply = await status_of(caller, reach)
        if reply.recovering:
            raise BraidError("the metaserver recovers: clients may still tell of files; wait")
        return reply, await _file_ids(caller, reach.timeout_s)

    reply, ids = await reach.run(known)
    found = _Found()
    for entry in reply.map.targets:

        def look(row: ObjectRow, target: int = entry.target) -> None:
            found.objects += 1
            if row.file_id not in ids and row.age_s >= older_s:
                found.strays.append(_Stray(target, row))

        try:
            await _look_at_objects(reach, entry, look)
        except (BraidError, OSError) as error:
            found.unread[entry.target] = str(error)
    if delete:
        for entry in reply.map.targets:
            mine = [one for one in found.strays if one.target == entry.target]
            if mine:
                await _delete(reach, entry, mine, reply.map.epoch, found)
    return found


async def _file_ids(caller: Caller, timeout_s: float) -> set[int]:
    """Of all files, and of those whose objects are about to be deleted."""
    ids: set[int] = set()
    async for _, records in read_snapshot(caller, whole=False, timeout_s=timeout_s):
        for key, value in records:
            if key[:1] == b"I":
                if stat.S_ISREG(unpack_attributes(value[:ATTRIBUTES_SIZE]).mode):
                    ids.add(unpack_layout(value[ATTRIBUTES_SIZE:]).file_id)
            elif key[:1] == b"Z":
                ids.add(unpack_layout(value).file_id)
    return ids


async def _look_at_objects(
    reach: Reach, entry: TargetEntry, look: Callable[[ObjectRow], None]
) -> None:
    """Raises TransportError, FsError, ProtocolError."""
    async with reach.open_caller(entry.address, HelloFields("admin", "fsck")) as caller:
        for directory in range(DIRECTORIES):
            after = ""
            while True:
                request = ObjectList(entry.target, directory, after)
                part: ObjectListing = await caller.call(Op.OBJECT_LIST, request, reach.timeout_s)
                for row in part.rows:
                    look(row)
                if part.after and part.after <= after:
                    raise ProtocolError("the listing of a target goes round in a circle")
                after = part.after
                if not after:
                    break


async def _delete(
    reach: Reach, entry: TargetEntry, strays: list[_Stray], epoch: int, found: _Found
) -> None:
    hello = HelloFields("server", "fsck", session=epoch)
    try:
        async with reach.open_caller(entry.address, hello) as caller:
            for start in range(0, len(strays), _AT_ONCE):
                some = [one.name for one in strays[start : start + _AT_ONCE]]
                gone = await DataCaller(caller).delete_all(some, timeout_s=reach.timeout_s)
                found.deleted += sum(gone)
                if not all(gone):
                    found.not_deleted[entry.target] = "the target did not delete all of them"
    except (FsError, TransportError, ProtocolError) as error:
        found.not_deleted[entry.target] = str(error)


# ---- what is shown -------------------------------------------------------------------------------


def _as_json(found: _Found) -> dict[str, Any]:
    return {
        "objects": found.objects,
        "stray": [
            {
                "target": one.target,
                "file_id": one.row.file_id,
                "stripe": one.row.stripe_index,
                "bytes": one.row.bytes,
                "age_s": one.row.age_s,
            }
            for one in found.strays
        ],
        "stray_bytes": sum(one.row.bytes for one in found.strays),
        "deleted": found.deleted,
        "unread": {str(target): why for target, why in found.unread.items()},
        "not_deleted": {str(target): why for target, why in found.not_deleted.items()},
    }


def _print(console: Console, found: _Found, *, delete: bool) -> None:
    strays = found.strays
    total = size(sum(one.row.bytes for one in strays))
    console.print(f"{counted(found.objects, 'object')}, {number(len(strays))} stray ({total})")
    if strays:
        rows = [
            (
                str(one.target),
                f"{one.row.file_id:016x}",
                str(one.row.stripe_index),
                size(one.row.bytes),
                duration(one.row.age_s),
            )
            for one in strays[:_SHOWN]
        ]
        columns = ("target", "file id", "stripe", "bytes", "unchanged for")
        console.print(table(columns, rows, right="target,stripe,bytes,unchanged for"))
    if len(strays) > _SHOWN:
        console.print(f"… and {number(len(strays) - _SHOWN)} more: --json has all of them")
    if delete:
        console.print(f"{counted(found.deleted, 'object')} deleted")
    for what, reasons in (("read", found.unread), ("emptied", found.not_deleted)):
        for target, why in reasons.items():
            console.print(f"target {target} could not be {what}: {why}", markup=False)
