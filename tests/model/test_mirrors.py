"""Mirrored files: the protocol of docs/decisions/0063-mirrors.md keeps what it promises.

The quick form runs 600 worlds, the long one 100,000. A failure prints the command that repeats its
seed. Each mutant is the protocol with one rule left out: a world must notice it within 2,000 seeds.
"""

import random
from collections import Counter

import pytest

from tests.model.mirror_metaserver import Layout
from tests.model.mirror_world import BrokenPromiseError, MirrorWorld
from tests.model.processes import TIMED_OUT, Future, Loop, Process, Steps, all_of

SEEDS_OF_MUTANTS = 2000


def run_world(seed: int, broken: str = "") -> MirrorWorld:
    """Three or four targets; two replicas, or three in one world of three."""
    world = MirrorWorld(seed, targets=3 + seed % 2, copies=2 if seed % 3 else 3, broken=broken)
    try:
        world.run()
    except Exception:
        if not broken:
            print(
                'repeat it: python -c "from tests.model.test_mirrors import run_world; '
                f'run_world({seed})"'
            )
        raise
    return world


@pytest.mark.parametrize("first", range(0, 600, 150))
def test_mirrors_keep_what_they_promise(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 150):
        world = run_world(seed)
        counts += world.counts + world.oracle.counts
    assert counts["writes"] > 3000 and counts["reads"] > 1500 and counts["fsyncs"] > 200
    assert counts["additions"] > 200 and counts["evictions"] > 200 and counts["closes"] > 200
    assert counts["killed targets"] > 100 and counts["power losses"] > 100
    assert counts["killed metaservers"] > 100 and counts["killed clients"] > 100
    assert counts["cuts"] > 100 and counts["pauses"] > 100 and counts["killed runners"] > 100


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 101_000, 5000))
def test_mirrors_keep_what_they_promise_in_the_long_run(first: int) -> None:
    for seed in range(first, first + 5000):
        run_world(seed)


# ---- mutants ---------------------------------------------------------------------------------

QUICK_MUTANTS = (
    "a connection does not wait for the one before",
    "a dead writer's file is not made whole",
    "a deletion does not say which generation",
    "a new view drops pieces",
    "a refused call gets a newer epoch",
    "acknowledged with one replica",
    "an addition without a claim",
    "an addition without a raised epoch",
    "an addition without a sync of the copy",
    "an addition without a sync of the source",
    "an unchecked punch",
    "an unchecked seek",
    "no wait for the tombstone",
    "the incarnation is not kept",
    "the last replica is dropped",
)
SLOW_MUTANTS = (
    "a SYNC of a former epoch",
    "a lease that has run out is renewed",
    "a repeated DROP does not wait",
    "an addition does not compare",
    "no fence",
    "only the source of a copy is synced",
)


@pytest.mark.parametrize("rule", QUICK_MUTANTS)
def test_a_rule_that_is_left_out_is_missed(rule: str) -> None:
    _is_missed(rule, 500)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", SLOW_MUTANTS)
def test_a_rule_that_is_left_out_is_missed_in_the_long_run(rule: str) -> None:
    _is_missed(rule, SEEDS_OF_MUTANTS)


def _is_missed(rule: str, seeds: int) -> None:
    for seed in range(seeds):
        try:
            run_world(seed, rule)
        except BrokenPromiseError:
            return
    pytest.fail(f"nobody misses the rule in {seeds} worlds: {rule}")


def test_a_late_synced_says_nothing_about_a_later_close() -> None:
    """Worlds miss this rule too seldom: it takes a power loss within the same second."""
    world = MirrorWorld(1)
    world.loop.run_until(0.05)
    meta = world.meta
    session = 99
    meta.state.sessions[session] = True
    for asked in (
        meta.open_to_write(session, "f", 1),
        meta.close(session, "f", 1, {}),
        meta.open_to_write(session, "f", 2),
        meta.close(session, "f", 2, {}),
        meta.synced(session, "f", 1),
    ):
        meta.process.spawn(asked)
        world.loop.run_until(world.loop.now + 0.01)
    assert meta.state.closed[session, "f"] == 2


def test_a_view_never_goes_back() -> None:
    """Worlds miss this rule too seldom: an answer must be late by a whole truncate."""
    client = MirrorWorld(1).clients[0]
    newer = Layout(9, 2, ())
    for view in (Layout(9, 1, ()), newer, Layout(9, 1, ()), Layout(4, 7, ())):
        client._see("f", view)
    assert client.views["f"] == newer


# ---- the simulation itself -------------------------------------------------------------------


def test_one_seed_decides_everything() -> None:
    first, again = run_world(7), run_world(7)
    assert first.counts == again.counts and first.oracle.counts == again.oracle.counts
    assert first.meta.state == again.meta.state


def test_a_process_that_is_killed_or_stands_still() -> None:
    loop = Loop(random.Random(1))
    process, other = Process(loop, "one"), Process(loop, "other")
    seen: list[tuple[str, float]] = []

    def act(name: str) -> Steps:
        for _ in range(3):
            yield 1.0
            seen.append((name, loop.now))
        return name

    ends = [process.spawn(act("killed")), other.spawn(act("still"))]
    loop.after(1.5, process.kill)
    loop.after(0.5, setattr, other, "paused_until_s", 10.0)
    both = loop.either(all_of(ends), 20.0)
    loop.run_until(30.0)
    assert seen == [("killed", 1.0), ("still", 10.0), ("still", 11.0), ("still", 12.0)]
    assert ends[1].value == "still" and both.value == TIMED_OUT


def test_the_first_value_of_a_future_counts() -> None:
    future = Future()
    future.resolve(1)
    future.resolve(2)
    assert all_of([future]).value == [1] and all_of([]).value == []
