"""braidfs trash: trees whose removed files can be restored for a while.

removed.py finds removed files and restores trees; the metaserver does the rest.
"""

import os
import stat as modes
import time
from datetime import UTC, datetime
from typing import Any, Final

import click
from rich.console import Console

from fscommon.errors import BraidError, FsError, Status
from fscommon.observe.visible import visible
from fscommon.rpc.caller import Caller
from fscommon.wire.ops import Op
from fscommon.wire.trash import EXPIRY_S_MAX, TrashEntry, TrashSet, TrashTree

from .frame import EXIT_FAILED, Command, Group, Reach, json_option, reaching, show
from .places import PATH_TEXT, Place, find_place, inspect_place
from .removed import Outcome, Removed, Trash, is_directory, newest_of, topmost
from .stat import kind_of
from .terminal import table
from .words import Age, duration, number, path_of, shown, size

_EXPIRY: Final = "7d"
_SECOND_NS: Final = 10**9


@click.group(cls=Group)
def trash() -> None:
    """The trash: files that are removed in a tree can be restored for a while.

    It is off unless it is enabled for a directory. Names that are removed or replaced there go to
    the trash: no listing shows them and the names are free, but their bytes stay on the targets,
    and count for quotas, until they expire or are purged.
    """


# ---- trees -------------------------------------------------------------------------------------


@trash.command(
    "enable",
    cls=Command,
    help=f"""Keep files that are removed in a directory and below for a while.

    The nearest directory above a name counts: one below may have a time of its own, or none
    (`disable`). Again for the same directory: another time, also for what is in the trash.

    {PATH_TEXT}""",
    examples=[
        ("braidfs trash enable /data/projects", f"For {_EXPIRY}."),
        ("braidfs trash enable /data/projects --expire 30d", "For a month."),
    ],
)
@click.argument("path")
@click.option(
    "--expire",
    "age",
    type=Age(),
    default=_EXPIRY,
    show_default=True,
    help="How long removed files can be restored.",
)
@reaching
@json_option
def trash_enable(reach: Reach, path: str, age: tuple[str, float], as_json: bool) -> None:
    sign, seconds = age
    if sign or not 1 <= seconds <= EXPIRY_S_MAX:
        raise click.BadParameter(
            "an age such as 12h or 30d, at most ten years", param_hint="--expire"
        )
    _set(find_place(path, reach), on=True, expiry_s=int(seconds))
    seen = {"path": path, "on": True, "expire_s": int(seconds)}
    show(seen, as_json, lambda console: None)


@trash.command(
    "disable",
    cls=Command,
    help=f"""Stop keeping files that are removed in a directory and below.

    Files that are in the trash stay until they expire or are purged. Below a directory with a
    trash, this makes an exception.

    {PATH_TEXT}""",
    examples=[
        ("braidfs trash disable /data/projects", "No trash any more."),
        ("braidfs trash disable /data/projects/scratch", "But not here."),
    ],
)
@click.argument("path")
@reaching
@json_option
def trash_disable(reach: Reach, path: str, as_json: bool) -> None:
    _set(find_place(path, reach), on=False, expiry_s=0)
    show({"path": path, "on": False}, as_json, lambda console: None)


def _set(place: Place, *, on: bool, expiry_s: int) -> None:
    async def work(caller: Caller) -> None:
        found = (await inspect_place(caller, place)).attributes
        if not modes.S_ISDIR(found.mode):
            raise FsError(Status.ENOTDIR, f"{place.shown} is no directory")
        request = TrashSet(found.ino, on, expiry_s)
        await caller.call(Op.TRASH_SET, request, place.reach.timeout_s)

    place.reach.ask(work)


@trash.command(
    "trees",
    cls=Command,
    examples=[("braidfs trash trees", "Which directories have a trash, and how much is in it.")],
)
@reaching
@json_option
def trash_trees(reach: Reach, as_json: bool) -> None:
    """List the directories that have a trash, and the exceptions below them."""
    trees = reach.ask(lambda caller: Trash(caller, reach.timeout_s).trees())
    seen = [
        {"path": _tree_path(one), "on": one.on, "expire_s": one.expiry_s, "inodes": one.inodes}
        for one in trees
    ]
    show(seen, as_json, lambda console: _print_trees(console, trees))


def _tree_path(tree: TrashTree) -> str:
    if tree.ino == 1:
        return path_of(())
    return path_of(tree.names) if tree.names else f"inode {tree.ino}"


def _print_trees(console: Console, trees: list[TrashTree]) -> None:
    rows = [
        (
            _tree_path(one),
            "on" if one.on else "off",
            duration(one.expiry_s) if one.expiry_s else "-",
            number(one.inodes),
        )
        for one in trees
    ]
    columns = ("tree", "trash", "expires after", "inodes")
    console.print(table(columns, rows, right="inodes"), markup=False)


# ---- what is in it -----------------------------------------------------------------------------


