"""Two processes that share the tests run each of them once (tests.dev.beside)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import cast

import pytest

from tests.dev.beside import FOLDERS, WHOLE_FOLDERS, Units
from tests.dev.steps import ROOT


@dataclass(frozen=True, slots=True)
class Item:
    path: Path
    name: str


WHOLE = WHOLE_FOLDERS[0]
FILES = ("tests/a.py", f"{WHOLE}/b.py", "tests/c.py", f"{WHOLE}/d.py", "tests/unit/e.py")
ITEMS = [Item(ROOT / file, name) for file in FILES for name in ("first", "second")]


def _taken(claims: Path, *, is_beside: bool) -> Iterator[Item]:
    units = Units(cast(list[pytest.Item], ITEMS), claims, is_beside=is_beside)
    return cast(Iterator[Item], units.taken())


def test_each_test_is_run_once(tmp_path: Path) -> None:
    both = (_taken(tmp_path, is_beside=False), _taken(tmp_path, is_beside=True))
    rows = list(zip_longest(*both))
    run = [item for row in rows for item in row if item is not None]
    assert len(run) == len(ITEMS) and set(run) == set(ITEMS)
    assert all(any(row[process] for row in rows) for process in (0, 1))
    for process in (0, 1):  # a file, or a whole folder, is run by one process
        names = [str(row[process].path) for row in rows if row[process] is not None]
        assert all(names.count(name) == 2 for name in names)
        assert sum(WHOLE in name for name in names) in (0, 4)


def test_the_process_beside_begins_with_what_needs_no_mount(tmp_path: Path) -> None:
    order = [item.path for item in _taken(tmp_path, is_beside=True)]
    assert order[0] == ROOT / "tests/unit/e.py" and order[-1] == ROOT / "tests/a.py"


def test_what_is_named_exists() -> None:
    assert [name for name in (*FOLDERS, *WHOLE_FOLDERS) if not (ROOT / name).exists()] == []
