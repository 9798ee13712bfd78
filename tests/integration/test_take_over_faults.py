"""Take-overs, one after the other, while four mounts are worked on.

The active metaserver is killed, stopped and let go on, cut off from everybody or from the journal's
engine alone, ended, and told to hand over. Programs see a pause, which is printed, and no error;
nothing that was answered as durable is missing; no client opens a file again that it has open; and
the histories of other programs are linearizable.

BRAIDFS_TAKE_OVERS says how many, BRAIDFS_TAKE_OVER_KINDS of which kinds (a,b,c), BRAIDFS_TEST_SEED
in which order, and BRAIDFS_TAKE_OVER_ENGINE over which engine (etcd or postgresql).
"""

import os
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.groups import (
    ASKS_AGAIN,
    CRASHES,
    FAULTS,
    PLANNED,
    Fault,
    Figure,
    Group,
    running_group,
)
from tests.cluster.networks import why_no_networks
from tests.cluster.plan import ETCD
from tests.cluster.process import PATIENCE, wait_until
from tests.cluster.workers import Worker
from tests.coherence import histories
from tests.coherence.histories import NO_INO, Manner, Script
from tests.coherence.judging import MODELS, judge, make_scripts
from tests.model.file_models import Create, Release, TryLock
from tests.model.linearizability import Operation

pytestmark = [pytest.mark.mount, pytest.mark.expects_warnings, pytest.mark.timeout(3600 * PATIENCE)]