@trash.command(
    "list",
    cls=Command,
    help=f"""List removed files of a directory and below, oldest first.

    A directory that was removed is one line, with what is in the trash below it. PATH may be a
    directory that was removed itself.

    {PATH_TEXT}""",
    examples=[
        ("braidfs trash list /data/projects", "Files that can be restored."),
        ("braidfs trash list /data/projects --since 2h", "Files removed in the last two hours."),
        ("braidfs trash list /data/projects --all", "Each file of removed directories."),
    ],
)
@click.argument("path")
@click.option("--since", type=Age(), help="Only what was removed in this time.")
@click.option("--all", "each", is_flag=True, help="Also list each file below removed directories.")
@reaching
@json_option
def trash_list(
    reach: Reach, path: str, since: tuple[str, float] | None, each: bool, as_json: bool
) -> None:
    place = find_place(path, reach)

    async def work(caller: Caller) -> tuple[list[Removed], dict[int, int]]:
        seen = Trash(caller, place.reach.timeout_s)
        top = await _find(seen, place, place.names)
        return await seen.below(top), {one.ino: one.expiry_s for one in await seen.trees()}

    removed, expiries = place.reach.ask(work)
    first_ns = _since_ns(since)
    removed = [one for one in removed if one.entry.removed_ns >= first_ns]
    groups = [(one, []) for one in removed] if each else topmost(removed)
    rows = [_row(path, one, below, expiries) for one, below in groups]
    show(rows, as_json, lambda console: _print_list(console, rows))


def _row(path: str, one: Removed, below: list[Removed], expiries: dict[int, int]) -> dict[str, Any]:
    attributes = one.attributes
    expiry_s = expiries.get(one.entry.tree, 0)
    return {
        "path": os.path.join(path, shown(b"/".join(one.names))),  # noqa: PTH118 - as text
        "id": one.entry.ino,
        "type": kind_of(attributes),
        "uid": attributes.uid,
        "inodes": 1 + len(below),
        "bytes": sum(_bytes(each) for each in (one, *below)),
        "removed_ns": one.entry.removed_ns,
        "expires_ns": one.entry.removed_ns + expiry_s * _SECOND_NS,
    }


def _bytes(one: Removed) -> int:
    attributes = one.attributes
    return attributes.size if modes.S_ISREG(attributes.mode) else 0


def _print_list(console: Console, rows: list[dict[str, Any]]) -> None:
    now_ns = time.time_ns()
    cells = [
        (
            _time(row["removed_ns"]),
            f"in {duration(max(0, row['expires_ns'] - now_ns) / 1e9)}",
            size(row["bytes"]),
            number(row["inodes"]),
            str(row["uid"]),
            str(row["id"]),
            row["path"] + ("/" if row["type"] == "directory" else ""),
        )
        for row in rows
    ]
    columns = ("removed", "expires", "size", "inodes", "owner", "id", "path")
    console.print(table(columns, cells, right="size,inodes,owner,id"), markup=False)


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).astimezone().isoformat(" ", "seconds")


def _since_ns(since: tuple[str, float] | None) -> int:
    return time.time_ns() - int(since[1] * _SECOND_NS) if since else 0


async def _find(seen: Trash, place: Place, names: tuple[bytes, ...]) -> int:
    try:
        return await seen.find(names)
    except FsError as error:
        raise FsError(
            error.status, f"{place.shown}: it is neither there nor in the trash"
        ) from None


# ---- restoring ---------------------------------------------------------------------------------


@trash.command(
    "restore",
    cls=Command,
    help=f"""Restore a removed file, or a removed directory with what was in it.

    If several had the same name, the one that was removed last is restored, also for each name in a
    directory; --id selects another one (`braidfs trash list` shows the ids), and --since leaves out
    files that were removed earlier. A file gets its former name and place, or those of --to. Owner,
    permissions, times and bytes are as they were.

    {PATH_TEXT}""",
    examples=[
        ("braidfs trash restore /data/projects/run7", "Where it was."),
        (
            "braidfs trash restore /data/projects/notes.txt --to /data/projects/notes.old",
            "Under another name.",
        ),
        (
            "braidfs trash restore --below /data/projects --since 1h",
            "All that was removed in the last hour, where the names are free.",
        ),
    ],
)
@click.argument("path")
@click.option(
    "--to", "target", metavar="PATH", help="Another place: an existing directory, or a new name."
)
@click.option("--id", "ino", type=click.IntRange(1), help="The id, if several have this name.")
@click.option(
    "--below", is_flag=True, help="Everything that was removed below PATH, an existing directory."
)
@click.option("--since", type=Age(), help="Only what was removed in this time.")
@reaching
@json_option
def trash_restore(
    reach: Reach,
    path: str,
    target: str | None,
    ino: int | None,
    below: bool,
    since: tuple[str, float] | None,
    as_json: bool,
) -> int:
    if below and (target or ino):
        raise click.UsageError("--below restores everything to its place: leave out --to and --id")
    place = find_place(path, reach)
    goal = find_place(target, place.reach) if target else None
    since_ns = _since_ns(since)

    async def work(caller: Caller) -> Outcome:
        seen = Trash(caller, place.reach.timeout_s)
        if below:
            return await seen.restore_below(
                (await inspect_place(caller, place)).attributes.ino, since_ns
            )
        entry = await _entry(seen, place, ino)
        directory, name = await _goal(seen, goal, entry) if goal else (entry.directory, entry.name)
        try:
            return await seen.restore(entry, directory, name, since_ns)
        except FsError as error:
            raise FsError(error.status, _why(error, goal or place)) from None

    outcome = place.reach.ask(work)
    seen = {
        "path": goal.shown if goal else path,
        "restored": outcome.restored,
        "taken": outcome.taken,
        "refused": [{"name": shown(name), "reason": why} for name, why in outcome.refused],
    }
    show(seen, as_json, lambda console: _print_outcome(console, outcome))
    return EXIT_FAILED if outcome.refused else 0


