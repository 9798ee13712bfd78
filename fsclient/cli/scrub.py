"""braidfs scrub: reading everything to find damage before somebody needs the bytes, and what was
found.
"""

import math
import os
import stat as modes
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from fscommon.errors import BraidError, FsError, Status
from fscommon.layout.attributes import Attributes
from fscommon.observe.visible import visible_name
from fscommon.rpc.caller import Caller
from fscommon.wire.ops import Op
from fscommon.wire.scrub import (
    LEFT,
    SCRUB_INOS_MAX,
    Finding,
    Scrub,
    Scrubbing,
    ScrubList,
    ScrubListed,
    ScrubState,
)

from .find import Walk, Wanted
from .frame import (
    EXIT_DONE,
    EXIT_UNHEALTHY,
    Command,
    Reach,
    json_option,
    reaching_and_waiting,
    show,
)
from .places import PATH_TEXT, find_place
from .terminal import table, terminal
from .words import counted, duration, number, size

_LOOK_S: Final = 0.5
_SHOWN: Final = 50
_COLOURS: Final = {"left": "red", "dropped": "yellow", "mended": "green"}


@click.command(
    "scrub",
    cls=Command,
    help=f"""Find damage on devices, and have it mended from other replicas.

    The metaserver has all files read within `scrub_days`, verifies their sums, compares replicas,
    mends damaged blocks where they lie, and has replicas made again that cannot be mended. Without
    arguments, this shows how far that is, and what was found last. With --now, all files are read
    again from the first one, as fast as storage servers let it beside their clients; with a PATH,
    the files there. {PATH_TEXT}""",
    examples=[
        ("braidfs scrub", "How far it is, and what was found."),
        ("braidfs scrub --paths", "The same, with the names of damaged files."),
        ("braidfs scrub --wait :/projects", "Files there, now."),
        ("braidfs scrub --now --wait", "All files, now; the exit code says if damage is left."),
    ],
    exits={EXIT_UNHEALTHY: "damage is left that nothing has mended"},
)
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@click.option("--now", is_flag=True, help="Scrub all files now, or those that are named.")
@click.option(
    "--paths", "with_paths", is_flag=True, help="Look for the names of files that were damaged."
)
@reaching_and_waiting
@json_option
def scrub(
    reach: Reach,
    paths: tuple[str, ...],
    now: bool,
    with_paths: bool,
    wait_s: float | None,
    as_json: bool,
) -> int:
    if wait_s is not None and not (paths or now):
        raise click.UsageError("--wait waits for what begins now: add --now, or a PATH")
    inos = _files_of(paths, reach) if paths else {}
    if paths:
        reach = find_place(paths[0], reach).reach
    if paths or now:
        reach.ask(lambda caller: _begin(caller, reach, list(inos) if paths else None, wait_s))
    state, findings = reach.ask(lambda caller: _ask(caller, reach))
    if paths:
        findings = [one for one in findings if one.ino in inos]
    names = inos or (_names_of({one.ino for one in findings}, reach) if with_paths else {})
    lines = _state_lines(state)
    if paths:
        said = "to be scrubbed now" if wait_s is None else "scrubbed"
        lines.insert(0, f"{counted(len(inos), 'file')} there: {said}")
    show(
        _as_json(state, findings, names) | {"files_asked": len(inos) if paths else None},
        as_json,
        lambda console: _print(console, lines, findings, names),
    )
    is_left = any(one.outcome == LEFT for one in findings)
    return EXIT_UNHEALTHY if is_left else EXIT_DONE


def _files_of(paths: Sequence[str], reach: Reach) -> dict[int, bytes]:
    """The files at or below these paths, by inode."""
    found: dict[int, bytes] = {}

    def note(path: bytes, attributes: Attributes, layout: bytes) -> None:
        found.setdefault(attributes.ino, path)

    for path in paths:
        place = find_place(path, reach)
        place.reach.ask(Walk(place, Wanted(kind=modes.S_IFREG), None, note).run)
    return found


def _names_of(inos: set[int], reach: Reach) -> dict[int, bytes]:
    """A path of each of these inodes that has one."""
    if not inos:
        return {}
    every = _files_of([":/"], reach)
    return {ino: every[ino] for ino in inos if ino in every}


async def _begin(
    caller: Caller, reach: Reach, inos: list[int] | None, wait_s: float | None
) -> None:
    """Has these files scrubbed, or all of them, and waits."""
    asked: Scrubbing | None = None
    parts: list[list[int]] = [[]]
    if inos is not None:
        parts = [inos[at : at + SCRUB_INOS_MAX] for at in range(0, len(inos), SCRUB_INOS_MAX)]
    until_s = trio.current_time() + (math.inf if wait_s is None else wait_s)
    for part in parts:
        asked = await _ask_for(caller, reach, part)
    if wait_s is None or asked is None:
        return
    files = 0 if inos is None else len(inos)
    with _progress() as shown:
        while True:
            listed = await _listed(caller, reach, ScrubList())
            if _is_done(listed.state, asked, files):
                return
            shown.update(listed.state, asked, files)
            if trio.current_time() >= until_s:
                raise BraidError("the scrub has not ended in time; it goes on")
            await trio.sleep(_LOOK_S)


