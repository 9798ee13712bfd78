"""Replicas: how they leave a layout, who hears of it, and what a target that lost power answers for
no more."""

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from fscommon.errors import FsError, Status
from fscommon.layout.layout import VACANT, Layout, unpack_layout
from fscommon.types import Ino
from fscommon.wire.births import Birth, ChangeBatch, Changed, Delegate, Delegated
from fscommon.wire.codec import encode
from fscommon.wire.header import FLAG_REPLAY
from fscommon.wire.messages import (
    COMMIT_SIZE,
    SET_SIZE,
    Close,
    Commit,
    Committed,
    Empty,
    Open,
    Opened,
    Replay,
    SessionOpen,
    SetAttr,
    Unlink,
)
from fscommon.wire.ops import Op
from fscommon.wire.replicas import DROPS_MAX, DropReplicas, Synced
from fscommon.wire.servers import DROPPED_MAX, DroppedNames, TargetDropped
from metaserver.context import Context
from metaserver.dropping import ANSWER_S_MAX
from metaserver.drops import SUSPECT_S, SUSPECT_TARGETS, Drops
from metaserver.membership import ANSWERING_S, ENDED_S, TargetState
from metaserver.namespace.replicas import (
    change_layout,
    droppable,
    names_of,
    note_dropped,
    remove_replicas,
)
from metaserver.reaper import Reaper
from metaserver.records import ObjectName, dropped_key
from metaserver.transaction import Transaction

from .bench import ROOT, Bench, Client
from .mirrors import (
    MirrorBench,
    Targets,
    answer,
    background,
    closed,
    created,
    drop_of,
    dropping,
    opened,
    refused,
)

pytestmark = pytest.mark.expects_log("replicas are dropped|objects are deleted later")


@pytest.fixture
def bench() -> MirrorBench:
    return MirrorBench()


@pytest.fixture
def client(bench: MirrorBench) -> Client:
    return bench.writer()


def remove(bench: MirrorBench, ino: Ino, *targets: int) -> None:
    layout = bench.layout(ino)
    names = [name for name in names_of(layout) if name.target in targets]

    def change(tx: Transaction, context: Context) -> None:
        assert remove_replicas(tx, ino, layout, names)

    bench.engine.system(change)
    bench.settle()


# ---- the door of layouts ------------------------------------------------------------------------


