"""The parts of cases a, c and d that need PyTorch (`--torch`): a DataLoader, and checkpoints by
torch.save, torch.distributed.checkpoint and safetensors.

torch_loads.py performs them, in the environment of the extra `bench` that has torch.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random

from tests.bench.data.amounts import Amounts
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.places import NullPlace, Place
from tests.bench.data.small_files import create, file_set
from tests.dev.extras import python_of

PACKAGES = ("torch", "numpy", "safetensors")
PROGRAM = Path(__file__).with_name("torch_loads.py")
SECONDS_MAX = 900
WORKERS = 4
COLD = f"epoch by a DataLoader, cold, {WORKERS} workers"
WARM = f"epoch by a DataLoader, warm, {WORKERS} workers"
SAVE = "torch.save and fsync"
SAVE_FREE = "torch.save: until it goes on"
CHECKPOINT = "torch.distributed.checkpoint"
LOAD = "torch.load with mmap, cold, every byte touched"
RESTORE = "safetensors load, cold, every byte touched"


def _rows(_: Amounts) -> Iterator[Row]:
    yield Row(COLD, "files/s", (Bar(Than.LOCAL, 0.5), Bar(Than.PEERS, 3.0)))
    yield Row(WARM, "files/s", (Bar(Than.LOCAL, 0.45), Bar(Than.PEERS, 4.0)))
    writes = (Bar(Than.LOCAL, 0.65), Bar(Than.PEERS, 2.5))
    yield Row(SAVE, "MB/s", writes)
    yield Row(SAVE_FREE, "MB/s")
    yield Row(CHECKPOINT, "MB/s", writes)
    reads = (Bar(Than.LOCAL, 0.7), Bar(Than.PEERS, 2.5))
    yield Row(LOAD, "MB/s", reads)
    yield Row(RESTORE, "MB/s", reads)


def perform(
    python: str, program: Path, action: str, given: Mapping[str, object], path: str = ""
) -> dict[str, float]:
    """What a program for the environment with torch has measured. path: where it finds modules."""
    done = subprocess.run(
        [python, str(program), action],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        input=json.dumps(given),
        env={**os.environ, "PYTHONPATH": path} if path else None,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{action}: {done.stderr.strip()[-300:]}")
    seen: dict[str, float] = json.loads(done.stdout)
    return seen


def _torch(python: str, action: str, **given: object) -> dict[str, float]:
    return perform(python, PROGRAM, action, given)


def _run(python: str, place: Place, amounts: Amounts) -> Values:
    if isinstance(place, NullPlace):
        return {}
    values: dict[str, float] = {}
    files = file_set(place.folder, amounts)
    create(files, place.folder, amounts)
    paths = list(files.paths)
    place.chill()
    for seed, row in enumerate((COLD, WARM)):
        Random(seed).shuffle(paths)
        seen = _torch(python, "epoch", paths=paths, workers=WORKERS)
        values[row] = seen["count"] / seen["seconds"]
    return {**values, **_checkpoints(python, place, amounts)}


def _checkpoints(python: str, place: Place, amounts: Amounts) -> Values:
    values: dict[str, float] = {}
    size = amounts.stream_bytes
    for row, action in ((SAVE, "save"), (CHECKPOINT, "checkpoint")):
        os.sync()
        seen = _torch(python, action, path=str(place.folder / action), size=size)
        values[row] = seen["count"] / seen["seconds"] / 1e6
        if "free_s" in seen:
            values[SAVE_FREE] = seen["count"] / seen["free_s"] / 1e6
    _torch(python, "store", path=str(place.folder / "store"), size=size)
    for row, action, file in ((LOAD, "load", "save"), (RESTORE, "restore", "store")):
        place.chill()
        seen = _torch(python, action, path=str(place.folder / file))
        values[row] = seen["count"] / seen["seconds"] / 1e6
    return values


def training() -> Case:
    """Installs PyTorch first, if it is not there yet."""
    run = partial(_run, python_of("bench", PACKAGES))
    return Case("t", "training programs", lambda amounts: tuple(_rows(amounts)), run)
