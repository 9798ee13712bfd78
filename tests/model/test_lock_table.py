"""The lock table against the simplest correct model: a type per owner and byte.

Hypothesis locks, unlocks, waits, cancels and drops owners and sessions. After every step: no two
held locks conflict; exactly the locks of the oracle are held; no request waits that could be
granted (no lost wake-up); and each granted request was notified.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fscommon.errors import FsError, Status
from fscommon.layout.lock_ranges import LOCK_END, LockType
from fscommon.types import Ino, SessionId
from metaserver.locks.table import LockTable, Owner, Wanted

BYTES = 8
FILES = (Ino(1), Ino(2))
OWNERS = [Owner(SessionId(session), False, owner) for session in (1, 2, 3) for owner in (1, 2)]
RANGES = st.tuples(st.integers(0, BYTES - 1), st.integers(1, BYTES)).map(
    lambda pair: (pair[0], min(BYTES, pair[0] + pair[1]))
)
TYPES = st.sampled_from((LockType.READ, LockType.WRITE))


def contradicts(one: LockType | None, other: LockType | None) -> bool:
    return None not in (one, other) and LockType.WRITE in (one, other)


class LockMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.table = LockTable()
        self.bytes: dict[tuple[Ino, Owner], list[LockType | None]] = {}
        self.waiting: dict[int, Wanted] = {}
        self.ticket = 0

    # ---- oracle ----

    def held(self, ino: Ino, owner: Owner) -> list[LockType | None]:
        return self.bytes.setdefault((ino, owner), [None] * BYTES)

    def is_free(self, wanted: Wanted) -> bool:
        return not any(
            contradicts(self.held(wanted.ino, other)[at], wanted.type)
            for other in OWNERS
            if other != wanted.owner
            for at in range(wanted.start, wanted.end)
        )

    def put(self, wanted: Wanted) -> None:
        kind = None if wanted.type is LockType.NONE else wanted.type
        row = self.held(wanted.ino, wanted.owner)
        row[wanted.start : wanted.end] = [kind] * (wanted.end - wanted.start)

    def take_grants(self) -> None:
        """Each request that the table granted must have been grantable, in this order."""
        for session in {owner.session for owner in OWNERS}:
            tickets = self.table.take_events(session, ())
            assert self.table.take_events(session, tickets) == ()
            for ticket in tickets:
                if ticket in self.waiting:
                    self.put(self.waiting.pop(ticket))

    def waits(self, owner: Owner) -> bool:
        """A process with one thread makes no request while it waits. (Of two threads, one could
        close a cycle with a lock that needs no waiting: no kernel finds that either.)"""
        return any(waiting.owner == owner for waiting in self.waiting.values())

    # ---- rules ----

    @rule(ino=st.sampled_from(FILES), owner=st.sampled_from(OWNERS), extent=RANGES, kind=TYPES)
    def lock(self, ino: Ino, owner: Owner, extent: tuple[int, int], kind: LockType) -> None:
        if self.waits(owner):
            return
        wanted = Wanted(ino, owner, *extent, kind, 7)
        free = self.is_free(wanted)
        try:
            assert self.table.ask(wanted)
        except FsError as error:
            assert error.status is Status.EAGAIN
            assert not free
        else:
            assert free
            self.put(wanted)
        self.take_grants()

    @rule(ino=st.sampled_from(FILES), owner=st.sampled_from(OWNERS), extent=RANGES, kind=TYPES)
    def lock_or_wait(self, ino: Ino, owner: Owner, extent: tuple[int, int], kind: LockType) -> None:
        if self.waits(owner):
            return
        wanted = Wanted(ino, owner, *extent, kind, 7)
        self.ticket += 1
        free = self.is_free(wanted)
        try:
            granted = self.table.ask(wanted, self.ticket)
        except FsError as error:
            assert error.status is Status.EDEADLK
            assert not free
            return
        if granted and free:
            self.put(wanted)
        else:
            self.waiting[self.ticket] = wanted
        assert self.table.ask(wanted, self.ticket) == granted or granted  # it is a repeat
        self.take_grants()

    @rule(ino=st.sampled_from(FILES), owner=st.sampled_from(OWNERS), extent=RANGES)
    def unlock(self, ino: Ino, owner: Owner, extent: tuple[int, int]) -> None:
        wanted = Wanted(ino, owner, *extent, LockType.NONE, 7)
        assert self.table.ask(wanted)
        self.put(wanted)
        self.take_grants()

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.waiting:
            ticket = data.draw(st.sampled_from(sorted(self.waiting)))
            session = self.waiting.pop(ticket).owner.session
            assert not self.table.cancel(session, ticket)
            assert not self.table.cancel(session, ticket)
            self.take_grants()

    @rule(session=st.sampled_from((1, 2, 3)))
    def end_session(self, session: int) -> None:
        self.table.drop_session(SessionId(session))
        for (_, owner), row in self.bytes.items():
            if owner.session == session:
                row[:] = [None] * BYTES
        for ticket, wanted in list(self.waiting.items()):
            if wanted.owner.session == session:
                del self.waiting[ticket]
        self.take_grants()

    # ---- what always holds ----

    @invariant()
    def held_is_what_the_oracle_says(self) -> None:
        if not hasattr(self, "table"):
            return
        found: dict[tuple[Ino, Owner], list[LockType | None]] = {}
        for ino, owner, one, is_waiting in self.table.listing():
            if not is_waiting:
                row = found.setdefault((ino, owner), [None] * BYTES)
                assert row[one.start : one.end] == [None] * (one.end - one.start), "overlap"
                row[one.start : one.end] = [one.type] * (one.end - one.start)
        wanted = {key: row for key, row in self.bytes.items() if any(x is not None for x in row)}
        assert found == wanted
        assert self.table.waiting_count == len(self.waiting)

    @invariant()
    def nobody_holds_what_contradicts_another(self) -> None:
        for ino in FILES:
            for at in range(BYTES):
                rows = [self.bytes.get((ino, owner)) for owner in OWNERS] if self.bytes else []
                kinds = [row[at] for row in rows if row is not None and row[at] is not None]
                assert LockType.WRITE not in kinds or len(kinds) == 1

    @invariant()
    def nobody_waits_who_could_go_on(self) -> None:
        if not hasattr(self, "waiting"):
            return
        for wanted in self.waiting.values():
            assert not self.is_free(wanted), "a lost wake-up"
        self._check_circles()

    def _check_circles(self) -> None:
        """Each waiting request waits, in the end, for an owner that does not wait."""
        live = {o for o in OWNERS if all(w.owner != o for w in self.waiting.values())}
        changed = True
        while changed:
            changed = False
            for wanted in self.waiting.values():
                if wanted.owner not in live and self._blockers(wanted) <= live:
                    live.add(wanted.owner)
                    changed = True
        assert len(live) == len(OWNERS), "a circle of waiting owners"

    def _blockers(self, wanted: Wanted) -> set[Owner]:
        extent = range(wanted.start, wanted.end)
        return {
            other
            for other in OWNERS
            if other != wanted.owner
            and any(contradicts(self.held(wanted.ino, other)[at], wanted.type) for at in extent)
        }


TestLockTable = LockMachine.TestCase
TestLockTable.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def owner(session: int, number: int = 1, *, is_flock: bool = False) -> Owner:
    return Owner(SessionId(session), is_flock, number)


def whole(who: Owner, kind: LockType, ino: int = 1) -> Wanted:
    return Wanted(Ino(ino), who, 0, LOCK_END, kind, 1)


def test_flock_is_changed_by_dropping_it_first() -> None:
    table = LockTable()
    one, two, three = (owner(n, is_flock=True) for n in (1, 2, 3))
    assert table.ask(whole(one, LockType.READ))
    assert table.ask(whole(two, LockType.READ))
    assert not table.ask(whole(three, LockType.WRITE), 1)
    try:
        table.ask(whole(one, LockType.WRITE))
    except FsError as error:
        assert error.status is Status.EAGAIN
    conflict = table.find_conflict(whole(owner(9, is_flock=True), LockType.WRITE))
    assert conflict is not None and conflict.owner == two
    assert table.ask(whole(two, LockType.WRITE))  # no other owner holds it: it is never released
    assert table.take_events(SessionId(3), ()) == ()
    assert table.ask(whole(one, LockType.NONE))
    assert not table.ask(whole(one, LockType.READ), 1)
    # One may share it; three, which was first, may not.
    assert table.ask(whole(two, LockType.READ))
    assert table.take_events(SessionId(1), ()) == (1,)
    try:
        table.ask(whole(two, LockType.WRITE))
    except FsError as error:
        assert error.status is Status.EAGAIN
    assert table.ask(whole(one, LockType.NONE))  # the shared lock of two was released as well
    assert table.take_events(SessionId(3), ()) == (1,)


def test_flock_and_fcntl_do_not_meet() -> None:
    table = LockTable()
    assert table.ask(whole(owner(1), LockType.WRITE))
    assert table.ask(whole(owner(2, is_flock=True), LockType.WRITE))


def test_deadlock_of_three_is_told_to_the_last() -> None:
    table = LockTable()
    owners = [owner(n) for n in (1, 2, 3)]
    for number, who in enumerate(owners):
        assert table.ask(whole(who, LockType.WRITE, ino=number))
    assert not table.ask(whole(owners[0], LockType.WRITE, ino=1), 1)
    assert not table.ask(whole(owners[1], LockType.WRITE, ino=2), 1)
    try:
        table.ask(whole(owners[2], LockType.WRITE, ino=0), 1)
        raise AssertionError("no EDEADLK")
    except FsError as error:
        assert error.status is Status.EDEADLK


def test_what_is_free_is_had_past_those_who_wait() -> None:
    table = LockTable()
    assert table.ask(whole(owner(1), LockType.READ))
    assert not table.ask(whole(owner(2), LockType.WRITE), 1)
    assert table.ask(whole(owner(3), LockType.READ), 1)


def test_those_who_wait_go_on_in_order_of_arrival() -> None:
    table = LockTable()
    assert table.ask(whole(owner(1), LockType.WRITE))
    for session in (3, 2, 4):
        assert not table.ask(whole(owner(session), LockType.WRITE), 1)
    granted = []
    for session in (1, 3, 2):
        assert table.ask(whole(owner(session), LockType.NONE))
        granted.append(set(table.fresh))
        for told in granted[-1]:
            assert table.take_events(told, ()) == (1,)
    assert granted == [{3}, {2}, {4}]


def test_thousands_wait_for_one_lock() -> None:
    """Nothing here is quadratic in the number of waiting requests: otherwise this test would take
    hours."""
    table = LockTable()
    count = 4000
    assert table.ask(whole(owner(1, 0), LockType.WRITE))
    for number in range(1, count):
        assert not table.ask(whole(owner(1 + number % 2, number), LockType.WRITE), number)
    assert table.ask(whole(owner(1, 0), LockType.NONE))
    assert table.take_events(SessionId(2), ()) == (1,)
    assert table.waiting_count == count - 2


def test_a_grant_is_told_until_it_is_acknowledged() -> None:
    table = LockTable()
    assert table.ask(whole(owner(1), LockType.WRITE))
    assert not table.ask(whole(owner(2), LockType.WRITE), 5)
    table.drop_session(SessionId(1))
    assert table.fresh == {2}
    assert table.take_events(SessionId(2), ()) == (5,)
    assert table.take_events(SessionId(2), ()) == (5,)
    assert table.take_events(SessionId(2), (5,)) == ()


def test_restored_locks_contradict_nobody() -> None:
    table = LockTable()
    assert table.restore(whole(owner(1), LockType.WRITE))
    assert not table.restore(whole(owner(2), LockType.READ))
    assert len(table) == 1
