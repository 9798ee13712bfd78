"""braidfs validate: measures what the cluster delivers, and says for how many GPUs."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from ..validate import worker as workers
from ..validate.outcome import Findings, Outcome
from ..validate.page import page, verdict
from ..validate.run import Run
from ..validate.sizing import GB, PROFILES, Need, sizings
from ..validate.suites import SUITES, Amounts
from .frame import EXIT_DONE, EXIT_UNHEALTHY, Command, json_option, show
from .measuring import Wishes, measure, measuring, plans
from .terminal import table
from .training import MAX, SUITE, Gpus, check_options, take_options, training, training_options
from .words import latency

_NAMES: Final = tuple(profile.name for profile in PROFILES)


@click.command(
    "validate",
    cls=Command,
    examples=[
        ("braidfs validate /data", "A minute on this node."),
        (
            "braidfs validate /data --hosts 'gpu[01-16]' --html report.html",
            "From sixteen nodes together, over ssh, with a page of plots.",
        ),
        (
            "braidfs validate /data --suite full --hosts gpu01,gpu02 --gpus 16 --profile medium",
            "More phases; exit code 3 if it is too slow for sixteen GPUs.",
        ),
        ("braidfs validate /data --suite full --resume", "Continue after Ctrl-C or a failure."),
        (
            "braidfs validate /data --suite training --workload unet3d --gpu h100 --gpus max",
            "How many H100 the file system feeds with the images of 3D U-Net.",
        ),
        ("braidfs validate /mnt/a /mnt/b", "Two mounts of this machine as two nodes."),
    ],
    exits={
        EXIT_UNHEALTHY: "bytes were read wrong, the cluster is too slow for --gpus, or a result of "
        "the suite training is not valid"
    },
)
@click.option(
    "--suite",
    type=click.Choice([*SUITES, SUITE]),
    default="quick",
    show_default=True,
    help="quick: about a minute; full: ten or more, with more patterns; training: emulated GPUs "
    "read as public training benchmarks do.",
)
@click.option(
    "--gpus",
    type=Gpus(),
    help="For how many GPUs it must be enough. max, in the suite training: search for how many.",
)
@click.option(
    "--profile",
    type=click.Choice(_NAMES),
    default="light",
    show_default=True,
    help="What each of the --gpus reads and writes: light 1 and 0.75, medium 2 and 1.5, "
    "heavy 4 and 3 GB/s.",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the report to this file, as one page.",
)
@training_options
@measuring
@click.option("--worker", is_flag=True, hidden=True)
@json_option
def validate_(
    paths: tuple[str, ...],
    hosts: str | None,
    ssh: str,
    html: Path | None,
    worker: bool,
    resume: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Measure and check the file system through its mounts, and say for how many GPUs it is enough.

    All nodes together use large files, random reads, checkpoints, names, and one file of all nodes;
    each node reads and checks what another one wrote. Everything happens in a folder
    .braidfs-validate-* below PATH, which is removed at the end, also after Ctrl-C. What was
    finished by then is kept for --resume, which writes files again that are still needed.

    In the suite training, emulated GPUs read a data set in batches by the patterns of a workload
    file and sleep for the time of each step. Its verdict is the accelerator utilisation: the time
    of computing over all the time. It needs no fio, and works on every file system.
    """
    if worker:
        workers.serve()
        return EXIT_DONE
    gpus, profile, own = given.pop("gpus"), given.pop("profile"), take_options(given)
    check_options(given["suite"])
    if given["suite"] == SUITE:
        nodes, files = plans(paths, hosts, ssh), given["files"]
        is_met = training(nodes, own, gpus, files, resumes=resume, as_json=as_json)
        return EXIT_DONE if is_met else EXIT_UNHEALTHY
    if gpus == MAX:
        raise click.UsageError(f"--gpus max is of the suite {SUITE}")
    wishes = Wishes(**given)
    run = Run(wishes.suite, wishes.amounts(), wishes.any_file_system)
    nodes = plans(paths, hosts, ssh)
    if html is not None and not (folder := html.absolute().parent).is_dir():
        raise click.BadParameter(f"there is no folder {folder}", param_hint="--html")
    findings = measure(run, nodes, as_json, resumes=resume)
    need = _need(findings, gpus, profile)
    if html is not None:
        html.write_text(page(findings, run.amounts, need))
    show(
        _json(findings, run.amounts, need),
        as_json,
        lambda console: _print(console, findings, need, html),
    )
    is_wrong = bool(findings.damage) or (need is not None and not need.is_met)
    return EXIT_UNHEALTHY if is_wrong else EXIT_DONE


def _need(findings: Findings, gpus: int | None, name: str) -> Need | None:
    if gpus is None:
        return None
    profile = next(one for one in PROFILES if one.name == name)
    return Need(gpus, profile, findings.rate("read"), findings.rate("write"))


def _json(findings: Findings, amounts: Amounts, need: Need | None) -> dict[str, Any]:
    names = [node.name for node in findings.nodes]
    read, write = findings.rate("read"), findings.rate("write")
    return {
        "suite": findings.suite,
        "began_ns": findings.began_ns,
        "seconds": round(findings.seconds, 3),
        "amounts": asdict(amounts),
        "nodes": [asdict(node) for node in findings.nodes],
        "phases": [one.as_json(names) for one in findings.outcomes],
        "read_bytes_per_second": round(read, 3),
        "write_bytes_per_second": round(write, 3),
        "sizing": [one.as_json() for one in sizings(read, write)],
        "need": need.as_json() if need else None,
        "damage": findings.damage,
    }


def _print(console: Console, findings: Findings, need: Need | None, html: Path | None) -> None:
    print_phases(console, findings.outcomes)
    console.print()
    read, write = findings.rate("read"), findings.rate("write")
    sizes = [
        (
            one.profile.name,
            f"{one.profile.read / GB:g} and {one.profile.write / GB:g} GB/s",
            str(one.gpus),
            one.limit,
        )
        for one in sizings(read, write)
    ]
    console.print(table(("profile", "read and write of each", "GPUs", "limit"), sizes, "GPUs"))
    console.print(f"\n{verdict(findings)}", markup=False)
    for text in findings.damage:
        console.print(f"[red]damaged:[/] {text}")
    if need is not None:
        said = "enough" if need.is_met else "NOT enough"
        console.print(f"It is {said} for {need.gpus} GPUs of profile {need.profile.name}.")
    if html is not None:
        console.print(f"{html}: the report as a page", markup=False)


def print_phases(console: Console, outcomes: Sequence[Outcome]) -> None:
    rows = []
    for one in outcomes:
        whole = one.whole
        checked = "[red]DAMAGED[/]" if one.damage else "right" if one.phase.verifies else ""
        rate = f"{whole.bytes_per_second / 1e6:,.0f} MB/s" if whole.bytes else ""
        waits = [latency(us) if us else "" for us in (whole.p50_us, whole.p99_us)]
        rows.append(
            (
                one.phase.title,
                f"{whole.seconds:.1f} s",
                rate,
                f"{whole.operations_per_second:,.0f}/s",
                *waits,
                checked,
            )
        )
    columns = ("phase", "took", "bytes", "operations", "median", "99 %", "checked")
    console.print(table(columns, rows, right="took,bytes,operations,median,99 %"))
