"""`./dev bench smoke`: interleaved rounds of every case on every system, medians, bars.

One round runs each case on BraidFS, local ext4 and null FUSE in turn, so that a slow minute of the
machine affects all three. The table goes to the terminal, all values to results/*.json. The exit
code says whether every least bar was met.
"""

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.cases import CREATES, SMOKE, Case, prepare, run_creates, run_fio
from tests.bench.report import write_results
from tests.bench.state import settle
from tests.bench.systems import CLIENT_BUDGET_MIB, Systems, running
from tests.dev.build import build
from tests.dev.steps import console

RSS_ALLOWANCE_MIB = 200


@dataclass
class Measured:
    """Every run of every case: case name → system → values."""

    runs: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def median(self, case: Case, system: str) -> float | None:
        values = self.runs[case.name].get(system)
        return statistics.median(values) if values else None

    def ratio(self, case: Case, other: str) -> float | None:
        mine, its = self.median(case, "braidfs"), self.median(case, other)
        return mine / its if mine and its else None


def smoke(rounds: int) -> bool:
    """True when every bar was met."""
    build(tests=True)
    measured = Measured()
    with running() as systems:
        console.print("writing the files that are read")
        prepare(systems.braid, local=False)
        prepare(systems.local, local=True)
        for round_ in range(rounds):
            _round(systems, measured, f"round {round_ + 1} of {rounds}")
        rss = systems.client_rss_mib()
    table, failures = _judge(measured)
    Console(width=max(console.width, 118)).print(table)
    print(f"client's largest RSS: {rss:.0f} MiB (budget {CLIENT_BUDGET_MIB} + {RSS_ALLOWANCE_MIB})")
    if rss > CLIENT_BUDGET_MIB + RSS_ALLOWANCE_MIB:
        failures.append(f"the client's RSS reached {rss:.0f} MiB")
    content = {
        "client_rss_mib": rss,
        "failures": failures,
        "cases": {
            case.name: {"unit": case.unit, "runs": measured.runs[case.name]}
            for case in (*SMOKE, CREATES)
        },
    }
    print(f"all runs: {write_results('smoke', content)}")
    for failure in failures:
        print(f"below the bar: {failure}")
    return not failures


def _round(systems: Systems, measured: Measured, text: str) -> None:
    for case in (*SMOKE, CREATES):
        for system, folder in systems.folders().items():
            _show(f"  {text}: {case.name}: {system}")
            settle()
            value = run_creates(folder) if case is CREATES else _run(case, system, folder)
            if value is not None:
                measured.runs[case.name][system].append(value)
    _show("")
    console.print(f"  {text} done")


def _show(text: str) -> None:
    """Shows the line of progress, only where there is a terminal to overwrite it."""
    if console.is_terminal:
        console.print(f"{text:<78}", end="\r", soft_wrap=True)


def _run(case: Case, system: str, folder: Path) -> float | None:
    if system == "nullfs" and "--unlink=1" in case.words:
        return None  # it has only its own files
    ways = case.ways if system == "ext4" else case.ways[:1]
    return max(run_fio(folder, case, way) for way in ways)


def _judge(measured: Measured) -> tuple[Table, list[str]]:
    table = Table(title="BraidFS on loopback: medians")
    for name in ("case", "BraidFS", "ext4", "null FUSE", "of ext4", "of null", "least bar"):
        table.add_column(name, justify="left" if name == "case" else "right")
    failures = []
    for case in (*SMOKE, CREATES):
        bars = _bars(measured, case)
        failures += [f"{case.name}: {text}" for text, met in bars if not met]
        shown = ", ".join(f"[{'green' if met else 'red'}]{text}[/]" for text, met in bars)
        values = [
            _number(measured.median(case, system)) for system in ("braidfs", "ext4", "nullfs")
        ]
        ratios = [_ratio(measured.ratio(case, other)) for other in ("ext4", "nullfs")]
        table.add_row(f"{case.name} ({case.unit})", *values, *ratios, shown or "-")
    return table, failures


def _bars(measured: Measured, case: Case) -> list[tuple[str, bool]]:
    found = []
    for least, other in ((case.least_of_null, "nullfs"), (case.least_of_local, "ext4")):
        if least is not None:
            got = measured.ratio(case, other) or 0.0
            found.append((f"{got:.2f} of {other}, at least {least}", got >= least))
    if case.least_value is not None:
        value = measured.median(case, "braidfs") or 0.0
        found.append((f"{value:.0f}, at least {case.least_value:.0f}", value >= case.least_value))
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
