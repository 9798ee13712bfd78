"""Drains: what one target has moves to others, under clients; and the removal of a target."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_DATA
from fscommon.layout.layout import VACANT, unpack_layout
from fscommon.types import Ino
from fscommon.wire.births import Birth, ChangeBatch, Delegate
from fscommon.wire.jobs import JobSet
from fscommon.wire.leases import ReturnItem
from fscommon.wire.messages import SET_SIZE, Empty, Open, SetAttr, Unlink
from fscommon.wire.ops import Op
from fscommon.wire.servers import Register, Registered
from metaserver.boot import Settings
from metaserver.context import Context
from metaserver.namespace.places import RESENT_S, GivenUpError, of_moving
from metaserver.namespace.replicas import names_of
from metaserver.placement import ReplicaPolicy
from metaserver.records import ObjectName, lacking_place
from metaserver.repair import HOLD_S
from metaserver.sessions import SYSTEM_SESSION
from metaserver.transaction import Transaction

from .bench import ROOT
from .job_bench import (
    FOUR,
    LOGS,
    ONE,
    admin_of,
    drain,
    files,
    on,
    remove,
    renewed,
    row,
    state,
    until,
    until_done,
)
from .mirrors import TWO, Copiers, LiveBench, closed, created, tasks_of

pytestmark = pytest.mark.expects_log(LOGS)


@pytest.fixture
def bench() -> LiveBench:
    return LiveBench(nodes=len(FOUR))


# ---- the index ----------------------------------------------------------------------------------


def test_the_most_endangered_files_come_first() -> None:
    policy = ReplicaPolicy(3, replicas_max=3)
    three = LiveBench(nodes=4, settings=replace(TWO, replicas=policy, stripe_width_max=1))
    client = three.writer()
    inos = [created(client, b"f%d" % at) for at in range(8)]
    three.settle()
    three.join(1, 2)
    three.join(2, 2)
    left = [lacking_place(key) for key, _ in three.records(b"H")]
    assert {count for count, _ in left} == {1, 2} and left == sorted(left)
    for count, ino in left:
        layout = three.layout(ino)
        counts = [0] * layout.stripe_width
        for one in layout.replicas():
            counts[one.stripe_index] += 1
        assert min(counts) == count and ino in inos
    assert three.faults() == []


# ---- drain --------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [ONE, TWO], ids=["one replica", "two"])
async def test_a_drain_moves_everything(autojump_clock: MockClock, settings: object) -> None:
    bench = LiveBench(nodes=4, settings=settings)
    inos = files(bench, 12)
    before = {ino: bench.layout(ino) for ino in inos}
    there = on(bench, inos, 2)
    assert len(there) > 0
    targets = Copiers()
    async with tasks_of(bench, targets):
        drain(bench, 2)
        seen = await until_done(bench, "drain")
    assert (seen.target, seen.files, seen.files_failed) == (2, len(there), 0)
    assert on(bench, inos, 2) == []
    moved = {name for ino in there for name in names_of(before[ino]) if name.target == 2}
    assert set(targets.told) == moved, "their names were settled"
    assert set(targets.deleted) == moved
    for ino in inos:
        layout = bench.layout(ino)
        assert len(layout.targets) == len(before[ino].targets) and VACANT not in layout.targets
        stay = [name for name in names_of(before[ino]) if name not in moved]
        assert set(stay) <= set(names_of(layout))
    assert bench.records(b"C") == [] and bench.faults() == []
    assert state(bench, 2) == "draining"


async def test_nobody_writes_before_former_replicas_are_silent(autojump_clock: MockClock) -> None:
    """The target that is drained does not say that it has dropped the names: nobody gets the file
    for writing, however long that lasts, since a reader there would see what is older."""
    bench = LiveBench(nodes=4, settings=replace(TWO, stripe_width_max=1))
    [ino] = [one for one in files(bench, 8) if 2 in bench.layout(one).targets][:1]
    targets = Copiers()
    client = bench.writer()
    bench.engine.attach(bench.connect("recall"), client.session)

    def grow_deaf(name: ObjectName) -> None:
        if name.file_id == ino:
            targets.deaf.add(2)

    targets.after_copy = grow_deaf
    async with tasks_of(bench, targets):
        renewed(bench, client)
        drain(bench, 2)
        with trio.fail_after(60):
            while 2 in bench.layout(ino).targets:
                renewed(bench, client)
                await trio.sleep(0.1)
        client.send(Op.OPEN, Open(ino, True))
        for _ in range(100):
            await trio.sleep(0.1)
        assert not client.received() and bench.records(b"C")
        targets.deaf.clear()
        await until(lambda: bool(client.received()), 10)
        client.take()
    assert bench.faults() == []


async def test_a_metaserver_settles_what_another_has_moved(autojump_clock: MockClock) -> None:
    """It dies when the layout has changed and the former name may still answer."""
    bench = LiveBench(nodes=4, settings=replace(ONE, stripe_width_max=1))
    [ino] = [one for one in files(bench, 12) if bench.layout(one).targets[0] == 2][:1]
    targets = Copiers()

    def grow_deaf(name: ObjectName) -> None:
        if name.file_id == ino:
            targets.deaf.add(2)

    targets.after_copy = grow_deaf
    async with tasks_of(bench, targets):
        drain(bench, 2)
        await until(lambda: 2 not in bench.layout(ino).targets, 60)
    bench.settle()
    after = LiveBench(bench.store, nodes=0, settings=ONE)
    assert after.engine.services.leases.held(SYSTEM_SESSION, ino) & LEASE_DATA
    after.engine.end_recovery_if_done()
    for number in FOUR:
        after.incarnations[number] = 1
        after.join(number)
    client = after.writer()
    client.send(Op.OPEN, Open(ino, True))
    after.settle()
    assert not client.received(), "it is not writable yet"
    targets.deaf.clear()
    async with tasks_of(after, targets):
        with trio.fail_after(30):
            while not client.received():
                renewed_at = after.time()
                assert renewed_at
                await trio.sleep(0.1)
    assert after.records(b"C") == [] and 2 not in after.layout(ino).targets
    assert after.faults() == []


async def test_a_target_that_comes_back_is_drained_later(
    bench: LiveBench, autojump_clock: MockClock
) -> None:
    """A client may send again what it lost with its power, as long as it holds that."""
    client = bench.writer()
    inos = [created(client, b"f%d" % at) for at in range(8)]
    for ino in inos:
        closed(client, ino)  # not synced
    bench.settle()
    bench.join(2, 2)
    async with tasks_of(bench, Copiers(incarnations={2: 2})):
        drain(bench, 2)
        began = trio.current_time()
        while row(bench, "drain").state != "done" and trio.current_time() - began < RESENT_S - 5:
            renewed(bench, client)
            await trio.sleep(1)
        assert "lost power" in row(bench, "drain").because
        for _ in range(60):
            renewed(bench, client)
            await trio.sleep(1)
        assert row(bench, "drain").state == "done"


@pytest.mark.parametrize("settings", [ONE, TWO], ids=["one replica", "two"])
async def test_a_file_of_which_somebody_may_hold_bytes_does_not_move_off_what_lost_power(
    autojump_clock: MockClock, settings: Settings
) -> None:
    """Of a file with a record of version 1 nothing is noted; of the other one all is durable."""
    bench = LiveBench(nodes=4, settings=settings)
    ino = next(one for one in files(bench, 12) if 2 in bench.layout(one).targets)

    def why_not() -> str:
        whys: list[str] = []

        def choose(tx: Transaction, context: Context) -> None:
            try:
                assert of_moving(tx, context, ino, 2, {}) is not None
            except GivenUpError as error:
                whys.append(str(error))

        bench.engine.system(choose, bench.time())
        return "".join(whys)

    assert why_not() == ""
    bench.join(2, 2)
    for _ in range(int(RESENT_S) - 2):
        assert ("lost power a moment ago" in why_not()) is not bench.layout(ino).is_replicated
        for node in FOUR:
            bench.join(node, 2 if node == 2 else 1)
        await trio.sleep(1)
    await trio.sleep(4)
    assert "lost power" not in why_not()


async def test_a_file_that_is_written_is_moved_all_the_same(
    bench: LiveBench, autojump_clock: MockClock
) -> None:
    """Its writer waits for the job, after a try that has failed, and only for a moment."""
    [ino] = [one for one in files(bench, 8) if 2 in bench.layout(one).targets][:1]
    client = bench.writer()
    recalls = bench.connect("recall")
    bench.engine.attach(recalls, client.session)
    waits: list[float] = []

    async def write() -> None:
        """Writes all the time: gives the lease back when it is recalled, and asks for it again."""
        while True:
            began = trio.current_time()
            client.send(Op.OPEN, Open(ino, True))
            await until(lambda: bool(client.received()), 30, 0.01)
            opened_as = client.take()
            assert opened_as.layout
            waits.append(trio.current_time() - began)
            await trio.sleep(0.3)
            renewed(bench, client)
            bench.engine.services.leases.returned(
                client.session, [ReturnItem(ino, 63)], bench.now_s
            )
            await trio.lowlevel.checkpoint()

    targets = Copiers(seconds=0.5)
    async with tasks_of(bench, targets), trio.open_nursery() as nursery:
        nursery.start_soon(write)
        drain(bench, 2)
        await until(lambda: 2 not in bench.layout(ino).targets, 120)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert max(waits) < HOLD_S + 2
    assert row(bench, "drain").files_failed, "the first try gives way at once"


async def test_a_long_copy_gives_way_to_a_writer(
    bench: LiveBench, autojump_clock: MockClock
) -> None:
    [ino] = [one for one in files(bench, 8) if 2 in bench.layout(one).targets][:1]
    client = bench.writer()
    bench.engine.attach(bench.connect("recall"), client.session)
    targets = Copiers(seconds=20.0)
    async with tasks_of(bench, targets):
        renewed(bench, client)
        drain(bench, 2)
        while not bench.engine.services.leases.held(SYSTEM_SESSION, ino):
            renewed(bench, client)
            await trio.sleep(0.1)
        began = trio.current_time()
        client.send(Op.OPEN, Open(ino, True))
        await until(lambda: bool(client.received()))
        assert trio.current_time() - began < 1
        client.take()
        closed(client, ino, is_synced=True)
    assert 2 in bench.layout(ino).targets


async def test_files_born_from_former_slots_are_moved_too(autojump_clock: MockClock) -> None:
    bench = LiveBench(nodes=4, settings=ONE)
    client = bench.writer()
    slots = client.call(Op.DELEGATE, Delegate(0, 64)).slots
    mine = next(one for one in slots if 2 in unpack_layout(one.layout).targets)
    async with tasks_of(bench, Copiers()):
        drain(bench, 2)
        await trio.sleep(10)
        assert "not all clients know" in row(bench, "drain").because
        renewed(bench, client)
        await trio.sleep(0.5)
        born = Birth(
            mine.ino, ROOT, b"born", 0o600, 1, 1, 1, mine.layout, writable=False, is_open=False
        )
        client.call(Op.CHANGE_BATCH, ChangeBatch((born,)))
        for _ in range(20):
            renewed(bench, client)
            await trio.sleep(1)
        assert row(bench, "drain").state == "done"
    assert 2 not in bench.layout(mine.ino).targets and row(bench, "drain").files == 1


async def test_a_client_of_an_earlier_release_keeps_files_where_they_are(
    autojump_clock: MockClock,
) -> None:
    bench = LiveBench(nodes=4, settings=ONE)
    inos = files(bench, 8)
    there = on(bench, inos, 2)
    old = bench.client()
    async with tasks_of(bench, Copiers()):
        drain(bench, 2)
        for _ in range(20):
            renewed(bench, old)
            await trio.sleep(1)
        seen = row(bench, "drain")
        assert "earlier release" in seen.last_failure and on(bench, inos, 2) == there
        assert all(not bench.layout(ino).is_replicated for ino in inos)
        old.call(Op.SESSION_CLOSE, Empty())
        await until_done(bench, "drain")
    assert on(bench, inos, 2) == []


async def test_where_there_is_no_place_a_drain_says_so(
    bench: LiveBench, autojump_clock: MockClock
) -> None:
    inos = files(bench, 8)
    there = on(bench, inos, 2)
    for target in bench.engine.services.membership.targets():
        if target.id != 2:
            target.bytes_free = target.bytes_total // 20
    targets = Copiers()
    async with tasks_of(bench, targets):
        bench.free = dict.fromkeys(FOUR, (1 << 40) // 20)
        drain(bench, 2)
        await trio.sleep(20)
        seen = row(bench, "drain")
        assert "less than 90 % full" in seen.because and on(bench, inos, 2) == there
        assert seen.last_failure == seen.because
        bench.free.clear()
        await until_done(bench, "drain")
    assert on(bench, inos, 2) == []


async def test_up_ends_a_drain(bench: LiveBench, autojump_clock: MockClock) -> None:
    inos = files(bench, 8)
    async with tasks_of(bench, Copiers(deaf={2})):
        drain(bench, 2)
        await trio.sleep(3)
        drain(bench, 2, is_draining=False)
        await trio.sleep(3)
        assert row(bench, "drain").state == "done" and state(bench, 2) == "up"
        there = on(bench, inos, 2)
        await trio.sleep(60)
        assert there and on(bench, inos, 2) == there
    with pytest.raises(FsError) as caught:
        remove(bench, 2)
    assert caught.value.status is Status.EBUSY


async def test_a_drain_is_paused_and_survives_a_restart(
    bench: LiveBench, autojump_clock: MockClock
) -> None:
    inos = files(bench, 40)
    there = on(bench, inos, 2)
    targets = Copiers(seconds=2.0)
    async with tasks_of(bench, targets):
        drain(bench, 2)
        await trio.sleep(6)
        job = row(bench, "drain").job
        admin_of(bench).call(Op.JOB_SET, JobSet(job, is_paused=True))
        await trio.sleep(10)
        left = on(bench, inos, 2)
        assert row(bench, "drain").state == "paused" and 0 < len(left) < len(there)
        await trio.sleep(30)
        assert on(bench, inos, 2) == left
    bench.settle()
    after = LiveBench(bench.store, nodes=0)
    after.engine.end_recovery_if_done()
    for number in FOUR:
        after.incarnations[number] = 1
        after.join(number)
    async with tasks_of(after, Copiers()):
        await trio.sleep(20)
        assert row(after, "drain").state == "paused" and on(after, inos, 2) == left
        done_before = row(after, "drain").files
        assert done_before == len(there) - len(left)
        admin_of(after).call(Op.JOB_SET, JobSet(job, is_paused=False))
        seen = await until_done(after, "drain")
    assert seen.job == job and seen.files == len(there) and on(after, inos, 2) == []
    assert after.faults() == []


# ---- what goes on meanwhile ---------------------------------------------------------------------


async def test_files_that_change_under_a_drain(bench: LiveBench, autojump_clock: MockClock) -> None:
    """They are removed, cut, or in the trash while they are being copied."""
    inos = files(bench, 12)
    there = on(bench, inos, 2)
    client = bench.writer()
    gone, cut, emptied, *_ = there
    names = {ino: b"f%d" % at for at, ino in enumerate(inos)}
    did: set[Ino] = set()

    def change() -> None:
        """Called before each copy."""
        for ino in (gone, cut, emptied):
            if ino not in did and bench.engine.services.leases.held(SYSTEM_SESSION, ino):
                did.add(ino)
                if ino == gone:
                    client.send(Op.UNLINK, Unlink(ROOT, names[ino]))
                else:
                    size = 0 if ino == emptied else 5
                    client.send(Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, 9, 0, 0, 0, 0, 0))
                    client.send(Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, size, 0, 0, 0, 0, 0))

    async with tasks_of(bench, Copiers(before_copy=change, seconds=0.2)):
        truncation = bench.engine.services.intents
        drain(bench, 2)
        for _ in range(90):
            renewed(bench, client)
            bench.finish_truncates()
            await trio.sleep(1)
        assert row(bench, "drain").state == "done" and len(did) == 3
        assert not truncation.take_fresh()
    assert on(bench, [ino for ino in inos if ino != gone], 2) == []
    assert bench.records(b"C") == [] and bench.records(b"L") == [] and bench.records(b"Z") == []
    assert bench.faults() == []


async def test_a_file_that_lacks_replicas_is_moved_when_it_has_them(
    bench: LiveBench, autojump_clock: MockClock
) -> None:
    """Repair and a drain want it at the same time."""
    client = bench.writer()
    inos = [created(client, b"f%d" % at) for at in range(12)]
    bench.settle()
    bench.join(1, 2)  # it has lost what was not synced
    for ino in inos:
        closed(client, ino, is_synced=True)
    client.call(Op.SESSION_CLOSE, Empty())
    assert bench.records(b"H")
    targets = Copiers(seconds=1.0, incarnations={1: 2})
    async with tasks_of(bench, targets):
        drain(bench, 2)
        await until_done(bench, "drain")
        await until(lambda: not bench.records(b"H"))
    assert targets.copied_twice == []
    assert on(bench, inos, 2) == [] and bench.faults() == []


# ---- removal ------------------------------------------------------------------------------------


async def test_a_drained_target_is_removed(bench: LiveBench, autojump_clock: MockClock) -> None:
    inos = files(bench, 8)
    for why in ("it is not drained", "nor while it is"):
        with pytest.raises(FsError) as caught:
            remove(bench, 2)
        assert caught.value.status is Status.EBUSY, why
        if why == "it is not drained":
            drain(bench, 2)
    async with tasks_of(bench, Copiers()):
        await until_done(bench, "drain")
        remove(bench, 2)
        assert state(bench, 2) == "none"
        await trio.sleep(5)
        assert not [key for key, _ in bench.records(b"Y")], "its dropped names are forgotten"
        assert on(bench, inos, 2) == []
        server = bench.servers[2]
        report = bench.report(2)
        request = Register(0, bytes([2]) * 16, "n2", "127.0.0.1:2", b"", (report,), 1, "n2")
        registered: Registered = server.call(Op.REGISTER, request)
        assert registered.targets == (2,) and "was removed" in registered.refusals[0]
        assert registered.removed == (2,)
        assert state(bench, 2) == "none"
        fresh = replace(report, target=0, uuid=b"another uuid ...")
        request = replace(request, targets=(report, fresh))
        registered = server.call(Op.REGISTER, request)
        assert registered.targets == (2, 5) and registered.refusals[1] == ""
        assert registered.removed == (2,)
    bench.settle()
    after = LiveBench(bench.store, nodes=0)
    assert state(after, 2) == "none" and after.engine.services.membership.next_target_ids(1) == [6]
    assert after.faults() == []
