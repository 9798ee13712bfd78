"""Locks through the engine: waiting requests, notifications, restart, end of a session."""

from dataclasses import replace

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.lock_ranges import LOCK_END, LockType
from fscommon.types import SessionId
from fscommon.wire.locks import (
    HeldLock,
    LockCancel,
    LockEvents,
    LockGet,
    LockQuery,
    LockRestore,
    LockSet,
)
from fscommon.wire.messages import Empty, SessionOpen
from fscommon.wire.ops import Op

from .bench import Bench, Client
from .test_leases import Cached

INO = 7
WRITE, READ, NONE = LockType.WRITE, LockType.READ, LockType.NONE


@pytest.fixture
def bench() -> Bench:
    return Bench()


def lock(
    kind: LockType, ticket: int = 0, *, owner: int = 1, start: int = 0, end: int = LOCK_END
) -> LockSet:
    return LockSet(INO, False, owner, start, end, kind, 99, ticket, False)


def loose(kind: LockType) -> LockSet:
    return replace(lock(kind), is_loose=True)


def refusal(client: Client, op: Op, message: object) -> Status:
    with pytest.raises(FsError) as caught:
        client.call(op, message)
    return caught.value.status


def test_two_sessions(bench: Bench) -> None:
    one, two = bench.client(), bench.client()
    assert one.call(Op.LOCK_SET, lock(WRITE)).granted
    assert refusal(two, Op.LOCK_SET, lock(WRITE)) is Status.EAGAIN
    found = two.call(Op.LOCK_GET, LockGet(INO, False, 1, 5, 6, READ))
    assert (found.type, found.start, found.end, found.pid) == (WRITE, 0, LOCK_END, 99)
    assert found.session == one.session
    assert one.call(Op.LOCK_SET, lock(NONE)).granted
    assert two.call(Op.LOCK_GET, LockGet(INO, False, 1, 5, 6, READ)).type == NONE


# ---- locks that may be released ----------------------------------------------------------------


def test_who_holds_a_loose_lock_is_asked_before_another_is_refused(bench: Bench) -> None:
    one, two = Cached.of(bench), Cached.of(bench)
    assert one.client.call(Op.LOCK_SET, loose(READ)).granted
    assert one.client.call(Op.LOCK_SET, loose(READ)).granted, "nobody is asked for its own"
    assert two.client.call(Op.LOCK_SET, lock(READ)).granted, "nor for what contradicts nothing"
    assert two.client.call(Op.LOCK_SET, lock(NONE)).granted
    assert one.recalled() == []
    for is_gone in (False, True):
        two.client.send(Op.LOCK_SET, lock(WRITE))
        assert two.waits()
        (item,) = one.recalled()
        assert (item.ino, item.flags) == (INO, 0)
        if is_gone:
            assert one.client.call(Op.LOCK_SET, lock(NONE)).granted
        one.answer(item)
        if is_gone:
            assert two.client.take().granted
        else:
            assert two.client.take_frame().header.status == Status.EAGAIN


def test_who_asks_for_the_holder_of_a_loose_lock_waits_for_it(bench: Bench) -> None:
    one, two = Cached.of(bench), Cached.of(bench)
    one.client.call(Op.LOCK_SET, loose(WRITE))
    two.client.send(Op.LOCK_GET, LockGet(INO, False, 1, 5, 6, READ))
    assert two.waits()
    (item,) = one.recalled()
    one.client.call(Op.LOCK_SET, lock(NONE))
    one.answer(item)
    assert two.client.take().type == NONE


def test_nobody_is_asked_who_cannot_answer_or_need_not(bench: Bench) -> None:
    one, two = bench.client(), Cached.of(bench)
    one.call(Op.LOCK_SET, loose(WRITE))
    assert refusal(two.client, Op.LOCK_SET, lock(WRITE)) is Status.EAGAIN
    three = Cached.of(bench, one)
    assert not two.client.call(Op.LOCK_SET, lock(WRITE, ticket=3)).granted, "it may wait"
    assert three.recalled() == []
    one.call(Op.LOCK_SET, lock(NONE))
    assert one.call(Op.LOCK_SET, lock(WRITE, ticket=1)).granted is False, "the other has it"
    assert refusal(three.client, Op.LOCK_SET, lock(WRITE)) is Status.EAGAIN
    assert two.recalled() == [], "it said nothing of the kind"


# ---- waiting requests ---------------------------------------------------------------------------


