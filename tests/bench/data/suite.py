"""`./dev bench data`: rounds of the chosen cases on every place, then the table, JSON and plots.

In a round each case runs on BraidFS, ext4 and null FUSE in turn, and then on each peer, which runs
for that time only: on two cores even an idle one costs time. The median of the rounds counts.
Before each case the suite measures how busy the machine is with other work, waits for a while when
that is much, and reports it with the results.
"""

import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.data import (
    data_sets,
    emulated_gpus,
    mixed,
    mpi,
    offload,
    page,
    random_reads,
    shared,
    small_files,
    streams,
    swap_files,
    torch_checkpoints,
    training,
)
from tests.bench.data.amounts import FULL, QUICK, Amounts
from tests.bench.data.bars import BRAID, LOCAL, NULL, Row, judge
from tests.bench.data.case import Case, empty
from tests.bench.data.cost import busy_share
from tests.bench.data.places import Place, local_places, peer, peers_in
from tests.bench.report import write_results
from tests.bench.state import settle
from tests.cluster.mounts import MountError
from tests.cluster.process import ProcessError
from tests.dev.build import build
from tests.dev.steps import StepError, console

CASES = (
    small_files.SMALL_FILES,
    random_reads.READS,
    streams.WRITES,
    streams.READS,
    mixed.MIXED,
    random_reads.LATENCY,
    shared.SHARED,
    offload.OFFLOAD,
)
TORCH_CASES: dict[str, Callable[[], Case]] = {
    "t": training.training,
    "u": data_sets.data_sets,
    "k": torch_checkpoints.torch_checkpoints,
}  # each installs PyTorch first
NAMED_CASES = {"v": emulated_gpus.EMULATED_GPUS}  # they take long, and run when they are named
COST = "g"  # it is measured during the other cases
COST_OF = "abcd"
BUSY_MAX = 0.3
QUIET_SECONDS_MAX = 10.0
UNEQUAL = 0.25
_FAILURES = (OSError, RuntimeError, subprocess.SubprocessError, MountError, ProcessError)


@dataclass
class Measured:
    """Every value of every round, and what could not be measured. `busy`: how busy other programs
    kept the cores before each case, by system."""

    values: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )  # it maps row → system → values
    failures: list[str] = field(default_factory=list)
    busy: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rounds: int = 0  # it counts rounds that were begun

    def medians(self) -> dict[tuple[str, str], float]:
        return {
            (row, system): statistics.median(values)
            for row, systems in self.values.items()
            for system, values in systems.items()
        }

    def unequal(self) -> list[str]:
        """Systems that were measured while the machine was much busier than it was for BraidFS:
        their values are no fair comparison."""
        shares = {system: statistics.median(found) for system, found in self.busy.items() if found}
        mine = shares.get(BRAID, 0.0)
        return [
            f"{system} in equal conditions: others kept {share:.0%} of the cores busy, and"
            f" {mine:.0%} when it was {BRAID}'s turn"
            for system, share in shares.items()
            if share - mine > UNEQUAL
        ]


def chosen(words: str, *, with_torch: bool = False) -> list[Case]:
    """The cases of "a,c,…"; all of them for "". With torch those of TORCH_CASES, too: the named
    ones, or all if none of them is named."""
    keys = {word.strip() for word in words.split(",") if word.strip()}
    named = keys & set(TORCH_CASES)
    if named and not with_torch:
        raise StepError(f"case {', '.join(sorted(named))}: only with --torch")
    wanted = [key for key in TORCH_CASES if with_torch and (key in named or not named)]
    own = [] if keys and keys == named else _own(keys - named)
    return own + [TORCH_CASES[key]() for key in wanted]


def _own(keys: set[str]) -> list[Case]:
    """Those that need no package but this one's; for no keys all but NAMED_CASES."""
    known = {case.key: case for case in CASES} | NAMED_CASES
    unknown = keys - set(known) - {COST}
    if unknown:
        there = f"there are a to i, v, and {', '.join(TORCH_CASES)} with --torch"
        raise StepError(f"no case {', '.join(sorted(unknown))}: {there}")
    if COST in keys:
        keys |= set(COST_OF)
    keys = keys or set(known) - set(NAMED_CASES)
    return [case for key, case in known.items() if key in keys]


