"""braidfs target drain and remove: take targets out of the cluster, without or after a loss.

Both name targets, or all of a storage server, and can wait for the end. While they wait, the
metaserver may be restarted, or another one may take over.
"""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fscommon.errors import BraidError, FsError, Status, TransportError
from fscommon.observe.jobs import ENDED, has_lost_files, job_json, job_of, job_progress, share_done
from fscommon.observe.status import target_json
from fscommon.rpc.caller import Caller
from fscommon.wire.admin import TARGETS_SET_MAX, TargetSet
from fscommon.wire.jobs import JobRow, TargetRemove
from fscommon.wire.messages import StatusReply
from fscommon.wire.ops import Op

from .cluster import ask_status, status_of
from .find import LOST, Walk, Wanted
from .frame import (
    EXIT_DONE,
    Command,
    Reach,
    UnreachableError,
    json_option,
    reaching_and_waiting,
    run_trio,
    show,
    warn,
)
from .places import find_place
from .words import counted

_POLL_S: Final = 0.5
_LINE_S: Final = 5.0  # without a terminal
_SILENT_S: Final = 120.0  # for so long, while waiting, no metaserver may answer
_COUNT_S: Final = 10.0  # files that would be lost are counted for so long
_LEAVES_S: Final = 10.0  # a target that nothing names is out of the map after so long

_named = click.argument(
    "targets", nargs=-1, type=click.IntRange(1, 2**32 - 1), metavar="[TARGET...]"
)
_of_server = click.option("--server", metavar="NAME", help="All targets of this storage server.")


@click.command(
    "drain",
    cls=Command,
    examples=[
        ("braidfs target drain 3 --wait", "Empty a device that is worn, under its users."),
        ("braidfs target drain --server stor3", "All devices of a server that is to go."),
        ("braidfs target set-state up 3", "End it: what was moved stays where it is now."),
    ],
)
@_named
@_of_server
@reaching_and_waiting
@json_option
def target_drain(
    reach: Reach, targets: tuple[int, ...], server: str | None, wait_s: float | None, as_json: bool
) -> int:
    """Move what targets have to other targets, while programs read and write it.

    Draining targets get no new files. Each file that has bytes there is copied to other targets,
    also one with a single replica. A file whose writer does not let go, or of which a client of a
    former release is using, waits; braidfs job list says so. When all is moved, braidfs target
    remove takes the targets out of the cluster.
    """
    status = ask_status(reach)
    wanted = _wanted(status, targets, server)
    if wanted:
        reach.call(Op.TARGET_SET, TargetSet(wanted, is_draining=True, moves=True))
        if wait_s is not None:
            run_trio(_Wait(reach, wanted, "drain", wait_s, as_json=as_json).until, _is_drained)
    return _end(reach, wanted, "drain", as_json)


@click.command(
    "remove",
    cls=Command,
    examples=[
        ("braidfs target remove 3", "It was drained, and its device goes."),
        ("braidfs target remove 3 --lost --wait", "Its device is dead: make again what it had."),
        ("braidfs target remove --server stor3 --lost --wait", "The whole server is gone."),
    ],
)
@_named
@_of_server
@click.option(
    "--lost",
    is_flag=True,
    help="They are gone for good, with all that they had, which is made again from other replicas.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, also if files are lost.")
@reaching_and_waiting
@json_option
def target_remove(
    reach: Reach,
    targets: tuple[int, ...],
    server: str | None,
    lost: bool,
    yes: bool,
    wait_s: float | None,
    as_json: bool,
) -> int:
    """Take targets out of the cluster that were drained, or that are lost.

    Without --lost this is refused while anything is left on a target. With --lost, files with
    other replicas get new ones at once, without the wait of rebuild_after_s, and the target leaves
    the cluster when no file names it any more. Files that had their only replica there stay, and
    nobody can read them: the command counts them before, and asks.

    A removed target is never served again, whatever is on its device.
    """
    status = ask_status(reach)
    wanted = _wanted(status, targets, server)
    if wanted and lost:
        if not yes:
            _confirm_loss(reach, status, wanted)
        reach.call(Op.TARGET_REMOVE, TargetRemove(wanted, is_lost=True))
        if wait_s is not None:
            wait = _Wait(reach, wanted, "rebuild", wait_s, as_json=as_json)
            run_trio(wait.until, _is_rebuilt)
            _tell_what_is_lost(reach, wanted)
    elif wanted:
        _check_drained(status, wanted)
        run_trio(_remove, reach, wanted, wait_s, as_json)
    return _end(reach, wanted, "rebuild", as_json)


