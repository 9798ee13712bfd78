"""Leases in the engine: footprints, grants in replies, recalls, waiting, eviction."""

from dataclasses import dataclass
from typing import Any

import pytest

from fscommon.errors import FsError, ProtocolError, Status
from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_ALL,
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    LEASE_WRITER,
    granted_in,
    unpack_attributes,
)
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import encode_frame
from fscommon.wire.leases import (
    MAP_NOTICE,
    LeaseQuery,
    LeaseReport,
    LeaseReturn,
    LeaseTake,
    Recall,
    RecallItem,
    ReturnItem,
)
from fscommon.wire.messages import (
    COMMIT_SIZE,
    Close,
    Commit,
    Create,
    Empty,
    Failure,
    GetAttr,
    Lookup,
    MkDir,
    Open,
    ReadDir,
    SessionRenew,
    SetXattr,
    StatFs,
    Symlink,
    Unlink,
)
from fscommon.wire.ops import Op
from metaserver.connection import Connection
from metaserver.eviction import forget

from .bench import ROOT, SETTINGS, USER, Bench, Client, parse

READER = LEASE_META | LEASE_DATA
NAMES = LEASE_META | LEASE_ENTRIES
TWO_SESSIONS_S = 30.0


@dataclass
class Cached:
    """A client with a recall connection."""

    client: Client
    recalls: Connection

    @classmethod
    def of(cls, bench: Bench, client: Client | None = None) -> "Cached":
        client = client or bench.client()
        connection = bench.connect("recall")
        bench.engine.attach(connection, client.session)
        cached = cls(client, connection)
        assert cached.recalled() == [], "the first RECALL is empty"
        return cached

    def recalled(self) -> list[RecallItem]:
        frames = parse(b"".join(self.recalls.outbox))
        self.recalls.outbox.clear()
        return [item for frame in frames for item in decode(Recall, frame.body).items]

    def answer(self, item: RecallItem, *, is_open: bool = False) -> None:
        back = ReturnItem(item.ino, item.flags, item.recall, is_open)
        self.client.tell(Op.LEASE_RETURN, LeaseReturn((back,)))

    def asks(self, op: Op, message: Any) -> int:
        """Sends the request; returns the LEASE_* bits in the record of the reply."""
        return unpack_attributes(self.client.call(op, message).attributes).lease_flags & LEASE_ALL

    def held(self, ino: int) -> int:
        report: LeaseReport = self.client.call(Op.LEASES, LeaseQuery(self.client.session))
        return {lease.ino: lease.flags for lease in report.leases}.get(ino, 0)

    def waits(self) -> bool:
        self.client.bench.settle()
        return not self.client.received()


def bench_of(cached: Cached) -> Bench:
    return cached.client.bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def pair(bench: Bench) -> tuple[Cached, Cached]:
    return Cached.of(bench), Cached.of(bench)


# ---- grants -----------------------------------------------------------------------------------


def test_without_a_recall_connection_nothing_is_granted(bench: Bench) -> None:
    client = bench.client()
    assert client.create(ROOT, b"f").lease_flags == 0
    assert client.lookup(ROOT, b"f").lease_flags == 0


def test_grants_of_each_reply(bench: Bench) -> None:
    me = Cached.of(bench)
    opened = me.client.call(Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER))
    f = unpack_attributes(opened.attributes)
    assert f.lease_flags == LEASE_WRITER and f.lease_ns == TWO_SESSIONS_S * 1e9
    assert unpack_attributes(opened.parents).lease_flags == NAMES
    made = me.client.call(Op.MKDIR, MkDir(ROOT, b"d", 0o755, USER))
    d = unpack_attributes(made.attributes)
    assert d.lease_flags == NAMES
    assert me.asks(Op.SYMLINK, Symlink(d.ino, b"s", b"t", USER)) == LEASE_META
    me.client.call(Op.CLOSE, Close((f.ino,)))
    assert me.held(f.ino) == READER, "closing gives up what is exclusive"
    assert me.asks(Op.OPEN, Open(f.ino, True)) == LEASE_WRITER
    found = me.client.call(Op.LOOKUP, Lookup(d.ino, b"s"))
    assert unpack_attributes(found.parents).lease_flags == NAMES
    listed = me.client.call(Op.READDIR, ReadDir(ROOT, 0, 10))
    starts = range(0, len(listed.attributes), ATTRIBUTES_SIZE)
    assert {granted_in(listed.attributes, start) for start in starts} == {LEASE_WRITER, NAMES}
    assert unpack_attributes(listed.parents).lease_flags == NAMES


