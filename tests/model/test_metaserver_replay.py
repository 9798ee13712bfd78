"""Thousands of kills of the metaserver: no operation that was answered to a living client is
missing.

Clients are killed, too, and continue as another process of their session. The quick form runs tens
of thousands of steps. A failure names its seed: run_world(seed, steps) repeats it. Every second
world has a trash.
"""

from collections.abc import Callable

import pytest

from fscommon.errors import ProtocolError
from metaserver.ops import session
from metaserver.records import StoredReply
from tests.model.metaserver_world import SimulatedClient, World


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
    assert world.crashes > 80 and world.deaths > 10
    assert world.replayed["applied"] > 20, "kills must have cost uncommitted mutations"
    assert world.replayed["stored"] > 20, "kills must have hit between commit and reply"
    assert world.replayed["failed"] == 0
    assert world.replayed["refused"] == 0, "an id was that of two requests"
    assert (world.bench.engine.services.trash.inodes > 20) == bool(seed % 2)
    assert world.answers["CREATE"] > 30 and world.answers["RENAME"] > 5


def _repeat_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process of a session counts its requests from nearly the same number on."""
    monkeypatch.setattr(session, "IDS_OF_A_LIFE", 1)


def _believe_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored reply is used for any request with its id."""
    _repeat_ids(monkeypatch)
    monkeypatch.setattr(SimulatedClient, "_check_id", lambda client, frame: None)
    monkeypatch.setattr(StoredReply, "answers", lambda stored, op, request_hash: True)


@pytest.mark.parametrize("mutate", [_repeat_ids, _believe_ids])
def test_a_mutant_is_caught(
    monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, ProtocolError)):
        run_world(seed=0, steps=2500)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_no_answered_operation_is_missing_in_the_long_run(seed: int) -> None:
    assert run_world(seed, 10_000).replayed["failed"] == 0
