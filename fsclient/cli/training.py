"""`braidfs validate --suite training`: its options, and its report."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import trio
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from fscommon.errors import ConfigError
from fscommon.wire.messages import StatusReply

from ..kernel import FILE_SYSTEM_TYPE
from ..validate.kept import Kept
from ..validate.nodes import NodePlan
from ..validate.sizing import GB, PROFILES
from ..validate.training.drive import Counted, Counting, Report, Result, Training, train
from ..validate.training.utilisation import Spread
from ..validate.training.workload import GPUS, NAMES, Checkpoint, Format, load
from ..validate.worker import mount_of
from .cluster import status_of
from .frame import make_reach, run_trio, show, warn
from .terminal import plain, table

SUITE: Final = "training"
MAX: Final = "max"
DISCLAIMER: Final = "Patterns of public training benchmarks; no MLPerf result."
_ANSWER_S: Final = 10.0
_TICK_S: Final = 0.2
# Options of the other suites, and of this one alone.
_OF_OTHERS: Final = ("profile", "html", "seconds", "size", "jobs")
_OWN: Final = (
    *("workloads", "gpu", "engine", "dlio_environment", "short", "scale", "keep_caches"),
    *("metaserver", "key_file"),
)


class Gpus(click.ParamType[int | str]):
    """A count from 1, or "max"."""

    name = "N|max"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        if value == MAX or isinstance(value, int):
            return value  # type: ignore[no-any-return]
        text = str(value)
        if text.isascii() and text.isdecimal() and len(text) <= 7 and 1 <= int(text) <= 10**6:
            return int(text)
        self.fail(f"{value!r} is neither a count of GPUs from 1 to 1000000, nor max", param, ctx)


_OPTIONS: Final = (
    click.option(
        "--workload",
        "workloads",
        multiple=True,
        metavar="NAME|FILE",
        help=f"Of the suite training; may be repeated: {', '.join(NAMES)}, or a file of your own. "
        "[default: retinanet]",
    ),
    click.option(
        "--gpu",
        type=click.Choice(GPUS),
        help="Which GPU is emulated. [default: the first of the workload file]",
    ),
    click.option("--short", is_flag=True, help="Epochs of a few seconds; the report says so."),
    click.option(
        "--scale",
        type=click.FloatRange(0, 1, min_open=True),
        default=1.0,
        metavar="PART",
        help="Of checkpoints: save so much of each, such as 0.01.",
    ),
    click.option(
        "--keep-caches",
        is_flag=True,
        help="Do not drop the nodes' caches before each epoch: then the data set must have "
        "five times their memory.",
    ),
    click.option(
        "--engine",
        type=click.Choice(["builtin", "dlio"]),
        default="builtin",
        show_default=True,
        help="What replays the workloads.",
    ),
    click.option(
        "--dlio-environment",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="The Python environment with dlio_benchmark and mpirun.",
    ),
    click.option(
        "-s",
        "--metaserver",
        envvar="BRAIDFS_METASERVER",
        metavar="HOST[:PORT],...",
        help="Whom to ask what storage servers have served. [default: those of the mount]",
    ),
    click.option(
        "-k",
        "--key-file",
        envvar="BRAIDFS_KEY_FILE",
        metavar="FILE",
        type=click.Path(),
        help="The cluster key, with which to ask. [default: as in braidfs status]",
    ),
)


def training_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a verb the options of the suite."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def check_options(suite: str) -> None:
    """Raises UsageError for an option of another suite."""
    context = click.get_current_context()
    for name in _OF_OTHERS if suite == SUITE else _OWN:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            said = f"not of the suite {suite}" if suite == SUITE else f"of the suite {SUITE}"
            option = {"workloads": "workload"}.get(name, name).replace("_", "-")
            raise click.UsageError(f"--{option} is {said}")


def take_options(given: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of the suite out of all options."""
    return {name: given.pop(name) for name in _OWN}