async def _ask_for(caller: Caller, reach: Reach, inos: list[int]) -> Scrubbing:
    while True:
        try:
            asked: Scrubbing = await caller.call(Op.SCRUB, Scrub(tuple(inos)), reach.timeout_s)
        except FsError as error:
            if error.status is not Status.BUSY:
                raise
            await trio.sleep(_LOOK_S)  # too many wait
        else:
            return asked


def _is_done(state: ScrubState, asked: Scrubbing, files: int) -> bool:
    """Raises BraidError if it never will be."""
    if files and state.run != asked.run:
        raise BraidError("the metaserver was started anew meanwhile: run the command again")
    if files:
        return state.files_done >= asked.files
    if state.is_paused:
        raise BraidError("the scrub is paused: see braidfs job resume")
    return state.passes >= asked.passes


class _Shown:
    """A bar on a terminal; nothing else."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._task = None if progress is None else progress.add_task("scrub", total=1.0)

    def update(self, state: ScrubState, asked: Scrubbing, files: int) -> None:
        if self._progress is None or self._task is None:
            return
        if files:
            left = max(0, asked.files - state.files_done)
            done, words = 1 - min(1.0, left / files), f"{number(left)} files left"
        else:
            done = state.bytes / state.bytes_all if state.bytes_all else 0.0
            words = f"{number(state.files)} files, {size(state.bytes)}"
        self._progress.update(self._task, completed=done, description=words)


@contextmanager
def _progress() -> Iterator[_Shown]:
    if not sys.stderr.isatty():
        yield _Shown(None)
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=terminal(), transient=True) as progress:
        yield _Shown(progress)


async def _listed(caller: Caller, reach: Reach, request: ScrubList) -> ScrubListed:
    listed: ScrubListed = await caller.call(Op.SCRUB_LIST, request, reach.timeout_s)
    return listed


async def _ask(caller: Caller, reach: Reach) -> tuple[ScrubState, list[Finding]]:
    request = ScrubList()
    findings: list[Finding] = []
    while True:
        listed = await _listed(caller, reach, request)
        findings += listed.findings
        if listed.end or not listed.findings:
            findings.sort(key=lambda one: (one.outcome != LEFT, -one.found_ns))
            return listed.state, findings
        last = listed.findings[-1]
        request = ScrubList(last.ino, last.target, last.object)


# ---- what is shown -------------------------------------------------------------------------------


def _as_json(
    state: ScrubState, findings: Sequence[Finding], names: dict[int, bytes]
) -> dict[str, Any]:
    return {
        "running": not state.is_paused and (state.is_fast or state.scrub_days > 0),
        "paused": state.is_paused,
        "now": state.is_fast,
        "comparing": state.comparing,
        "scrub_days": state.scrub_days,
        "files": state.files,
        "bytes": state.bytes,
        "files_all": state.files_all,
        "bytes_all": state.bytes_all,
        "passes": state.passes,
        "last_pass_ended": state.ended_ns / 1e9 if state.ended_ns else None,
        "left": state.left,
        "mended": state.mended,
        "dropped": state.dropped,
        "findings": [
            {
                "ino": one.ino,
                "path": os.fsdecode(names[one.ino]) if one.ino in names else None,
                "target": one.target,
                "object": one.object,
                "what": one.what,
                "outcome": one.outcome,
                "blocks": one.blocks,
                "found": one.found_ns / 1e9,
            }
            for one in findings
        ],
    }


def _print(
    console: Console, lines: Sequence[str], findings: Sequence[Finding], names: dict[int, bytes]
) -> None:
    for line in lines:
        console.print(line)
    if not findings:
        return
    rows = [
        (
            str(one.ino),
            str(one.target),
            one.what,
            f"[{_COLOURS.get(one.outcome, 'red')}]{one.outcome}[/]",
            number(one.blocks) if one.blocks else "-",
            f"{duration(max(0.0, time.time() - one.found_ns / 1e9))} ago",
            visible_name(names[one.ino]) if one.ino in names else "-",
        )
        for one in findings[:_SHOWN]
    ]
    columns = ("inode", "target", "found", "outcome", "blocks", "when", "path")
    console.print(table(columns, rows, right="inode,target,blocks"))
    if len(findings) > _SHOWN:
        console.print(f"and {number(len(findings) - _SHOWN)} more: see --json")


def _state_lines(state: ScrubState) -> list[str]:
    lines = [
        f"left: {counted(state.left, 'object')} with damage; "
        f"mended: {number(state.mended)}; replicas dropped: {number(state.dropped)}"
    ]
    share = f"{state.bytes / state.bytes_all:.0%}" if state.bytes_all else "0%"
    done = f"{counted(state.files, 'file')}, {size(state.bytes)} of about {size(state.bytes_all)}"
    if state.is_paused:
        lines.insert(0, "the scrub is paused (braidfs job resume 2)")
    elif state.is_fast:
        lines.insert(0, f"all files are scrubbed now: {share} ({done})")
    elif state.scrub_days:
        lines.insert(0, f"all files are scrubbed within {state.scrub_days:g} days: {done}")
    else:
        lines.insert(0, "there is no scrub by itself (scrub_days is 0)")
    if state.ended_ns:
        ago = duration(max(0.0, time.time() - state.ended_ns / 1e9))
        lines.insert(1, f"the last whole scrub ended {ago} ago")
    if state.comparing:
        lines.append("files with replicas are compared, as the names were restored")
    return lines
