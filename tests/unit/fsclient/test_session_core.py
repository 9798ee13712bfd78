"""The session core against a metaserver in memory: every crash point, eviction, bounds."""

import itertools
import random
from collections.abc import Iterator

import pytest

from fsclient.meta.core import Phase, SessionCore
from fsclient.meta.hooks import Hooks, SessionRefusedError
from fsclient.meta.pending import NEVER, Pending
from fsclient.meta.restoring import Held
from fscommon.errors import FsError, ProtocolError, Status
from fscommon.layout.attributes import LEASE_DATA
from fscommon.wire.births import ChangeBatch, Removal
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame, FrameParser
from fscommon.wire.header import FLAG_REPLAY, FLAG_REPLY, Header
from fscommon.wire.leases import LeaseRestore, LeaseRestored, SharedLease
from fscommon.wire.messages import Caller, Close, Empty, GetAttr, MkDir, Unlink
from fscommon.wire.ops import Op

from .memory_metaserver import MemoryMetaserver

CALLER = Caller(0, 0, 0)


class Client:
    """A core with what it reported: outcomes by name of the request."""

    def __init__(self) -> None:
        self.leases: list[bytes] = []  # these are bodies of LEASE_RESTORE
        self.lost: list[tuple[int, ...] | None] = []
        self.outcomes: dict[bytes, FsError | None] = {}
        self.evictions: list[int] = []
        self.orphans: list[Op] = []
        self.logged: list[str] = []
        self.ready_count = 0
        self.opens: tuple[int, ...] = ()
        hooks = Hooks(
            lambda: self.opens,
            self._ready,
            self.evictions.append,
            lambda op, _body: self.orphans.append(op),
            self.logged.append,
            Held(leases=lambda: self.leases, leases_lost=self._lost),
        )
        self.core = SessionCore("test", hooks)

    def _ready(self) -> None:
        self.ready_count += 1

    def _lost(self, inos: tuple[int, ...] | None) -> None:
        self.lost.append(inos)
        if inos is None:
            self.leases = []

    def mkdir(self, name: bytes, deadline: float = NEVER) -> Pending:
        return self._submit(Op.MKDIR, encode(MkDir(1, name, 0o755, CALLER)), name, deadline)

    def unlink(self, name: bytes) -> Pending:
        return self._submit(Op.UNLINK, encode(Unlink(1, name)), name, NEVER)

    def getattr(self, name: bytes) -> Pending:
        return self._submit(Op.GETATTR, encode(GetAttr(1)), name, NEVER)

    def _submit(self, op: Op, body: bytes, name: bytes, deadline: float) -> Pending:
        def deliver(error: FsError | None, _body: bytes) -> None:
            assert name not in self.outcomes, "told twice"
            self.outcomes[name] = error

        return self.core.submit(op, body, deliver, deadline)


def exchange(client: Client, server: MemoryMetaserver, now: float = 0.0) -> None:
    """Passes frames in both directions until none is left."""
    while octets := client.core.take_output(now):
        for reply in server.receive(octets):
            client.core.received(reply, now)


def open_session(client: Client, server: MemoryMetaserver) -> None:
    client.core.connected()
    exchange(client, server)
    assert client.core.phase is Phase.READY


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def server() -> MemoryMetaserver:
    return MemoryMetaserver()


def test_requests_are_answered_in_order(client: Client, server: MemoryMetaserver) -> None:
    open_session(client, server)
    for name in (b"a", b"b", b"c"):
        client.mkdir(name)
    exchange(client, server)
    assert client.outcomes == {b"a": None, b"b": None, b"c": None}
    assert server.now.applied == [b"a", b"b", b"c"]


def test_nothing_leaves_before_the_session(client: Client) -> None:
    client.mkdir(b"a")
    assert client.core.take_output(0.0) == b""


def test_errors_reach_the_caller(client: Client, server: MemoryMetaserver) -> None:
    open_session(client, server)
    client.unlink(b"missing")
    exchange(client, server)
    error = client.outcomes[b"missing"]
    assert error is not None
    assert error.status is Status.ENOENT
    assert len(client.core.journal) == 0


