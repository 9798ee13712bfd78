"""braidfs validate: what the cluster delivers through its mounts, and for how many GPUs."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..validate import worker as workers
from ..validate.nodes import NodePlan, expand_hosts, local_nodes, remote_nodes
from ..validate.outcome import Findings
from ..validate.page import page, verdict
from ..validate.run import Run, validate
from ..validate.sizing import GB, PROFILES, Need, sizings
from ..validate.suites import AMOUNTS, SUITES, Amounts, Phase
from .frame import EXIT_DONE, EXIT_UNHEALTHY, Command, json_option, run_trio, show, warn
from .words import Size, latency, table

SSH: Final = "ssh -o BatchMode=yes -o ConnectTimeout=15"
_NAMES: Final = tuple(profile.name for profile in PROFILES)
_TICK_S: Final = 0.2
_GUESS_S: Final = 3.0  # of a phase that takes as long as it takes: for the bar alone


@click.command(
    "validate",
    cls=Command,
    examples=[
        ("braidfs validate /data", "A minute on this node."),
        ("braidfs validate /data --hosts 'gpu[01-16]' --html report.html",
         "From sixteen nodes together, over ssh, with a page of plots."),
        ("braidfs validate /data --suite full --hosts gpu01,gpu02 --gpus 16 --profile medium",
         "A longer look; exit 3 when it is too slow for sixteen GPUs."),
        ("braidfs validate /mnt/a /mnt/b", "Two mounts of this machine as two nodes."),
    ],
    exits={EXIT_UNHEALTHY: "bytes were read wrong, or the cluster is too slow for --gpus"},
)  # fmt: skip
@click.argument("paths", metavar="PATH...", nargs=-1)
@click.option("--suite", type=click.Choice(list(SUITES)), default="quick", show_default=True,
              help="quick: about a minute; full: ten or more, with more patterns.")  # fmt: skip
@click.option("--hosts", metavar="LIST", help="Nodes, such as gpu[01-16],login1: braidfs and fio "
              "are installed there and PATH is mounted. Without it, this machine.")  # fmt: skip
@click.option("--ssh", default=SSH, show_default=True, metavar="COMMAND",
              help="How to reach them.")  # fmt: skip
@click.option("--gpus", type=click.IntRange(1, 10**6), help="How many GPUs it must be enough for.")
@click.option("--profile", type=click.Choice(_NAMES), default="light", show_default=True,
              help="What each of --gpus reads and writes: light 1 and 0.75, medium 2 and 1.5, "
              "heavy 4 and 3 GB/s.")  # fmt: skip
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the report there as one page.")  # fmt: skip
@click.option("--seconds", type=click.IntRange(1, 86_400), help="Of each timed phase.")
@click.option("--size", type=Size(), help="Of each large file; one a job.")
@click.option("--jobs", type=click.IntRange(1, 256), help="At a time on each node.")
@click.option("--files", type=click.IntRange(1, 10**7), help="Empty files of each job.")
@click.option("--any-file-system", is_flag=True, help="Also where PATH is not BraidFS: to compare.")
@click.option("--worker", is_flag=True, hidden=True)
@json_option
def validate_(
    paths: tuple[str, ...], hosts: str | None, ssh: str, html: Path | None, worker: bool,
    as_json: bool, **given: Any,
) -> int:  # fmt: skip
    """Measure and check the file system through its mounts, and say for how many GPUs it is enough.

    On all nodes together: large files, random reads, checkpoints, names, one file of all nodes;
    what one node wrote another one reads and checks. Everything happens in a folder
    .braidfs-validate-* below PATH, which goes away at the end, also after Ctrl-C."""
    if worker:
        workers.serve()
        return EXIT_DONE
    wishes = Wishes(**given)
    run = Run(wishes.suite, wishes.amounts(), wishes.any_file_system)
    plans = _plans(paths, hosts, ssh)
    if html is not None and not (folder := html.absolute().parent).is_dir():
        raise click.BadParameter(f"there is no folder {folder}", param_hint="--html")
    findings = run_trio(_run, run, plans, as_json)
    need = wishes.need(findings)
    if html is not None:
        html.write_text(page(findings, run.amounts, need))
    show(_json(findings, run.amounts, need), as_json,
         lambda console: _print(console, findings, need, html))  # fmt: skip
    is_wrong = bool(findings.damage) or (need is not None and not need.is_met)
    return EXIT_UNHEALTHY if is_wrong else EXIT_DONE


@dataclass(frozen=True, slots=True)
class Wishes:
    """The options that say how much; None: as the suite has it."""

    suite: str
    gpus: int | None
    profile: str
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
            base, seconds=self.seconds or base.seconds, jobs=self.jobs or base.jobs,
            files=self.files or base.files, file_bytes=size,
            check_bytes=min(size, base.check_bytes),
            blocks=min(base.blocks, max(1, size // (1 << 16))),
        )  # fmt: skip

    def need(self, findings: Findings) -> Need | None:
        if self.gpus is None:
            return None
        profile = next(one for one in PROFILES if one.name == self.profile)
        return Need(self.gpus, profile, findings.rate("read"), findings.rate("write"))


def _plans(paths: Sequence[str], hosts: str | None, ssh: str) -> list[NodePlan]:
    if not paths:
        raise click.UsageError("name the PATH where the file system is mounted")
    if hosts is None:
        return local_nodes([os.path.abspath(path) for path in paths])  # noqa: PTH100 - no links
    if len(paths) != 1 or not paths[0].startswith("/"):
        raise click.UsageError("with --hosts, name one absolute PATH: where all of them mount it")
    try:
        return remote_nodes(expand_hosts(hosts), paths[0], shlex.split(ssh))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--hosts") from None


async def _run(run: Run, plans: Sequence[NodePlan], as_json: bool) -> Findings:
    """With a bar on the terminal; without one, a line a phase, unless a program reads."""
    phases = SUITES[run.suite]
    if not sys.stderr.isatty():
        return await validate(run, plans, _tell_lines(len(phases), as_json))
    with Progress(
        TextColumn("{task.description:<36}"), BarColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    ) as progress:  # fmt: skip
        bar = _Bar(progress, phases, run.amounts.seconds)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bar.go_on)
            findings = await validate(run, plans, bar.tell)
            nursery.cancel_scope.cancel()
    return findings


def _tell_lines(count: int, as_json: bool) -> Callable[[Phase, int], None]:
    def tell(phase: Phase, index: int) -> None:
        if not as_json:
            warn(f"{index + 1}/{count} {phase.title}")

    return tell


class _Bar:
    """The share of the time that all phases are expected to take."""

    def __init__(self, progress: Progress, phases: Sequence[Phase], seconds: int) -> None:
        self._progress = progress
        self._expected = [float(seconds) if one.is_timed else _GUESS_S for one in phases]
        self._task = progress.add_task("starting", total=sum(self._expected))
        self._index = -1
        self._began_s = time.monotonic()

    def tell(self, phase: Phase, index: int) -> None:
        self._index, self._began_s = index, time.monotonic()
        self._progress.update(self._task, description=phase.title)

    async def go_on(self) -> None:
        while True:
            if self._index >= 0:
                passed = time.monotonic() - self._began_s
                now = min(passed, self._expected[self._index])
                done = sum(self._expected[: self._index]) + now
                self._progress.update(self._task, completed=done)
            await trio.sleep(_TICK_S)


def _json(findings: Findings, amounts: Amounts, need: Need | None) -> dict[str, Any]:
    names = [node.name for node in findings.nodes]
    read, write = findings.rate("read"), findings.rate("write")
    return {
        "suite": findings.suite, "began_ns": findings.began_ns,
        "seconds": round(findings.seconds, 3), "amounts": asdict(amounts),
        "nodes": [asdict(node) for node in findings.nodes],
        "phases": [one.as_json(names) for one in findings.outcomes],
        "read_bytes_per_second": round(read, 3), "write_bytes_per_second": round(write, 3),
        "sizing": [one.as_json() for one in sizings(read, write)],
        "need": need.as_json() if need else None, "damage": findings.damage,
    }  # fmt: skip


def _print(console: Console, findings: Findings, need: Need | None, html: Path | None) -> None:
    rows = []
    for one in findings.outcomes:
        whole = one.whole
        checked = "[red]DAMAGED[/]" if one.damage else "right" if one.phase.verifies else ""
        rate = f"{whole.bytes_per_second / 1e6:,.0f} MB/s" if whole.bytes else ""
        rows.append((
            one.phase.title, f"{whole.seconds:.1f} s", rate,
            f"{whole.operations_per_second:,.0f}/s", latency(whole.p50_us),
            latency(whole.p99_us), checked,
        ))  # fmt: skip
    columns = ("phase", "took", "bytes", "operations", "median", "99 %", "checked")
    console.print(table(columns, rows, right="took,bytes,operations,median,99 %"))
    console.print()
    read, write = findings.rate("read"), findings.rate("write")
    sizes = [
        (one.profile.name, f"{one.profile.read / GB:g} and {one.profile.write / GB:g} GB/s",
         str(one.gpus), one.limit)
        for one in sizings(read, write)
    ]  # fmt: skip
    console.print(table(("profile", "read and write of each", "GPUs", "limit"), sizes, "GPUs"))
    console.print(f"\n{verdict(findings)}", markup=False)
    for text in findings.damage:
        console.print(f"[red]damaged:[/] {text}")
    if need is not None:
        said = "enough" if need.is_met else "NOT enough"
        console.print(f"It is {said} for {need.gpus} GPUs of profile {need.profile.name}.")
    if html is not None:
        console.print(f"{html}: the report as a page", markup=False)
