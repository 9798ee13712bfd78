"""Stores behind a journal: what is committed by one follows to the others, and nothing else."""

import struct
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscommon.checksum import xxh3_64_bytes
from metaserver.store.batches import pack_batch, unpack_batch
from metaserver.store.follower import Follower, ForeignStateError, NeedsCopyError
from metaserver.store.journal import (
    NO_NONCE,
    DamagedJournalError,
    Entry,
    Head,
    LaterReleaseError,
    Member,
    Sighting,
)
from metaserver.store.journaled import (
    MARK_KEY,
    DeposedError,
    JournaledStore,
    Mark,
    forget_mark,
    mark_in,
)
from metaserver.store.journals.memory import Fault, MemoryJournal, MemoryLog
from metaserver.store.memory import MemoryStore
from metaserver.store.terms import ANSWER_S, CLAIM_S, ActiveLease, TakeOverWatch
from metaserver.store.trimming import Trimming
from metaserver.store.waist import JournalRoomError, Store, StoreError, StoreUncertainError

Batches = st.lists(
    st.tuples(st.binary(min_size=1, max_size=80), st.one_of(st.none(), st.binary(max_size=300))),
    max_size=30,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Active:
    """A metaserver that has claimed a log, with faults that a test chooses."""

    def __init__(self, log: MemoryLog, store: Store | None = None, owner: str = "a") -> None:
        self.faults: list[Fault] = []
        self.log = log
        self.door = MemoryJournal(log, lambda _: self.faults.pop(0) if self.faults else Fault.NONE)
        self.below = store or MemoryStore()
        self.lease = ActiveLease()
        self.clock = Clock()
        head = self.door.claim(self.door.sighting(), owner)
        self.store = JournaledStore(self.below, self.door, head, lease=self.lease, clock=self.clock)


def records(store: Store) -> dict[bytes, bytes]:
    return {key: value for key, value in store.snapshot().range(b"", b"\xff") if key != MARK_KEY}


def followed(log: MemoryLog, store: Store) -> bool:
    follower = Follower(store, MemoryJournal(log))
    return follower.follow(log.head)


# ---- batches ---------------------------------------------------------------------------------


@given(Batches)
def test_a_batch_is_what_it_was(batch: list[tuple[bytes, bytes | None]]) -> None:
    assert unpack_batch(pack_batch(batch)) == batch


@pytest.mark.parametrize("length", [0, 511, 600])
def test_a_key_that_no_store_takes_is_damage_of_the_journal(length: int) -> None:
    """And no failure of the store, which would be thrown away, or end the program."""
    assert unpack_batch(pack_batch([(b"k" * 510, b"")]))
    with pytest.raises(DamagedJournalError, match=f"a key of {length} bytes"):
        unpack_batch(pack_batch([(b"k" * length, b"v")]))


@given(Batches, st.data())
def test_a_damaged_entry_is_refused(
    batch: list[tuple[bytes, bytes | None]], data: st.DataObject
) -> None:
    payload = bytearray(pack_batch(batch))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((DamagedJournalError, LaterReleaseError)):
        unpack_batch(bytes(payload))
    with pytest.raises(DamagedJournalError):
        unpack_batch(bytes(payload[:at]))


def sealed(packed: bytes) -> bytes:
    return b"\x01" + xxh3_64_bytes(packed) + packed


@pytest.mark.parametrize(
    "packed",
    [
        b"no zlib",
        zlib.compress(b"x"),
        zlib.compress(struct.pack("<HI", 5, 5) + b"short"),
        zlib.compress(b"") + b"more",
        zlib.compress(struct.pack("<HI", 1, 0xFFFF_FFFE) + b"k"),
        zlib.compress(b"whole")[:-2],
    ],
)
def test_what_is_no_batch_is_refused_though_its_sum_is_right(packed: bytes) -> None:
    with pytest.raises(DamagedJournalError):
        unpack_batch(sealed(packed))


# ---- commits and followers --------------------------------------------------------------------


def test_what_one_commits_another_one_has() -> None:
    log, standby = MemoryLog(), MemoryStore()
    first = Active(log)
    first.store.commit([(b"a", b"1"), (b"b", b"2")])
    with pytest.raises(NeedsCopyError, match="the store is empty"):
        followed(log, standby)
    standby.commit([*first.below.snapshot().range(b"", b"\xff")])  # the copy of the state
    first.store.commit([(b"a", None), (b"c", b"3")])
    assert followed(log, standby)
    assert records(standby) == records(first.below) == {b"b": b"2", b"c": b"3"}
    second = Active(log, standby, owner="b")
    second.store.commit([(b"d", b"4")])
    with pytest.raises(DeposedError, match="another metaserver is active"):
        first.store.commit([(b"e", b"5")])
    assert b"e" not in records(first.below), "it was not durable, so the store has it not"
    assert followed(log, first.below) and records(first.below) == records(standby)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.ANSWER_LOST, Fault.LATE])