def _wanted(status: StatusReply, targets: Sequence[int], server: str | None) -> tuple[int, ...]:
    """The numbers of the targets. Raises UsageError."""
    if (server is None) == (not targets):
        raise click.UsageError("name targets, or --server")
    known = {row.target: row.node for row in status.map.targets}
    if server is not None:
        node = next((one.node for one in status.nodes if server in (one.name, one.address)), None)
        if node is None:
            raise click.BadParameter(f"there is no storage server {server}: see braidfs node list")
        targets = [target for target, its_node in known.items() if its_node == node]
        if not targets:
            warn(f"storage server {server} has no target")
    for target in targets:
        if target not in known:
            raise click.BadParameter(f"there is no target {target}: see braidfs target list")
    if len(targets) > TARGETS_SET_MAX:
        raise click.BadParameter(f"name at most {TARGETS_SET_MAX} targets at a time")
    return tuple(dict.fromkeys(targets))


def _end(reach: Reach, wanted: Sequence[int], kind: str, as_json: bool) -> int:
    status = ask_status(reach)
    rows = [_row_json(status, target, kind) for target in wanted]
    show(rows, as_json, lambda console: _print(console, rows))
    return EXIT_DONE


def _row_json(status: StatusReply, target: int, kind: str) -> dict[str, Any]:
    row = next((one for one in status.map.targets if one.target == target), None)
    job = job_of(status.jobs, kind, target)
    state = target_json(status, row)["state"] if row is not None else "removed"
    return {"target": target, "state": state, "job": job_json(job) if job is not None else None}


