"""A standby follows, copies and claims; the active one beats. Over a journal in memory."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import trio

from fscommon.errors import ConfigError
from fscommon.observe.log import Log
from fscommon.wire.group import CANNOT_FOLLOW
from metaserver import standby as standby_module
from metaserver.beats import STUCK_S, Beats
from metaserver.owners import Owner
from metaserver.standby import Claimed, Standby
from metaserver.store.journal import (
    Entry,
    FencedError,
    Head,
    JournalFullError,
    Member,
    UnreachableError,
)
from metaserver.store.journaled import JournaledStore
from metaserver.store.journals.memory import Fault, MemoryJournal, MemoryLog
from metaserver.store.lmdb import DamagedStoreError
from metaserver.store.memory import MemoryStore
from metaserver.store.terms import ANSWER_S, CLAIM_S, ActiveLease
from metaserver.store.waist import Batch, Store, StoreFullError
from tests.unit.waiting import eventually

pytestmark = pytest.mark.trio


@dataclass
class OwnMemory:
    """source: what a copy is taken of."""

    copied: list[str] = field(default_factory=list)
    source: JournaledStore | None = None
    lost: str = ""
    kept: str = ""
    damages: list[str] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)

    async def copy(self, address: str) -> Store:
        self.copied.append(address)
        if self.source is None:
            raise UnreachableError("nobody there")
        made = MemoryStore()
        made.commit(list(self.source.snapshot().range(b"", b"\xff")))
        self.lost = ""
        return made

    def saw(self, head: Head) -> None:
        self.heads.append(head)

    def discard(self, damage: str) -> Store:
        self.damages.append(damage)
        self.lost = self.kept = "store.damaged"
        return MemoryStore()


class Place:
    """A log, and an active metaserver that has written to it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.now_s = 100.0
        self.copied: list[str] = []
        self.faults: dict[str, list[Fault]] = {}

    def clock(self) -> float:
        return self.now_s

    def door(self) -> MemoryJournal:
        def fault(call: str) -> Fault:
            planned = self.faults.get(call)
            return planned.pop(0) if planned else Fault.NONE

        return MemoryJournal(self.log, fault)

    def active(self) -> JournaledStore:
        door = MemoryJournal(self.log)
        head = door.claim(door.sighting(), str(Owner("one", "h1:7400")))
        return JournaledStore(
            MemoryStore(), door, head, lease=ActiveLease(), clock=lambda: self.now_s
        )

    def standby(
        self, store: Store, source: JournaledStore | None = None, own: OwnMemory | None = None
    ) -> Standby:
        own = own or OwnMemory(self.copied, source)
        return Standby(
            store,
            self.door(),
            Owner("two", "h2:7400"),
            clock=self.clock,
            own=own,
            log=Log("standby"),
        )

    async def claimed(self, standby: Standby) -> Claimed:
        """Time goes on until it has claimed."""
        found: list[Claimed] = []

        async def pass_time() -> None:
            while True:
                await trio.sleep(0.05)
                self.now_s += 0.2

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pass_time)
                found.append(await standby.until_claimed(lambda: None))
                nursery.cancel_scope.cancel()
        return found[0]


@pytest.fixture
def place() -> Place:
    return Place()


async def test_an_empty_standby_copies_follows_and_claims(place: Place) -> None:
    active = place.active()
    active.commit([(b"a", b"1")])
    standby = place.standby(MemoryStore(), active)
    began_s = place.now_s
    claimed = await place.claimed(standby)
    assert place.copied == ["h1:7400"]
    assert standby.store.snapshot().get(b"a") == b"1"
    assert claimed.head.term == 2 and place.log.head == claimed.head
    assert place.now_s - began_s >= CLAIM_S
    assert place.log.reported["two"].log == claimed.head.log
    assert claimed.lease.holds(place.now_s) or place.now_s - began_s > CLAIM_S + ANSWER_S