def test_a_mutation_stays_until_durable(client: Client, server: MemoryMetaserver) -> None:
    open_session(client, server)
    client.mkdir(b"a")
    exchange(client, server)
    assert len(client.core.journal) == 1
    server.make_durable()
    client.getattr(b"look")
    exchange(client, server)
    assert len(client.core.journal) == 0


def test_answered_waits_for_durable(client: Client, server: MemoryMetaserver) -> None:
    """A stored reply may be dropped only when the mutation will never be replayed."""
    open_session(client, server)
    client.mkdir(b"a")
    client.mkdir(b"b")
    exchange(client, server)
    assert client.core.answered() == 0
    server.make_durable()
    client.getattr(b"look")
    exchange(client, server)
    assert client.core.answered() == 3


def test_restart_replays_in_order(client: Client, server: MemoryMetaserver) -> None:
    open_session(client, server)
    for name in (b"a", b"b", b"c"):
        client.mkdir(name)
    exchange(client, server)
    server.crash()
    assert server.now.applied == []
    client.core.lost()
    client.mkdir(b"d")
    open_session(client, server)
    exchange(client, server)
    assert server.now.applied == [b"a", b"b", b"c", b"d"]
    assert client.core.replayed_count == 3
    replays = [request_id for op, request_id, flags in server.seen if flags & FLAG_REPLAY]
    assert replays == sorted(replays)


def test_reconnect_to_the_same_incarnation_resends(
    client: Client, server: MemoryMetaserver
) -> None:
    open_session(client, server)
    client.mkdir(b"a")
    server.receive(client.core.take_output(0.0))  # the reply is lost
    server.disconnect()
    client.core.lost()
    open_session(client, server)
    exchange(client, server)
    assert server.now.applied == [b"a"]
    assert client.outcomes == {b"a": None}
    assert client.core.resent_count == 1
    assert client.core.replayed_count == 0


def test_connection_lost_during_the_replay(client: Client, server: MemoryMetaserver) -> None:
    """The same incarnation is back, but the replay had not ended: it goes on."""
    open_session(client, server)
    for name in (b"a", b"b"):
        client.mkdir(name)
    exchange(client, server)
    server.crash()
    client.core.lost()
    client.core.connected()
    for reply in server.receive(client.core.take_output(0.0)):
        client.core.received(reply, 0.0)
    assert client.core.phase is Phase.REPLAYING
    server.receive(client.core.take_output(0.0))  # they are applied, and the replies are lost
    server.disconnect()
    client.core.lost()
    open_session(client, server)
    assert server.now.applied == [b"a", b"b"]
    assert not server.recovering


RESTORE = encode(LeaseRestore((SharedLease(7, LEASE_DATA),)))


def _restored(client: Client, server: MemoryMetaserver) -> list[Op]:
    """The ops that the client sends to a metaserver that was restarted, in order."""
    open_session(client, server)
    client.mkdir(b"a")
    exchange(client, server)
    server.crash()
    client.core.lost()
    client.leases = [RESTORE]
    seen = len(server.seen)
    open_session(client, server)
    return [op for op, _, _ in server.seen[seen:]]


def test_leases_are_restored_behind_replays(client: Client, server: MemoryMetaserver) -> None:
    server.refused_leases = (7, 9)
    told = _restored(client, server)
    assert told == [Op.SESSION_OPEN, Op.MKDIR, Op.LEASE_RESTORE, Op.REPLAY_DONE]
    assert client.lost == [(7, 9)]


def test_nothing_is_held_on_when_a_replay_fails(client: Client, server: MemoryMetaserver) -> None:
    server.fails_replays = True
    assert Op.LEASE_RESTORE not in _restored(client, server)
    assert client.lost == [None]


def test_a_metaserver_that_knows_no_such_op_is_not_asked_twice(
    client: Client, server: MemoryMetaserver
) -> None:
    """A metaserver of an earlier release ends the connection."""
    open_session(client, server)
    server.crash()
    client.core.lost()
    client.leases = [RESTORE]
    client.core.connected()
    for reply in server.receive(client.core.take_output(0.0)):
        client.core.received(reply, 0.0)
    assert client.core.take_output(0.0)  # this is LEASE_RESTORE, which gets no answer
    server.disconnect()
    client.core.lost()
    assert client.lost == [None]
    seen = len(server.seen)
    open_session(client, server)
    assert [op for op, _, _ in server.seen[seen:]] == [Op.SESSION_OPEN, Op.REPLAY_DONE]


