"""The part of case a that needs braidfs.data and PyTorch (`--torch`): epochs over small files whose
batches are read in one call, against files read one by one; the order announced, or not; how long
it takes to list a tree, and to load an index.

torch_batches.py performs it, in the environment of the extra `bench` that has torch.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.bench.data.amounts import Amounts
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.places import BraidPlace, NullPlace, Place
from tests.bench.data.small_files import create, file_set
from tests.bench.data.training import PACKAGES, perform
from tests.dev.build import READER_FOLDER
from tests.dev.extras import python_of
from tests.dev.steps import ROOT

PROGRAM = Path(__file__).with_name("torch_batches.py")
SINGLE = "epoch by a DataLoader, cold, 1 worker, one by one"
BATCHES = "epoch by a DataLoader, cold, 1 worker, batches of 64 in one call"
UNTOLD = "epoch by a DataLoader, cold, 4 workers, batches of 64 in one call"
TOLD = f"{UNTOLD}, announced"
READ_CPU = "CPU of the program per file, cold, batches of 64 in one call"
SCAN = "Index.scan, cold"
LOAD = "Index.load, 1,000,000 files"
SCANNED_MIN = 1_000_000 / 15  # files a second


def _rows(_: Amounts) -> Iterator[Row]:
    yield Row(SINGLE, "files/s")
    yield Row(BATCHES, "files/s", (Bar(Than.ITSELF, 1.8, row=SINGLE),))
    yield Row(UNTOLD, "files/s")
    yield Row(TOLD, "files/s", (Bar(Than.ITSELF, 1.25, row=UNTOLD),))
    yield Row(READ_CPU, "µs", (Bar(Than.VALUE, 70.0, at_most=True),), less_is_better=True)
    yield Row(SCAN, "files/s", (Bar(Than.VALUE, SCANNED_MIN),))
    yield Row(LOAD, "ms", (Bar(Than.VALUE, 200.0, at_most=True),), less_is_better=True)


def _torch(python: str, action: str, **given: object) -> dict[str, float]:
    return perform(python, PROGRAM, action, given, f"{ROOT}:{READER_FOLDER}")


def _run(python: str, place: Place, amounts: Amounts) -> Values:
    if isinstance(place, NullPlace):
        return {}
    create(file_set(place.folder, amounts), place.folder, amounts)
    file = str(place.folder / "index")
    place.chill()
    seen = _torch(python, "scan", root=str(place.folder / "set"), file=file)
    values = {SCAN: seen["count"] / seen["seconds"]}

    def cold(action: str, **given: object) -> dict[str, float]:
        place.chill()
        return _torch(python, action, file=file, **given)

    for row, action, given in (
        (SINGLE, "single", {"workers": 1, "seed": 1}),
        (BATCHES, "batches", {"workers": 1, "seed": 2, "announced": False}),
        (UNTOLD, "batches", {"workers": 4, "seed": 3, "announced": False}),
        (TOLD, "batches", {"workers": 4, "seed": 4, "announced": True}),
    ):
        if row != TOLD or isinstance(place, BraidPlace):
            seen = cold(action, **given)
            values[row] = seen["count"] / seen["seconds"]
    seen = cold("read", seed=5)
    values[READ_CPU] = seen["cpu_s"] / seen["count"] * 1e6
    seen = _torch(python, "load", file=str(place.folder / "large"))
    values[LOAD] = seen["seconds"] * 1e3
    return values


def data_sets() -> Case:
    """Installs PyTorch first, if it is not there yet."""
    run = partial(_run, python_of("bench", PACKAGES))
    return Case("u", "data sets of braidfs.data", lambda amounts: tuple(_rows(amounts)), run)