def test_a_grant_is_told_to_whoever_asks_for_events(bench: Bench) -> None:
    one, two = bench.client(), bench.client()
    one.call(Op.LOCK_SET, lock(WRITE))
    assert not two.call(Op.LOCK_SET, lock(WRITE, ticket=3)).granted
    two.send(Op.LOCK_EVENTS, LockEvents(()))
    assert two.received() == []
    one.call(Op.LOCK_SET, lock(NONE))
    assert two.take().tickets == (3,)
    two.send(Op.LOCK_EVENTS, LockEvents(()))
    assert two.take().tickets == (3,), "until it is acknowledged"
    two.send(Op.LOCK_EVENTS, LockEvents((3,)))
    assert two.received() == []


def test_a_repeat_of_a_request_that_waits_waits_on(bench: Bench) -> None:
    one, two = bench.client(), bench.client()
    one.call(Op.LOCK_SET, lock(WRITE))
    for _ in range(3):
        assert not two.call(Op.LOCK_SET, lock(WRITE, ticket=3)).granted
    assert not two.call(Op.LOCK_CANCEL, LockCancel(3)).granted
    one.call(Op.LOCK_SET, lock(NONE))
    assert one.call(Op.LOCK_SET, lock(WRITE)).granted


@pytest.mark.parametrize(
    "request_", [lock(WRITE, end=0), lock(WRITE, start=LOCK_END), lock(WRITE, end=LOCK_END + 1)]
)
def test_what_is_no_range_is_refused(bench: Bench, request_: LockSet) -> None:
    assert refusal(bench.client(), Op.LOCK_SET, request_) is Status.EINVAL


def test_hostile_numbers_are_refused(bench: Bench) -> None:
    client = bench.client()
    strange = LockSet(INO, False, 1, 0, 5, 17, 1, 0, False)
    assert refusal(client, Op.LOCK_SET, strange) is Status.EINVAL
    assert refusal(client, Op.LOCK_SET, lock(WRITE, ticket=-1)) is Status.BAD_REQUEST
    assert refusal(client, Op.LOCK_SET, lock(WRITE, start=-1)) is Status.BAD_REQUEST
    too_many = LockEvents(tuple(range((1 << 15) + 1)))
    assert refusal(client, Op.LOCK_EVENTS, too_many) is Status.BAD_REQUEST
    assert not client.call(Op.LOCK_CANCEL, LockCancel(12345)).granted


def test_a_closed_session_holds_nothing(bench: Bench) -> None:
    one, two = bench.client(), bench.client()
    one.call(Op.LOCK_SET, lock(WRITE))
    two.call(Op.LOCK_SET, lock(WRITE, ticket=1))
    two.send(Op.LOCK_EVENTS, LockEvents(()))
    one.call(Op.SESSION_CLOSE, Empty())
    assert two.take().tickets == (1,)


def test_an_evicted_session_holds_its_locks_until_it_is_fenced(bench: Bench) -> None:
    one, two = bench.client(), bench.client()
    one.call(Op.LOCK_SET, lock(WRITE))
    bench.engine.sessions.remove(one.session)
    bench.engine.evicted(one.session)
    assert refusal(two, Op.LOCK_SET, lock(WRITE)) is Status.EAGAIN
    bench.engine.fenced(one.session, bench.time())
    assert two.call(Op.LOCK_SET, lock(WRITE)).granted


def test_locks_are_restored_before_anybody_is_served(bench: Bench) -> None:
    one = bench.client()
    one.call(Op.LOCK_SET, lock(WRITE))
    bench.settle()
    after = Bench(bench.store, targets=0)
    back = Client(after, after.connect(), one.session, one.request_id, one.answered)
    back.call(Op.SESSION_OPEN, SessionOpen(one.session, "c", (), 0))
    held = HeldLock(INO, False, 1, 0, LOCK_END, WRITE, 99)
    assert back.call(Op.LOCK_RESTORE, LockRestore((held,))).refused == 0
    back.call(Op.REPLAY_DONE, Empty())
    two = after.client()
    assert refusal(two, Op.LOCK_SET, lock(READ)) is Status.EAGAIN
    assert refusal(back, Op.LOCK_RESTORE, LockRestore((held,))) is Status.BAD_REQUEST


def test_the_listing_comes_in_pages(bench: Bench) -> None:
    one, two = bench.client(), bench.client()
    for start in range(0, 20, 2):
        one.call(Op.LOCK_SET, lock(WRITE, start=start, end=start + 1))
    two.call(Op.LOCK_SET, lock(WRITE, ticket=1))
    assert refusal(two, Op.LOCK_LIST, LockQuery()) is Status.EPERM
    admin = Client(bench, bench.connect("admin"), SessionId(0))
    first = admin.call(Op.LOCK_LIST, LockQuery(count=8))
    rest = admin.call(Op.LOCK_LIST, LockQuery(skip=8, count=8))
    assert (len(first.locks), first.end, len(rest.locks), rest.end) == (8, False, 3, True)
    assert [row.is_waiting for row in rest.locks] == [False, False, True]
    assert rest.locks[0].node == "c"
