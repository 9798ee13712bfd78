"""Metaservers of two releases over one journal: the former one refuses what it cannot read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from fscommon.errors import (
    AuthenticationError,
    BraidError,
    ConfigError,
    RefusedError,
    TransportError,
)
from fscommon.rpc.silences import HANGS, RUNS, STRANGER, reason_of_silence
from metaserver import records
from metaserver import standby as standby_module
from metaserver.standby import Standby
from metaserver.store import batches
from metaserver.store.batches import pack_batch, unpack_batch
from metaserver.store.journal import DamagedJournalError, LaterReleaseError
from metaserver.store.journaled import JournaledStore
from metaserver.store.memory import MemoryStore
from metaserver.store.terms import CLAIM_S

from .test_standby import Place

pytestmark = pytest.mark.trio

LATER = [(records.SCHEMA_KEY, records.pack_number(records.SCHEMA_VERSION + 1))]
NOW = [(records.SCHEMA_KEY, records.pack_number(records.SCHEMA_VERSION))]


@pytest.fixture
def place() -> Place:
    return Place()


@contextmanager
def release(form: int = 1, schema: int = records.SCHEMA_VERSION) -> Iterator[None]:
    """What runs within it is of a release that knows these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "_VERSION", bytes([form]))
        patch.setattr(standby_module, "SCHEMA", replace(standby_module.SCHEMA, newest=schema))
        yield


async def runs(standby: Standby, place: Place, seconds: float = 2 * CLAIM_S) -> bool:
    """Whether it claims within some time on the clock of the place."""
    claims = False
    passed_s = 0.0

    async def claim() -> None:
        nonlocal claims
        await standby.until_claimed(lambda: None)
        claims = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claim)
        while passed_s < seconds:
            await trio.sleep(0.05)
            place.now_s += 0.2
            passed_s += 0.2
        nursery.cancel_scope.cancel()
    return claims


async def followed(place: Place, active: JournaledStore, store: MemoryStore) -> Standby:
    """A standby that is at the end of the journal, and reports."""
    active.commit(NOW)
    store.commit(list(active.snapshot().range(b"", b"\xff")))
    standby = place.standby(store)
    assert not await runs(standby, place, 1.0)
    return standby


Later = Callable[[JournaledStore], None]


def writes_a_form(active: JournaledStore) -> None:
    with release(form=2):
        active.commit([(b"a", b"2")])


def writes_a_schema(active: JournaledStore) -> None:
    active.commit([*LATER, (b"a", b"2")])


@pytest.mark.parametrize(
    ("writes", "known", "words"),
    [
        (writes_a_form, {"form": 2}, "entries of the journal have form 2, of a later release"),
        (writes_a_schema, {"schema": 2}, "the names have schema 2, of a later release"),
    ],
)
async def test_a_former_release_stands_by_until_it_is_upgraded(
    place: Place, writes: Later, known: dict[str, int], words: str
) -> None:
    """It takes nothing over, changes nothing and holds no entry back; upgraded, it goes on without
    a copy."""
    active, store = place.active(), MemoryStore()
    standby = await followed(place, active, store)
    writes(active)
    before = list(store.snapshot().range(b"", b"\xff"))
    reports = place.log.reported["two"].reports
    assert not await runs(standby, place), "it has claimed what it cannot read"
    assert list(store.snapshot().range(b"", b"\xff")) == before
    assert place.log.reported["two"].reports == reports
    assert words in standby.why_not() and "upgrade this metaserver" in standby.why_not()
    with release(**known):
        upgraded = place.standby(store)
        assert await runs(upgraded, place)
        assert store.snapshot().get(b"a") == b"2" and "later" not in upgraded.why_not()
    assert place.copied == []


async def test_a_store_of_a_later_release_is_not_taken_back(place: Place) -> None:
    """A metaserver that was downgraded, at the very end of the journal."""
    active, store = place.active(), MemoryStore()
    await followed(place, active, store)
    writes_a_schema(active)
    with release(schema=2):
        assert not await runs(place.standby(store), place, 1.0)
    assert not await runs(place.standby(store), place)


async def test_a_copy_of_a_later_release_is_taken_once(place: Place) -> None:
    active = place.active()
    writes_a_schema(active)
    standby = place.standby(MemoryStore(), active)
    assert not await runs(standby, place)
    assert place.copied == ["h1:7400"] and "schema 2" in standby.why_not()


async def test_a_later_release_follows_a_former_one(place: Place) -> None:
    """The upgrade of standbys first: it follows, and takes over when it is its turn."""
    active, store = place.active(), MemoryStore()
    await followed(place, active, store)
    active.commit([(b"a", b"1")])
    with release(schema=2):
        upgraded = place.standby(store)
        assert not await runs(upgraded, place, 1.0)
        assert store.snapshot().get(b"a") == b"1"
        assert await runs(upgraded, place)


async def test_what_never_was_a_form_is_damage() -> None:
    with pytest.raises(DamagedJournalError, match="no form that there ever was"):
        unpack_batch(b"\0" + pack_batch([])[1:])
    with pytest.raises(LaterReleaseError, match="form 9"):
        unpack_batch(b"\x09" + pack_batch([])[1:])


# ---- what `braidfs status` says ------------------------------------------------------------------


async def test_status_says_why_it_is_silent(place: Place) -> None:
    active, store = place.active(), MemoryStore()
    standby = await followed(place, active, store)
    reason = await reason_of(standby)
    assert reason == RUNS
    writes_a_schema(active)
    await runs(standby, place, 1.0)
    assert (await reason_of(standby)).startswith(
        "it cannot follow the journal: the names have schema 2, of a later release"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (AuthenticationError("wrong key"), STRANGER),
        (TransportError("closed"), HANGS),
        (ConfigError("no such file: ca.crt"), "it cannot be asked: no such file: ca.crt"),
    ],
)
async def test_whatever_happens_there_is_a_reason(error: BraidError, reason: str) -> None:
    """The metaserver asks for its page: it must not end of it."""
    assert await reason_when(error) == reason


async def reason_of(standby: Standby) -> str:
    return await reason_when(RefusedError(standby.why_not()))


async def reason_when(error: BraidError) -> str:
    """What is said of a metaserver when connecting to it ends so."""

    def refused(address: str) -> Any:
        raise error

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    try:
        return await reason_of_silence(f"127.0.0.1:{port}", refused)
    finally:
        await listeners[0].aclose()
