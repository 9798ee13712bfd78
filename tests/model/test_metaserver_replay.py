"""Thousands of kills of the metaserver: nothing that was answered to a living client is missing.

The quick form runs tens of thousands of steps. A failure names its seed: run_world(seed, steps)
repeats it. Every other one has a trash.
"""

import pytest

from tests.model.metaserver_world import World


def run_world(seed: int, steps: int) -> World:
    world = World(seed, has_trash=bool(seed % 2))
    for _ in range(steps):
        world.step()
    world.quiesce()
    world.verify()
    world.replayed.update(world.bench.engine.replays)
    return world


@pytest.mark.parametrize("seed", range(24))
def test_no_answered_operation_is_missing(seed: int) -> None:
    world = run_world(seed, 2500)
    assert world.crashes > 80
    assert world.replayed["applied"] > 20, "kills must have cost uncommitted mutations"
    assert world.replayed["stored"] > 20, "kills must have hit between commit and reply"
    assert world.replayed["failed"] == 0
    assert (world.bench.engine.services.trash.inodes > 20) == bool(seed % 2)
    assert world.answers["CREATE"] > 30 and world.answers["RENAME"] > 5


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_no_answered_operation_is_missing_in_the_long_run(seed: int) -> None:
    assert run_world(seed, 10_000).replayed["failed"] == 0
