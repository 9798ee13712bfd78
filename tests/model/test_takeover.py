"""Metaservers over one journal: take-overs lose nothing that was answered, and never split.

The quick form runs 10,000 short worlds and 80 long ones. A failure prints the command that repeats
its seed. Each mutant is the protocol with one rule left out: a world must notice it.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fscommon.types import Txn
from fscommon.wire.codec import decode
from fscommon.wire.messages import Replay
from metaserver import engine
from metaserver.store import journaled
from metaserver.store.journal import FencedError, Head, Sighting
from metaserver.store.journaled import JournaledStore, Mark
from metaserver.store.journals.memory import MemoryLog
from metaserver.store.trimming import Trimming
from metaserver.store.waist import Batch
from tests.model.machines import Machine, RecordedLog
from tests.model.takeover_world import TakeOverWorld

STEPS = 2500
LONG_WORLDS = 80
SHORT_WORLDS, SHORT_STEPS = 10_000, 30
SEEDS_OF_MUTANTS = 2000
Patch = pytest.MonkeyPatch


def run_world(seed: int, steps: int = STEPS) -> TakeOverWorld:
    try:
        world = TakeOverWorld(seed, machines=2 + seed % 2)
        for _ in range(steps):
            world.step()
        world.quiesce()
        world.verify()
    except Exception:
        print(
            'repeat it: python -c "from tests.model.test_takeover import run_world; '
            f'run_world({seed}, {steps})"'
        )
        raise
    return world


@pytest.mark.parametrize("first", range(100_000, 100_000 + SHORT_WORLDS, 1000))
def test_short_worlds_lose_nothing(first: int, sized: Callable[[int, int], int]) -> None:
    for seed in range(first, first + sized(500, 1000)):
        run_world(seed, SHORT_STEPS)


@pytest.mark.parametrize("first", range(0, LONG_WORLDS, 20))
def test_take_overs_lose_nothing(first: int) -> None:
    counts: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for seed in range(first, first + 20):
        world = run_world(seed)
        counts += world.counts
        answers += world.answers
        for machine in world.machines:
            if machine.bench is not None:
                counts.update(machine.bench.engine.replays)
    assert counts["take-overs"] > 50 and counts["deposed"] > 1 and counts["resigned"] > 5
    assert counts["killed between append and apply"] > 3 and counts["uncertain"] > 20
    assert counts["lost"] > 10 and counts["copies"] > 10 and counts["evictions"] > 5
    assert counts["failed"] == 0, "a replay ended otherwise than it was first answered: M5"
    assert answers["CREATE"] > 300 and answers["RENAME"] > 20


@pytest.mark.full
@pytest.mark.parametrize("first", range(10_000, 20_000, 500))
def test_take_overs_lose_nothing_in_the_long_run(first: int) -> None:
    for seed in range(first, first + 500):
        run_world(seed, 1000)


# ---- mutants ---------------------------------------------------------------------------------


def _append_without_compare(patch: Patch) -> None:
    def append(log: RecordedLog, at: Head, nonce: bytes, payload: bytes) -> Head:
        log.head = replace(log.head, term=at.term, owner=at.owner)
        return real(log, log.head, nonce, payload)

    real = RecordedLog.append
    patch.setattr(RecordedLog, "append", append)


def _lease_not_checked(patch: Patch) -> None:
    patch.setattr(Machine, "may_answer", lambda machine: True)


def _lease_from_the_last_attempt(patch: Patch) -> None:
    def commit(store: JournaledStore, batch: Batch) -> None:
        if store._attempt is not None:
            store._attempt.sent_s = store._clock()
        real(store, batch)

    real = JournaledStore.commit
    patch.setattr(JournaledStore, "commit", commit)


def _claim_without_comparing_beats(patch: Patch) -> None:
    def claim(log: MemoryLog, seen: Sighting, owner: str, term: int = 0) -> Head:
        return real(log, Sighting(seen.head, log.beats), owner, term)

    real = MemoryLog.claim
    patch.setattr(MemoryLog, "claim", claim)


def _apply_before_append(patch: Patch) -> None:
    def commit(store: JournaledStore, batch: Batch) -> None:
        if store._attempt is None:
            store._below.commit([*batch, Mark.of(store.head).record()])
        real(store, batch)

    real = JournaledStore.commit
    patch.setattr(JournaledStore, "commit", commit)


def _new_nonce_for_each_attempt(patch: Patch) -> None:
    def commit(store: JournaledStore, batch: Batch) -> None:
        store._attempt = None
        real(store, batch)

    real = JournaledStore.commit
    patch.setattr(JournaledStore, "commit", commit)


def _trim_too_early(patch: Patch) -> None:
    patch.setattr(Trimming, "below", lambda trimming, members, head, applied, now_s: head.index)


def _serve_before_the_first_append(patch: Patch) -> None:
    def boot(machine: Machine, booting: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(JournaledStore, "commit", lambda store, batch: None)
            real(machine, booting)

    real = Machine._boot
    patch.setattr(Machine, "_boot", boot)


def _replies_not_replayed(patch: Patch) -> None:
    def replay(self: engine.Engine, session: Any, row: Any, frame: Any, time: Any) -> Any:
        told = decode(Replay, frame.body)
        return engine._Outcome(0, told.reply, Txn(0), Txn(0))

    patch.setattr(engine.Engine, "_replay", replay)


def _fenced_means_done(patch: Patch) -> None:
    """A refused append is taken for one that an earlier attempt has made."""

    def commit(store: JournaledStore, batch: Batch) -> None:
        try:
            real(store, batch)
        except journaled.DeposedError:
            store._below.commit(batch)
            store._attempt = None

    real = JournaledStore.commit
    patch.setattr(JournaledStore, "commit", commit)


MUTANTS = [
    _append_without_compare,
    _lease_not_checked,
    _lease_from_the_last_attempt,
    _claim_without_comparing_beats,
    _apply_before_append,
    _new_nonce_for_each_attempt,
    _trim_too_early,
    _serve_before_the_first_append,
    _replies_not_replayed,
    _fenced_means_done,
]


# These are missed by few worlds; their tests begin near one.
FIRST_SEEDS: dict[Callable[[Patch], None], int] = {
    _lease_from_the_last_attempt: 240,
    _claim_without_comparing_beats: 90,
}


@pytest.mark.parametrize("mutate", MUTANTS)
def test_a_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, mutate: Callable[[Patch], None]
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, FencedError)):
        first = FIRST_SEEDS.get(mutate, 0)
        for seed in range(first, first + SEEDS_OF_MUTANTS):
            run_world(seed, 1000)