def test_an_answer_to_a_restore_that_was_not_sent_ends_the_connection(
    client: Client, server: MemoryMetaserver
) -> None:
    open_session(client, server)
    server.crash()
    client.core.lost()
    client.core.connected()
    for reply in server.receive(client.core.take_output(0.0)):
        client.core.received(reply, 0.0)
    odd = Frame(Header(op=Op.LEASE_RESTORE, flags=FLAG_REPLY), encode(LeaseRestored(())))
    with pytest.raises(ProtocolError):
        client.core.received(odd, 0.0)


def _cut_points() -> Iterator[tuple[int, int, str]]:
    """(step at which it happens, durable after step, what happens)."""
    return itertools.product(range(9), range(-1, 8), ("crash", "cut", "cut_before"))


@pytest.mark.parametrize(("step", "durable_at", "fault"), list(_cut_points()))
def test_every_cut_point(step: int, durable_at: int, fault: str) -> None:
    """Eight mutations, a fault at each step, durability at each step: all happen exactly once."""
    client, server = Client(), MemoryMetaserver()
    open_session(client, server)
    names = [b"%d" % index for index in range(8)]
    for index, name in enumerate(names):
        client.mkdir(name)
        octets = client.core.take_output(0.0)
        if index == step and fault == "cut_before":
            _reconnect(client, server, crash=False)
            continue
        replies = server.receive(octets)
        if index == durable_at:
            server.make_durable()
        if index == step:
            _reconnect(client, server, crash=fault == "crash")
            continue
        for reply in replies:
            client.core.received(reply, 0.0)
    exchange(client, server)
    assert server.now.applied == names
    assert client.outcomes == dict.fromkeys(names)


def _reconnect(client: Client, server: MemoryMetaserver, *, crash: bool) -> None:
    if crash:
        server.crash()
    server.disconnect()
    client.core.lost()
    open_session(client, server)
    exchange(client, server)


@pytest.mark.parametrize("seed", range(60))
def test_random_faults(seed: int) -> None:
    """Any mix of crashes, disconnections, partial delivery and durability: exactly once and in
    order."""
    chance = random.Random(seed)
    client, server = Client(), MemoryMetaserver()
    open_session(client, server)
    names = [b"%d" % index for index in range(120)]
    waiting = list(names)
    while waiting or client.core.waiting_count:
        for _ in range(chance.randrange(4)):
            if waiting:
                client.mkdir(waiting.pop(0))
        replies = server.receive(client.core.take_output(0.0))
        delivered = replies[: chance.randrange(len(replies) + 1)] if replies else []
        if chance.random() < 0.2:
            server.make_durable()
        for reply in delivered:
            client.core.received(reply, 0.0)
        if len(delivered) < len(replies) or chance.random() < 0.1:
            _reconnect_randomly(client, server, chance)
    assert server.now.applied == names
    assert client.outcomes == dict.fromkeys(names)


def _reconnect_randomly(client: Client, server: MemoryMetaserver, chance: random.Random) -> None:
    """The reconnect itself may be cut short, too."""
    while True:
        if chance.random() < 0.5:
            server.crash()
        server.disconnect()
        client.core.lost()
        client.core.connected()
        for _ in range(chance.randrange(4)):
            for reply in server.receive(client.core.take_output(0.0)):
                client.core.received(reply, 0.0)
        if chance.random() < 0.6:
            while client.core.phase is not Phase.READY:
                for reply in server.receive(client.core.take_output(0.0)):
                    client.core.received(reply, 0.0)
            return


def test_busy_is_tried_again(client: Client, server: MemoryMetaserver) -> None:
    open_session(client, server)
    server.busy_count = 3
    client.mkdir(b"a")
    now = 0.0
    for _ in range(4):
        exchange(client, server, now)
        due = client.core.next_retry_at()
        now = due if due != NEVER else now
        client.core.tick(now)
    assert client.outcomes == {b"a": None}
    assert server.now.applied == [b"a"]