def _why(error: FsError, place: Place) -> str:
    if error.status is Status.EEXIST:
        return f"{place.shown}: the name exists already: give another one with --to"
    hint = ", or name another place with --to" if error.status is Status.ENOENT else ""
    return f"{place.shown}: {error.sentence}{hint}"


async def _entry(seen: Trash, place: Place, ino: int | None) -> TrashEntry:
    """The entry of a path. Raises ENOENT."""
    if not place.names:
        raise FsError(Status.ENOENT, "the root is never in the trash")
    directory = await _find(seen, place, place.names[:-1])
    entries = await seen.entries(directory, place.names[-1])
    if ino is not None:
        entries = [entry for entry in entries if entry.ino == ino]
    newest = newest_of(entries)
    if newest is None:
        which = f" with id {ino}" if ino is not None else ""
        raise FsError(
            Status.ENOENT,
            f"{place.shown}: nothing of this name{which} is in the trash. "
            "What was removed from a directory that is there: --below",
        )
    return newest


async def _goal(seen: Trash, goal: Place, entry: TrashEntry) -> tuple[int, bytes]:
    """The directory and name of a new place. Raises ENOENT, EEXIST, ENOTDIR."""
    try:
        there = await seen.attributes(1, goal.names)
    except FsError as error:
        if error.status is not Status.ENOENT or not goal.names:
            raise FsError(error.status, _why(error, goal)) from None
    else:
        if modes.S_ISDIR(there.mode):
            return there.ino, entry.name
        raise FsError(Status.EEXIST, f"{goal.shown}: there is something of this name")
    try:
        return (await seen.attributes(1, goal.names[:-1])).ino, goal.names[-1]
    except FsError as error:
        raise FsError(
            error.status, f"{goal.shown}: there is no such directory to put it in"
        ) from None


def _print_outcome(console: Console, outcome: Outcome) -> None:
    console.print(f"{number(outcome.restored)} brought back", markup=False)
    if outcome.taken:
        console.print(f"{number(outcome.taken)} left in the trash: their names are taken")
    for name, why in outcome.refused:
        console.print(f"{visible(shown(name))}: {why}", markup=False)


# ---- purging -----------------------------------------------------------------------------------


@trash.command(
    "purge",
    cls=Command,
    help=f"""Remove files in the trash for good: PATH, and what is below it.

    {PATH_TEXT}""",
    examples=[
        ("braidfs trash purge /data/projects", "All that was removed there."),
        (
            "braidfs trash purge /data/projects --older 1d --yes",
            "Files that were removed more than a day ago, without a question.",
        ),
        ("braidfs trash purge /data/projects/core.4711", "All removed files of this name."),
    ],
)
@click.argument("path")
@click.option("--older", type=Age(), help="Only what was removed longer ago.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@reaching
@json_option
def trash_purge(
    reach: Reach, path: str, older: tuple[str, float] | None, yes: bool, as_json: bool
) -> None:
    place = find_place(path, reach)
    until_ns = time.time_ns() - int(older[1] * _SECOND_NS) if older else time.time_ns() * 2
    timeout_s = place.reach.timeout_s

    async def look(caller: Caller) -> list[TrashEntry]:
        found = await _at_and_below(Trash(caller, timeout_s), place)
        return [entry for entry in found if entry.removed_ns <= until_ns]

    entries = place.reach.ask(look)
    if entries and not yes:
        question = f"Remove {number(len(entries))} inodes from the trash of {path} for good?"
        click.confirm(question, abort=True, err=True)
    count = 0
    if entries:
        count = place.reach.ask(lambda caller: Trash(caller, timeout_s).purge(entries))
    show(
        {"path": path, "purged": count},
        as_json,
        lambda console: console.print(f"{number(count)} purged"),
    )


async def _at_and_below(seen: Trash, place: Place) -> list[TrashEntry]:
    """The entries of this name, what was removed below them, and what was removed below the
    existing directory."""
    at: list[TrashEntry] = []
    if place.names:
        directory = await _find(seen, place, place.names[:-1])
        at = await seen.entries(directory, place.names[-1])
    tops = [entry.ino for entry in at if is_directory(entry)]
    try:
        there = await seen.attributes(1, place.names)
        tops += [there.ino] if modes.S_ISDIR(there.mode) else []
    except FsError as error:
        if error.status is not Status.ENOENT:
            raise
        if not at:
            raise BraidError(f"{place.shown}: it is neither there nor in the trash") from None
    return at + [one.entry for top in tops for one in await seen.below(top)]
