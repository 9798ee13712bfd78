"""The real metaserver in the world of mirrors: see tests/model/mirror_engine_world.py."""

import pytest
import trio
from trio.testing import MockClock

from .mirror_engine_world import World

FAST = 6
LOGS = (
    "replicas are dropped|replicas that cannot be cut are dropped|drops replicas of many targets|"
    "objects are deleted later|waits for a target|truncate is repeated|client is evicted|"
    "client did not give up a lease|fence is repeated|storage server is down|is synced later|"
    "gets its replicas later"
)


def run(seed: int) -> None:
    trio.run(World(seed).run, 160.0, clock=MockClock(autojump_threshold=0))


@pytest.mark.expects_log(LOGS)
@pytest.mark.parametrize("seed", range(FAST))
def test_mirrors_of_the_real_metaserver(seed: int) -> None:
    run(seed)


@pytest.mark.full
@pytest.mark.expects_log(LOGS)
@pytest.mark.parametrize("seed", range(FAST, 400))
def test_many_worlds(seed: int) -> None:
    run(seed)
