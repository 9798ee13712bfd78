"""The results of a run for people: tables on the terminal, Markdown for docs, plots."""

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.dev.extras import python_of
from tests.dev.steps import ROOT, console, quiet_step

_COLORS = {True: "green", False: "red", None: "yellow"}


def number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values: Sequence[float]) -> str:
    """The median, and for several runs how far apart they were."""
    middle = statistics.median(values)
    if len(values) < 2:
        return number(middle)
    low, high = min(values), max(values)
    return f"{number(middle)} ({number(low)} to {number(high)})"


def show(content: Mapping[str, Any]) -> None:
    for group in content["groups"]:
        table = Table(title=f"{group['title']}: medians, rounds: {content['rounds']}")
        for column in ("row", *content["systems"], "bars"):
            table.add_column(column, justify="left" if column in ("row", "bars") else "right")
        for row in group["rows"]:
            cells = [
                spread(row["runs"][one]) if one in row["runs"] else "-"
                for one in content["systems"]
            ]
            bars = "\n".join(
                f"[{_COLORS[one['met']]}]{escape(one['text'])}[/]" for one in row["bars"]
            )
            table.add_row(escape(f"{row['name']} ({row['unit']})".replace(" ()", "")), *cells, bars)
        Console(width=max(console.width, 150)).print(table)
    for system, busy in content["busy_with_other_work"].items():
        print(
            f"{system}: others kept the cores busy just before its cases: median"
            f" {statistics.median(busy):.0%}, at most {max(busy):.0%}"
        )
    for text in content["failures"]:
        print(f"could not be measured: {text}")
    for text in content["below"]:
        print(f"below the bar: {text}")


def markdown(content: Mapping[str, Any]) -> str:
    """The tables as they are in docs/measurements."""
    lines = []
    systems = content["systems"]
    for group in content["groups"]:
        lines += [
            "",
            f"| {group['title']} | {' | '.join(systems)} | bars |",
            f"|---|{'---|' * len(systems)}---|",
        ]
        for row in group["rows"]:
            cells = [spread(row["runs"][one]) if one in row["runs"] else "-" for one in systems]
            bars = "; ".join(_said(one) for one in row["bars"])
            name = f"{row['name']} ({row['unit']})".replace(" ()", "")
            lines.append(f"| {name} | {' | '.join(cells)} | {bars} |")
    return "\n".join(lines) + "\n"


def _said(bar: Mapping[str, Any]) -> str:
    ends = {True: ": met", False: ": **not met**", None: ""}
    return f"{bar['text']}{ends[bar['met']]}"


def draw(results: Path, folder: Path) -> None:
    """Draws SVG with matplotlib, which the environment of the extra `bench` has."""
    folder.mkdir(parents=True, exist_ok=True)
    python = python_of("bench", ("matplotlib",))
    words = [python, "-m", "tests.bench.data.plots", str(results), str(folder)]
    quiet_step("Plots", words, environment={"PYTHONPATH": str(ROOT)})
    console.print(f"plots: {folder}")


if __name__ == "__main__":
    import json

    print(markdown(json.loads(Path(sys.argv[1]).read_text())), end="")