def measure(measured: Measured, place: Place, case: Case, amounts: Amounts, text: str) -> None:
    """Runs one case in one place; a failure is recorded, and the other cases go on."""
    began = time.monotonic()
    try:
        settle()
        for row, value in case.run(place, amounts).items():
            measured.values[row][place.name].append(value)
    except _FAILURES as error:
        measured.failures.append(f"{case.title} on {place.name}: {error}")
        console.print(f"  {measured.failures[-1]}", markup=False)
    finally:
        empty(place)
    seconds = time.monotonic() - began
    console.print(f"  {text}: {case.title}: {place.name} ({seconds:.0f} s)", markup=False)


def run_rounds(
    measured: Measured, cases: Sequence[Case], amounts: Amounts, rounds: int, ups: Sequence[Path]
) -> None:
    with local_places() as places:
        for number in range(1, rounds + 1):
            text = f"round {number} of {rounds}"
            measured.rounds = number
            for case in cases:
                for place in places:
                    measured.busy[place.name].append(_quiet())
                    measure(measured, place, case, amounts, text)
            for up in ups:
                _peer(measured, up, cases, amounts, text)


def _quiet() -> float:
    """Waits, for a limited time, for a moment in which other programs leave most of the cores free;
    returns how busy the cores are then."""
    deadline = time.monotonic() + QUIET_SECONDS_MAX
    while (busy := busy_share(time.sleep)) > BUSY_MAX and time.monotonic() < deadline:
        time.sleep(5)
    return busy


def _peer(measured: Measured, up: Path, cases: Sequence[Case], amounts: Amounts, text: str) -> None:
    try:
        with peer(up) as place:
            for case in cases:
                measured.busy[place.name].append(_quiet())
                measure(measured, place, case, amounts, text)
    except _FAILURES as error:
        measured.failures.append(f"{up.name}: {error}")


@dataclass(frozen=True, slots=True)
class Wishes:
    """`cases`: their letters; all of them for ""."""

    cases: str = ""
    rounds: int = 3
    peers: Path | None = None
    quick: bool = False
    plots: Path | None = None
    torch: bool = False
    mpi: bool = False
    deepspeed: bool = False


def data(wishes: Wishes) -> bool:
    """True when every bar that could be judged was met."""
    cases = chosen(wishes.cases, with_torch=wishes.torch)
    if wishes.mpi:
        cases.append(mpi.shared_by_mpi())
    if wishes.deepspeed:
        cases.append(swap_files.swap_files())
    amounts = QUICK if wishes.quick else FULL
    ups = peers_in(wishes.peers)
    build(tests=True)
    measured = Measured()
    began = time.strftime("%Y-%m-%d %H:%M")
    try:
        run_rounds(measured, cases, amounts, wishes.rounds, ups)
    except KeyboardInterrupt:
        measured.failures.append("what came after Ctrl-C")
    systems = [BRAID, LOCAL, NULL, *(up.name.removesuffix("-up") for up in ups)]
    rows = {case.title: list(case.rows(amounts)) for case in cases}
    content = results(measured, rows, systems)
    content |= {
        "command": " ".join(["./dev", "bench", *sys.argv[2:]]),
        "began": began,
        "rounds": measured.rounds,
        "amounts": asdict(amounts),
    }
    path = write_results("data", content)
    page.show(content)
    print(f"all runs: {path}")
    if wishes.plots:
        page.draw(path, wishes.plots)
    return not content["below"] and not content["failures"]


def results(
    measured: Measured, rows: dict[str, list[Row]], systems: Sequence[str]
) -> dict[str, Any]:
    """The content of the JSON file, from which the table and the plots are made."""
    medians = measured.medians()
    peers = [one for one in systems if one not in (BRAID, LOCAL, NULL)]
    groups, below = [], []
    for title, found in rows.items():
        lines = []
        for row in found:
            verdicts = judge(row, medians, peers)
            below += [f"{row.name}: {one.text}" for one in verdicts if one.met is False]
            runs = dict(measured.values.get(row.name, {}))
            lines.append(
                {
                    "name": row.name,
                    "unit": row.unit,
                    "runs": runs,
                    "medians": {one: medians[row.name, one] for one in runs},
                    "bars": [asdict(one) for one in verdicts],
                }
            )
        groups.append({"title": title, "rows": lines})
    return {
        "systems": list(systems),
        "groups": groups,
        "below": below,
        "failures": [*measured.failures, *measured.unequal()],
        "busy_with_other_work": {one: list(found) for one, found in measured.busy.items()},
    }
