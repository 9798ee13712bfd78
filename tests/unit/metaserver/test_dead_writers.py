"""What a writer leaves that is no more, and what nobody has synced: truncates, fences, SYNCs of
replicated files."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from fscommon.errors import FsError, Status
from fscommon.layout.layout import VACANT
from fscommon.types import Ino, NodeId, SessionId, TargetId
from fscommon.wire.messages import SET_SIZE, Empty, SessionOpen, SetAttr
from fscommon.wire.ops import Op
from fscommon.wire.replicas import Synced
from metaserver.eviction import Eviction
from metaserver.lost_writes import cut_lost
from metaserver.membership import ANSWERING_S, ENDED_S, Node
from metaserver.namespace.replicas import names_of, stripe_of
from metaserver.records import ObjectName, unsynced_place
from metaserver.storage import CALL_TIMEOUT_S
from metaserver.truncation import UNREACHABLE_S, Truncation
from metaserver.unsynced import Unsynced

from .bench import Bench, Client
from .mirrors import (
    CommitsAtOnce,
    MirrorBench,
    Targets,
    background,
    closed,
    created,
    dropping,
    opened,
)

pytestmark = pytest.mark.expects_log(
    "replicas that cannot be cut are dropped|waits for a target|truncate is repeated"
    "|client is evicted|fence is repeated|storage server is down|is synced later"
)


@pytest.fixture
def bench() -> MirrorBench:
    return MirrorBench()


@pytest.fixture
def client(bench: MirrorBench) -> Client:
    client = bench.writer()
    recalls = bench.connect("recall")
    bench.engine.attach(recalls, client.session)
    return client


def grown(client: Client, name: bytes = b"file") -> Ino:
    ino = created(client, name)
    resize(client, ino, 5 << 20)
    client.bench.settle()
    client.take()
    return ino


def resize(client: Client, ino: int, size: int) -> None:
    client.send(Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, size, 0, 0, 0, 0, 0))


@asynccontextmanager
async def tasks_of(bench: Bench, targets: Targets) -> AsyncIterator[tuple[Truncation, Eviction]]:
    async with dropping(bench, targets) as drops, trio.open_nursery() as tasks:
        truncation = Truncation(
            bench.engine, CommitsAtOnce(bench), targets, tasks, bench.time, drops
        )
        truncation.start_fresh()
        yield truncation, Eviction(background(bench, targets), drops)
        tasks.cancel_scope.cancel()


def count_of(bench: MirrorBench, ino: Ino) -> list[int]:
    """How many replicas each stripe has."""
    layout = bench.layout(ino)
    stripes = [one.stripe_index for one in layout.replicas()]
    return [stripes.count(stripe) for stripe in range(layout.stripe_width)]


# ---- truncates ----------------------------------------------------------------------------------


async def test_a_cut_reaches_all_replicas(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = grown(client)
    targets = Targets()
    resize(client, ino, 1)
    async with tasks_of(bench, targets):
        await trio.sleep(5)
    assert client.take()
    assert sorted(targets.cut) == sorted((name, 1) for name in names_of(bench.layout(ino)))
    assert count_of(bench, ino) == [2, 2, 2]


async def test_a_cut_does_not_wait_for_a_replica_that_is_down(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = grown(client)
    before = names_of(bench.layout(ino))
    bench.lose(2)
    targets = Targets(deaf={2})
    resize(client, ino, 1)
    async with tasks_of(bench, targets):
        await trio.sleep(5)
    assert client.take()
    left = [name for name in before if name.target != 2]
    assert names_of(bench.layout(ino)) == left and sorted(targets.cut) == sorted(
        (name, 1) for name in left
    )
    bench.join(2)
    assert bench.dropped_of(2) == [(n.file_id, n.number) for n in before if n.target == 2]
    assert bench.faults() == []


async def test_a_cut_does_not_wait_long_for_a_replica_that_cannot_be_cut(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """Its storage server is up: only the metaserver does not reach it, or its disk hangs."""
    ino = grown(client)
    targets = Targets(deaf={2})
    resize(client, ino, 1)
    async with tasks_of(bench, targets):
        await trio.sleep(UNREACHABLE_S - 1)
        assert client.received() == [] and count_of(bench, ino) == [2, 2, 2]
        await trio.sleep(2)
        assert 2 not in {name.target for name in names_of(bench.layout(ino))}
        assert client.received() == [], "clients may get an answer from it"
        targets.deaf = set()
        await trio.sleep(5)
    assert client.take()
    resize(client, ino, 0)
    assert bench.faults() == []


@pytest.mark.parametrize("has_ended", [False, True])
async def test_a_cut_does_not_wait_for_the_lease_of_a_server_that_is_known_to_be_down(
    bench: MirrorBench, client: Client, autojump_clock: MockClock, has_ended: bool
) -> None:
    """Its process has ended, or it has come back without the target."""
    ino = grown(client)
    membership = bench.engine.services.membership
    if has_ended:
        bench.engine.closed(bench.servers.pop(2).connection)
        bench.now_s += ENDED_S + 0.1
        assert [node.id for node in membership.note_ended(bench.now_s)] == [2]
    else:
        membership.unserved(NodeId(2), [])
    bench.beat()
    targets = Targets(ended={2} if has_ended else set())
    resize(client, ino, 1)
    async with tasks_of(bench, targets):
        await trio.sleep(1)
        assert client.received() == [] and count_of(bench, ino) == [2, 2, 2]
        bench.now_s += UNREACHABLE_S + 0.1
        bench.beat()
        await trio.sleep(1)
        assert client.take()
        assert not membership.is_down(NodeId(2)), "its lease goes on"
    assert 2 not in {name.target for name in names_of(bench.layout(ino))}
    assert bench.faults() == []


async def test_a_cut_waits_once_for_a_disk_that_hangs(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """Its server still answers what is no matter of the disk."""
    ino = grown(client)
    targets = Targets(hung={2})
    resize(client, ino, 1)
    async with tasks_of(bench, targets):
        await trio.sleep(CALL_TIMEOUT_S + 1)
        assert client.take()
    assert 2 not in {name.target for name in names_of(bench.layout(ino))}
    assert bench.faults() == []


async def test_a_cut_waits_for_the_last_replica(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = grown(client)
    bench.lose(1, 2, 3)
    targets = Targets(deaf={1, 2, 3})
    resize(client, ino, 1)
    async with tasks_of(bench, targets):
        await trio.sleep(30)
        assert client.received() == [] and count_of(bench, ino) == [2, 2, 2]
        targets.deaf.clear()
        bench.join(1)
        bench.join(2)
        await trio.sleep(5)
        assert client.take()
    assert set(count_of(bench, ino)) == {1, 2}


@pytest.mark.parametrize("is_heard", [False, True])
async def test_a_cut_drops_nothing_for_a_target_that_is_given_up(
    bench: MirrorBench, client: Client, autojump_clock: MockClock, is_heard: bool
) -> None:
    """It was heard a moment ago, and has died since; if it is heard after that, it counts."""
    ino = grown(client)
    before = names_of(bench.layout(ino))
    bench.lose(2)
    bench.engine.services.membership.set_lost([1], bench.now_s)
    if is_heard:
        bench.now_s += 1
        bench.beat(2)
    targets = Targets(deaf={2})
    resize(client, ino, 1)
    async with tasks_of(bench, targets):
        await trio.sleep(5)
    shared = {one.stripe_index for one in bench.layout(ino).replicas() if one.target == 1}
    left = {name for name in names_of(bench.layout(ino)) if name.target == 2}
    kept = {name for name in before if name.target == 2 and stripe_of(name.number) in shared}
    assert kept and left == (set() if is_heard else kept)


async def test_replicas_that_are_dropped_during_a_cut_are_not_waited_for(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """The places are those of the inode, also after a restart."""
    ino = grown(client)
    targets = Targets(deaf={3})
    resize(client, ino, 1)
    async with tasks_of(bench, targets):
        await trio.sleep(5)
        assert client.received() == []
    bench.settle()
    after = MirrorBench(bench.store, nodes=3)
    after.lose(3)
    async with tasks_of(after, targets):
        await trio.sleep(5)
    assert ino not in after.engine.services.intents
    assert {name.target for name in names_of(after.layout(ino))} == {1, 2}
    assert after.faults() == []


# ---- dead writers -------------------------------------------------------------------------------


async def evict(bench: MirrorBench, client: Client, targets: Targets, seconds: float) -> None:
    session = bench.engine.sessions.get(client.session)
    assert session is not None
    async with tasks_of(bench, targets) as (truncation, eviction), trio.open_nursery() as tasks:
        eviction._evict(session, tasks)
        truncation.start_fresh()
        await trio.sleep(seconds)
        tasks.cancel_scope.cancel()


async def test_a_dead_writer_leaves_one_replica(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino, shut = grown(client), grown(client, b"shut")
    every = set(names_of(bench.layout(ino)))
    closed(client, shut, is_synced=True)
    targets = Targets()
    await evict(bench, client, targets, 10)
    assert count_of(bench, ino) == [1, 1, 1]
    gone = every - set(names_of(bench.layout(ino)))
    assert set(targets.told) == gone, "nobody reads them any more"
    assert count_of(bench, shut) == [2, 2, 2], "all replicas have acknowledged it"
    assert bench.records(b"F") == bench.records(b"W") == []
    assert [int.from_bytes(key[1:9], "big") for key, _ in bench.records(b"U")] == [ino]
    assert bench.faults() == []


async def test_what_stays_has_acknowledged_the_fence(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """A target that is down might be the last to hear of the session."""
    ino = grown(client)
    bench.lose(1)
    targets = Targets(deaf={1})
    await evict(bench, client, targets, 10)
    assert {name.target for name in names_of(bench.layout(ino))} <= {2, 3}
    assert count_of(bench, ino) == [1, 1, 1]


async def test_one_that_comes_back_is_fenced_before_it_stays(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """The file is not cut, as another session has it open for writing, which holds no lease."""
    ino = created(bench.writer())
    opened(client, ino)
    bench.lose(1)

    class Returning(Targets):
        async def fence(self, node: Node, session: SessionId) -> None:
            assert count_of(bench, ino) == [2, 2, 2]
            await Targets.fence(self, node, session)
            if node.id == 2:  # the others are silent now
                bench.join(1)
                bench.now_s += ANSWERING_S
                bench.beat(2, 3)

    targets = Returning()
    await evict(bench, client, targets, 10)
    assert [node for node, _ in targets.fenced].count(1) == 1
    assert set(count_of(bench, ino)) == {1, 2}
    assert 1 in {name.target for name in names_of(bench.layout(ino))}


async def test_a_file_that_is_not_cut_is_made_whole_too(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """Another session has it open for writing, and holds no lease."""
    ino = created(bench.writer())
    opened(client, ino)
    every = set(names_of(bench.layout(ino)))
    targets = Targets()
    await evict(bench, client, targets, 10)
    assert count_of(bench, ino) == [1, 1, 1] and targets.cut == []
    assert set(targets.told) == every - set(names_of(bench.layout(ino)))


def test_what_is_made_whole_is_on_no_target_that_was_given_up(
    bench: MirrorBench, client: Client
) -> None:
    """No replica answers at the moment; the one that is kept may come back."""
    ino = grown(client)
    bench.lose(1, 2, 3)
    membership = bench.engine.services.membership
    assert membership.set_lost([1], bench.time().now_s)
    session = bench.engine.sessions.get(client.session)
    assert session is not None
    bench.engine.system(lambda tx, context: cut_lost(tx, context, session, (ino,)), bench.time())
    assert count_of(bench, ino) == [1, 1, 1]
    assert 1 not in {name.target for name in names_of(bench.layout(ino))}


async def test_nobody_gets_the_file_before_it_is_whole(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = grown(client)
    bench.lose(1, 2, 3)
    targets = Targets(deaf={1, 2, 3})
    session = bench.engine.sessions.get(client.session)
    assert session is not None
    leases = bench.engine.services.leases
    async with tasks_of(bench, targets) as (truncation, eviction), trio.open_nursery() as tasks:
        eviction._evict(session, tasks)
        truncation.start_fresh()
        await trio.sleep(30)
        assert leases.ghosts() == [client.session] and count_of(bench, ino) == [2, 2, 2]
        targets.deaf.clear()
        for number in (1, 2, 3):
            bench.join(number)
        await trio.sleep(10)
        assert count_of(bench, ino) == [1, 1, 1]
        bench.now_s += 60
        leases.expire(bench.now_s)
        assert leases.ghosts() == []
        tasks.cancel_scope.cancel()


async def test_a_file_that_another_session_holds_stays(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = grown(client)
    leases = bench.engine.services.leases
    leases.downgrade(client.session, [ino], bench.now_s)
    other = bench.writer()
    bench.engine.attach(bench.connect("recall"), other.session)
    opened(other, ino, writable=False)
    targets = Targets()
    await evict(bench, client, targets, 10)
    assert count_of(bench, ino) == [2, 2, 2]


async def test_another_process_of_the_session_finds_one_replica(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = grown(client)
    kept = grown(client, b"kept")
    every = set(names_of(bench.layout(ino)))
    again = Client(bench, bench.connect(), client.session)
    hello = SessionOpen(client.session, "c", (ino, kept), 0, (), True, (ino,), features=1)
    targets = Targets()
    async with tasks_of(bench, targets) as (truncation, _):
        again.send(Op.SESSION_OPEN, hello)
        truncation.start_fresh()
        await trio.sleep(5)
    assert count_of(bench, ino) == [1, 1, 1] and count_of(bench, kept) == [2, 2, 2]
    assert set(targets.told) == every - set(names_of(bench.layout(ino)))
    assert bench.faults() == []


# ---- what nobody has synced ---------------------------------------------------------------------


def left_by(client: Client, bench: MirrorBench) -> Ino:
    """A file that nobody has synced, of a session that has ended."""
    ino = created(client)
    client.call(Op.SESSION_CLOSE, Empty())
    bench.settle()
    return ino


async def test_what_a_session_has_left_is_synced(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    closed(client, ino)
    bench.settle()
    targets = Targets()
    task = Unsynced(background(bench, targets))
    await task.look()
    assert targets.synced == [], "its client does so"
    client.call(Op.SESSION_CLOSE, Empty())
    targets.deaf = {1}
    await task.look()
    assert len(bench.records(b"U")) == 1
    targets.deaf.clear()
    targets.incarnations = {2: 2}
    await task.look()
    assert len(bench.records(b"U")) == 1, "it may have lost the bytes before"
    targets.incarnations.clear()
    targets.synced.clear()
    await task.look()
    assert bench.records(b"U") == []
    assert sorted(targets.synced) == sorted((name, 0) for name in names_of(bench.layout(ino)))


async def test_targets_with_many_objects_are_synced_as_a_whole(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    inos = [created(client, f"{number}".encode()) for number in range(40)]
    for serial, ino in enumerate(inos):
        closed(client, ino, serial)
    client.call(Op.SESSION_CLOSE, Empty())
    bench.settle()
    every = [name for ino in inos for name in names_of(bench.layout(ino))]
    placed = Counter(name.target for name in every)
    targets = Targets()
    task = Unsynced(background(bench, targets), many=max(placed.values()))
    whole = {target for target, count in placed.items() if count == max(placed.values())}
    targets.incarnations = dict.fromkeys(whole, 2)
    await task.look()
    unsure = {name.file_id for name in every if name.target in whole}
    assert {unsynced_place(key)[0] for key, _ in bench.records(b"U")} == unsure
    targets.incarnations.clear()
    targets.synced.clear()
    targets.synced_targets.clear()
    await Unsynced(background(bench, targets), many=1).look()
    assert bench.records(b"U") == [] and targets.synced == []
    assert sorted(targets.synced_targets) == sorted(
        {name.target for name in every if name.file_id in unsure}
    )


async def test_a_target_that_is_not_synced_as_a_whole_is_asked_for_each_object(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """One of its objects may be damaged; a storage server of before answers NO_OBJECT."""
    ino = left_by(client, bench)

    class Former(Targets):
        async def sync_target(self, target: TargetId) -> int:
            await self._reach(target)
            raise FsError(Status.NO_OBJECT)

    targets = Former()
    await Unsynced(background(bench, targets), many=1).look()
    assert bench.records(b"U") == []
    assert sorted(targets.synced) == sorted((name, 0) for name in names_of(bench.layout(ino)))


async def test_a_layout_that_changes_meanwhile_is_synced_again(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = left_by(client, bench)

    first, *_, last = names_of(bench.layout(ino))
    assert first.target != last.target

    class Slow(Targets):
        async def sync(self, name: ObjectName, epoch: int) -> int:
            if name == last and first in names_of(bench.layout(ino)):
                bench.join(first.target, 2)
            return await Targets.sync(self, name, epoch)

    targets = Slow()
    task = Unsynced(background(bench, targets))
    await task.look()
    targets.incarnations = {first.target: 2}
    assert VACANT in bench.layout(ino).targets and len(bench.records(b"U")) == 1
    await task.look()
    assert bench.records(b"U") == []


def test_synced_ends_its_own_close_only(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    closed(client, ino, 4)
    other = bench.writer()
    for serials in ((3,), (5,), ()):
        client.tell(Op.SYNCED, Synced((ino,), serials))
    other.tell(Op.SYNCED, Synced((ino,), (4,)))
    assert len(bench.records(b"U")) == 1
    client.tell(Op.SYNCED, Synced((ino,), (4,)))
    assert bench.records(b"U") == []