def test_an_absent_name_grants_the_directory(bench: Bench) -> None:
    me = Cached.of(bench)
    me.client.send(Op.LOOKUP, Lookup(ROOT, b"none"))
    frame = me.client.take_frame()
    assert frame.header.status == Status.ENOENT
    record = unpack_attributes(decode(Failure, frame.body).parents)
    assert (record.ino, record.lease_flags) == (ROOT, NAMES)


def test_stored_records_and_stored_replies_have_no_lease(bench: Bench) -> None:
    me = Cached.of(bench)
    request = Create(ROOT, b"f", 0o644, True, True, USER)
    rid = me.client.send(Op.CREATE, request)
    me.client.take()
    repeated = me.client.call(Op.CREATE, request, request_id=rid)
    assert unpack_attributes(repeated.attributes).lease_flags == 0
    bench.settle()
    inode = next(iter(bench.store.snapshot().range(b"I", b"J")))[1]
    assert unpack_attributes(inode[:128]).lease_flags == 0


def test_many_share(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    f = one.client.create(ROOT, b"f").ino
    one.client.call(Op.CLOSE, Close((f,)))
    assert one.asks(Op.OPEN, Open(f, False)) == READER
    assert two.asks(Op.OPEN, Open(f, False)) == READER
    assert not one.recalled() and not two.recalled()


# ---- recalls ----------------------------------------------------------------------------------


def test_a_change_waits_for_the_holder(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    two.client.send(Op.LOOKUP, Lookup(ROOT, b"x"))
    two.client.take_frame()
    one.client.send(Op.MKDIR, MkDir(ROOT, b"x", 0o755, USER))
    assert one.waits()
    (item,) = two.recalled()
    assert (item.ino, item.flags) == (ROOT, NAMES)
    assert item.limit == two.client.request_id == item.granted_by
    one.client.send(Op.STATFS, StatFs())
    assert not one.waits(), "other requests of the session go on"
    one.client.take()
    two.answer(item)
    assert not one.waits()
    made = unpack_attributes(one.client.take().attributes)
    assert two.client.lookup(ROOT, b"x").ino == made.ino


def test_what_another_waits_for_is_made_durable_at_once(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    f = one.client.create(ROOT, b"f").ino
    bench_of(one).settle()
    engine = bench_of(one).engine
    one.client.tell(Op.COMMIT, Commit(f, f, COMMIT_SIZE, 7, 0, 0, False))
    assert not engine.urgent
    two.client.send(Op.OPEN, Open(f, False))
    assert not engine.urgent
    one.client.tell(Op.COMMIT, Commit(f, f, COMMIT_SIZE, 77, 0, 0, False))
    assert engine.urgent, "while the holder is still giving the lease up"


def test_the_holders_own_requests_pass(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    f = one.client.create(ROOT, b"f").ino
    two.client.send(Op.OPEN, Open(f, False))
    assert two.waits()
    (item,) = [item for item in one.recalled() if item.ino == f]
    assert item.flags == LEASE_META_EXCLUSIVE | LEASE_DATA_EXCLUSIVE, "a downgrade"
    one.client.call(Op.COMMIT, Commit(f, f, COMMIT_SIZE, 77, 0, 0, False))
    one.answer(item)
    assert not two.waits()
    opened = unpack_attributes(two.client.take().attributes)
    assert (opened.size, opened.lease_flags & LEASE_ALL) == (77, READER)
    assert one.held(f) == READER


def test_stat_asks_the_writer_and_takes_nothing(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    f = one.client.create(ROOT, b"f").ino
    for size in (5, 9):
        two.client.send(Op.GETATTR, GetAttr(f))
        assert two.waits()
        (item,) = [item for item in one.recalled() if item.ino == f]
        assert item.flags == 0
        one.client.call(Op.COMMIT, Commit(f, f, COMMIT_SIZE, size, 0, 0, False))
        one.answer(item)
        assert not two.waits()
        stat = unpack_attributes(two.client.take().attributes)
        assert (stat.size, stat.lease_flags) == (size, 0)
    assert one.held(f) == LEASE_WRITER


def test_two_writers_hand_over_in_order(bench: Bench) -> None:
    """Each TAKE is granted what it requests, in order of arrival, although others wait."""
    one, two, three = Cached.of(bench), Cached.of(bench), Cached.of(bench)
    f = one.client.create(ROOT, b"f").ino
    for other in (two, three):
        other.client.send(Op.LEASE_TAKE, LeaseTake(f, LEASE_DATA_EXCLUSIVE))
        assert other.waits()
    items = [item for item in one.recalled() if item.ino == f]
    assert len(items) == 1, "one recall for both"
    one.answer(items[0])
    assert not two.waits() and three.waits()
    assert unpack_attributes(two.client.take().attributes).lease_flags & LEASE_ALL == LEASE_WRITER
    (item,) = two.recalled()
    assert item.granted_by == two.client.request_id, "the reply that grants it may be on its way"
    two.answer(item)
    assert not three.waits()
    assert unpack_attributes(three.client.take().attributes).lease_flags & LEASE_ALL == LEASE_WRITER
    assert two.held(f) == 0


def test_what_somebody_waits_for_is_granted_to_nobody(bench: Bench) -> None:
    one, two, three = Cached.of(bench), Cached.of(bench), Cached.of(bench)
    d = one.client.mkdir(ROOT, b"d")
    two.client.send(Op.MKDIR, MkDir(d, b"x", 0o755, USER))
    assert two.waits()
    assert three.client.call(Op.READDIR, ReadDir(d, 0, 10)).parents == b""
    assert one.asks(Op.GETATTR, GetAttr(d)) == 0, "nor to the holder again"
    for item in one.recalled():
        one.answer(item)
    assert not two.waits()


def test_returned_unasked(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    d = one.client.mkdir(ROOT, b"d")
    one.client.tell(Op.LEASE_RETURN, LeaseReturn((ReturnItem(d, NAMES),)))
    assert one.held(d) == 0
    two.client.mkdir(d, b"x")
    assert not [item for item in one.recalled() if item.ino == d]


def test_an_answer_that_comes_twice_gives_up_nothing_new(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    d = one.client.mkdir(ROOT, b"d")
    two.client.send(Op.SETXATTR, SetXattr(d, b"user.a", b"v", 0))
    (item,) = [item for item in one.recalled() if item.ino == d]
    one.answer(item)
    assert not two.waits()
    two.client.tell(Op.LEASE_RETURN, LeaseReturn((ReturnItem(d, NAMES),)))
    assert one.asks(Op.GETATTR, GetAttr(d)) & LEASE_META
    one.answer(item)
    assert one.held(d) & LEASE_META


def test_opened_by_the_client_itself(pair: tuple[Cached, Cached]) -> None:
    """Rule 14: files that a holder has open under its lease are reported with its answer, and stay
    open."""
    one, two = pair
    f = one.client.create(ROOT, b"f").ino
    one.client.call(Op.CLOSE, Close((f,)))
    two.client.send(Op.UNLINK, Unlink(ROOT, b"f"))
    for item in one.recalled():
        one.answer(item, is_open=item.ino == f)
    assert not two.waits()
    assert unpack_attributes(two.client.take().attributes).nlink == 0
    assert one.client.call(Op.GETATTR, GetAttr(f))
    one.client.call(Op.CLOSE, Close((f,)))
    assert f in bench_of(one).engine.sessions.reapable


def test_recalls_are_told_again_on_a_new_connection(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    d = one.client.mkdir(ROOT, b"d")
    two.client.send(Op.MKDIR, MkDir(d, b"x", 0o755, USER))
    first = one.recalled()
    bench_of(one).engine.closed(one.recalls)
    again = bench_of(one).connect("recall")
    bench_of(one).engine.attach(again, one.client.session)
    one.recalls = again
    assert one.recalled() == first != []


def test_without_its_recall_connection_nothing_new_is_granted(pair: tuple[Cached, Cached]) -> None:
    one, _ = pair
    d = one.client.mkdir(ROOT, b"d")
    bench_of(one).engine.closed(one.recalls)
    assert one.asks(Op.GETATTR, GetAttr(d)) == NAMES, "what is held stays"
    assert one.client.mkdir(ROOT, b"e") and one.held(d)
    assert one.client.lookup(ROOT, b"e").lease_flags == 0


def test_the_oldest_leases_go_back() -> None:
    bench = Bench(settings=SETTINGS.__class__(b"k" * 32, 30.0, 1 << 20, 4, 30.0, 4))
    me = Cached.of(bench)
    d = me.client.mkdir(ROOT, b"d")
    inos = [me.client.mkdir(d, b"%d" % i) for i in range(8)]
    gone: list[int] = []
    while items := me.recalled():
        gone += [item.ino for item in items]
        for item in items:
            me.answer(item)
    assert sorted(gone) == [ROOT, *inos[:5]], "d was used with each of them"
    assert bench.engine.services.leases.sums(me.client.session)[0] == 4


def test_a_directory_that_two_change_is_not_granted_for_a_while(
    pair: tuple[Cached, Cached],
) -> None:
    one, two = pair
    bench = bench_of(one)
    granted = []
    for number in range(6):
        asker, holder = (one, two) if number % 2 else (two, one)
        asker.client.send(Op.MKDIR, MkDir(ROOT, b"%d" % number, 0o755, USER))
        for item in holder.recalled():
            holder.answer(item)
        bench.settle()
        granted.append(unpack_attributes(asker.client.take().parents).lease_flags)
    assert granted[0] == NAMES and granted[-1] == 0
    bench.now_s += 2
    assert (
        unpack_attributes(one.client.call(Op.READDIR, ReadDir(ROOT, 0, 10)).parents).lease_flags
        == NAMES
    )


# ---- time ---------------------------------------------------------------------------------------


def test_a_lease_that_nobody_renews_runs_out(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    bench = bench_of(one)
    d = one.client.mkdir(ROOT, b"d")
    two.client.send(Op.MKDIR, MkDir(d, b"x", 0o755, USER))
    bench.now_s += 20
    renewed = one.client.call(Op.SESSION_RENEW, SessionRenew(0))
    assert [item.ino for item in renewed.recalled] == [d], "is not renewed"
    bench.now_s += 9.9
    assert bench.engine.services.leases.expire(bench.now_s) == []
    assert two.waits()
    bench.now_s += 0.2
    assert bench.engine.services.leases.expire(bench.now_s) == []
    bench.engine.leases_changed(bench.time())
    assert not two.waits() and two.client.take()
    assert bench.engine.services.leases.counts == {"expired": 1}


def evict(bench: Bench, client: Client) -> None:
    """Does what metaserver.eviction does before it fences."""
    session = bench.engine.sessions.get(client.session)
    assert session is not None
    bench.engine.system(lambda tx, context: forget(tx, context, session), bench.time())
    bench.engine.sessions.remove(session.id)
    bench.engine.evicted(session.id)


def test_an_exclusive_lease_ends_with_the_fence_only(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    bench = bench_of(one)
    f = one.client.create(ROOT, b"f").ino
    two.client.send(Op.OPEN, Open(f, True))
    bench.now_s += 31
    two.client.send(Op.SESSION_RENEW, SessionRenew(0))
    two.client.take_frame()
    assert bench.engine.services.leases.expire(bench.now_s) == [one.client.session]
    evict(bench, one.client)
    bench.engine.leases_changed(bench.time())
    assert two.waits(), "bytes of the evicted client may be on their way"
    assert not one.recalls.is_open
    bench.engine.services.leases.fenced(one.client.session, bench.now_s)
    bench.engine.leases_changed(bench.time())
    bench.finish_truncates()
    assert unpack_attributes(two.client.take().attributes).lease_flags & LEASE_ALL == LEASE_WRITER


def test_an_uncached_writer_is_waited_for_too(bench: Bench) -> None:
    one, two = bench.client(), Cached.of(bench)
    f = one.create(ROOT, b"f").ino
    evict(bench, one)
    bench.finish_truncates()
    two.client.send(Op.OPEN, Open(f, False))
    assert two.waits()
    bench.now_s += 31
    bench.engine.services.leases.fenced(one.session, bench.now_s)
    bench.engine.leases_changed(bench.time())
    assert not two.waits()


# ---- hostile peers ------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [0, 12345])
def test_a_recall_connection_names_a_session(bench: Bench, session: int) -> None:
    with pytest.raises(ProtocolError):
        bench.engine.attach(bench.connect("recall"), session)  # type: ignore[arg-type]


def test_a_recall_connection_carries_no_requests(bench: Bench) -> None:
    me = Cached.of(bench)
    for frame in parse(encode_frame(Op.GETATTR, request_id=1, body=encode(GetAttr(ROOT)))):
        bench.engine.handle(me.recalls, frame, bench.time())
    assert parse(b"".join(me.recalls.outbox))[0].header.status == Status.UNKNOWN_SESSION
    with pytest.raises(ProtocolError):
        for frame in parse(encode_frame(Op.RECALL, request_id=1, body=encode(Recall(())))):
            bench.engine.handle(me.recalls, frame, bench.time())


@pytest.mark.parametrize("flags", [-1, 0, 64, 1 << 40])
def test_unknown_leases_are_refused(bench: Bench, flags: int) -> None:
    me = Cached.of(bench)
    with pytest.raises(FsError, match="BAD_REQUEST"):
        me.client.call(Op.LEASE_TAKE, LeaseTake(ROOT, flags))
    if flags:
        with pytest.raises(FsError, match="BAD_REQUEST"):
            me.client.call(Op.LEASE_RETURN, LeaseReturn((ReturnItem(ROOT, flags),)))


def test_returns_of_what_is_not_there_change_nothing(bench: Bench) -> None:
    me = Cached.of(bench)
    items = (ReturnItem(999, NAMES), ReturnItem(ROOT, 0, 77), ReturnItem(998, 0, 0, True))
    me.client.call(Op.LEASE_RETURN, LeaseReturn(items))
    assert 998 not in bench.engine.sessions.orphans
    with pytest.raises(FsError, match="ESTALE"):
        me.client.call(Op.LEASE_TAKE, LeaseTake(998, LEASE_META))


def test_requests_that_wait_are_bounded(
    pair: tuple[Cached, Cached], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaserver.engine.REQUESTS_IN_FLIGHT_MAX", 3)
    one, two = pair
    d = one.client.mkdir(ROOT, b"d")
    for number in range(4):
        two.client.send(Op.MKDIR, MkDir(d, b"%d" % number, 0o755, USER))
    assert [f.header.status for f in two.client.received()] == [Status.BUSY]
    two.client.replies.clear()
    two.client.call(Op.LEASE_RETURN, LeaseReturn(()))
    bench_of(one).engine.closed(two.client.connection)
    assert len(bench_of(one).engine.gate) == 0
    for item in one.recalled():
        one.answer(item)
    assert bench_of(one).engine.services.leases.recalls_open == 0


def test_who_holds_what(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    inos = [one.client.mkdir(ROOT, b"%d" % i) for i in range(5)]
    two.client.send(Op.MKDIR, MkDir(inos[0], b"x", 0o755, USER))
    report: LeaseReport = one.client.call(Op.LEASES, LeaseQuery(one.client.session, 0, 3))
    assert not report.end and len(report.leases) == 3
    behind = LeaseQuery(one.client.session, report.leases[-1].ino, 100)
    rest: LeaseReport = one.client.call(Op.LEASES, behind)
    assert rest.end
    recalled = {lease.ino: lease.recalled for lease in report.leases + rest.leases}
    assert set(recalled) >= set(inos) and recalled[inos[0]] == NAMES
    sums: LeaseReport = one.client.call(Op.LEASES, LeaseQuery(0))
    assert sums.leases == () and len(sums.sessions) == 2
    with pytest.raises(FsError, match="UNKNOWN_SESSION"):
        one.client.call(Op.LEASES, LeaseQuery(4711))


def test_a_removed_inode_leaves_no_lease(bench: Bench) -> None:
    me = Cached.of(bench)
    f = me.client.create(ROOT, b"f").ino
    me.client.call(Op.CLOSE, Close((f,)))
    me.client.call(Op.UNLINK, Unlink(ROOT, b"f"))
    assert me.held(f) == 0


def test_closing_a_session_frees_its_leases(pair: tuple[Cached, Cached]) -> None:
    one, two = pair
    d = one.client.mkdir(ROOT, b"d")
    two.client.send(Op.MKDIR, MkDir(d, b"x", 0o755, USER))
    assert two.waits()
    one.client.call(Op.SESSION_CLOSE, Empty())
    assert not two.waits()


# ---- the cluster map ----------------------------------------------------------------------------


def test_a_new_map_is_told_to_all_who_hear_recalls(bench: Bench) -> None:
    hearing, other = Cached.of(bench), Cached.of(bench)
    deaf = bench.client()
    bench.engine.leases_changed(bench.time())
    hearing.recalled(), other.recalled()
    bench.register(1, node=2)
    for cached in (hearing, other):
        assert cached.recalled() == [MAP_NOTICE]
    deaf.call(Op.GETATTR, GetAttr(ROOT))
    assert hearing.recalled() == [], "once"
    reply = hearing.client.call(Op.SESSION_RENEW, SessionRenew(0))
    assert len(reply.map.targets) == 3


def test_a_notice_answered_as_a_recall_changes_nothing(bench: Bench) -> None:
    """A client of an earlier release does this."""
    former = Cached.of(bench)
    former.client.create(ROOT, b"f")
    before = former.client.call(Op.LEASES, LeaseQuery(former.client.session)).leases
    former.answer(MAP_NOTICE)
    assert former.client.call(Op.LEASES, LeaseQuery(former.client.session)).leases == before