def test_an_unknown_outcome_is_settled_with_the_same_bytes(fault: Fault) -> None:
    log = MemoryLog()
    one = Active(log)
    one.store.commit([(b"a", b"1")])
    batch = [(b"b", b"2")]
    one.faults = [fault]
    with pytest.raises(StoreUncertainError):
        one.store.commit(batch)
    assert b"b" not in records(one.below)
    with pytest.raises(ValueError, match="not known yet"):
        one.store.commit([(b"c", b"3")])
    if fault is Fault.LATE:
        log.deliver_late()
    one.store.commit(batch)
    assert log.head.index == 2 and records(one.below) == {b"a": b"1", b"b": b"2"}


def test_the_lease_counts_from_the_first_attempt() -> None:
    log = MemoryLog()
    one = Active(log)
    batch = [(b"a", b"1")]
    one.faults = [Fault.ANSWER_LOST]
    with pytest.raises(StoreUncertainError):
        one.store.commit(batch)
    one.clock.now_s += ANSWER_S - 0.5
    one.store.commit(batch)
    assert one.lease.holds(one.clock.now_s)
    assert not one.lease.holds(one.clock.now_s + 0.5)


def test_a_full_journal_has_room_later() -> None:
    one = Active(MemoryLog())
    one.faults = [Fault.FULL]
    batch = [(b"a", b"1")]
    with pytest.raises(JournalRoomError):
        one.store.commit(batch)
    one.store.commit(batch)
    assert records(one.below) == {b"a": b"1"}


def test_the_first_state_is_what_its_author_had() -> None:
    """A store with names begins a log, and is killed before it has applied the first entry: it
    follows; a store with other names never does."""
    log, store, other = MemoryLog(), MemoryStore(), MemoryStore()
    store.commit([(b"old", b"1")])
    other.commit([(b"foreign", b"1")])
    one = Active(log, store)
    assert followed(log, store) and followed(log, other), "no entry yet: both may begin"
    one.faults = [Fault.ANSWER_LOST]
    with pytest.raises(StoreUncertainError):
        one.store.commit([(b"new", b"2")])
    assert followed(log, store)
    assert records(store) == {b"old": b"1", b"new": b"2"}
    with pytest.raises(ForeignStateError, match="names of its own"):
        followed(log, other)


def _restored(log: MemoryLog, index: int) -> MemoryLog:
    """The log as it was before, continued otherwise."""
    entries = {at: one for at, one in log.entries.items() if at <= index}
    head = Head(log.head.log, 9, index, entries[index].nonce, "x")
    return MemoryLog(head=head, entries=entries)


def test_a_log_that_was_rolled_back_is_noticed() -> None:
    log = MemoryLog()
    one = Active(log)
    for number in range(4):
        one.store.commit([(b"%d" % number, b"")])
    back = _restored(log, 2)
    with pytest.raises(NeedsCopyError, match="ends with 2"):
        followed(back, one.below)
    other = MemoryJournal(back)
    for number in range(2):
        back.append(back.head, bytes([number + 1]) * 16, pack_batch([(b"x", b"")]))
    with pytest.raises(NeedsCopyError, match="another entry 4"):
        followed(back, one.below)
    back.append(back.head, b"z" * 16, pack_batch([(b"x", b"")]))
    with pytest.raises(NeedsCopyError, match="follows another one"):
        Follower(one.below, other).follow(back.head)
    assert mark_in(one.below.snapshot()) == Mark.of(log.head), "it was left as it was"


def test_a_store_that_went_on_alone_begins_a_new_log() -> None:
    """The engine is lost for good: the metaserver goes on without, and then with another one."""
    former, log = MemoryLog(), MemoryLog()
    one, other = Active(former), MemoryStore()
    one.store.commit([(b"a", b"1")])
    other.commit([*one.below.snapshot().range(b"", b"\xff")])
    with pytest.raises(NeedsCopyError, match="another journal"):
        followed(log, one.below)
    for _ in range(2):
        forget_mark(one.below)
    assert followed(log, one.below)
    Active(log, one.below).store.commit([(b"b", b"2")])
    assert records(one.below) == {b"a": b"1", b"b": b"2"}
    forget_mark(other)
    with pytest.raises(ForeignStateError):
        followed(log, other)


