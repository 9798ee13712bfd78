"""braidfs bench: measures network, storage and metadata of the installed cluster."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from ..validate.outcome import Findings, Outcome
from ..validate.run import Run
from ..validate.suites import BENCHES
from .frame import EXIT_DONE, EXIT_UNHEALTHY, Command, json_option, show
from .measuring import Wishes, measure, measuring, plans
from .terminal import table
from .words import latency

_PARTS = tuple(BENCHES)


@click.command(
    cls=Command,
    examples=[
        ("braidfs bench /data", "All three parts on this node: a minute and a half."),
        (
            "braidfs bench /data --hosts 'gpu[01-16]' --part network",
            "What sixteen nodes together read from the servers' memory, over ssh.",
        ),
        (
            "braidfs bench /data --part storage --seconds 60 --size 16G --json",
            "Files larger than the memory of the servers, for programs.",
        ),
    ],
    exits={EXIT_UNHEALTHY: "bytes were read wrong"},
)
@click.option(
    "--part",
    "parts",
    type=click.Choice(_PARTS),
    multiple=True,
    help="Only this part; may be repeated. [default: all]",
)
@measuring
@json_option
def bench(
    paths: tuple[str, ...],
    hosts: str | None,
    ssh: str,
    parts: tuple[str, ...],
    resume: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Measure network, storage and metadata of the cluster through its mounts, one after the other.

    network: bytes that storage servers have in memory, so that no disk slows them: the round trip
    of 4 KiB, and the highest rate. storage: large files are written until they are on stable
    storage, read back and read at random, and small appends are synced one by one; to measure the
    disks, files must be larger than the memory of the servers (--size). metadata: names are made,
    looked up and removed, and small files with bytes. All nodes do each phase together, and each
    node reads what another one wrote. Everything happens in a folder .braidfs-validate-* below
    PATH, which is removed at the end, also after Ctrl-C; results that were finished by then are
    kept for --resume. braidfs validate checks bytes as well, and says for how many GPUs a cluster
    is enough.
    """
    chosen = tuple(part for part in _PARTS if part in (parts or _PARTS))
    wishes = Wishes(suite="bench", **given)
    run = Run(wishes.suite, wishes.amounts(), wishes.any_file_system, chosen)
    findings = measure(run, plans(paths, hosts, ssh), as_json, resumes=resume)
    groups = _groups(chosen, findings)
    show(_json(run, groups, findings), as_json, lambda console: _print(console, groups, findings))
    return EXIT_UNHEALTHY if findings.damage else EXIT_DONE


def _groups(parts: Sequence[str], findings: Findings) -> dict[str, list[Outcome]]:
    """The outcomes by part, in the order in which they were measured."""
    left = iter(findings.outcomes)
    return {part: [next(left) for _ in BENCHES[part]] for part in parts}


def _json(run: Run, groups: dict[str, list[Outcome]], findings: Findings) -> dict[str, Any]:
    names = [node.name for node in findings.nodes]
    return {
        "began_ns": findings.began_ns,
        "seconds": round(findings.seconds, 3),
        "amounts": asdict(run.amounts),
        "nodes": [asdict(node) for node in findings.nodes],
        "parts": {part: [one.as_json(names) for one in found] for part, found in groups.items()},
        "damage": findings.damage,
    }


def _print(console: Console, groups: dict[str, list[Outcome]], findings: Findings) -> None:
    count = len(findings.nodes)
    rows = []
    for part, outcomes in groups.items():
        for one in outcomes:
            whole = one.whole
            rate = f"{whole.bytes_per_second / 1e6:,.1f} MB/s" if whole.bytes else ""
            rows.append(
                (
                    part if one is outcomes[0] else "",
                    one.phase.title,
                    rate,
                    f"{whole.operations_per_second:,.0f}/s",
                    latency(whole.p50_us),
                    latency(whole.p99_us),
                )
            )
    columns = ("", "phase", "bytes", "operations", "median", "99 %")
    console.print(f"{count} node{'s' if count != 1 else ''}, {findings.seconds:.0f} s")
    console.print(table(columns, rows, right="bytes,operations,median,99 %"))
    for text in findings.damage:
        console.print(f"[red]damaged:[/] {text}")
