"""Checks of the suite itself: every case says its sentence, differences are documented, none is
stale.
"""

import ast
from pathlib import Path

import pytest

from tests.fuse.posix.differences import DIFFERENCES

HERE = Path(__file__).parent
SEMANTICS = HERE.parents[2] / "docs" / "SEMANTICS.md"


def _cases() -> dict[str, str]:
    """file::function → docstring, of every case."""
    found = {}
    for path in HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            if any(argument.arg == "d" for argument in node.args.args):
                found[f"{path.stem}::{node.name}"] = ast.get_docstring(node) or ""
    return found


def test_every_case_has_its_sentence() -> None:
    assert [name for name, text in _cases().items() if len(text) < 12] == []


def test_differences_name_cases_that_exist() -> None:
    cases = _cases()
    assert [name for name in DIFFERENCES if name.split("[")[0] not in cases] == []


def test_differences_are_told_to_users() -> None:
    told = SEMANTICS.read_text()
    reasons = {difference.reason for difference in DIFFERENCES.values()}
    assert [reason for reason in sorted(reasons) if f"| {reason} |" not in told] == []


def test_the_suite_is_large(request: pytest.FixtureRequest) -> None:
    """At least 600 cases for each file system, counted when the whole suite was collected."""
    items = [item for item in request.session.items if item.path.parent == HERE]
    if len({item.path for item in items}) < len(list(HERE.glob("test_*.py"))):
        return
    assert sum("ext4" in item.name for item in items) >= 600
