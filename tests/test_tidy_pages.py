"""Pages that list something list all of it: licences, hooks, rules, decisions, changes."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.dev import guide
from tests.dev.build import project_version
from tests.dev.check import CHECKS
from tests.test_tidy import tracked

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
INDEX = "decisions/README.md"
PARAGRAPH_MAX = 600
CELL_MAX = 200
CODE_MAX = 100
STATUS = r"in force(?:, amended by \[.+)?|superseded by \[.+|tried and left"
RULES = r"\brules?[\s/#]+(\d+(?:,? (?:and )?\d+)*)"  # a comment may break the line in between


def _required() -> set[str]:
    """The packages that somebody who installs BraidFS gets, with a journal in PostgreSQL too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["postgresql"]]
    return {re.split(r"[\[<>=~! ;]", one)[0] for one in wanted} - {"braidfs"}  # it is our own


def test_the_licence_of_every_dependency_is_on_the_page() -> None:
    rows = re.findall(r"^\| ([\w-]+) \| ([^|]+) \|", _page("LICENCES.md"), re.M)
    licences = {name: licence.strip() for name, licence in rows}
    missing = {name for name in _required() if not licences.get(name)}
    assert missing == set(), "docs/LICENCES.md has no row for them"


def test_the_licence_is_the_same_everywhere() -> None:
    """In pyproject.toml, in Debian's packages, and in the text itself."""
    licence = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    copyright_ = (ROOT / "packaging" / "debian" / "copyright").read_text()
    assert set(re.findall(r"^License: (\S+)$", copyright_, re.M)) == {licence}
    name, _, version = licence.partition("-")
    title = rf"{name} License\s+Version {re.escape(version)}"
    assert re.search(title, (ROOT / "LICENSE").read_text())


def test_each_quick_check_is_a_hook() -> None:
    """Only the stub is none: it needs a build."""
    config = (ROOT / ".pre-commit-config.yaml").read_text()
    hooks = re.findall(r"- id: (\S+)\n.*\n +entry: \./dev check (\S+)\n", config)
    assert len(hooks) == config.count("- id:")
    assert [name for name, _ in hooks] == [name for _, name in hooks]
    assert {name for name, _ in hooks} == set(CHECKS) - {"stub"}


def test_cited_rules_are_on_their_page() -> None:
    rules = {int(number) for number in re.findall(r"^\| (\d+) \| ", _page("RULES.md"), re.M)}
    assert rules == set(range(1, len(rules) + 1)), "a number is missing"
    unknown = {
        f"{path.relative_to(ROOT)}: {number}"
        for path in tracked("*.py", "*.cpp", "*.h", "docs/**/*.md", "docs/*.md")
        for listed in re.findall(RULES, path.read_text(), re.I)
        for number in re.findall(r"\d+", listed)
        if int(number) not in rules
    }
    assert unknown == set(), "docs/RULES.md lacks them"


def test_rules_name_tests_that_exist() -> None:
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", _page("RULES.md"), re.M)
    missing = []
    for number, cell in rows:
        tests = re.findall(r"`([\w/]+\.(?:py|cpp))::([\w.]+)`", cell)
        assert len(tests) == cell.count("`") // 2 > 0, f"rule {number}: PATH::TEST in backquotes"
        missing += [f"{path}::{name}" for path, name in tests if not _has_test(path, name)]
    assert missing == [], "docs/RULES.md names tests that are not there"