async def test_a_claim_of_unknown_outcome_is_repeated(place: Place) -> None:
    place.faults["claim"] = [Fault.ANSWER_LOST]
    claimed = await place.claimed(place.standby(MemoryStore()))
    assert claimed.head.term == 1, "the first attempt has worked, and is not claimed over"


@pytest.mark.parametrize("call", ["sighting", "read", "report"])
async def test_a_silent_journal_is_waited_for(place: Place, call: str) -> None:
    active = place.active()
    active.commit([(b"a", b"1")])
    place.faults[call] = [Fault.LOST] * 3
    standby = place.standby(MemoryStore(), active)
    await place.claimed(standby)
    assert standby.store.snapshot().get(b"a") == b"1"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_module, "COPY_RETRY_S", 0.01)
    monkeypatch.setattr(standby_module, "STEP_S", 0.01)


async def _run_until(standby: Standby, is_done: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(standby.until_claimed, lambda: None)
            while not is_done():  # noqa: ASYNC110 - what is waited for has no event
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


async def test_a_failed_copy_is_tried_again(place: Place, impatient: None) -> None:
    place.active().commit([(b"a", b"1")])
    standby = place.standby(MemoryStore())
    await _run_until(standby, lambda: len(place.copied) > 3)
    place.now_s += 2 * CLAIM_S
    await _run_until(standby, lambda: len(place.copied) > 6)
    assert place.log.head.term == 1, "without a copy it never claims"


class SlowCopies(OwnMemory):
    """A copy lasts until the test lets it end."""

    def __init__(self, source: JournaledStore) -> None:
        super().__init__(source=source)
        self.may_end = trio.Event()

    async def copy(self, address: str) -> Store:
        await self.may_end.wait()
        return await super().copy(address)


async def test_one_that_copies_for_long_reports_all_the_while(
    place: Place, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nobody believes that it is dead, and what comes behind the copy is kept for it."""
    monkeypatch.setattr(standby_module, "REPORT_S", 0.01)
    active = place.active()
    active.commit([(b"a", b"1")])
    active.commit([(b"a", b"2")])
    own = SlowCopies(active)
    standby = place.standby(MemoryStore(), own=own)

    def reports() -> int:
        member = place.log.reported.get("two")
        assert member is None or member.applied == 1
        return member.reports if member is not None else 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_run_until, standby, lambda: standby.applied == 3)
        await eventually(lambda: reports() > 3)
        place.faults["report"] = [Fault.FULL, Fault.LOST]  # which end neither
        active.commit([(b"a", b"3")])
        before = reports()
        await eventually(lambda: reports() > before + 3 and not place.faults["report"])
        own.may_end.set()
    assert standby.store.snapshot().get(b"a") == b"3"


async def test_a_full_journal_does_not_end_a_standby_that_copies(
    place: Place, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.active().commit([(b"a", b"1")])
    refused = []

    def full(*_: object) -> None:
        refused.append(1)
        raise JournalFullError("no room")

    monkeypatch.setattr(MemoryJournal, "report", full)
    await _run_until(place.standby(MemoryStore()), lambda: len(refused) > 3)
    assert place.copied == [], "what is behind a copy must be held before it is taken"


class SlowReads(MemoryJournal):
    """One entry at once, each of which takes a while; keeps what was reported."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.log)
        self._place = place
        self.reported: list[int] = []

    def read(self, after: int) -> Sequence[Entry]:
        self._place.now_s += standby_module.REPORT_S
        return super().read(after)[:1]

    def report(self, member: Member) -> None:
        super().report(member)
        self.reported.append(member.applied)


async def test_one_that_lacks_much_reports_while_it_follows(place: Place, impatient: None) -> None:
    """So it is not called silent, nothing is kept for it that it has, and it can be stopped."""
    active = place.active()
    active.commit([(b"a", b"0")])
    store = MemoryStore()
    store.commit(list(active.snapshot().range(b"", b"\xff")))
    for number in range(1, 5):
        active.commit([(b"a", b"%d" % number)])
    door = SlowReads(place)
    owner, own = Owner("two", "h2:7400"), OwnMemory()
    standby = Standby(store, door, owner, clock=place.clock, own=own, log=Log("standby"))
    await _run_until(standby, lambda: standby.applied == 5)
    assert door.reported[:3] == [2, 3, 4]


class FullStore(MemoryStore):
    """Its disk has no room until the test makes some."""

    has_room = False

    def commit(self, batch: Batch) -> None:
        if not self.has_room:
            raise StoreFullError("no room for a commit")
        super().commit(batch)


async def test_one_whose_disk_is_full_waits_and_says_so(place: Place, impatient: None) -> None:
    active = place.active()
    active.commit([(b"a", b"1")])
    store = FullStore()
    MemoryStore.commit(store, list(active.snapshot().range(b"", b"\xff")))
    active.commit([(b"a", b"2")])
    standby = place.standby(store)
    steps = iter(range(20))
    await _run_until(standby, lambda: next(steps, None) is None)
    assert standby.why_not().endswith(f"{CANNOT_FOLLOW}: no room for a commit")
    place.now_s += 2 * CLAIM_S
    steps = iter(range(20))
    await _run_until(standby, lambda: next(steps, None) is None)
    assert place.log.head.term == 1, "it lacks an entry, so it takes nothing over"
    store.has_room = True
    await place.claimed(standby)
    assert CANNOT_FOLLOW not in standby.why_not()
    assert standby.store.snapshot().get(b"a") == b"2"


class DamagedOwn(OwnMemory):
    """Its store is found to be damaged when a copy is to take its place."""

    async def copy(self, address: str) -> Store:
        if not self.damages:
            raise DamagedStoreError("a page is missing")
        return await super().copy(address)


async def test_damage_that_is_found_when_it_copies(place: Place, impatient: None) -> None:
    active = place.active()
    active.commit([(b"a", b"1")])
    own = DamagedOwn(source=active)
    standby = place.standby(MemoryStore(), own=own)
    await _run_until(standby, lambda: standby.applied == 1)
    assert own.damages == ["a page is missing"] and own.copied == ["h1:7400"]


async def test_foreign_names_end_the_program(place: Place) -> None:
    place.active().commit([(b"a", b"1")])
    foreign = MemoryStore()
    foreign.commit([(b"b", b"2")])
    with pytest.raises(ConfigError, match="names of its own"):
        await place.standby(foreign).until_claimed(lambda: None)


async def test_a_standby_says_who_is_active(place: Place) -> None:
    standby = place.standby(MemoryStore())
    assert standby.why_not() == (
        "this metaserver is a standby: no metaserver is active at the moment"
    )
    active = place.active()
    standby.seen = MemoryJournal(place.log).sighting()
    assert "the active metaserver is one at h1:7400" in standby.why_not()
    assert Owner.of(active.head.owner) == Owner("one", "h1:7400", active.head.owner.split(" ")[2])
    assert Owner.of("") is None and Owner.of("words of another program") is None


# ---- damaged stores ----------------------------------------------------------------------------


async def test_an_empty_store_after_a_damaged_one_begins_nothing(
    place: Place, impatient: None
) -> None:
    """The journal is new, nobody is active, and the time to claim has passed."""
    own = OwnMemory(lost="the store was damaged", kept="/d/store.damaged-1")
    standby = place.standby(MemoryStore(), own=own)
    steps = iter(range(20))
    await _run_until(standby, lambda: next(steps, None) is None)
    place.now_s += 2 * CLAIM_S
    steps = iter(range(20))
    await _run_until(standby, lambda: next(steps, None) is None)
    assert place.log.head.term == 0 and own.copied == []
    assert standby.why_not().endswith("at the moment. It has no names: the store was damaged")


async def test_after_its_store_was_damaged_it_copies_and_says_so(
    place: Place, impatient: None
) -> None:
    active = place.active()
    active.commit([(b"a", b"1")])
    own = OwnMemory(source=active, lost="the store was damaged", kept="/d/store.damaged-1")
    standby = place.standby(MemoryStore(), own=own)
    await place.claimed(standby)
    assert standby.store.snapshot().get(b"a") == b"1"
    assert place.log.reported["two"].kept == "/d/store.damaged-1"
    assert "no names" not in standby.why_not()


class DamagedStore(MemoryStore):
    def commit(self, batch: Batch) -> None:
        raise DamagedStoreError("a page is missing")


async def test_damage_that_is_found_while_it_follows(place: Place, impatient: None) -> None:
    active = place.active()
    active.commit([(b"a", b"1")])
    store = DamagedStore()
    MemoryStore.commit(store, list(active.snapshot().range(b"", b"\xff")))
    active.commit([(b"b", b"2")])
    own = OwnMemory(source=active)
    standby = place.standby(store, own=own)
    await _run_until(standby, lambda: standby.applied == 2)
    assert own.damages == ["a page is missing"] and own.copied == ["h1:7400"]
    assert standby.store.snapshot().get(b"b") == b"2"


# ---- beats --------------------------------------------------------------------------------------


class Ticking:
    def __init__(self) -> None:
        self.now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


async def _until(done: threading.Event) -> None:
    with trio.fail_after(10):
        assert await trio.to_thread.run_sync(done.wait, 10.0)


class CountingJournal(MemoryJournal):
    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.beaten = threading.Event()

    def beat(self, head: Head) -> None:
        super().beat(head)
        self.beaten.set()


async def test_beats_prove_the_lease_until_they_are_fenced(place: Place) -> None:
    active = place.active()
    clock, lease = Ticking(), ActiveLease()
    door = CountingJournal(place.log)
    beats = Beats(door, active.head, lease, clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(beats.run)
        await _until(door.beaten)
        with trio.fail_after(10):
            while not lease.holds(clock()):  # noqa: ASYNC110 - the thread has no event
                await trio.sleep(0.01)
        other = MemoryJournal(place.log)
        for _ in range(100):  # a beat may come between
            with suppress(FencedError):
                other.claim(other.sighting(), "another one")
                break
        clock.now_s += 1.0
        with trio.fail_after(10):
            await beats.deposed.wait()
        nursery.cancel_scope.cancel()
    assert not lease.holds(clock() + ANSWER_S)


async def test_a_stuck_event_loop_ends_the_beats(place: Place) -> None:
    active = place.active()
    clock = Ticking()
    door = CountingJournal(place.log)
    beats = Beats(door, active.head, ActiveLease(), clock)
    beats._turned_s = clock.now_s - STUCK_S
    thread = threading.Thread(target=beats._beat_on, args=(trio.lowlevel.current_trio_token(),))
    thread.start()
    await trio.sleep(0.3)
    assert not door.beaten.is_set()
    beats._turned_s = clock.now_s
    clock.now_s += 1.0
    await _until(door.beaten)
    beats._ends.set()
    await trio.to_thread.run_sync(thread.join, 5.0)
    assert not thread.is_alive()


async def test_one_at_the_end_of_a_full_journal_holds_no_entry_back(place: Place) -> None:
    """It cannot say how far it is, so it takes back what it has said; it reports again later."""
    active = place.active()
    standby = place.standby(MemoryStore(), active)
    active.commit([(b"a", b"1")])
    with trio.move_on_after(1.0):
        await standby.until_claimed(lambda: None)
    door = place.door()
    assert [member.name for member in door.members()] == ["two"]
    active.commit([(b"a", b"2")])
    place.faults["report"] = [Fault.FULL]
    place.now_s += standby_module.REPORT_S
    with trio.move_on_after(0.5):
        await standby.until_claimed(lambda: None)
    assert door.members() == []
    place.now_s += standby_module.REPORT_S
    with trio.move_on_after(0.5):
        await standby.until_claimed(lambda: None)
    assert [member.applied for member in door.members()] == [2]
