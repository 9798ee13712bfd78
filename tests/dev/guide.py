"""The commands and files in the guide's pages (docs/start, train, operate, reference), for tests
that run them.

A block of code without a language has commands, one a line, with remarks behind two spaces and a #.
A block of TOML that begins with `# /PATH` is the content of that file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.dev.steps import ROOT

DOCS = ROOT / "docs"
_FOLDERS = ("start", "train", "operate", "reference")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Step:
    """What a reader does at one place of a page: some commands, or writing a file."""

    section: str
    commands: tuple[str, ...] = ()
    path: str = ""
    content: str = ""


def pages() -> list[Path]:
    return [page for folder in _FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]


def text() -> str:
    """All pages of the guide."""
    return "\n".join(page.read_text() for page in pages())


def commands_in(markdown: str) -> list[str]:
    return [
        line
        for language, block in _BLOCK.findall(markdown)
        if not language
        for line in _lines(block)
    ]


def commands_of(page: str) -> list[str]:
    """The commands of a page, such as operate/replace-disk.md."""
    found = commands_in((DOCS / page).read_text())
    assert found, f"{page} has no commands"
    return found


def steps_of(page: str) -> Iterator[Step]:
    for section in re.split(r"^## ", (DOCS / page).read_text(), flags=re.M)[1:]:
        title = section.partition("\n")[0]
        for language, block in _BLOCK.findall(section):
            if not language:
                yield Step(title, commands=tuple(_lines(block)))
            elif file := re.match(r"# (/\S+)\n", block):
                yield Step(title, path=file[1], content=block)


def _lines(block: str) -> Iterator[str]:
    for line in block.splitlines():
        if command := re.sub(r"\s{2,}#.*", "", line).strip():
            yield command
