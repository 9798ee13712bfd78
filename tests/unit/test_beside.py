"""Three processes that share the tests run each of them once (tests.dev.beside)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import cast

import pytest

from tests.dev.beside import CLUSTERS, COMPUTING, GROUPS, WHOLE_FOLDERS, Units
from tests.dev.steps import ROOT


@dataclass(frozen=True, slots=True)
class Item:
    path: Path
    name: str


WHOLE = WHOLE_FOLDERS[0]
FILES = (
    "tests/a.py",
    f"{WHOLE}/b.py",
    "tests/c.py",
    f"{WHOLE}/d.py",
    "tests/unit/e.py",
    CLUSTERS[0],
    "tests/unit/f.py",
)
ITEMS = [Item(ROOT / file, name) for file in FILES for name in ("first", "second")]


def _taken(claims: Path, role: str) -> Iterator[Item]:
    units = Units(cast(list[pytest.Item], ITEMS), claims, role)
    return cast(Iterator[Item], units.taken())


def test_each_test_is_run_once(tmp_path: Path) -> None:
    rows = list(zip_longest(*[_taken(tmp_path, role) for role in GROUPS]))
    run = [item for row in rows for item in row if item is not None]
    assert len(run) == len(ITEMS) and set(run) == set(ITEMS)
    for process in range(len(GROUPS)):  # a file, or a whole folder, is run by one process
        names = [str(row[process].path) for row in rows if row[process] is not None]
        assert names and all(names.count(name) == 2 for name in names)
        assert sum(WHOLE in name for name in names) in (0, 4)


@pytest.mark.parametrize(
    ("role", "first", "last"),
    [
        ("mounts", "tests/a.py", "tests/unit/e.py"),
        ("clusters", CLUSTERS[0], "tests/unit/e.py"),
        ("computing", "tests/unit/e.py", "tests/unit/f.py"),
    ],
)
def test_each_process_begins_with_its_own(tmp_path: Path, role: str, first: str, last: str) -> None:
    order = [item.path for item in _taken(tmp_path, role)]
    assert order[0] == ROOT / first and order[-1] == ROOT / last


def test_what_is_named_exists() -> None:
    named = (*COMPUTING, *CLUSTERS, *WHOLE_FOLDERS)
    assert [name for name in named if not (ROOT / name).exists()] == []
