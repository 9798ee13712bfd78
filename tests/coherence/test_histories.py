"""Two and four clients, whose history is judged to be linearizable, also while servers are killed.

Scripts are random; the seed is printed and can be given again as BRAIDFS_TEST_SEED. tests/model has
the checker and the models, and tests them.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.coherence.conftest import MountMaker
from tests.coherence.judging import MODELS, make_chance, make_scripts, record_and_judge
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(1200)]

Sized = Callable[[int, int], int]


def _bases(mounts: Sequence[Path], name: str) -> list[Path]:
    (mounts[0] / name).mkdir()
    return [mount / name for mount in mounts]


@pytest.mark.parametrize("kind", list(MODELS))
def test_two_clients(
    cluster: Cluster, workdir: Path, more_mounts: MountMaker, kind: str, sized: Sized
) -> None:
    bases = [m / workdir.relative_to(cluster.mount_path) for m in more_mounts(cluster, 2)]
    record_and_judge(bases, make_scripts(kind, make_chance(), 2, sized(150, 3000)), MODELS[kind])


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "appends" else pytest.param(kind, marks=pytest.mark.full) for kind in MODELS],
)
def test_four_clients(
    cluster: Cluster, workdir: Path, more_mounts: MountMaker, kind: str, sized: Sized
) -> None:
    bases = [m / workdir.relative_to(cluster.mount_path) for m in more_mounts(cluster, 4)]
    record_and_judge(bases, make_scripts(kind, make_chance(), 4, sized(200, 1000)), MODELS[kind])


@pytest.mark.expects_warnings
def test_two_clients_while_servers_are_killed(
    make_cluster: ClusterMaker, more_mounts: MountMaker, sized: Sized
) -> None:
    """SIGKILL, a second without the server, and a restart; no operation fails, and none takes
    effect twice."""
    cluster = make_cluster(storage_servers=2, targets=1)
    mounts = more_mounts(cluster, 2)
    victims = [cluster.metaserver, *cluster.storageservers]
    kills = []

    def kill(program_index: int) -> Callable[[], None]:
        def meanwhile() -> None:
            time.sleep(0.5)  # this is in the middle of the scripts
            program = victims[program_index]
            assert program.pid() is not None
            program.kill()
            time.sleep(1.0)
            program.start()
            kills.append(program.name)

        return meanwhile

    chance = make_chance()
    for number, kind in enumerate(("names", "counter", "names", "counter")[: sized(2, 4)]):
        scripts, victim = make_scripts(kind, chance, 2, 600), number % len(victims)
        record_and_judge(_bases(mounts, f"{number}"), scripts, MODELS[kind], kill(victim))
    assert len(kills) >= 2
