"""Two and four clients; what they saw is judged: linearizable, also while servers die.

Scripts are random; the seed is printed and can be given again as BRAIDFS_TEST_SEED. The checker and
the models are those of tests/model, which test them by themselves.
"""

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.coherence import histories
from tests.coherence.conftest import MountMaker
from tests.conftest import ClusterMaker
from tests.model.file_models import Appends, Counter, Locks, Names
from tests.model.linearizability import Model, check

pytestmark = [pytest.mark.mount, pytest.mark.timeout(1200)]

Sized = Callable[[int, int], int]


def _chance() -> random.Random:
    seed = int(os.environ.get("BRAIDFS_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"repeat with BRAIDFS_TEST_SEED={seed}")
    return random.Random(seed)


def _judge(
    bases: Sequence[Path], scripts: Sequence[histories.Script], model: Model,
    meanwhile: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    history = histories.record(bases, scripts, meanwhile)
    assert len(history) == sum(map(len, scripts))
    verdict = check(history, model)
    if not verdict:
        left = [one for one in history if one not in verdict.order]
        keys = {_key(one.argument) for one in verdict.order[-1:]}
        next_ones = [one for one in left if _key(one.argument) in keys][:8]
        print("possible until:", *verdict.order[-5:], "then seen:", *next_ones, sep="\n  ")
    assert verdict, "no order explains what was seen"


def _key(argument: object) -> object:
    """What two operations of one part have in common, about."""
    return getattr(argument, "file", None) or str(argument).partition("'")[2][:2]


def _scripts(kind: str, chance: random.Random, clients: int, count: int) -> list[histories.Script]:
    makers: dict[str, Callable[[int], histories.Script]] = {
        "names": lambda client: histories.names_script(chance, count, client, 6),
        "appends": lambda client: histories.appends_script(chance, count, client, 4),
        "locks": lambda client: histories.locks_script(chance, count, client, 3),
        "counter": lambda _: histories.counter_script(chance, count // 4, 3),
    }
    return [makers[kind](client) for client in range(clients)]


MODELS: dict[str, Model] = {
    "names": Names(),
    "appends": Appends(),
    "locks": Locks(),
    "counter": Counter(),
}


def _bases(mounts: Sequence[Path], name: str) -> list[Path]:
    (mounts[0] / name).mkdir()
    return [mount / name for mount in mounts]


@pytest.mark.parametrize("kind", list(MODELS))
def test_two_clients(
    cluster: Cluster, workdir: Path, more_mounts: MountMaker, kind: str, sized: Sized
) -> None:
    bases = [m / workdir.relative_to(cluster.mount_path) for m in more_mounts(cluster, 2)]
    _judge(bases, _scripts(kind, _chance(), 2, sized(150, 3000)), MODELS[kind])


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "appends" else pytest.param(kind, marks=pytest.mark.full) for kind in MODELS],
)
def test_four_clients(
    cluster: Cluster, workdir: Path, more_mounts: MountMaker, kind: str, sized: Sized
) -> None:
    bases = [m / workdir.relative_to(cluster.mount_path) for m in more_mounts(cluster, 4)]
    _judge(bases, _scripts(kind, _chance(), 4, sized(200, 1000)), MODELS[kind])


@pytest.mark.expects_warnings
def test_two_clients_while_servers_are_killed(
    make_cluster: ClusterMaker, more_mounts: MountMaker, sized: Sized
) -> None:
    """SIGKILL, a second of nothing, and a restart; no operation fails, none is seen twice."""
    cluster = make_cluster(storage_servers=2, targets=1)
    mounts = more_mounts(cluster, 2)
    victims = [cluster.metaserver, *cluster.storageservers]
    kills = []

    def kill(program_index: int) -> Callable[[], None]:
        def meanwhile() -> None:
            time.sleep(0.5)  # into the middle of it
            program = victims[program_index]
            assert program.pid() is not None
            program.kill()
            time.sleep(1.0)
            program.start()
            kills.append(program.name)

        return meanwhile

    chance = _chance()
    for number, kind in enumerate(("names", "counter", "names", "counter")[: sized(2, 4)]):
        scripts = _scripts(kind, chance, 2, 600)
        _judge(_bases(mounts, f"{number}"), scripts, MODELS[kind], kill(number % len(victims)))
    assert len(kills) >= 2