def training(
    nodes: list[NodePlan],
    own: dict[str, Any],
    gpus: int | str | None,
    files: int | None,
    *,
    resumes: bool,
    as_json: bool,
) -> bool:
    """Runs the suite and shows the report. Returns whether all was met."""
    request = _request(own, gpus, files)
    words = {**asdict(request), "nodes": [(node.name, node.path) for node in nodes]}
    kept = Kept.of("validate-training", words)
    if not resumes:
        kept.begin()
    elif not kept.exists():
        raise click.UsageError("nothing of this command was interrupted: begin without --resume")
    counting = _counting(own["metaserver"], own["key_file"], nodes)
    try:
        report: Report = run_trio(_train, as_json, request, nodes, kept, counting)
    except BaseException:
        if kept.exists():
            warn("finished epochs are kept: repeat the command with --resume to continue")
        raise
    show(report_json(report, request), as_json, lambda console: _print(console, report, request))
    return report.is_met


def _request(own: dict[str, Any], gpus: int | str | None, files: int | None) -> Training:
    try:
        workloads = tuple(load(name) for name in own["workloads"] or ("retinanet",))
        for one in workloads:
            if own["gpu"] is not None and not isinstance(one, Checkpoint):
                one.compute_of(own["gpu"])
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--workload") from error
    if len({one.name for one in workloads}) < len(workloads):
        raise click.UsageError("a workload is named twice")
    environment = own["dlio_environment"]
    if (own["engine"] == "dlio") != (environment is not None):
        raise click.UsageError("--engine dlio and --dlio-environment DIR belong together")
    if environment is not None:
        for name in ("python", "mpirun", "dlio_benchmark"):
            if not (environment / "bin" / name).exists():
                raise click.UsageError(f"{environment} has no bin/{name}: is it the environment?")
    return Training(
        workloads=workloads,
        gpu=own["gpu"],
        gpus=None if gpus == MAX else int(gpus or 1),
        short=own["short"],
        scale=own["scale"],
        files=files,
        drops=not own["keep_caches"],
        environment=str(environment.absolute()) if environment is not None else "",
    )


# ---- what storage servers have served ----------------------------------------------------------


def _counting(metaserver: str | None, key_file: str | None, nodes: list[NodePlan]) -> Counting:
    """Asks those metaservers, or those of the first node's mount where none are given."""
    reach = make_reach(metaserver, key_file, _ANSWER_S)
    if not reach.is_given:
        mount = mount_of(nodes[0].path)
        if mount is not None and mount.kind == FILE_SYSTEM_TYPE:
            reach = make_reach(mount.source.partition(":/")[0], key_file, _ANSWER_S)

    async def count() -> Counted:
        reply: StatusReply = await reach.run(lambda caller: status_of(caller, reach))
        up = [one for one in reply.nodes if one.is_up]
        return Counted(
            {one.node: one.traffic.read_bytes for one in up},
            max((one.seconds_since_heartbeat for one in up), default=0.0),
        )

    return count


# ---- progress --------------------------------------------------------------------------------


