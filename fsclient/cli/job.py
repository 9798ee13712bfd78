"""braidfs job: what the metaserver does in the background with replicas and targets."""

import json
import sys
from collections.abc import Sequence
from typing import Final

import click
import trio
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from fscommon.errors import BraidError
from fscommon.observe.jobs import ENDED, is_idle, job_json, job_what, share_done
from fscommon.observe.visible import visible_lines
from fscommon.rpc.caller import Caller
from fscommon.wire.jobs import UNKNOWN_S, JobList, JobRow, Jobs, JobSet
from fscommon.wire.ops import Op

from .frame import Command, Group, Reach, json_option, reaching, show
from .terminal import table, terminal
from .words import bar, duration, number, size

_WATCH_S: Final = 2.0
_COLOURS: Final = {"running": "green", "waiting": "yellow", "paused": "cyan", "done": "dim"}
_COLUMNS: Final = ("job", "what it does", "state", "done", "files left", "left", "rate", "to go")
_named = click.argument(
    "jobs", nargs=-1, required=True, type=click.IntRange(1, 2**64 - 1), metavar="JOB..."
)


@click.group(cls=Group)
def job() -> None:
    """Jobs: what the metaserver does in the background with replicas and targets.

    Job 1 makes replicas that files lack. A target that is lost has a job that makes what it had
    again, and one that is drained has a job that moves what it has. Jobs go on where they were
    when the metaserver is restarted, or another one takes over.
    """


@job.command(
    "list",
    cls=Command,
    examples=[
        ("braidfs job list", "All jobs, and those that have ended of late."),
        ("braidfs job list --watch", "The same, every two seconds, until Ctrl-C."),
        ("braidfs job list --json | jq '.[] | select(.state == \"waiting\") | .because'", "Why."),
    ],
)
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
@reaching
@json_option
def job_list(reach: Reach, watch: bool, as_json: bool) -> None:
    """List the jobs: how far they are, how fast, how long it takes, and why one waits.

    With --watch and --json, each list is one line.
    """
    if watch:
        reach.ask(lambda caller: _watch(caller, reach, as_json))
        return
    rows = ask_jobs(reach)
    show([job_json(row) for row in rows], as_json, lambda console: console.print(_lines(rows)))


@job.command(
    "pause",
    cls=Command,
    examples=[("braidfs job pause 5", "It does nothing more, until it is resumed.")],
)
@_named
@reaching
@json_option
def job_pause(reach: Reach, jobs: tuple[int, ...], as_json: bool) -> None:
    """Pause jobs: files that are under way are finished, and no others are begun.

    The state is kept over restarts. Files that lack replicas stay in danger meanwhile.
    """
    _set(reach, jobs, as_json, is_paused=True)


@job.command("resume", cls=Command, examples=[("braidfs job resume 5", "It goes on where it was.")])
@_named
@reaching
@json_option
def job_resume(reach: Reach, jobs: tuple[int, ...], as_json: bool) -> None:
    """Let jobs go on that were paused."""
    _set(reach, jobs, as_json, is_paused=False)


def _set(reach: Reach, jobs: Sequence[int], as_json: bool, *, is_paused: bool) -> None:
    async def work(caller: Caller) -> list[JobRow]:
        known = {row.job for row in await jobs_of(caller, reach)}
        for number_ in jobs:
            if number_ not in known:
                raise BraidError(f"there is no job {number_}: see braidfs job list")
        for number_ in jobs:
            await caller.call(Op.JOB_SET, JobSet(number_, is_paused), reach.timeout_s)
        return [row for row in await jobs_of(caller, reach) if row.job in jobs]

    rows = reach.ask(work)
    show([job_json(row) for row in rows], as_json, lambda console: console.print(_lines(rows)))


async def jobs_of(caller: Caller, reach: Reach) -> tuple[JobRow, ...]:
    """Asks on a connection that is open."""
    reply: Jobs = await caller.call(Op.JOB_LIST, JobList(), reach.timeout_s)
    return reply.rows


def ask_jobs(reach: Reach) -> tuple[JobRow, ...]:
    return reach.ask(lambda caller: jobs_of(caller, reach))


async def _watch(caller: Caller, reach: Reach, as_json: bool) -> None:
    is_live = sys.stdout.isatty() and not as_json
    with Live(console=terminal(), screen=is_live, auto_refresh=False) as live:
        while True:
            rows = await jobs_of(caller, reach)
            if as_json:
                sys.stdout.write(json.dumps([job_json(row) for row in rows]) + "\n")
                sys.stdout.flush()
            elif is_live:
                live.update(_lines(rows), refresh=True)
            else:
                terminal().print(_lines(rows))
            await trio.sleep(_WATCH_S)


def _lines(rows: Sequence[JobRow]) -> RenderableType:
    """A table, and below it why jobs wait, and what failed."""
    shown: list[RenderableType] = [
        table(_COLUMNS, [_cells(row) for row in rows], right="job,files left,left,rate,to go")
    ]
    for row in rows:
        if row.state == "waiting":
            shown.append(Text(visible_lines(f"job {row.job} waits: {row.because}")))
        if row.files_failed and row.state != ENDED:
            said = f"{number(row.files_failed)} tries failed and are repeated"
            last = f", the last one because {row.last_failure}" if row.last_failure else ""
            shown.append(Text(visible_lines(f"job {row.job}: {said}{last}")))
    return Lines(*shown)


def _cells(row: JobRow) -> tuple[str, ...]:
    share = share_done(row)
    colour = _COLOURS.get(row.state, "red")
    about = "~" if row.is_estimated else ""
    is_over = row.state == ENDED
    return (
        str(row.job),
        f"{row.kind}: {job_what(row)}",
        f"[{colour}]{'idle' if is_idle(row) else row.state}[/]",
        f"{bar(share, 12)} {share:>4.0%}" if share is not None and row.target else "-",
        "-" if is_over else about + number(row.files_left),
        "-" if is_over else about + size(row.bytes_left),
        f"{size(row.rate)}/s" if row.rate > 0 and not is_over else "-",
        "-" if is_over or row.seconds_left == UNKNOWN_S else duration(row.seconds_left),
    )