# What is promised, and asserted of the long form; the short one runs beside other tests.
CRASH_MEDIAN_S_MAX, CRASH_P99_S_MAX, PLANNED_MEDIAN_S_MAX = 6.0, 8.0, 0.5
SLACK_OF_SHORT_FORM = 3.0
SHORT, LONG = 6, 50  # take-overs
ENGINE = os.environ.get("BRAIDFS_TAKE_OVER_ENGINE", ETCD)
PACE_S = 0.05
LOCK_FILES = 3  # those of make_scripts
OPENED_S_MAX = 60.0 * PATIENCE
COUNT_MAX = 20_000  # the most operations of one client
ShowFigure = Callable[[str], None]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    if unable := why_no_networks():
        pytest.skip(unable)
    folder = tmp_path_factory.mktemp("take-overs")
    with running_group(folder, ENGINE) as made:
        yield made


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is broken, in which order. chance: for all else that is random."""

    faults: list[Fault]
    chance: random.Random


def _plan(test: str, count: int) -> _Plan:
    """Prints the command that repeats it."""
    seed = int(os.environ.get("BRAIDFS_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    count = int(os.environ.get("BRAIDFS_TAKE_OVERS", count))
    kinds = os.environ.get("BRAIDFS_TAKE_OVER_KINDS", ",".join(FAULTS))
    print(
        f"repeat with: BRAIDFS_TEST_SEED={seed} BRAIDFS_TAKE_OVERS={count}"
        f" BRAIDFS_TAKE_OVER_KINDS={kinds} BRAIDFS_TAKE_OVER_ENGINE={ENGINE}"
        f" ./dev test --full tests/integration/test_take_over_faults.py -k '{test}'"
    )
    chance = random.Random(seed)
    names = kinds.split(",")
    faults = [FAULTS[names[number % len(names)]] for number in range(count)]
    chance.shuffle(faults)
    return _Plan(faults, chance)


def _check(figures: Sequence[Figure], slack: float, show_figure: ShowFigure) -> None:
    by_kind = {name: [one.pause_s for one in figures if one.kind == name] for name in FAULTS}
    for name, pauses in by_kind.items():
        if pauses:
            show_figure(f"{len(pauses):2} of {name:16} {_words(pauses)}")
    if crashes := [pause_s for name in CRASHES for pause_s in by_kind[name]]:
        show_figure(f"{len(crashes):2} of all crashes    {_words(crashes)}")
        assert statistics.median(crashes) < CRASH_MEDIAN_S_MAX * slack
        assert _quantile(crashes, 0.99) < CRASH_P99_S_MAX * slack
    if planned := [pause_s for name in PLANNED for pause_s in by_kind[name]]:
        show_figure(f"{len(planned):2} of all planned    {_words(planned)}")
        assert statistics.median(planned) < PLANNED_MEDIAN_S_MAX * slack


def _words(pauses: Sequence[float]) -> str:
    return (
        f"median {statistics.median(pauses):.2f} s, 99 % {_quantile(pauses, 0.99):.2f} s,"
        f" longest {max(pauses):.2f} s"
    )


def _quantile(pauses: Sequence[float], share: float) -> float:
    return sorted(pauses)[min(len(pauses) - 1, int(len(pauses) * share))]


def _take_over(group: Group, fault: Fault, workers: list[Worker]) -> Figure:
    figure = group.broken(fault, workers)
    again = {op: figure.asked[op] for op in ASKS_AGAIN}
    print(f"{figure.kind}: {figure.pause_s:.2f} s; {again}")
    assert figure.asked["SESSION_OPEN"] >= len(group.mounts), "requests are not counted"
    assert not any(again.values()), f"files were opened again: {dict(figure.asked)}"
    return figure


def _interleaved(chance: random.Random, scripts: Sequence[Script]) -> Script:
    """One script with the operations of all, each in its order."""
    left = [list(reversed(script)) for script in scripts]
    mixed: Script = []
    while left := [one for one in left if one]:
        mixed.append(chance.choice(left).pop())
    return mixed


def _ready(client: int) -> str:
    return f"ready{client}"


def _opening(client: int) -> Script:
    """The beginning of a script: every file that is kept open is opened, and a name says so. After
    that, no OPEN is the first one of its file."""
    locks = [Release(f"lock{number}", client) for number in range(LOCK_FILES)]
    return [*locks, Create(_ready(client), NO_INO)]


def _judged(history: Sequence[Operation]) -> int:
    locks = [one for one in history if isinstance(one.argument, TryLock | Release)]
    names = [one for one in history if not isinstance(one.argument, TryLock | Release)]
    judge(locks, MODELS["locks"])
    judge(names, MODELS["names"])
    return len(history)


def _bases(group: Group, name: str) -> list[Path]:
    """A new folder, as each client sees it."""
    (group.mounts[0] / name).mkdir()
    return [mount / name for mount in group.mounts]


def test_take_overs(group: Group, tmp_path: Path, full: bool, show_figure: ShowFigure) -> None:
    plan = _plan("test_take_overs", LONG if full else SHORT)
    kinds = [make_scripts(kind, plan.chance, 4, COUNT_MAX // 2) for kind in ("names", "locks")]
    scripts = [_interleaved(plan.chance, of_client) for of_client in zip(*kinds, strict=True)]
    scripts = [_opening(client) + script for client, script in enumerate(scripts)]
    bases = _bases(group, "names")
    figures: list[Figure] = []

    def have_opened() -> bool:
        return all((bases[0] / _ready(client)).exists() for client in range(len(bases)))

    def meanwhile() -> None:
        assert wait_until(have_opened, OPENED_S_MAX), "the clients do not begin"
        with group.working(tmp_path) as workers:
            for fault in plan.faults:
                figures.append(_take_over(group, fault, workers))

    manner = Manner(PACE_S, to_the_end=False)
    history = histories.record(bases, scripts, meanwhile, manner)
    show_figure(f"{_judged(history)} operations of four clients are linearizable")
    _check(figures, PATIENCE * (1.0 if full else SLACK_OF_SHORT_FORM), show_figure)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["appends", "counter"])
def test_files_that_clients_share(
    group: Group, tmp_path: Path, kind: str, show_figure: ShowFigure
) -> None:
    """Here clients do open files again: whoever reads what another one has written."""
    plan = _plan(f"test_files_that_clients_share and {kind}", len(FAULTS))
    scripts = make_scripts(kind, plan.chance, 4, COUNT_MAX)

    def meanwhile() -> None:
        with group.working(tmp_path) as workers:
            for fault in plan.faults:
                figure = group.broken(fault, workers)
                print(f"{figure.kind}: {figure.pause_s:.2f} s")

    manner = Manner(PACE_S, to_the_end=False)
    history = histories.record(_bases(group, kind), scripts, meanwhile, manner)
    judge(history, MODELS[kind])
    show_figure(f"{len(history)} operations of four clients are linearizable")