async def _train(as_json: bool, *given: Any) -> Report:
    """Runs train() with a bar on a terminal, else with a line for each thing that begins (none with
    --json)."""
    request, nodes, kept, counting = given
    if not sys.stderr.isatty():
        tell = _tell_nothing if as_json else _tell_line
        return await train(request, nodes, tell, kept, counting)
    with Progress(
        TextColumn("{task.description:<44}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        bar = _Bar(progress)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bar.go_on)
            report = await train(request, nodes, bar.tell, kept, counting)
            nursery.cancel_scope.cancel()
    return report


def _tell_line(title: str, seconds: float) -> None:
    warn(f"{title} (about {seconds:.0f} s)" if seconds >= 1 else title)


def _tell_nothing(_title: str, _seconds: float) -> None:
    pass


class _Bar:
    """How much of its expected time has passed of what is under way."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)
        self._began_s, self._expected_s = time.monotonic(), 1.0

    def tell(self, title: str, seconds: float) -> None:
        self._began_s, self._expected_s = time.monotonic(), max(seconds, 0.1)
        self._progress.update(self._task, description=title, total=self._expected_s)

    async def go_on(self) -> None:
        while True:
            passed = time.monotonic() - self._began_s
            self._progress.update(self._task, completed=min(passed, self._expected_s))
            await trio.sleep(_TICK_S)


# ---- the report --------------------------------------------------------------------------------


def report_json(report: Report, request: Training) -> dict[str, Any]:
    return {
        "suite": SUITE,
        "note": DISCLAIMER,
        "began_ns": report.began_ns,
        "seconds": round(report.seconds, 3),
        "engine": "dlio" if request.environment else "builtin",
        "is_short": request.short,
        "nodes": [asdict(node) for node in report.nodes],
        "results": [_result_json(one) for one in report.results],
        "is_met": report.is_met,
    }


def _result_json(one: Result) -> dict[str, Any]:
    return {
        "workload": one.workload.name,
        "gpu": one.gpu,
        "gpus": one.gpus,
        "gpus_of_one_node": one.node_gpus,
        "limit": one.limit,
        "scale": one.scale,
        "utilisation": asdict(one.utilisation),
        "utilisation_least": one.workload.utilisation,
        "epochs": [epoch.as_json() for epoch in one.epochs],
        "loads": [epoch.as_json() for epoch in one.loads],
        "why_invalid": list(one.why_invalid),
        "is_met": one.is_met,
    }


def sentence_of(one: Result) -> str:
    """The line of one result."""
    seen = one.utilisation
    utilisation = f"AU {seen.middle:.2f} ({one.workload.utilisation:.2f})"
    rate = Spread.of([epoch.bytes_per_second for epoch in one.epochs]).middle
    if isinstance(one.workload, Checkpoint):
        loads = Spread.of([epoch.bytes_per_second for epoch in one.loads]).middle
        scaled = f", scaled to {one.scale:g}" if one.scale != 1.0 else ""
        return (
            f"{one.workload.name}: {one.gpus} ranks save {rate / GB:.2f} GB/s and load "
            f"{loads / GB:.2f} GB/s, {utilisation}{scaled}"
        )
    files = Spread.of([epoch.files_per_second for epoch in one.epochs]).middle
    unit = "files" if one.workload.format is Format.FILES else "reads"
    alone = f", {one.node_gpus} on one node alone" if one.node_gpus is not None else ""
    plural = "" if one.gpus == 1 else "s"
    return (
        f"{one.workload.name}, {one.gpu}: {one.gpus} GPU{plural} at {utilisation}{alone}, "
        f"{files:,.0f} {unit}/s, {rate / GB:.2f} GB/s"
    )


def _print(console: Console, report: Report, request: Training) -> None:
    rows = []
    for one in report.results:
        seen = one.utilisation
        rates = Spread.of([epoch.bytes_per_second for epoch in one.epochs])
        served = [epoch.served for epoch in (*one.loads, *one.epochs) if epoch.served is not None]
        rows.append(
            (
                one.workload.name,
                f"{one.gpus}",
                f"{seen.middle:.3f} ({seen.least:.3f} to {seen.most:.3f})",
                f"{rates.middle / GB:.2f} ({rates.least / GB:.2f} to {rates.most / GB:.2f})",
                f"{sum(served) / GB:.2f} GB" if served else "unknown",
                "met" if one.is_met else "not valid" if one.is_enough else "NOT met",
            )
        )
    columns = ("workload", "GPUs", "AU, median of epochs", "GB/s", "served", "verdict")
    console.print(table(columns, rows, right="GPUs"))
    console.print()
    for one in report.results:
        console.print(plain(sentence_of(one)), soft_wrap=True)
        for why in one.why_invalid:
            console.print(f"[red]not valid:[/] {plain(why)}", soft_wrap=True)
        if one.limit:
            console.print(f"The search ended because {plain(one.limit)}.", soft_wrap=True)
        if not isinstance(one.workload, Checkpoint):
            need = one.workload.file_bytes_mean / one.workload.samples_per_file
            need *= one.workload.batch / one.workload.compute_of(one.gpu)
            profiles = ", ".join(f"{each.name} {each.read / GB:g}" for each in PROFILES)
            console.print(
                f"One such GPU reads {need / GB:.2f} GB/s; those of --profile: {profiles} GB/s.",
                soft_wrap=True,
            )
    if any(node.file_system != FILE_SYSTEM_TYPE for node in report.nodes):
        console.print("This is not BraidFS: what its servers served cannot be checked here.")
    if request.short:
        console.print("This was the short form: its epochs have fewer than 500 steps.")
    console.print(DISCLAIMER)