def test_the_index_of_decisions_has_each_page_once() -> None:
    pages = sorted(path.name for path in tracked("docs/decisions/*.md") if path.stem != "README")
    rows = re.findall(r"^\| \[(\d+)\]\((\S+)\) \| .+ \| (.+) \|$", _page(INDEX), re.M)
    assert sorted(page for _, page, _ in rows) == pages
    assert all(page.startswith(f"{number}-") for number, page, _ in rows)
    strange = {status for _, _, status in rows if not re.fullmatch(STATUS, status)}
    assert strange == set(), "the top of the index says which there are"
    amending = {page for _, _, status in rows for page in re.findall(r"\((\S+)\)", status)}
    assert amending <= set(pages)


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (\S+)", text, re.M)
    assert versions[0] == project_version()
    newest = text.split("\n## ")[1]
    kinds = re.findall(r"^### (\w+)", newest, re.M)
    assert set(kinds) <= {"Upgrade", "Breaking", "Added", "Changed", "Fixed", "Security"}
    head = newest.split("\n### ", 1)[0]
    assert "\n* " not in head, "a line of the changelog is below one of the headings"


def test_paragraphs_of_the_guide_are_short() -> None:
    """A longer one is broken up, or becomes a list; what fills a cell becomes text below."""
    names = ("docs/OPERATIONS.md", "docs/index.md", "docs/performance.md", "README.md")
    long = [
        f"{page.relative_to(ROOT)}: {len(part)} characters: {part[:60]}"
        for page in (*guide.pages(), *(ROOT / name for name in names))
        for part, most in _parts(page.read_text())
        if len(part) > most
    ]
    assert long == []


def test_the_index_of_measurements_has_each_page_once() -> None:
    pages = sorted(path.name for path in tracked("docs/measurements/*.md") if path.stem != "README")
    listed = re.findall(r"^\| \[.+\]\((\S+)\) \| .+ \|$", _page("measurements/README.md"), re.M)
    assert pages and sorted(listed) == pages


def test_the_performance_page_repeats_what_was_measured() -> None:
    """Each rate in its table is in the measurement that it cites."""
    page = _page("performance.md")
    cited = {
        run: (DOCS / name).read_text()
        for run, name in re.findall(r"^\| (\w) \| .*\((measurements/\S+)\) \|$", page, re.M)
    }
    rows = re.findall(r"^\| (.+) \| [\d-]{10} \| (\w) \|$", page, re.M)
    missing = [
        f"{number} ({run}, {row.partition(' |')[0]})"
        for row, run in rows
        for cell in row.split(" | ")[1:5]
        for number in re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", cell)
        if not re.search(rf"(?<![\d.,]){re.escape(number)}(?!\d|[.,]\d)", cited[run])
    ]
    assert rows and missing == []


def test_commands_of_the_guide_need_no_scrolling() -> None:
    long = [
        f"{page.relative_to(DOCS)}: {line}"
        for page in guide.pages()
        for block in re.findall(r"^```.*?^```$", page.read_text(), re.M | re.S)
        for line in block.splitlines()
        if len(line) > CODE_MAX
    ]
    assert long == [], "say in the text what the remark says"


def test_the_guide_lists_its_pages() -> None:
    listed = re.findall(r"^\| \[.+\]\((\S+)\) \| .+ \|$", _page("OPERATIONS.md"), re.M)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in guide.pages())


def _parts(markdown: str) -> Iterator[tuple[str, int]]:
    """Paragraphs, items of lists and cells of tables, each with the most that it may have."""
    prose = re.sub(r"^ *```.*?^ *```$", "", markdown, flags=re.M | re.S)
    for block in re.split(r"\n\s*\n", prose):
        if block.startswith("|"):
            yield from ((cell, CELL_MAX) for cell in re.split(r" ?\| ?", block))
        else:
            yield from ((part, PARAGRAPH_MAX) for part in re.split(r"\n(?=[*-] |\d+\. )", block))


def _has_test(path: str, name: str) -> bool:
    """name: a function of Python, or SUITE.NAME of GoogleTest."""
    file = ROOT / path
    suite, _, case = name.rpartition(".")
    wanted = rf"^TEST(?:_F|_P)?\({suite}, {case}\)" if suite else rf"^(?:async )?def {case}\("
    return file.exists() and re.search(wanted, file.read_text(), re.M) is not None


def _page(name: str) -> str:
    return (DOCS / name).read_text()
