"""The engine: admission, commit on share, repeats, recovery, and requests of hostile peers."""

from dataclasses import MISSING, fields

import pytest

from fscommon.errors import FsError, ProtocolError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.limits import SOLE_LEASE_S
from fscommon.types import FileId, Ino, SessionId
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import encode_frame
from fscommon.wire.header import FLAG_REPLAY, FLAG_SOLE
from fscommon.wire.messages import (
    BODIES,
    Close,
    ClusterMap,
    Create,
    Empty,
    GetAttr,
    Lookup,
    MkDir,
    Open,
    Opened,
    ReadDir,
    Replay,
    RmDir,
    SessionOpen,
    SessionRenew,
    StatFs,
    Unlink,
)
from fscommon.wire.ops import Op
from fscommon.wire.servers import Heartbeat, TargetReport
from metaserver.eviction import forget
from metaserver.namespace.inode import load
from metaserver.ops.row import Access
from metaserver.ops.table import ROWS
from metaserver.records import all_of, inode_key, writer_key, written_of

from .bench import ROOT, USER, Bench, Client, parse

DATA_OPS = range(16, 64)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def restarted(bench: Bench) -> Bench:
    after = Bench(bench.store, targets=0)
    after.now_ns = bench.now_ns
    return after


def come_back(bench: Bench, client: Client, opens: tuple[int, ...] = ()) -> Client:
    back = Client(bench, bench.connect(), client.session, client.request_id, client.answered)
    back.send(Op.SESSION_OPEN, SessionOpen(client.session, "c", opens, client.answered))
    assert back.take().session == client.session
    return back


# ---- admission -----------------------------------------------------------------------------


def test_requests_need_a_session(bench: Bench) -> None:
    stranger = Client(bench, bench.connect())
    for op, message in ((Op.LOOKUP, Lookup(ROOT, b"x")), (Op.SESSION_RENEW, SessionRenew(0))):
        stranger.send(op, message)
        assert stranger.take_frame().header.status == Status.UNKNOWN_SESSION


def test_purposes_are_kept_apart(bench: Bench) -> None:
    client = bench.client()
    client.send(Op.HEARTBEAT, Heartbeat(1, (), 0))
    assert client.take_frame().header.status == Status.EPERM
    server = Client(bench, bench.connect("server"))
    server.send(Op.SESSION_OPEN, SessionOpen(0, "c", (), 0))
    assert server.take_frame().header.status == Status.EPERM


@pytest.mark.parametrize("op", [Op.HELLO, Op.READ, Op.FENCE, 199])
def test_ops_of_others_end_the_connection(bench: Bench, op: int) -> None:
    client = bench.client()
    for frame in parse(encode_frame(op, request_id=1)):
        with pytest.raises(ProtocolError):
            bench.engine.handle(client.connection, frame, bench.time())


def takes_no_empty_body(op: Op) -> bool:
    return any(field.default is MISSING for field in fields(BODIES[op][0]))


@pytest.mark.parametrize("op", [op for op in ROWS if takes_no_empty_body(op)])
def test_a_body_of_another_op_ends_the_connection(bench: Bench, op: Op) -> None:
    client = bench.client()
    client.connection.purpose = {Access.SERVER: "server", Access.ADMIN: "admin"}.get(
        ROWS[op].access, "meta"
    )
    for body in (b"", b"\x00", encode(Empty()), b"\x91\xc0"):
        for frame in parse(encode_frame(op, request_id=1, body=body)):
            with pytest.raises(ProtocolError):
                bench.engine.handle(client.connection, frame, bench.time())


