"""The real metaserver in the world of mirrors: see tests/model/mirror_engine_world.py, and for jobs
on whole targets tests/model/mirror_jobs_world.py."""

import pytest

from tests.seeded_trio import run_seeded

from .mirror_engine_world import World
from .mirror_jobs_mutants import MUTANTS, broken
from .mirror_jobs_world import JobsWorld

FAST = 6
MUTANT_SEEDS = 200
LOGS = (
    "replicas are dropped|replicas that cannot be cut are dropped|drops replicas of many targets|"
    "objects are deleted later|waits for a target|truncate is repeated|client is evicted|"
    "client did not give up a lease|fence is repeated|storage server is down|is synced later|"
    "gets its replicas later|a file is moved later|the replicas of a target are made again|"
    "files lack replicas|it waits for a target that is down"
)


def run(seed: int) -> None:
    run_seeded(seed, World(seed).run, 160.0)


@pytest.mark.expects_log(LOGS)
@pytest.mark.parametrize("seed", range(FAST))
def test_mirrors_of_the_real_metaserver(seed: int) -> None:
    run(seed)


@pytest.mark.full
@pytest.mark.expects_log(LOGS)
@pytest.mark.parametrize("seed", range(FAST, 400))
def test_many_worlds(seed: int) -> None:
    run(seed)


# ---- rebuilds and drains ------------------------------------------------------------------------


def run_jobs(seed: int) -> None:
    run_seeded(seed, JobsWorld(seed).run, 160.0)


@pytest.mark.expects_log(LOGS)
@pytest.mark.parametrize("seed", range(FAST))
def test_targets_are_rebuilt_and_drained(seed: int) -> None:
    run_jobs(seed)


@pytest.mark.full
@pytest.mark.expects_log(LOGS)
@pytest.mark.parametrize("seed", range(FAST, 300))
def test_many_worlds_with_jobs(seed: int) -> None:
    run_jobs(seed)


@pytest.mark.full
@pytest.mark.expects_log(LOGS)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_a_world_with_jobs_notices(mutant: str) -> None:
    with broken(mutant):
        assert any(map(_is_noticed, range(MUTANT_SEEDS)))


def _is_noticed(seed: int) -> bool:
    try:
        run_jobs(seed)
    except BaseException as error:
        if not _asserted(error):
            raise
        return True
    return False


def _asserted(error: BaseException) -> bool:
    """Whether an assertion is at the bottom of it."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_asserted, error.exceptions))
    return isinstance(error, AssertionError)
