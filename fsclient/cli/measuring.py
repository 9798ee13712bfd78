"""What `validate` and `bench` share: the options that say where and how much to measure, and the
progress bar. fsclient.validate measures."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..validate.kept import Kept
from ..validate.nodes import NodePlan, expand_hosts, local_nodes, remote_nodes
from ..validate.outcome import Findings
from ..validate.run import Run, validate
from ..validate.suites import AMOUNTS, Amounts, Phase
from .frame import run_trio, warn
from .words import Size

SSH: Final = "ssh -o BatchMode=yes -o ConnectTimeout=15"
_TICK_S: Final = 0.2
_GUESS_S: Final = 3.0  # of a phase without a fixed time, for the bar only
_OPTIONS: Final = (
    click.argument("paths", metavar="PATH...", nargs=-1),
    click.option(
        "--hosts",
        metavar="LIST",
        help="Nodes, such as gpu[01-16],login1: braidfs and "
        "fio are installed there and PATH is mounted. Without it, this machine.",
    ),
    click.option(
        "--ssh", default=SSH, show_default=True, metavar="COMMAND", help="How to reach the nodes."
    ),
    click.option("--seconds", type=click.IntRange(1, 86_400), help="Length of each timed phase."),
    click.option("--size", type=Size(), help="Size of each large file; each job has one."),
    click.option("--jobs", type=click.IntRange(1, 256), help="Jobs at a time on each node."),
    click.option("--files", type=click.IntRange(1, 10**7), help="Names that each job makes."),
    click.option(
        "--any-file-system", is_flag=True, help="Also if PATH is not on BraidFS, to compare."
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Continue the same command after an interrupt: what it has finished "
        "is not measured again.",
    ),
)


def measuring(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a verb the options: `paths`, `hosts` and `ssh` for `plans`, the rest for `Wishes`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options that say how much to measure; None: as in the suite."""

    suite: str
    seconds: int | None
    size: tuple[str, int] | None
    jobs: int | None
    files: int | None
    any_file_system: bool

    def amounts(self) -> Amounts:
        base = AMOUNTS[self.suite]
        size = base.file_bytes if self.size is None else self.size[1]
        if size < 1 << 20:
            raise click.BadParameter("at least 1 MiB", param_hint="--size")
        size = size >> 20 << 20
        return replace(
            base,
            seconds=self.seconds or base.seconds,
            jobs=self.jobs or base.jobs,
            files=self.files or base.files,
            file_bytes=size,
            check_bytes=min(size, base.check_bytes),
            blocks=min(base.blocks, max(1, size // (1 << 16))),
        )


def plans(paths: Sequence[str], hosts: str | None, ssh: str) -> list[NodePlan]:
    if not paths:
        raise click.UsageError("name the PATH where the file system is mounted")
    if hosts is None:
        return local_nodes([os.path.abspath(path) for path in paths])  # noqa: PTH100 - no links
    if len(paths) != 1 or not paths[0].startswith("/"):
        raise click.UsageError("with --hosts, name one absolute PATH: where all nodes mount it")
    try:
        return remote_nodes(expand_hosts(hosts), paths[0], shlex.split(ssh))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--hosts") from None


def measure(
    run: Run, nodes: Sequence[NodePlan], as_json: bool, *, resumes: bool = False
) -> Findings:
    """Measures, with a bar on a terminal, else with a line for each phase (none with --json).
    Results are kept until all is finished."""
    request = {**asdict(run), "nodes": [(node.name, node.path) for node in nodes]}
    kept = Kept.of("bench" if run.parts else "validate", request)
    if not resumes:
        kept.begin()
    elif not kept.exists():
        raise click.UsageError("nothing of this command was interrupted: begin without --resume")
    try:
        found: Findings = run_trio(_measure, run, nodes, as_json, kept)
    except BaseException:
        if kept.exists():
            warn("finished results are kept: repeat the command with --resume to continue")
        raise
    return found


async def _measure(run: Run, nodes: Sequence[NodePlan], as_json: bool, kept: Kept) -> Findings:
    if not sys.stderr.isatty():
        return await validate(run, nodes, _tell_lines(as_json), kept)
    with Progress(
        TextColumn("{task.description:<36}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        bar = _Bar(progress, run.amounts.seconds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bar.go_on)
            findings = await validate(run, nodes, bar.tell, kept)
            nursery.cancel_scope.cancel()
    return findings


def _tell_lines(as_json: bool) -> Callable[[Sequence[Phase], int], None]:
    def tell(phases: Sequence[Phase], index: int) -> None:
        if not as_json:
            warn(f"{index + 1}/{len(phases)} {phases[index].title}")

    return tell


class _Bar:
    """The share of the time that all phases are expected to take."""

    def __init__(self, progress: Progress, seconds: int) -> None:
        self._progress = progress
        self._seconds = float(seconds)
        self._expected: list[float] = []
        self._task = progress.add_task("starting", total=None)
        self._index = -1
        self._began_s = time.monotonic()

    def tell(self, phases: Sequence[Phase], index: int) -> None:
        self._expected = [self._seconds if one.is_timed else _GUESS_S for one in phases]
        self._index, self._began_s = index, time.monotonic()
        title, total = phases[index].title, sum(self._expected)
        self._progress.update(self._task, description=title, total=total)

    async def go_on(self) -> None:
        while True:
            if self._index >= 0:
                passed = time.monotonic() - self._began_s
                now = min(passed, self._expected[self._index])
                done = sum(self._expected[: self._index]) + now
                self._progress.update(self._task, completed=done)
            await trio.sleep(_TICK_S)