def test_a_connection_has_bounded_waiting_requests(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaserver.engine.REQUESTS_IN_FLIGHT_MAX", 3)
    client = bench.client()
    client.create(ROOT, b"f")
    for _ in range(4):
        client.send(Op.BARRIER, Empty())
    bench.settle()
    assert [f.header.status for f in client.received()] == [Status.BUSY, 0, 0, 0]


# ---- commit on share -----------------------------------------------------------------------


def test_ones_own_changes_are_seen_at_once(bench: Bench) -> None:
    client = bench.client()
    client.send(Op.MKDIR, MkDir(ROOT, b"d", 0o755, USER))
    client.send(Op.LOOKUP, Lookup(ROOT, b"d"))
    frames = client.received()
    assert [frame.header.status for frame in frames] == [0, 0]
    assert frames[0].header.offset > frames[0].header.file_id, "answered before it is durable"
    assert frames[1].header.offset == 0, "a read has no transaction"


@pytest.mark.parametrize(
    ("op", "message", "status"),
    [
        (Op.LOOKUP, Lookup(ROOT, b"d"), Status.OK),
        (Op.LOOKUP, Lookup(ROOT, b"gone"), Status.ENOENT),
        (Op.MKDIR, MkDir(ROOT, b"d", 0o755, USER), Status.EEXIST),
        (Op.MKDIR, MkDir(ROOT, b"other", 0o755, USER), Status.OK),
        (Op.READDIR, ReadDir(ROOT, 0, 100), Status.OK),
        (Op.GETATTR, GetAttr(ROOT), Status.OK),
    ],
)
def test_others_see_them_when_durable(
    bench: Bench, op: Op, message: object, status: Status
) -> None:
    first, second = bench.client(), bench.client()
    first.create(ROOT, b"gone")
    bench.settle()
    first.call(Op.MKDIR, MkDir(ROOT, b"d", 0o755, USER))
    first.call(Op.UNLINK, Unlink(ROOT, b"gone"))
    second.send(op, message)
    assert second.received() == [] and bench.engine.urgent
    bench.commit()
    assert second.take_frame().header.status == status


def test_what_nobody_touched_needs_no_commit(bench: Bench) -> None:
    first, second = bench.client(), bench.client()
    a, b = first.mkdir(ROOT, b"a"), first.mkdir(ROOT, b"b")
    bench.settle()
    first.mkdir(a, b"x")
    second.send(Op.MKDIR, MkDir(b, b"x", 0o755, USER))
    assert second.take_frame().header.status == 0


def test_replies_of_a_session_stay_behind_a_held_one(bench: Bench) -> None:
    first, second = bench.client(), bench.client()
    mine = second.mkdir(ROOT, b"mine")
    bench.settle()
    first.mkdir(ROOT, b"d")
    second.send(Op.MKDIR, MkDir(ROOT, b"e", 0o755, USER))
    second.send(Op.MKDIR, MkDir(mine, b"f", 0o755, USER))
    assert second.received() == []
    bench.commit()
    assert [f.header.request_id for f in second.received()] == [3, 4]


def test_held_while_the_batch_is_in_work(bench: Bench) -> None:
    first, second = bench.client(), bench.client()
    first.mkdir(ROOT, b"d")
    batch = bench.engine.freeze()
    second.send(Op.LOOKUP, Lookup(ROOT, b"d"))
    assert second.received() == []
    bench.store.commit(batch)
    bench.engine.committed(bench.store.room())
    assert second.take_frame().header.status == 0


def test_a_failed_op_writes_nothing(bench: Bench) -> None:
    client = bench.client()
    with pytest.raises(FsError):
        client.call(Op.UNLINK, Unlink(ROOT, b"none"))
    bench.settle()
    assert not bench.engine.dirty


# ---- repeats and sessions --------------------------------------------------------------------


def test_a_repeated_mutation_is_answered_not_repeated(bench: Bench) -> None:
    client = bench.client()
    request = Create(ROOT, b"f", 0o644, True, True, USER)
    rid = client.send(Op.CREATE, request)
    lost = client.take()
    back = come_back(bench, client)
    repeated = back.call(Op.CREATE, request, request_id=rid)
    assert repeated == lost
    assert bench.faults() == []


def test_a_request_that_overtakes_on_repetition_is_answered_when_durable(bench: Bench) -> None:
    client = bench.client()
    client.mkdir(ROOT, b"d")
    bench.settle()
    request = MkDir(ROOT, b"d", 0o755, USER)
    first = client.send(Op.MKDIR, request)  # it fails with EEXIST, and the reply is lost
    client.send(Op.RMDIR, RmDir(ROOT, b"d"))
    back = come_back(bench, client)
    back.send(Op.MKDIR, request, request_id=first)
    assert back.received() == [], "a replay of it alone, before the RMDIR, would fail"
    bench.commit()
    assert back.take_frame().header.status == 0


def test_a_created_file_stays_while_its_reply_is_on_the_way(bench: Bench) -> None:
    client, other = bench.client(), bench.client()
    request = Create(ROOT, b"f", 0o644, True, True, USER)
    rid = client.send(Op.CREATE, request)
    ino = unpack_attributes(client.take().attributes).ino
    back = come_back(bench, client)  # it does not know that it has the file open
    other.call(Op.UNLINK, Unlink(ROOT, b"f"))
    assert bench.engine.sessions.reapable == set()
    back.call(Op.CREATE, request, request_id=rid)
    back.answered = rid
    assert unpack_attributes(back.call(Op.GETATTR, GetAttr(ino)).attributes).nlink == 0
    assert bench.engine.sessions.is_open(Ino(ino))
    back.tell(Op.CLOSE, Close((ino,)))
    assert bench.engine.sessions.reapable == {ino}


def test_stored_replies_go_when_answered(bench: Bench) -> None:
    client = bench.client()
    for index in range(5):
        client.mkdir(ROOT, b"%d" % index)
    bench.settle()
    assert len(bench.engine.stored(all_of(b"R"), 99)) == 5
    client.answered = 4  # request 1 was SESSION_OPEN
    client.call(Op.SESSION_RENEW, SessionRenew(4))
    bench.settle()
    assert len(bench.engine.stored(all_of(b"R"), 99)) == 2


def test_a_new_connection_takes_the_session_over(bench: Bench) -> None:
    client = bench.client()
    ended: list[bool] = []
    client.connection.end = lambda: ended.append(True)
    come_back(bench, client)
    assert ended == [True] and not client.connection.is_open
    client.send(Op.LOOKUP, Lookup(ROOT, b"x"))
    assert client.received() == []


def test_unknown_and_closed_sessions(bench: Bench) -> None:
    client = bench.client()
    client.call(Op.SESSION_CLOSE, Empty())
    assert bench.engine.stored(all_of(b"S"), 9) == []
    client.send(Op.SESSION_OPEN, SessionOpen(client.session, "c", (), 0))
    assert client.take_frame().header.status == Status.UNKNOWN_SESSION


def data_version(bench: Bench, ino: int) -> int:
    """The version as it is stored: before an evicted client is fenced, no other may see what it
    had."""
    found: list[int] = []
    bench.engine.system(lambda tx, context: found.append(load(tx, ino).attributes.data_version))
    return found[0]


def test_an_evicted_writer_leaves_an_intent(bench: Bench) -> None:
    client, other = bench.client(), bench.client()
    alone = client.create(ROOT, b"alone").ino
    shared = client.create(ROOT, b"shared").ino
    other.call(Op.OPEN, Open(shared, True))
    before = {ino: data_version(bench, ino) for ino in (alone, shared)}
    session = bench.engine.sessions.get(client.session)
    assert session is not None
    version = bench.engine.sessions.version
    bench.engine.system(lambda tx, context: forget(tx, context, session))
    bench.engine.sessions.remove(session.id)
    bench.engine.evicted(session.id)
    assert bench.engine.sessions.version > version
    assert bench.engine.services.intents.take_fresh() == [alone]
    for ino, version in before.items():
        assert data_version(bench, ino) > version, "bytes may be there that were not told"
    assert bench.faults() == []
    client.send(Op.LOOKUP, Lookup(ROOT, b"x"))
    assert client.received() == [], "its connection is cut off"


def evict(bench: Bench, session_id: SessionId) -> None:
    session = bench.engine.sessions.get(session_id)
    assert session is not None
    bench.engine.system(lambda tx, context: forget(tx, context, session))
    bench.engine.sessions.remove(session.id)
    bench.engine.evicted(session.id)


def test_a_writer_that_died_with_the_metaserver_leaves_an_intent_too(bench: Bench) -> None:
    gone, alive = bench.client(), bench.client()
    alone = gone.create(ROOT, b"alone").ino
    closed = gone.create(ROOT, b"closed").ino
    shared = gone.create(ROOT, b"shared").ino
    late = gone.create(ROOT, b"late").ino
    gone.tell(Op.CLOSE, Close((closed,)))
    alive.call(Op.OPEN, Open(shared, True))
    alive.call(Op.OPEN, Open(late, True))
    bench.settle()
    after = restarted(bench)
    third = come_back(after, alive, (shared, late))
    third.call(Op.REPLAY_DONE, Empty())
    third.tell(Op.CLOSE, Close((late,)))
    evict(after, gone.session)
    assert after.engine.services.intents.take_fresh() == [alone, late]
    after.settle()
    mine = [key for key, _ in after.engine.stored(written_of(alive.session), 9)]
    assert mine == [writer_key(alive.session, shared)]
    assert len(after.engine.stored(written_of(gone.session), 9)) == 3, "until it is fenced"
    assert after.faults() == []


def test_a_writer_that_has_not_come_back_yet_keeps_its_bytes(bench: Bench) -> None:
    gone, slow = bench.client(), bench.client()
    shared = gone.create(ROOT, b"shared").ino
    slow.call(Op.OPEN, Open(shared, True))
    bench.settle()
    after = restarted(bench)
    evict(after, gone.session)
    assert after.engine.services.intents.take_fresh() == []
    evict(after, slow.session)
    assert after.engine.services.intents.take_fresh() == [shared]


# ---- recovery ----------------------------------------------------------------------------------


def test_new_requests_wait_until_all_have_replayed(bench: Bench) -> None:
    first, second = bench.client(), bench.client()
    after = restarted(bench)
    one = come_back(after, first)
    one.send(Op.LOOKUP, Lookup(ROOT, b"x"))
    assert one.take_frame().header.status == Status.NOT_READY
    newcomer = Client(after, after.connect())
    newcomer.send(Op.SESSION_OPEN, SessionOpen(0, "new", (), 0))
    assert newcomer.take_frame().header.status == Status.NOT_READY
    one.call(Op.REPLAY_DONE, Empty())
    assert after.engine.progress.recovering
    two = come_back(after, second)
    two.call(Op.REPLAY_DONE, Empty())
    assert not after.engine.progress.recovering
    one.send(Op.LOOKUP, Lookup(ROOT, b"x"))
    assert one.take_frame().header.status == Status.ENOENT


def test_a_replay_gives_the_same_inode_layout_and_times(bench: Bench) -> None:
    client = bench.client()
    request = Create(ROOT, b"f", 0o644, True, True, USER)
    rid = client.send(Op.CREATE, request)
    frame = client.take_frame()
    after = restarted(bench)  # nothing was committed
    back = come_back(after, client)
    replay = Replay(frame.header.offset, 0, encode(request), frame.body)
    again = back.replay(Op.CREATE, replay, rid)
    before = decode(Opened, frame.body)
    now = decode(Opened, again.body)
    assert (now.attributes, now.layout) == (before.attributes, before.layout)
    assert again.header.offset > again.header.file_id
    second = back.replay(Op.CREATE, replay, rid)
    assert second.header.status == 0 and second.body == again.body
    back.call(Op.REPLAY_DONE, Empty())
    assert after.faults() == []
    assert after.engine.replays == {"applied": 1, "stored": 1}


def test_a_mutation_that_changed_nothing_is_not_run_again(bench: Bench) -> None:
    client = bench.client()
    ino = client.create(ROOT, b"f").ino
    bench.settle()
    request = Create(ROOT, b"f", 0o644, False, True, USER)
    rid = client.send(Op.CREATE, request)
    frame = client.take_frame()
    assert frame.header.offset == 0
    client.call(Op.UNLINK, Unlink(ROOT, b"f"))
    bench.settle()
    after = restarted(bench)
    back = come_back(after, client, (ino,))
    again = back.replay(Op.CREATE, Replay(0, 0, encode(request), frame.body), rid)
    assert again.header.status == 0 and again.body == frame.body
    back.call(Op.REPLAY_DONE, Empty())
    with pytest.raises(FsError):
        back.call(Op.LOOKUP, Lookup(ROOT, b"f"))


def test_inode_numbers_are_not_given_again_after_a_crash(bench: Bench) -> None:
    client = bench.client()
    lost = client.create(ROOT, b"f").ino
    after = restarted(bench)
    come_back(after, client).call(Op.REPLAY_DONE, Empty())
    assert after.client().create(ROOT, b"g").ino > lost


def test_replays_are_for_mutations_of_returning_sessions(bench: Bench) -> None:
    client = bench.client()
    request = MkDir(ROOT, b"d", 0o755, USER)
    client.send(Op.MKDIR, Replay(1, 0, encode(request), b""), flags=FLAG_REPLAY)
    assert client.take_frame().header.status == Status.BAD_REQUEST


def test_orphans_of_returning_clients_are_kept(bench: Bench) -> None:
    client = bench.client()
    ino = client.create(ROOT, b"f").ino
    client.call(Op.UNLINK, Unlink(ROOT, b"f"))
    bench.settle()
    after = restarted(bench)
    assert after.engine.sessions.reapable == set()
    back = come_back(after, client, (ino,))
    back.answered = client.request_id
    back.call(Op.REPLAY_DONE, Empty())
    back.call(Op.SESSION_RENEW, SessionRenew(back.answered))
    assert after.engine.sessions.reapable == set()
    back.tell(Op.CLOSE, Close((ino,)))
    assert after.engine.sessions.reapable == {ino}


def test_intents_survive_a_crash(bench: Bench) -> None:
    client = bench.client()
    ino = client.create(ROOT, b"f").ino
    bench.engine.services.intents.add(Ino(ino))
    from metaserver.records import Intent, intent_key  # noqa: PLC0415

    bench.settle()
    (stored,) = [v for k, v in bench.engine.stored(all_of(b"I"), 9) if k == inode_key(ino)]
    bench.engine.system(
        lambda tx, context: tx.put(intent_key(ino), Intent(0, 0, stored[128:]).pack())
    )
    bench.settle()
    after = restarted(bench)
    assert after.engine.services.intents.take_fresh() == [ino]


# ---- storage servers -----------------------------------------------------------------------------


def test_registering_again_gives_the_same_ids(bench: Bench) -> None:
    first = bench.register(2)
    assert bench.register(2).targets == first.targets == (1, 2)
    assert bench.register(1, node=2).targets == (3,)
    after = restarted(bench)
    assert after.register(2).targets == (1, 2)
    assert after.engine.services.membership.epoch > bench.engine.services.membership.epoch


def test_heartbeats_bring_the_session_table_and_states(bench: Bench) -> None:
    client = bench.client()
    server = Client(bench, bench.connect("server"))
    report = TargetReport(1, bytes([1, 0]) * 8, 1, 1 << 40, 1 << 39, 0, 0)
    reply = server.call(Op.HEARTBEAT, Heartbeat(1, (report,), 0))
    assert reply.sessions == (client.session,)
    reply = server.call(Op.HEARTBEAT, Heartbeat(1, (report,), reply.session_version))
    assert reply.sessions is None
    epoch = reply.map_epoch
    full = TargetReport(1, bytes([1, 0]) * 8, 1, 1 << 40, 5, 0, 0)
    assert server.call(Op.HEARTBEAT, Heartbeat(1, (full,), 0)).map_epoch == epoch + 1
    cluster_map: ClusterMap = client.call(Op.CLUSTER_MAP, Empty())
    assert [row.state for row in cluster_map.targets] == ["full", "up"]
    bench.engine.services.membership.expire(bench.now_s + 11)
    states = [row.state for row in bench.engine.services.membership.map().targets]
    assert states == ["down", "down"]
    client.create(ROOT, b"f")  # an outage is not lack of space


def test_a_target_that_its_node_names_no_more_is_down(bench: Bench) -> None:
    membership = bench.engine.services.membership
    epoch = membership.epoch
    assert bench.register(1).targets == (1,)
    assert [row.state for row in membership.map().targets] == ["up", "down"]
    assert membership.place(FileId(5), 4) == (1,), "no new file goes there"
    assert membership.epoch == epoch + 1
    bench.register(1)
    assert membership.epoch == epoch + 1, "nothing is new"
    bench.register(2)
    assert [row.state for row in membership.map().targets] == ["up", "up"]
    assert membership.epoch == epoch + 2


def test_foreign_targets_are_refused(bench: Bench) -> None:
    server = Client(bench, bench.connect("server"))
    foreign = TargetReport(1, b"x" * 16, 1, 1, 1, 0, 0)
    server.send(Op.HEARTBEAT, Heartbeat(1, (foreign,), 0))
    assert server.take_frame().header.status == Status.NO_TARGET
    server.send(Op.HEARTBEAT, Heartbeat(77, (), 0))
    assert server.take_frame().header.status == Status.NO_TARGET


def test_statfs_and_status(bench: Bench) -> None:
    client = bench.client()
    before = client.call(Op.STATFS, StatFs())
    client.create(ROOT, b"f")
    after = client.call(Op.STATFS, StatFs())
    assert after.bytes_total == 2 << 40 and after.bytes_free == 1 << 40
    assert after.inodes_free == before.inodes_free - 1
    status = client.call(Op.STATUS, Empty())
    assert [c.session for c in status.clients] == [client.session]
    assert status.clients[0].opens == 1 and not status.recovering


def test_a_second_session_waits_until_the_first_believes_no_longer_that_it_is_alone() -> None:
    bench = Bench()
    first = bench.client()
    first.send(Op.GETATTR, GetAttr(ROOT))
    assert first.take_frame().header.flags & FLAG_SOLE
    second = Client(bench, bench.connect())
    second.send(Op.SESSION_OPEN, SessionOpen(0, "second", (), 0))
    with pytest.raises(FsError, match="NOT_READY"):
        second.take()
    first.send(Op.GETATTR, GetAttr(ROOT))
    assert not first.take_frame().header.flags & FLAG_SOLE
    bench.now_s += SOLE_LEASE_S + 0.01
    second.send(Op.SESSION_OPEN, SessionOpen(0, "second", (), 0))
    bench.settle()
    assert second.take().session
    bench.now_s += 100 * SOLE_LEASE_S
    first.send(Op.GETATTR, GetAttr(ROOT))
    assert not first.take_frame().header.flags & FLAG_SOLE
