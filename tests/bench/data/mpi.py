"""Case h by ranks of MPI (`--mpi`): its patterns, and collective MPI-IO.

mpi_ranks.py is the program of each rank, in the environment of the extra `bench` that has mpi4py.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial

from tests.bench.data.amounts import Amounts
from tests.bench.data.bars import Bar, Row, Than
from tests.bench.data.case import Case, Values
from tests.bench.data.patterns import HARD, PATTERNS, SEGMENTED, STRIDED, Pattern
from tests.bench.data.places import NullPlace, Place
from tests.dev.extras import python_of
from tests.dev.steps import ROOT, StepError

FILE = "shared-by-mpi"
LAUNCHER = "mpirun"
PROGRAM = "tests.bench.data.mpi_ranks"
SECONDS_MAX = 900
_PEERS = (Bar(Than.PEERS, 2.0),)
# Root may launch ranks, and there may be fewer cores than ranks.
_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PYTHONPATH": str(ROOT),
}


@dataclass(frozen=True, slots=True)
class _Job:
    """The parameters of all ranks."""

    path: str
    pattern: int
    count: int
    reading: bool
    collective: bool


# Each pattern has a flag whether MPI-IO does it, for all ranks together.
_KINDS = ((SEGMENTED, False), (STRIDED, False), (HARD, False), (STRIDED, True), (HARD, True))


def _name(pattern: Pattern, amounts: Amounts, what: str, *, collective: bool) -> str:
    how = "collective MPI-IO" if collective else "MPI"
    return f"{what}, one file, {amounts.ranks} ranks of {how}, {pattern.name}"


def _rows(amounts: Amounts) -> Iterator[Row]:
    for pattern, collective in _KINDS:
        for what in ("write", "read"):
            yield Row(_name(pattern, amounts, what, collective=collective), "MB/s", _PEERS)


def _rate(python: str, ranks: int, job: _Job) -> float:
    """The rate in MB/s."""
    done = subprocess.run(
        [LAUNCHER, "-n", str(ranks), python, "-m", PROGRAM, json.dumps(asdict(job))],
        check=False,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**os.environ, **_ENVIRONMENT},
    )
    if done.returncode != 0:
        raise RuntimeError(f"{LAUNCHER}: {done.stderr.strip()[-300:]}")
    seen: dict[str, float] = json.loads(done.stdout)
    return seen["bytes"] / seen["seconds"] / 1e6


def _run(python: str, place: Place, amounts: Amounts) -> Values:
    values: dict[str, float] = {}
    if isinstance(place, NullPlace):
        return values
    path = place.folder / FILE
    for pattern, collective in _KINDS:
        count = max(1, amounts.rank_bytes // pattern.transfer)
        for what, reading in (("write", False), ("read", True)):
            os.sync()
            if reading:
                place.chill()
            job = _Job(str(path), PATTERNS.index(pattern), count, reading, collective)
            row = _name(pattern, amounts, what, collective=collective)
            values[row] = _rate(python, amounts.ranks, job)
        path.unlink()
    return values


def shared_by_mpi() -> Case:
    """Creates the environment that has mpi4py; raises StepError if no program there can launch
    ranks."""
    if shutil.which(LAUNCHER) is None:
        raise StepError(f"no {LAUNCHER} in PATH: install an MPI (Debian: openmpi-bin)")
    run = partial(_run, python_of("bench", ("mpi4py",)))
    return Case("mpi", "one shared file, by MPI", lambda amounts: tuple(_rows(amounts)), run)
