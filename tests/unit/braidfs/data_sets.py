"""Trees of files with known bytes, and both kinds of reading threads and of listers, for tests of
braidfs.data."""

import importlib
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from braidfs.data import reading
from braidfs.data.listing import Lister, native_lister, python_lister
from braidfs.data.pools import Pool, PoolOfProcess, PythonPool

KINDS = ("native", "python")


def native_pool() -> Pool:
    """`./dev build` builds it: without it these tests fail, as users would wait twice as long."""
    found: Pool = importlib.import_module("_braidfs_reader").Pool()
    return found


def make_pool(kind: str) -> Pool:
    return native_pool() if kind == "native" else PythonPool()


def make_lister(kind: str) -> Lister:
    return native_lister() if kind == "native" else python_lister


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """read_files() uses threads of this kind."""
    chosen: str = request.param
    monkeypatch.setattr(reading, "_pool", PoolOfProcess(lambda: make_pool(chosen)))
    yield chosen


def make_tree(root: Path, count: int = 40, *, seed: int = 1) -> Mapping[str, bytes]:
    """Writes files into a few folders; sizes are at and around multiples of a page. Returns their
    bytes by their paths below the root."""
    source = random.Random(seed)
    sizes = [0, 1, 4095, 4096, 4097, 8192, 100_000]
    made = {}
    for number in range(count):
        name = f"{'abc'[number % 3]}/{'deep/' * (number % 2)}file-{number:04}.jpg"
        made[name] = source.randbytes(sizes[number % len(sizes)])
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made[name])
    return made
