"""Leases over a restart of the metaserver: which ones sessions keep, and which not."""

import pytest

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_ALL,
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_READER,
    LEASE_WRITER,
    unpack_attributes,
)
from fscommon.wire.leases import LeaseRestore, SharedLease
from fscommon.wire.messages import Close, Empty, GetAttr, Open, SessionOpen, Unlink
from fscommon.wire.ops import Op

from .bench import ROOT, Bench, Client
from .test_leases import Cached, bench_of, evict


@pytest.fixture
def pair() -> tuple[Cached, Cached]:
    bench = Bench()
    return Cached.of(bench), Cached.of(bench)


def test_after_a_restart_exclusive_leases_are_asserted_again(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    f = one.client.create(ROOT, b"f").ino
    before = bench_of(one)
    before.settle()
    after = Bench(before.store, targets=0)
    back = [Client(after, after.connect(), c.client.session, 50, 50) for c in (one, two)]
    back[0].send(Op.SESSION_OPEN, SessionOpen(one.client.session, "c", (f,), 50, (f,)))
    back[1].send(Op.SESSION_OPEN, SessionOpen(two.client.session, "c", (), 50, (f,)))
    for client in back:
        assert client.take().lease_s == 30.0
        client.call(Op.REPLAY_DONE, Empty())
    assert not after.engine.progress.recovering
    cached = [Cached.of(after, client) for client in back]
    assert cached[0].held(f) == LEASE_WRITER and cached[1].held(f) == 0, "the first one had it"
    back[1].send(Op.GETATTR, GetAttr(f))
    assert cached[1].waits()
    assert [item.ino for item in cached[0].recalled()] == [f]


def _back(after: Bench, former: Cached, opens: tuple[int, ...] = ()) -> Client:
    """The former client, whose session is open again."""
    session = former.client.session
    client = Client(after, after.connect(), session, 50, 50)
    client.send(Op.SESSION_OPEN, SessionOpen(session, "c", opens, 50))
    client.take()
    return client


def test_after_a_restart_bytes_and_names_are_held_on(pair: tuple[Cached, Cached]) -> None:
    one, _ = pair
    f, folder = one.client.create(ROOT, b"f").ino, one.client.mkdir(ROOT, b"d")
    one.client.call(Op.CLOSE, Close((f,)))
    assert all(c.asks(Op.OPEN, Open(f, False)) & LEASE_DATA for c in pair)
    gone = one.client.create(ROOT, b"gone").ino
    one.client.call(Op.CLOSE, Close((gone,)))
    one.client.call(Op.UNLINK, Unlink(ROOT, b"gone"))
    bench_of(one).settle()
    after = Bench(bench_of(one).store, targets=0)
    back = [_back(after, former, (f,)) for former in pair]
    rows = (SharedLease(f, LEASE_DATA), SharedLease(folder, LEASE_ENTRIES))
    assert back[0].call(Op.LEASE_RESTORE, LeaseRestore(rows)).refused == ()
    rows = (SharedLease(f, LEASE_DATA), SharedLease(gone, LEASE_DATA))
    assert back[1].call(Op.LEASE_RESTORE, LeaseRestore(rows)).refused == (gone,)
    for client in back:
        client.call(Op.REPLAY_DONE, Empty())
    first, second = (Cached.of(after, client) for client in back)
    assert first.held(f) == second.held(f) == LEASE_DATA and first.held(folder) == LEASE_ENTRIES
    second.client.send(Op.OPEN, Open(f, True))
    assert second.waits(), "whoever writes asks those first who held it before the restart"
    (item,) = first.recalled()
    assert (item.ino, item.flags & LEASE_DATA) == (f, LEASE_DATA)
    first.answer(item)
    assert unpack_attributes(second.client.take().attributes).lease_flags & LEASE_DATA_EXCLUSIVE


def test_what_is_held_exclusively_elsewhere_is_not_restored(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    f = one.client.create(ROOT, b"f").ino
    bench_of(one).settle()
    after = Bench(bench_of(one).store, targets=0)
    writer = Client(after, after.connect(), one.client.session, 50, 50)
    writer.call(Op.SESSION_OPEN, SessionOpen(one.client.session, "c", (f,), 50, (f,)))
    reader = _back(after, two)
    row = LeaseRestore((SharedLease(f, LEASE_DATA),))
    assert reader.call(Op.LEASE_RESTORE, row).refused == (f,)


def test_leases_are_restored_before_the_replay_ends_and_no_others(
    pair: tuple[Cached, Cached],
) -> None:
    one, _ = pair
    bench_of(one).settle()
    after = Bench(bench_of(one).store, targets=0)
    back = _back(after, one)
    for flags in (0, LEASE_META, LEASE_DATA_EXCLUSIVE, LEASE_DATA | LEASE_META, 1 << 40, -1):
        assert refusal(back, LeaseRestore((SharedLease(ROOT, flags),))) is Status.BAD_REQUEST
    assert refusal(back, LeaseRestore((SharedLease(-1, LEASE_DATA),))) is Status.BAD_REQUEST
    back.call(Op.REPLAY_DONE, Empty())
    row = LeaseRestore((SharedLease(ROOT, LEASE_ENTRIES),))
    assert refusal(back, row) is Status.BAD_REQUEST


def refusal(client: Client, request: LeaseRestore) -> Status:
    with pytest.raises(FsError) as caught:
        client.call(Op.LEASE_RESTORE, request)
    return caught.value.status


def test_numbers_of_recalls_do_not_come_again_after_a_restart(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    f = one.client.create(ROOT, b"f").ino
    numbers = set()
    for round_ in range(2):
        bench = bench_of(one)
        two.client.send(Op.GETATTR, GetAttr(f))
        numbers.add(one.recalled()[0].recall)
        bench.settle()
        after = Bench(bench.store, targets=0)
        clients = [Client(after, after.connect(), c.client.session, 50, 50) for c in (one, two)]
        for client, held in zip(clients, ((f,), ()), strict=True):
            opened = SessionOpen(client.session, "c", held, 50 + round_, held)
            client.call(Op.SESSION_OPEN, opened)
            client.call(Op.REPLAY_DONE, Empty())
        one, two = (Cached.of(after, client) for client in clients)
    assert len(numbers) == 2


def test_a_restart_before_the_fence_is_complete_forgets_nothing(
    pair: tuple[Cached, Cached],
) -> None:
    one, two = pair
    f = one.client.create(ROOT, b"f").ino
    before = bench_of(one)
    evict(before, one.client)
    before.finish_truncates()
    assert before.faults() == []
    after = Bench(before.store, targets=0)
    leases = after.engine.services.leases
    assert leases.ghosts() == [one.client.session]
    back = Client(after, after.connect(), two.client.session, 50, 50)
    back.send(Op.SESSION_OPEN, SessionOpen(two.client.session, "c", (), 50))
    back.take()
    back.call(Op.REPLAY_DONE, Empty())
    cached = Cached.of(after, back)
    back.send(Op.OPEN, Open(f, True))
    assert cached.waits()
    leases.fenced(leases.ghosts()[0], after.now_s)
    after.engine.leases_changed(after.time())
    assert not cached.waits()
    assert unpack_attributes(back.take().attributes).lease_flags & LEASE_ALL == LEASE_WRITER


def test_a_live_session_cannot_assert_more(pair: tuple[Cached, Cached]) -> None:
    one, _ = pair
    f = one.client.create(ROOT, b"f").ino
    one.client.call(Op.CLOSE, Close((f,)))
    again = Client(bench_of(one), bench_of(one).connect(), one.client.session, 50, 50)
    again.send(Op.SESSION_OPEN, SessionOpen(one.client.session, "c", (), 50, (f,)))
    again.take()
    assert Cached(again, one.recalls).held(f) == LEASE_READER