def test_deadline(client: Client, server: MemoryMetaserver) -> None:
    client.mkdir(b"late", deadline=5.0)
    client.core.tick(4.9)
    assert client.outcomes == {}
    client.core.tick(5.0)
    error = client.outcomes[b"late"]
    assert error is not None
    assert error.status is Status.ETIMEDOUT
    open_session(client, server)
    exchange(client, server)
    assert server.now.applied == []  # it was never sent
    assert client.core.waiting_count == 0


def test_abandoned_before_it_was_sent(client: Client, server: MemoryMetaserver) -> None:
    pending = client.mkdir(b"a")
    client.core.abandon(pending)
    open_session(client, server)
    exchange(client, server)
    assert server.now.applied == []


def test_abandoned_after_it_was_sent(client: Client, server: MemoryMetaserver) -> None:
    """The caller has given up, but the mutation happened and must survive a crash."""
    open_session(client, server)
    pending = client.mkdir(b"a")
    octets = client.core.take_output(0.0)
    client.core.abandon(pending)
    for reply in server.receive(octets):
        client.core.received(reply, 0.0)
    assert client.outcomes == {}
    assert client.orphans == [Op.MKDIR]
    server.crash()
    client.core.lost()
    open_session(client, server)
    assert server.now.applied == [b"a"]


def test_eviction_fails_what_may_not_be_repeated(client: Client, server: MemoryMetaserver) -> None:
    open_session(client, server)
    first = client.core.session
    client.mkdir(b"made")
    client.getattr(b"read")
    client.core.take_output(0.0)
    client.mkdir(b"unsent")
    server.evict(first)
    server.disconnect()
    client.core.lost()
    client.core.connected()
    exchange(client, server)
    assert client.core.session != first
    assert client.evictions == [client.core.session]
    made = client.outcomes[b"made"]
    assert made is not None
    assert made.status is Status.DISCONNECTED
    assert client.outcomes[b"read"] is None
    assert client.outcomes[b"unsent"] is None


def test_eviction_while_connected(client: Client, server: MemoryMetaserver) -> None:
    open_session(client, server)
    server.evict(client.core.session)
    client.getattr(b"read")
    exchange(client, server)
    assert client.core.must_reconnect
    assert b"read" not in client.outcomes


def test_refused_session(client: Client, server: MemoryMetaserver) -> None:
    client.core.connected()
    client.core.take_output(0.0)
    refusal = Frame(Header(Op.SESSION_OPEN, FLAG_REPLY, status=int(Status.EPERM)), b"")
    with pytest.raises(SessionRefusedError, match="EPERM"):
        client.core.received(refusal, 0.0)


def test_full_journal_asks_for_a_barrier(client: Client, server: MemoryMetaserver) -> None:
    client.core.journal_count_max = 4
    open_session(client, server)
    for index in range(20):
        client.mkdir(b"%d" % index)
    exchange(client, server)
    assert len(server.now.applied) == 20
    assert len(client.core.journal) <= 4
    assert any(op is Op.BARRIER for op, _, _ in server.seen)


def test_window_is_bounded(client: Client, server: MemoryMetaserver) -> None:
    client.core.window_count_max = 8
    open_session(client, server)
    for index in range(30):
        client.getattr(b"%d" % index)
    client.core.take_output(0.0)
    assert client.core.in_flight_count == 8


def test_abort_fails_all_waiting(client: Client) -> None:
    client.mkdir(b"a")
    client.getattr(b"b")
    assert client.core.abort() == 2
    assert all(e is not None and e.status is Status.ABORTED for e in client.outcomes.values())


def test_oneway_has_no_place_in_the_window(client: Client, server: MemoryMetaserver) -> None:
    open_session(client, server)
    client.core.submit(Op.CLOSE, encode(Close((5,))), None, NEVER, oneway=True)
    exchange(client, server)
    assert client.core.waiting_count == 0
    assert client.core.answered() == 1


@pytest.mark.parametrize(
    "header",
    [
        Header(Op.GETATTR, FLAG_REPLY, request_id=99),
        Header(Op.MKDIR, FLAG_REPLY, request_id=1),
        Header(Op.GETATTR, 0, request_id=1),
    ],
)
def test_hostile_replies(client: Client, server: MemoryMetaserver, header: Header) -> None:
    open_session(client, server)
    client.getattr(b"a")
    client.core.take_output(0.0)
    with pytest.raises(ProtocolError):
        client.core.received(Frame(header, encode(Empty())), 0.0)
    client.core.lost()
    exchange_on_a_new_connection(client, server)
    assert client.outcomes == {b"a": None}, "it is sent again, not forgotten"


