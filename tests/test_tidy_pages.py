"""Pages that list something list all of it: licences, hooks."""

import re
import tomllib
from pathlib import Path

from tests.dev.check import CHECKS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def _required() -> set[str]:
    """The packages that somebody who installs BraidFS gets, with a journal in PostgreSQL too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["postgresql"]]
    return {re.split(r"[\[<>=~! ;]", one)[0] for one in wanted}


def test_the_licence_of_every_dependency_is_on_the_page() -> None:
    rows = re.findall(r"^\| ([\w-]+) \| ([^|]+) \|", (DOCS / "LICENCES.md").read_text(), re.M)
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