def test_another_log_is_noticed() -> None:
    one, other = Active(MemoryLog()), Active(MemoryLog())
    one.store.commit([(b"a", b"")])
    other.store.commit([(b"b", b"")])
    with pytest.raises(NeedsCopyError, match="another journal"):
        followed(other.log, one.below)


def test_a_gap_and_a_damaged_mark_are_refused() -> None:
    log = MemoryLog()
    one = Active(log)
    one.store.commit([(b"a", b"")])

    class Gap(MemoryJournal):
        def read(self, after: int) -> Sequence[Entry]:
            return [Entry(after + 2, 1, b"n" * 16, NO_NONCE, b"")]

    one.log.append(log.head, b"n" * 16, pack_batch([]))
    with pytest.raises(DamagedJournalError, match="comes behind"):
        Follower(one.below, Gap(log)).follow(log.head)
    one.below.commit([(MARK_KEY, b"garbage")])
    with pytest.raises(StoreError, match="mark of the journal is damaged"):
        Follower(one.below, one.door)


def test_a_trimmed_log_needs_a_copy() -> None:
    log, standby = MemoryLog(), MemoryStore()
    one = Active(log)
    one.store.commit([(b"a", b"")])
    standby.commit([*one.below.snapshot().range(b"", b"\xff")])
    for number in range(3):
        one.store.commit([(b"%d" % number, b"")])
    one.door.trim(one.store.head, 4)
    with pytest.raises(NeedsCopyError, match="trimmed"):
        followed(log, standby)


# ---- terms and trimming -----------------------------------------------------------------------


def seen(beats: int, owner: str = "a", term: int = 1) -> Sighting:
    return Sighting(Head(b"l" * 16, term, 5, b"n" * 16, owner), beats)


def test_nobody_claims_before_the_lease_of_the_active_has_ended() -> None:
    lease, watch = ActiveLease(), TakeOverWatch()
    lease.proven(10.0)  # sent at 10.0, made at 10.2, seen at 10.4
    watch.saw(seen(3), 10.4)
    assert lease.holds(10.0 + ANSWER_S - 0.1) and not lease.holds(10.0 + ANSWER_S)
    for at_s in (11.0, 13.0, 10.4 + CLAIM_S - 0.01):
        watch.saw(seen(3), at_s)
        assert not watch.may_claim(at_s)
    assert watch.may_claim(10.4 + CLAIM_S)
    assert not lease.holds(10.4 + CLAIM_S)
    lease.proven(9.0)
    assert not lease.holds(12.5 + ANSWER_S), "an older success does not shorten or lengthen it"


def test_a_change_or_a_silent_journal_starts_the_wait_anew() -> None:
    watch = TakeOverWatch()
    assert not watch.may_claim(1e9), "nothing was seen yet"
    watch.saw(seen(1), 0.0)
    watch.saw(seen(2), 3.0)
    assert not watch.may_claim(6.9) and watch.may_claim(7.0)
    watch.failed()
    assert not watch.may_claim(100.0)
    watch.saw(seen(2), 100.0)
    assert not watch.may_claim(103.9) and watch.may_claim(104.0)


def test_a_resigned_journal_is_claimed_at_once() -> None:
    watch = TakeOverWatch()
    watch.saw(seen(1, owner=""), 5.0)
    assert watch.may_claim(5.0)


def test_entries_stay_for_members_that_report() -> None:
    trimming = Trimming(kept_s=600.0)
    head = Head(b"l" * 16, 1, 90, b"n" * 16, "a")

    def member(name: str, applied: int, reports: int, log: bytes = b"l" * 16) -> Member:
        return Member(name, name, log, applied, reports)

    rows = [member("a", 90, 1), member("b", 40, 1), member("c", 10, 1, b"other log")]
    assert trimming.below(rows, head, 90, 0.0) == 41
    rows[1] = member("b", 60, 2)
    assert trimming.below(rows, head, 90, 599.0) == 61
    assert trimming.below(rows, head, 90, 1198.0) == 61
    assert trimming.below(rows, head, 90, 1199.0) == 91, "b was silent for too long"
    rows[1] = member("b", 60, 3)
    assert trimming.below(rows, head, 90, 1200.0) == 61, "b is back"