def exchange_on_a_new_connection(client: Client, server: MemoryMetaserver) -> None:
    server.disconnect()
    client.core.connected()
    exchange(client, server)


def test_refused_births_hold_back_all_but_the_heartbeat(
    client: Client, server: MemoryMetaserver
) -> None:
    """Later requests may refer to the files that were created."""
    open_session(client, server)
    core = client.core
    server.busy_count = 1
    core.submit(Op.CHANGE_BATCH, encode(ChangeBatch(())), None, NEVER, urgent=True)
    for reply in server.receive(core.take_output(0.0)):
        core.received(reply, 0.0)
    client.getattr(b"look")
    renewal = core.submit(Op.SESSION_RENEW, encode(Empty()), None, NEVER, urgent=True)
    assert [op for op, *_ in ops_of(core.take_output(0.0))] == [Op.SESSION_RENEW]
    assert renewal.request_id
    core.tick(core.next_retry_at())
    again = core.take_output(1.0)
    assert [op for op, *_ in ops_of(again)] == [Op.CHANGE_BATCH]
    for reply in server.receive(again):
        core.received(reply, 1.0)
    assert [op for op, *_ in ops_of(core.take_output(1.0))] == [Op.GETATTR]


def test_refused_batches_are_sent_again_in_order(client: Client, server: MemoryMetaserver) -> None:
    open_session(client, server)
    core = client.core
    server.busy_count = 4
    sent: list[bytes] = []
    core._is_served = True  # with this, two are in flight
    for number in range(2):
        body = encode(ChangeBatch((), (Removal(1, b"%d" % number, 2, 3, 0),)))
        core.submit(Op.CHANGE_BATCH, body, None, NEVER, urgent=True)
    client.getattr(b"look")
    now = 0.0
    while core.waiting_count:
        octets = core.take_output(now)
        sent += bodies_of(octets, Op.CHANGE_BATCH)
        for reply in server.receive(octets):
            core.received(reply, now)
        now = max(now, min(core.next_retry_at(), now + 1))
        core.tick(now)
    names = [decode(ChangeBatch, body).removals[0].name for body in sent]
    assert names[:2] == [b"0", b"1"]
    assert names[-1] == b"1"
    assert names[2:] == sorted(names[2:]), "the second not before the first was taken"


def test_on_a_new_connection_nothing_follows_births_before_they_are_answered(
    client: Client, server: MemoryMetaserver
) -> None:
    """Until other clients are back each request may be refused for now, and a later one may be
    accepted."""
    open_session(client, server)
    core = client.core
    client.getattr(b"before")
    core.submit(Op.CHANGE_BATCH, encode(ChangeBatch(())), None, NEVER, urgent=True)
    client.getattr(b"after")
    assert [op for op, *_ in ops_of(core.take_output(0.0))] == [Op.CHANGE_BATCH]
    core.submit(Op.SESSION_RENEW, encode(Empty()), None, NEVER, urgent=True)
    assert [op for op, *_ in ops_of(core.take_output(0.0))] == [Op.SESSION_RENEW]
    core.lost()
    core.connected()
    for reply in server.receive(core.take_output(0.0)):
        core.received(reply, 0.0)
    again = core.take_output(0.0)
    assert [op for op, *_ in ops_of(again)] == [Op.CHANGE_BATCH]
    for reply in server.receive(again):
        core.received(reply, 0.0)
    sent = [op for op, *_ in ops_of(core.take_output(0.0))]
    assert sent == [Op.SESSION_RENEW, Op.GETATTR, Op.GETATTR]


def bodies_of(octets: bytes, op: Op) -> list[bytes]:
    parser = FrameParser()
    parser.feed(octets)
    return [frame.body for frame in parser.frames() if frame.header.op == op]


def ops_of(octets: bytes) -> list[tuple[Op, int]]:
    parser = FrameParser()
    parser.feed(octets)
    return [(Op(frame.header.op), frame.header.request_id) for frame in parser.frames()]
