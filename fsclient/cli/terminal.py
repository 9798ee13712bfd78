"""Standard output for people: no characters of a name control the terminal.

Characters that do not print are made visible (fscommon.observe.visible). Cells of tables are one
line each, without markup except a colour of our own around the whole cell.
"""

import re
import sys
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.errors import MarkupError
from rich.markup import escape
from rich.table import Table

from fscommon.observe.visible import visible, visible_lines

PIPE_WIDTH: Final = 240  # columns, without a terminal
_COLOURED: Final = re.compile(r"\[[a-z ]+\][^\[\]\\]*\[/\]")


class Terminal(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        shown = [visible_lines(o) if isinstance(o, str) else o for o in objects]
        try:
            super().print(*shown, **options)
        except MarkupError:  # a name looks like the end of markup
            super().print(*shown, **{**options, "markup": False})


def terminal() -> Terminal:
    """The standard output; a pipe or file gets whole lines of any length."""
    return Terminal(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def plain(text: str) -> str:
    """Escapes text that is printed with markup around it."""
    return escape(visible(text))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> Table:
    """Makes a table. right: comma-separated names of columns that are right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    aligned = right.split(",")
    for column in columns:
        made.add_column(column, justify="right" if column in aligned else "left", no_wrap=True)
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(text: str) -> str:
    return visible(text) if _COLOURED.fullmatch(text) else plain(text)
