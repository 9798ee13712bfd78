"""What MkDocs does beside its own work for the site: it imports this file by its path (mkdocs.yml).

The pages of the root folder and of docs/man become pages of the site, and lists of GitHub's kind
become lists of Python-Markdown's kind. The navigation gets the pages of commands and measurements,
and those of decisions by theme. Pages with diagrams load Mermaid from the site itself. Nothing of
this is written into the tree.
"""

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # MkDocs runs in an environment of its own

from tests.dev.man_to_markdown import markdown, name_of, summary_of  # noqa: E402

_OF_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
_COMMANDS = "reference/commands"
_DECISIONS = "decisions/README.md"
_MEASUREMENTS = "measurements/README.md"
_MERMAID = "assets/mermaid.js"
_ITEM = re.compile(r"(?:[*-]|\d+\.) ")


def on_config(config: Any) -> Any:
    """Gives the indexes of commands, decisions and measurements the pages that they list."""
    filled: Mapping[str, Callable[[], list[Any]]] = {
        f"{_COMMANDS}/index.md": _commands,
        _DECISIONS: _decisions,
        _MEASUREMENTS: _measurements,
    }
    entries = [entry for tab in config.nav for pages in tab.values() for entry in pages]
    for entry in entries:
        for name, page in entry.items() if isinstance(entry, dict) else ():
            if isinstance(page, str) and page in filled:
                entry[name] = [page, *filled[page]()]
    return config


def on_files(files: Any, config: Any) -> Any:
    for name in _OF_ROOT:
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "man").glob("*.[18]")}
    for name, page in pages.items():
        text = markdown(page, pages)
        files.append(File.generated(config, f"{_COMMANDS}/{name}.md", content=text))
    files.append(File.generated(config, f"{_COMMANDS}/index.md", content=_index(pages)))
    files.append(File.generated(config, _MERMAID, abs_src_path=str(_mermaid())))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    text = markdown.replace("](../LICENSE)", "](LICENSE)")
    return "\n".join(_with_space_before_lists(text.split("\n")))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    if 'class="mermaid"' not in html:
        return html
    return f'{html}\n<script src="{"../" * page.url.count("/")}{_MERMAID}"></script>'


def _commands() -> list[Any]:
    paths = sorted((ROOT / "docs" / "man").glob("*.[18]"))
    return [{name_of(path.read_text()): f"{_COMMANDS}/{path.stem}.md"} for path in paths]


def _decisions() -> list[Any]:
    """By the themes of the index."""
    themes = (ROOT / "docs" / _DECISIONS).read_text().split("\n## ")[1:]
    row = re.compile(r"^\| \[(\d+)\]\((\S+)\) \| (.+?) \| ", re.M)
    return [
        {
            theme.partition("\n")[0]: [
                {f"{number} {title}": f"decisions/{page}"}
                for number, page, title in row.findall(theme)
            ]
        }
        for theme in themes
    ]


def _measurements() -> list[Any]:
    index = (ROOT / "docs" / _MEASUREMENTS).read_text()
    rows = re.findall(r"^\| \[(.+?)\]\((\S+)\) \| ", index, re.M)
    return [{title: f"measurements/{page}"} for title, page in rows]


def _mermaid() -> Path:
    """Mermaid for browsers, from a package that has it inside."""
    found = importlib.util.find_spec("mmdc")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "assets" / "mermaid.js"


def _index(pages: dict[str, str]) -> str:
    head = "# Commands\n\nEach page is the man page of the command.\n\n| command | what it does |\n"
    rows = (
        f"| [{name_of(page)}]({name}.md) | {summary_of(page)} |"
        for name, page in sorted(pages.items())
    )
    return head + "|---|---|\n" + "\n".join(rows) + "\n"


def _with_space_before_lists(lines: list[str]) -> Iterator[str]:
    """Python-Markdown begins a list only after an empty line."""
    is_code = is_list = False
    before = ""
    for line in lines:
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        is_item = not is_code and _ITEM.match(line) is not None
        if is_item and not is_list and before.strip():
            yield ""
        is_list = is_item or (is_list and line.strip() != "" and not is_fence)
        before = line
        yield line