def test_a_layout_changes_only_from_what_it_was(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    seen = bench.layout(ino)
    tried: list[Layout | None] = []

    def raise_it(layout: Layout) -> Layout:
        return replace(layout, truncate_epoch=layout.truncate_epoch + 1)

    def try_it(file_id: int, epoch: int) -> None:
        bench.engine.system(
            lambda tx, context: tried.append(change_layout(tx, ino, file_id, epoch, raise_it))
        )

    try_it(seen.file_id + 1, 0)
    try_it(seen.file_id, 1)
    assert tried == [None, None] and bench.layout(ino) == seen
    try_it(seen.file_id, 0)
    assert tried[2] == bench.layout(ino) == replace(seen, truncate_epoch=1)
    try_it(seen.file_id, 0)
    assert tried[3] is None


def test_a_layout_goes_forward_only(bench: MirrorBench, client: Client) -> None:
    ino = created(client)

    def change(epoch: int, **fields: Any) -> None:
        def run(tx: Transaction, context: Context) -> None:
            assert change_layout(tx, ino, ino, epoch, lambda one: replace(one, **fields))

        bench.engine.system(run)

    change(0, truncate_epoch=3, generation_last=2)
    before = bench.layout(ino)
    for fields in (
        {"truncate_epoch": 2},
        {"generation_last": 1},
        {"file_id": 9},
        {"targets": (VACANT, VACANT) * 3},
    ):
        with pytest.raises(AssertionError):
            change(3, **fields)
    assert bench.layout(ino) == before


def test_only_what_another_replica_stands_in_for_may_go() -> None:
    layout = Layout(7, 1 << 20, 2, (1, 2, 2, 3), 2)
    first, second, third, fourth = names_of(layout)
    assert droppable(layout, [first], lambda target: True) == [first]
    assert droppable(layout, [first, second], lambda target: True) == [], "the last of its stripe"
    assert droppable(layout, [first, third], lambda target: True) == [first, third]
    assert droppable(layout, [first, third], lambda target: target == 3) == [third]
    assert droppable(layout, [ObjectName(9, 7, 0), fourth], lambda target: True) == [fourth]
    assert droppable(layout, [first._replace(number=256)], lambda target: True) == [], (
        "another generation"
    )


# ---- DROP_REPLICAS ------------------------------------------------------------------------------


async def test_a_drop_is_answered_when_its_target_has_heard_of_it(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    seen = bench.layout(ino)
    lost, kept = seen.targets[:2]
    targets = Targets(deaf={lost})
    async with dropping(bench, targets):
        client.send(Op.DROP_REPLICAS, drop_of(ino, seen, lost))
        assert await answer(client, 5.0) is None
        gone = [name for name in names_of(seen) if name.target == lost]
        assert all(name not in names_of(bench.layout(ino)) for name in gone), "durable before"
        targets.deaf.clear()
        reply: Opened = await answer(client, 5.0)
        assert sorted(targets.told) == sorted(gone)
        now = unpack_layout(reply.layout)
        assert now == bench.layout(ino) and lost not in now.targets and kept in now.targets
        assert (now.file_id, now.truncate_epoch) == (seen.file_id, seen.truncate_epoch)
        assert reply.capability[16:20] == b"\x03\0\0\0"
    assert bench.dropped_of(lost) == [(name.file_id, name.number) for name in gone]
    assert bench.dropped_of(kept) == []
    assert bench.faults() == []


async def test_a_repeat_waits_for_the_same(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """Also with another metaserver, which has a layout without the replica."""
    ino = created(client)
    seen = bench.layout(ino)
    lost = seen.targets[0]
    request = drop_of(ino, seen, lost)
    async with dropping(bench, Targets(deaf={lost})):
        client.send(Op.DROP_REPLICAS, request)
        assert await answer(client, 1.0) is None
        client.send(Op.DROP_REPLICAS, request)
        assert await answer(client, 5.0) is None
    bench.engine.services.drops = Drops()
    targets = Targets()
    async with dropping(bench, targets):
        client.send(Op.DROP_REPLICAS, request)
        assert await answer(client, 5.0) is not None
    assert {name.target for name in targets.told} == {lost}


async def test_the_last_replica_stays(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    seen = bench.layout(ino)
    async with dropping(bench, Targets()):
        client.send(Op.DROP_REPLICAS, drop_of(ino, seen, 1, 2, 3))
        reply: Opened = await answer(client, 5.0)
        assert unpack_layout(reply.layout) == seen
        first = seen.targets[0]
        client.send(Op.DROP_REPLICAS, drop_of(ino, seen, first))
        left = unpack_layout((await answer(client, 5.0)).layout)
        assert left != seen
        client.send(Op.DROP_REPLICAS, drop_of(ino, left, *left.targets))
        assert unpack_layout((await answer(client, 5.0)).layout) == left


async def test_a_replica_stays_while_no_other_one_is_heard(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    seen = bench.layout(ino)
    lost, other = seen.targets[:2]
    bench.now_s += ANSWERING_S
    bench.beat(other)
    async with dropping(bench, Targets()):
        client.send(Op.DROP_REPLICAS, drop_of(ino, seen, lost))
        now = unpack_layout((await answer(client, 5.0)).layout)
        assert lost in now.targets[:2] and other in now.targets[:2]
        bench.beat()
        client.send(Op.DROP_REPLICAS, drop_of(ino, now, lost))
        assert lost not in unpack_layout((await answer(client, 5.0)).layout).targets[:2]


async def test_a_former_view_drops_nothing(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    seen = bench.layout(ino)
    async with dropping(bench, Targets()):
        for former in (replace(seen, truncate_epoch=1), replace(seen, file_id=99)):
            client.send(Op.DROP_REPLICAS, drop_of(ino, former, seen.targets[0]))
            assert unpack_layout((await answer(client, 5.0)).layout) == seen


@pytest.mark.parametrize("how", ["deaf", "silent"])
async def test_the_lease_of_the_target_may_run_out_instead(
    bench: MirrorBench, client: Client, autojump_clock: MockClock, how: str
) -> None:
    """The writer waits no longer than that, whatever the call to the target would take."""
    ino = created(client)
    seen = bench.layout(ino)
    lost = seen.targets[0]
    targets = Targets(deaf={lost}) if how == "deaf" else Targets(silent={lost})
    async with dropping(bench, targets):
        client.send(Op.DROP_REPLICAS, drop_of(ino, seen, lost))
        assert await answer(client, 1.0) is None
        bench.lose(lost)
        assert await answer(client, 0.5) is not None


@pytest.mark.parametrize("is_cut", [True, False])
async def test_the_process_of_the_target_may_end_instead(
    bench: MirrorBench, client: Client, autojump_clock: MockClock, is_cut: bool
) -> None:
    """Nothing listens there, and its connection to the metaserver has ended, too."""
    ino = created(client)
    seen = bench.layout(ino)
    lost = seen.targets[0]
    async with dropping(bench, Targets(ended={lost})):
        if is_cut:
            bench.engine.closed(bench.servers[lost].connection)
        client.send(Op.DROP_REPLICAS, drop_of(ino, seen, lost))
        assert (await answer(client, 5.0) is not None) == is_cut


@pytest.mark.parametrize("nodes", [2, 3])
def test_a_server_whose_connection_has_ended_gets_no_new_files(nodes: int) -> None:
    """Unless there are too few others: it may just be restarting."""
    bench = MirrorBench(nodes=nodes)
    membership = bench.engine.services.membership
    bench.engine.closed(bench.servers[2].connection)

    def note_ended() -> list[int]:
        return [node.id for node in membership.note_ended(bench.now_s)]

    assert note_ended() == []
    bench.now_s += ENDED_S + 0.1
    bench.beat(2)
    assert (note_ended(), note_ended()) == ([2], [])
    assert membership.state(membership.targets()[1]) is TargetState.DOWN
    assert not membership.cannot_answer(2), "its lease has not run out"
    assert membership.map().open_targets() == {1, 3} & set(range(1, nodes + 1))
    used = {one for number in range(50) for one in membership.place_replicas(number, 1, 2)}
    assert used == ({1, 2} if nodes == 2 else {1, 3})
    bench.join(2)
    assert membership.state(membership.targets()[1]) is TargetState.UP
    used = {one for number in range(50) for one in membership.place_replicas(number, 1, 2)}
    assert used == set(range(1, nodes + 1))


async def test_nobody_waits_for_ever(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    seen = bench.layout(ino)
    lost = seen.targets[0]
    targets = Targets(deaf={lost})
    async with dropping(bench, targets):
        client.send(Op.DROP_REPLICAS, drop_of(ino, seen, lost))
        with pytest.raises(FsError, match="does not say") as caught:
            await answer(client, ANSWER_S_MAX + 5.0)
        assert caught.value.status is Status.NOT_READY
        client.send(Op.DROP_REPLICAS, drop_of(ino, seen, lost))
        assert await answer(client, ANSWER_S_MAX - 5.0) is None
        targets.deaf.clear()
        assert await answer(client, 5.0) is not None


def test_wrong_drops(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    many = (0,) * (DROPS_MAX + 1)
    for numbers, targets in (((), ()), ((0,), ()), (many, many)):
        request = DropReplicas(ino, ino, 0, numbers, targets)
        assert refused(client, Op.DROP_REPLICAS, request) is Status.BAD_REQUEST
    assert refused(client, Op.DROP_REPLICAS, DropReplicas(ROOT, 1, 0, (0,), (1,))) is Status.EINVAL
    assert refused(client, Op.DROP_REPLICAS, DropReplicas(99, 1, 0, (0,), (1,))) is Status.ESTALE


def test_a_client_that_drops_much_is_noticed() -> None:
    drops = Drops()
    few = range(SUSPECT_TARGETS)
    assert not any(drops.suspects(7, [target], 10.0) for target in few)  # type: ignore[arg-type]
    assert not drops.suspects(8, [99], 10.0)  # type: ignore[arg-type]
    assert not drops.suspects(7, [99], 11.0 + SUSPECT_S)  # type: ignore[arg-type]
    assert drops.suspects(7, few, 12.0 + SUSPECT_S)  # type: ignore[arg-type]


def test_names_come_in_pages(bench: MirrorBench, client: Client) -> None:
    many = [ObjectName(2, file_id, 5) for file_id in range(1, DROPPED_MAX + 3)]
    others = [ObjectName(1, 7, 5), ObjectName(3, 7, 5)]
    bench.engine.system(lambda tx, context: note_dropped(tx, Ino(7), [*many, *others]))
    server = bench.servers[2]
    server.send(Op.TARGET_DROPPED, TargetDropped(2, 0, 0))
    assert server.received() == [], "a name that is not durable might come back"
    bench.settle()
    first: DroppedNames = server.take()
    assert len(first.file_ids) == DROPPED_MAX and not first.end
    last = first.file_ids[-1], first.objects[-1]
    rest: DroppedNames = server.call(Op.TARGET_DROPPED, TargetDropped(2, *last))
    assert rest.end and len(rest.file_ids) == 2
    assert [*first.file_ids, *rest.file_ids] == [name.file_id for name in many]
    assert set(first.objects) == {5}


# ---- W, U and targets that lose power -----------------------------------------------------------


def places_of(bench: MirrorBench, ino: Ino) -> set[int]:
    return {name.target for name in names_of(bench.layout(ino))}


def test_an_open_for_writing_is_durable_first(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    closed(client, ino, is_synced=True)
    bench.settle()
    assert bench.records(b"W") == []
    assert opened(client, ino, writable=False)
    client.send(Op.OPEN, Open(ino, True))
    assert client.received() == []
    bench.settle()
    assert client.take() and len(bench.records(b"W")) == 1


def test_a_file_with_one_replica_waits_for_nothing() -> None:
    plain = Bench()
    client = plain.client()
    ino = client.create(ROOT, b"file").ino
    client.tell(Op.CLOSE, closing(ino))
    plain.settle()
    client.send(Op.OPEN, Open(ino, True))
    assert client.take()
    client.tell(Op.CLOSE, closing(ino))
    plain.settle()
    found: list[object] = []
    plain.engine.system(lambda tx, context: found.extend(tx.range(b"U", b"V")))
    assert found == []


def test_a_file_that_was_only_read_since_is_synced_by_its_last_close(
    bench: MirrorBench, client: Client
) -> None:
    ino = created(client)
    closed(client, ino, 1)
    client.call(Op.OPEN, Open(ino, False))
    closed(client, ino, 2)
    client.tell(Op.SYNCED, Synced((ino,), (1,)))
    assert len(bench.records(b"U")) == 1
    client.tell(Op.SYNCED, Synced((ino,), (2,)))
    assert bench.records(b"U") == []


def closing(ino: int) -> Close:
    return Close((ino,), (ino,), 1)


@pytest.mark.parametrize("state", ["written", "closed", "synced", "closed again"])
def test_who_lost_power_answers_for_nothing_that_was_not_synced(
    bench: MirrorBench, client: Client, state: str
) -> None:
    ino = created(client)
    before = places_of(bench, ino)
    if state != "written":
        closed(client, ino, 1)
    if state == "closed again":
        opened(client, ino)
        closed(client, ino, 2)
    if state in ("synced", "closed again"):
        client.tell(Op.SYNCED, Synced((ino,), (1,)))
    bench.settle()
    lost = min(before)
    bench.join(lost, 2)
    is_kept = state == "synced"
    assert places_of(bench, ino) == (before if is_kept else before - {lost})
    assert bool(bench.dropped_of(lost)) != is_kept
    assert bench.faults() == []


def test_it_is_one_transaction(bench: MirrorBench, client: Client) -> None:
    """The incarnation is never durable without the drops."""
    ino = created(client)
    bench.settle()
    lost = min(places_of(bench, ino))
    bench.ask_to_join(lost, 2)
    after = MirrorBench(bench.store)  # it was never durable
    assert lost in places_of(after, ino)
    after.join(lost, 2)
    assert lost not in places_of(after, ino)


def test_the_last_replica_stays_when_all_lose_power(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    bench.settle()
    for target in sorted(places_of(bench, ino)):
        bench.join(target, 2)
    layout = bench.layout(ino)
    assert len({one.stripe_index for one in layout.replicas()}) == layout.stripe_width
    assert len(list(layout.replicas())) == layout.stripe_width


def test_a_restart_without_a_loss_drops_nothing(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    before = bench.layout(ino)
    for target in (1, 2, 3):
        bench.join(target)
    assert bench.layout(ino) == before


def test_unsynced_files_end_with_the_file(bench: MirrorBench, client: Client) -> None:
    removed, cut = created(client, b"a"), created(client, b"b")
    for ino in (removed, cut):
        closed(client, ino)
    bench.settle()
    assert len(bench.records(b"U")) == 2
    client.call(Op.UNLINK, Unlink(ROOT, b"a"))
    assert len(bench.records(b"U")) == 1
    client.call(Op.SETATTR, SetAttr(cut, SET_SIZE, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    assert bench.records(b"U") == []
    assert bench.faults() == []


def test_what_a_session_leaves_is_not_synced(bench: MirrorBench, client: Client) -> None:
    left, shut = created(client, b"a"), created(client, b"b")
    closed(client, shut, 5)
    client.call(Op.SESSION_CLOSE, Empty())
    bench.settle()
    assert bench.records(b"W") == []
    assert [int.from_bytes(key[1:9], "big") for key, _ in bench.records(b"U")] == [left, shut]
    assert [int.from_bytes(value, "little") for _, value in bench.records(b"U")] == [0, 5]


# ---- COMMIT -------------------------------------------------------------------------------------


def commit_of(ino: Ino, targets: tuple[int, ...], incarnations: tuple[int, ...]) -> Commit:
    return Commit(ino, ino, COMMIT_SIZE, 5, 0, 0, False, targets, incarnations)


def test_a_commit_of_what_was_lost_is_refused(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    layout = bench.layout(ino)
    first, second = layout.targets[:2]
    client.call(Op.COMMIT, commit_of(ino, (first, second), (1, 1)))
    for name in names_of(layout):
        bench.join(name.target, 2)
    last = names_of(bench.layout(ino))[0].target
    gone = next(name.target for name in names_of(layout) if name.target != last)
    assert refused(client, Op.COMMIT, commit_of(ino, (last,), (1,))) is Status.STALE_INCARNATION
    reply: Committed = client.call(Op.COMMIT, commit_of(ino, (last,), (2,)))
    assert reply.attributes
    if gone not in places_of(bench, ino):
        client.call(Op.COMMIT, commit_of(ino, (gone,), (1,)))  # the layout names it no longer


def test_a_replay_of_a_commit_ends_as_it_did(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    bench.settle()
    request = commit_of(ino, (1, 2, 3), (1, 1, 1))
    request_id = client.send(Op.COMMIT, request)
    frame = client.take_frame()
    after = MirrorBench(bench.store)
    for number in (1, 2, 3):
        after.join(number, 2)
    again = Client(after, after.connect(), client.session, request_id=request_id)
    again.call(Op.SESSION_OPEN, SessionOpen(client.session, "c", (ino,), 0, features=1))
    replay = Replay(frame.header.offset, 0, encode(request), frame.body)
    again.send(Op.COMMIT, replay, flags=FLAG_REPLAY, request_id=request_id)
    assert again.take_frame().header.status == 0


# ---- births -------------------------------------------------------------------------------------


def test_a_file_may_be_born_without_a_replica(bench: MirrorBench, client: Client) -> None:
    given: Delegated = client.call(Op.DELEGATE, Delegate(ROOT, 4))
    slots = [unpack_layout(slot.layout) for slot in given.slots]
    gone = [name for name in names_of(slots[0]) if name.number == 0][:1]
    less = replace(slots[0], targets=(VACANT, *slots[0].targets[1:]), generations=(0,) * 6)
    none = replace(slots[1], targets=(VACANT, VACANT, *slots[1].targets[2:]))
    more = replace(slots[2], targets=(slots[2].targets[1], *slots[2].targets[1:]))
    third = min({1, 2, 3} - set(slots[3].targets[:2]))
    other = replace(slots[3], targets=(third, *slots[3].targets[1:]))
    births = [
        Birth(slot.ino, ROOT, b"%d" % slot.ino, 0o644, 0, 0, 0, layout.pack(), writable=True)
        for slot, layout in zip(given.slots, (less, none, more, other), strict=True)
    ]
    reply: Changed = client.call(Op.CHANGE_BATCH, ChangeBatch(tuple(births)))
    assert reply.errors == (0, *[Status.BAD_REQUEST] * 3)
    assert bench.layout(Ino(given.slots[0].ino)).targets[0] == VACANT
    assert bench.dropped_of(gone[0].target) == [(gone[0].file_id, gone[0].number)]
    assert bench.faults() == []


def test_a_birth_that_was_closed_is_not_synced(bench: MirrorBench, client: Client) -> None:
    given: Delegated = client.call(Op.DELEGATE, Delegate(ROOT, 1))
    (slot,) = given.slots
    birth = Birth(slot.ino, ROOT, b"n", 0o644, 0, 0, 0, slot.layout, writable=True, is_open=False)
    client.call(Op.CHANGE_BATCH, ChangeBatch((birth,)))
    assert len(bench.records(b"U")) == 1
    client.tell(Op.SYNCED, Synced((slot.ino,), (0,)))
    assert bench.records(b"U") == []


# ---- the removal of objects ---------------------------------------------------------------------


async def reap(bench: MirrorBench, targets: Targets) -> None:
    bench.engine.doomed = True
    with trio.move_on_after(20):
        await Reaper(background(bench, targets)).run()
    bench.settle()


async def test_a_removed_file_leaves_no_object_and_no_name(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    other = created(client, b"other")
    every = set(names_of(bench.layout(ino)))
    lost = min(places_of(bench, ino))
    remove(bench, ino, lost)
    remove(bench, other, min(places_of(bench, other)))
    kept = names_of(bench.layout(other))
    closed(client, ino)
    client.call(Op.UNLINK, Unlink(ROOT, b"file"))
    targets = Targets(deaf={lost})
    await reap(bench, targets)
    assert set(targets.deleted) == {name for name in every if name.target != lost}
    assert bench.records(b"Z") and len(bench.records(b"Y")) == len(bench.records(b"V")) > 2
    targets.deaf.clear()
    await reap(bench, targets)
    assert set(targets.deleted) == every and bench.records(b"Z") == []
    names = [key for key, _ in bench.records(b"Y")]
    assert len(names) == len(bench.records(b"V"))
    assert all(int.from_bytes(key[9:17], "big") == other for key in names) and names
    assert names_of(bench.layout(other)) == kept
    assert bench.faults() == []


def test_names_stay_while_the_file_does(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    lost = min(places_of(bench, ino))
    gone = [name for name in names_of(bench.layout(ino)) if name.target == lost]
    remove(bench, ino, lost)
    after = MirrorBench(bench.store)
    assert after.dropped_of(lost) == [(name.file_id, name.number) for name in gone]
    assert [key for key, _ in after.records(b"Y")] == [dropped_key(name) for name in gone]
