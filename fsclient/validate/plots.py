"""Bars as SVG: no script, no font of its own, readable in light and dark. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

ROW: Final = 26
LABEL: Final = 250
WIDTH: Final = 820
VALUE: Final = 120


@dataclass(frozen=True, slots=True)
class Bar:
    """text: the value as people read it. kind: a class of the style sheet."""

    label: str
    value: float
    text: str
    kind: str = "read"


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across all bars."""

    value: float
    text: str


def bars(title: str, rows: Sequence[Bar], marks: Sequence[Mark] = ()) -> str:
    """Horizontal bars from zero, all on one scale."""
    most = max([row.value for row in rows] + [mark.value for mark in marks] + [1e-9])
    room = WIDTH - LABEL - VALUE
    top = 18 if marks else 4
    height = top + ROW * len(rows) + 6
    parts = [
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'
    ]
    for index, row in enumerate(rows):
        y = top + index * ROW
        length = max(1.0, row.value / most * room)
        parts.append(
            f'<text x="{LABEL - 8}" y="{y + 17}" class="label">{escape(row.label)}</text>'
            f'<rect x="{LABEL}" y="{y + 4}" width="{length:.1f}" height="{ROW - 8}" rx="3"'
            f' class="{escape(row.kind, quote=True)}"/>'
            f'<text x="{LABEL + length + 6:.1f}" y="{y + 17}">{escape(row.text)}</text>'
        )
    for mark in marks:
        x = LABEL + mark.value / most * room
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 2}" y2="{height - 4}" class="mark"/>'
            f'<text x="{x:.1f}" y="{top - 6}" class="mark">{escape(mark.text)}</text>'
        )
    return "".join([*parts, "</svg></figure>"])
