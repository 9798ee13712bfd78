"""braidfs checkpoint: the steps of a run, as braidfs.checkpoint writes them."""

import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from braidfs.checkpoint import CheckpointError, commands
from braidfs.checkpoint.commands import Answer
from braidfs.checkpoint.shelf import TIDY_AGE
from braidfs.checkpoint.verify import shelf_of, size_of

from .frame import EXIT_FAILED, EXIT_UNHEALTHY, Command, Group, json_option, show, warn

_ROOT = click.Path(exists=True, file_okay=False, path_type=Path)
_root = click.argument("root", type=_ROOT)
_NOT_WHOLE = {EXIT_UNHEALTHY: "a step is not whole"}


@click.group(cls=Group)
def checkpoint() -> None:
    """Look at the checkpoints of a training run, and remove them.

    ROOT is the directory that the run gave to braidfs.checkpoint.Checkpoints; it may be on any file
    system. `python -m braidfs.checkpoint` does the same where this command is not installed."""


@checkpoint.command(
    "list",
    cls=Command,
    examples=[("braidfs checkpoint list /data/run7", "Steps with their sizes, oldest first.")],
)
@_root
@json_option
def list_(root: Path, as_json: bool) -> int:
    """Show the visible steps, each of which is whole, and hidden directories of unfinished ones."""
    return _answered(as_json, lambda: commands.list_steps(root))


@checkpoint.command(
    "verify",
    cls=Command,
    examples=[
        ("braidfs checkpoint verify /data/run7", "All steps."),
        ("braidfs checkpoint verify /data/run7 1200 --json", "One of them, for a program."),
    ],
    exits=_NOT_WHOLE,
)
@_root
@click.argument("step", nargs=-1, type=click.IntRange(0))
@json_option
def verify(root: Path, step: tuple[int, ...], as_json: bool) -> int:
    """Compare steps with their manifests: names, sizes, and sums where the run wrote some.

    Without STEP all visible ones. A step that is being verified is not removed meanwhile.
    """

    def work() -> Answer:
        shelf = shelf_of(root)
        total = sum(size_of(shelf, one) for one in commands.chosen_steps(root, step))
        with Progress(
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=as_json or not sys.stderr.isatty(),
        ) as progress:
            task = progress.add_task("", total=total)
            return commands.verify_steps(root, step, lambda count: progress.advance(task, count))

    return _answered(as_json, work)


@checkpoint.command(
    "remove",
    cls=Command,
    examples=[("braidfs checkpoint remove /data/run7 1200 1400", "Two steps.")],
)
@_root
@click.argument("step", nargs=-1, type=click.IntRange(0), required=True)
@json_option
def remove(root: Path, step: tuple[int, ...], as_json: bool) -> int:
    """Remove steps. One that somebody reads stays, and the exit code is 1."""
    return _answered(as_json, lambda: commands.remove_steps(root, step))


@checkpoint.command(
    "tidy",
    cls=Command,
    examples=[("braidfs checkpoint tidy /data/run7", "After a crash, when the run goes on again.")],
)
@_root
@click.option(
    "--age",
    type=click.FloatRange(0),
    default=TIDY_AGE,
    show_default=True,
    help="Seconds without a change after which an unfinished step is given up.",
)
@json_option
def tidy(root: Path, age: float, as_json: bool) -> int:
    """Remove what crashed writers and removers left.

    Unfinished steps of the newest attempt stay, and those in which something changed lately."""
    return _answered(as_json, lambda: commands.tidy_root(root, age))


def _answered(as_json: bool, work: Callable[[], Answer]) -> int:
    try:
        answer = work()
    except (CheckpointError, OSError) as error:
        warn(str(error))
        return EXIT_FAILED
    show(
        dict(answer.shown),
        as_json,
        lambda console: console.print("\n".join(answer.lines), markup=False),
    )
    return answer.exit