def _print(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        said = f"target {row['target']}: {row['state']}"
        job = row["job"]
        if job is not None and row["state"] != "removed":
            said += f"; job {job['job']}: {job['sentence']}"
        console.print(said, soft_wrap=True, markup=False)


# ---- before a loss ------------------------------------------------------------------------------


def _confirm_loss(reach: Reach, status: StatusReply, wanted: Sequence[int]) -> None:
    """Asks if bytes would be lost, as far as that is known. Raises Abort, BraidError."""
    question = _question(reach, status, wanted)
    if question is None:
        return
    if not sys.stdin.isatty():
        raise BraidError(f"{question}. Nothing was done: add --yes if that is to be")
    click.confirm(f"{question}. Give that up?", abort=True, err=True)


def _question(reach: Reach, status: StatusReply, wanted: Sequence[int]) -> str | None:
    states = {row.target: LOST if row.target in wanted else "up" for row in status.map.targets}
    served = [
        str(row.target)
        for row in status.map.targets
        if row.target in wanted and row.state not in ("down", LOST)
    ]
    count, is_whole = reach.ask(lambda caller: _count_lost(caller, reach, states))
    names = _names(wanted)
    if count:
        at_least = "" if is_whole else "at least "
        lists = (
            " and ".join(f"braidfs find :/ --target {target}" for target in served)
            or "braidfs find :/ --lost"
        )
        return (
            f"{at_least}{counted(count, 'file')} with a single replica would be lost with {names} "
            f"({lists} lists them)"
        )
    if not is_whole:
        return f"no file was found yet that would be lost with {names}, but not all were looked at"
    if served:
        return (
            f"{_names(served)} can still be read, and files whose other replicas are damaged would "
            "be lost with it: braidfs target drain moves what is there"
        )
    return None


async def _count_lost(caller: Caller, reach: Reach, states: Mapping[int, str]) -> tuple[int, bool]:
    """How many files would be lost, and whether all were looked at."""
    found: list[bytes] = []
    walk = Walk(
        find_place(":/", reach),
        Wanted(lost=True),
        None,
        lambda path, attributes, layout: found.append(b""),
        states,
    )
    with trio.move_on_after(_COUNT_S) as scope:
        await walk.run(caller)
    return len(found), not scope.cancelled_caught


def _names(targets: Sequence[int | str]) -> str:
    return f"target{'s' * (len(targets) != 1)} {', '.join(map(str, targets))}"


def _check_drained(status: StatusReply, wanted: Sequence[int]) -> None:
    for row in status.map.targets:
        job = job_of(status.jobs, "drain", row.target)
        if row.target in wanted and row.state != LOST and job is None:
            raise BraidError(
                f"target {row.target} was not drained: braidfs target drain {row.target} moves "
                "what it has; if it is gone for good, add --lost"
            )


async def _remove(reach: Reach, wanted: Sequence[int], wait_s: float | None, as_json: bool) -> None:
    """With wait_s, first waits for the drain, and then until nothing names the targets."""
    if wait_s is not None:
        wait = _Wait(reach, wanted, "drain", wait_s, as_json=as_json)
        await wait.until(_is_drained)
        wait_s = wait.left_s()  # for what has been removed of late, and is being deleted
    request = TargetRemove(tuple(wanted), is_lost=False)
    until_s = time.monotonic() + (wait_s or 0.0)
    while True:
        try:
            await reach.run(lambda caller: caller.call(Op.TARGET_REMOVE, request, reach.timeout_s))
            return
        except FsError as error:
            if error.status is not Status.EBUSY or time.monotonic() >= until_s:
                raise
        await trio.sleep(_POLL_S)


def _tell_what_is_lost(reach: Reach, wanted: Sequence[int]) -> None:
    left = [row.target for row in ask_status(reach).map.targets if row.target in wanted]
    if left:
        warn(
            f"{_names(left)} stays in the list as lost while files name it that have no other "
            "replica: braidfs find :/ --lost lists them; remove them, or restore them from a copy"
        )


# ---- waiting ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """A target of those that are waited for. ended_for_s: how long its job has been done."""

    target: int
    state: str | None  # None: it is out of the map
    job: JobRow | None
    ended_for_s: float


def _is_drained(seen: _Seen) -> bool:
    if seen.job is not None and seen.job.state != ENDED and seen.state is not None:
        return False
    if seen.state in ("up", "full"):
        raise BraidError(f"target {seen.target} gets new files again: its drain was ended")
    return True


def _is_rebuilt(seen: _Seen) -> bool:
    """A target of which files are lost stays in the map."""
    if seen.state is None or (seen.job is not None and has_lost_files(seen.job)):
        return True
    return (seen.job is None or seen.job.state == ENDED) and seen.ended_for_s > _LEAVES_S


class _Wait:
    """Waits for the jobs of targets, and shows how far they are."""

    def __init__(
        self, reach: Reach, targets: Sequence[int], kind: str, wait_s: float, *, as_json: bool
    ) -> None:
        self._reach = reach
        self._targets = targets
        self._kind = kind
        self._until_s = time.monotonic() + wait_s
        self._ended_s: dict[int, float] = {}
        self._shown = _Shown(is_quiet=as_json)

    def left_s(self) -> float:
        return max(0.0, self._until_s - time.monotonic())

    async def until(self, is_over: Callable[[_Seen], bool]) -> None:
        """Raises BraidError when the time is over."""
        with self._shown.open():
            while True:
                status = await self._status()
                rows = [self._seen(status, target) for target in self._targets]
                for seen in rows:
                    self._shown.update(seen)
                waited_for = [seen for seen in rows if not is_over(seen)]
                if not waited_for:
                    return
                if not self.left_s():
                    raise BraidError(_said_at_the_end(waited_for))
                await trio.sleep(min(_POLL_S, self.left_s()))

    def _seen(self, status: StatusReply, target: int) -> _Seen:
        states = {row.target: row.state for row in status.map.targets}
        job = job_of(status.jobs, self._kind, target)
        now_s = time.monotonic()
        if job is None or job.state == ENDED:
            self._ended_s.setdefault(target, now_s)
        return _Seen(target, states.get(target), job, now_s - self._ended_s.get(target, now_s))

    async def _status(self) -> StatusReply:
        """Asks whichever metaserver is active, and waits for one."""
        reach = self._reach
        silent_s = time.monotonic() + min(_SILENT_S, self.left_s())
        while True:
            try:
                return await reach.run(lambda caller: status_of(caller, reach))
            except (UnreachableError, TransportError, FsError):
                if time.monotonic() > silent_s:
                    raise
                await trio.sleep(_POLL_S)


def _said_at_the_end(waited_for: Sequence[_Seen]) -> str:
    said = "; ".join(
        f"target {seen.target}: {job_progress(seen.job)}" if seen.job else f"target {seen.target}"
        for seen in waited_for
    )
    return f"the time is over, and it goes on: {said}"


class _Shown:
    """Bars on a terminal; else a line for each target every few seconds. On stderr."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_live = sys.stderr.isatty() and not is_quiet
        self._progress = Progress(
            TextColumn("target {task.fields[target]}"),
            BarColumn(),
            TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            transient=True,
            disable=not self._is_live,
        )
        self._tasks: dict[int, TaskID] = {}
        self._said_s: dict[int, float] = {}

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        with self._progress:
            yield

    def update(self, seen: _Seen) -> None:
        said = job_progress(seen.job) if seen.job is not None else "no job"
        share = share_done(seen.job) if seen.job is not None else None
        if self._is_live:
            if seen.target not in self._tasks:
                task = self._progress.add_task("", total=1.0, target=seen.target)
                self._tasks[seen.target] = task
            self._progress.update(
                self._tasks[seen.target], completed=share or 0.0, description=said
            )
        elif not self._is_quiet:
            now_s = time.monotonic()
            if now_s - self._said_s.get(seen.target, -math.inf) >= _LINE_S:
                self._said_s[seen.target] = now_s
                warn(f"target {seen.target}: {said}")
