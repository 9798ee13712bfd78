"""Draws the results of `./dev bench data`: one SVG for each case, with grouped bars.

The Python of the extra `bench`, which has matplotlib, runs it: `python -m tests.bench.data.plots
RESULTS.json FOLDER`. Each row is drawn relative to the best system in it, so that files a second
and bytes a second fit in one picture; the value is written at its bar.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

COLORS = {"braidfs": "#1f6feb", "ext4": "#7d8590", "nullfs": "#bdc4cc"}
OTHERS = ("#d29922", "#3fb950", "#a371f7", "#db6d28")
ROW_INCHES = 0.17


def color_of(system: str, systems: list[str]) -> str:
    others = [one for one in systems if one not in COLORS]
    return COLORS.get(system) or OTHERS[others.index(system) % len(OTHERS)]


def number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw(group: dict[str, Any], systems: list[str], path: Path) -> None:
    # Only the environment of the extra has it.
    import matplotlib  # type: ignore[import-not-found] # noqa: PLC0415

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "braidfs"  # the same results give the same file
    # Text stays text, which takes a tenth of the size.
    matplotlib.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt  # type: ignore[import-not-found] # noqa: PLC0415

    rows = [row for row in group["rows"] if row["medians"]]
    bars = [(row, one) for row in rows for one in systems if one in row["medians"]]
    height = 1.0 + ROW_INCHES * (len(bars) + len(rows))
    figure, axes = plt.subplots(figsize=(9.5, height))
    y, ticks, seen = 0.0, [], set()
    for row in rows:
        best = max(row["medians"].values()) or 1.0
        first = y
        for system in (one for one in systems if one in row["medians"]):
            value = row["medians"][system]
            label = None if system in seen else system
            seen.add(system)
            axes.barh(y, value / best, 0.9, color=color_of(system, systems), label=label)
            axes.text(value / best + 0.006, y, number(value), va="center", fontsize=6.5)
            y += 1
        ticks.append(((first + y - 1) / 2, f"{row['name']} ({row['unit']})".replace(" ()", "")))
        y += 0.8
    axes.set_yticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12)
    axes.set_xticks([])
    axes.set_title(f"{group['title']}: each row relative to the best in it", fontsize=9)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def main() -> None:
    content = json.loads(Path(sys.argv[1]).read_text())
    for group in content["groups"]:
        if any(row["medians"] for row in group["rows"]):
            name = re.sub(r"\W+", "-", group["title"])
            draw(group, content["systems"], Path(sys.argv[2]) / f"{name}.svg")


if __name__ == "__main__":
    main()
