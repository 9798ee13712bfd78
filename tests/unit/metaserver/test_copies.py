"""Replicas that are added: the claim, the plan, the epoch that is reserved, and jobs of repair."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_DATA
from fscommon.layout.layout import VACANT, Layout
from fscommon.limits import GENERATION_MAX
from fscommon.types import Ino
from fscommon.wire.codec import decode
from fscommon.wire.messages import SET_SIZE, Empty, SetAttr, SetXattr, Unlink
from fscommon.wire.ops import Op
from metaserver.claims import CLAIM_S
from metaserver.context import Context
from metaserver.membership import ANSWERING_S
from metaserver.namespace.copies import Plan, add, give_up, is_claimed, plan
from metaserver.namespace.inode import Inode, load, save
from metaserver.namespace.replicas import change_layout, names_of, next_epoch, stripe_of
from metaserver.records import ObjectName, PlanRecord, lone_name, plan_key
from metaserver.repair import LEFT_ALONE_S, LOOK_S, RETRY_S, Repair
from metaserver.sessions import SYSTEM_SESSION
from metaserver.transaction import Transaction

from .bench import ROOT, Client
from .mirrors import Copiers, MirrorBench, Targets, background, closed, created, opened

pytestmark = pytest.mark.expects_log("a file gets its replicas later")


@pytest.fixture
def bench() -> MirrorBench:
    return MirrorBench()


@pytest.fixture
def client(bench: MirrorBench) -> Client:
    client = bench.writer()
    bench.engine.attach(bench.connect("recall"), client.session)
    return client


def degraded(bench: MirrorBench, client: Client, name: bytes = b"file") -> Ino:
    """A file that is closed and synced, and has lost its replicas on target 1."""
    ino = created(client, name)
    bench.settle()
    bench.join(1, bench.incarnations[1] + 1)
    closed(client, ino, is_synced=True)
    client.bench.engine.services.leases.closed(client.session)
    bench.engine.attach(bench.connect("recall"), client.session)
    bench.settle()
    assert VACANT in bench.layout(ino).targets
    return ino


def change(bench: MirrorBench, operation: Callable[[Transaction, Context], Any]) -> Any:
    found: list[Any] = []
    bench.engine.system(lambda tx, context: found.append(operation(tx, context)), bench.time())
    bench.settle()
    return found[0]


def claim(bench: MirrorBench, ino: Ino) -> None:
    leases = bench.engine.services.leases
    leases.connected(SYSTEM_SESSION)
    assert leases.grant(SYSTEM_SESSION, ino, LEASE_DATA, 0, bench.now_s) & LEASE_DATA


def vacancies(bench: MirrorBench, ino: Ino) -> list[tuple[int, int]]:
    """A place for each replica that the file lacks, on a target that its stripe is not on."""
    layout = bench.layout(ino)
    places = []
    for stripe in range(layout.stripe_width):
        present = {one.target for one in layout.replicas() if one.stripe_index == stripe}
        if len(present) < 2:
            places.append((stripe, min({1, 2, 3} - present)))
    return places


def planned(bench: MirrorBench, ino: Ino) -> Plan:
    made = change(bench, lambda tx, context: plan(tx, context, ino, vacancies(bench, ino)))
    assert isinstance(made, Plan)
    return made


def added(bench: MirrorBench, made: Plan) -> bool:
    return bool(change(bench, lambda tx, context: add(tx, context, made)))


# ---- plans --------------------------------------------------------------------------------------


def test_a_plan_names_what_was_never_there(bench: MirrorBench, client: Client) -> None:
    ino = degraded(bench, client)
    before = bench.layout(ino)
    claim(bench, ino)
    made = planned(bench, ino)
    assert made.epoch == before.truncate_epoch + 1
    assert {name.number >> 8 for name in made.names} == {1}
    now = bench.layout(ino)
    assert now == replace(before, generation_last=1), "no view has the epoch before the copy"
    assert not set(made.names) & {*names_of(now)}
    assert bench.faults() == []
    again = planned(bench, ino)
    assert {name.number >> 8 for name in again.names} == {2}, "the former objects may be there"
    assert {lone_name(key) for key, _ in bench.records(b"L")} == set(made.names)
    assert again.epoch == made.epoch + 1 == bench.layout(ino).truncate_epoch + 1
    assert bench.faults() == []


def test_what_cannot_be_planned(bench: MirrorBench, client: Client) -> None:
    ino = degraded(bench, client)
    places = vacancies(bench, ino)

    def tried(wanted: Iterable[tuple[int, int]]) -> Plan | None:
        made: Plan | None = change(bench, lambda tx, context: plan(tx, context, ino, wanted))
        return made

    assert tried(places) is None, "nobody has claimed it"
    claim(bench, ino)
    present = next(bench.layout(ino).replicas())
    for wrong in ([], [(0, present.target)] * (present.stripe_index == 0), [(9, 3)], [(0, 3)] * 2):
        assert tried(wrong) is None, wrong
    bench.engine.services.intents.add(ino)
    assert tried(places) is None
    bench.engine.services.intents.done(ino)
    change(
        bench,
        lambda tx, context: change_layout(
            tx, ino, ino, 0, lambda one: replace(one, generation_last=GENERATION_MAX)
        ),
    )
    assert tried(places) is None
    assert bench.records(b"C") == []


def test_replicas_are_added_together(bench: MirrorBench, client: Client) -> None:
    ino = degraded(bench, client)
    claim(bench, ino)
    made = planned(bench, ino)
    assert added(bench, made)
    layout = bench.layout(ino)
    assert set(names_of(layout)) == {*names_of(made.layout), *made.names}
    assert layout.truncate_epoch == made.epoch and layout.replica_count == 2
    assert VACANT not in layout.targets and bench.records(b"C") == []
    assert added(bench, made), "a repeat"
    assert bench.layout(ino) == layout
    dropped = {lone_name(key) for key, _ in bench.records(b"L")}
    assert {name.target for name in dropped} == {1} and len(bench.dropped_of(1)) == len(dropped)
    assert bench.faults() == []


def test_more_places_than_there_were(bench: MirrorBench, client: Client) -> None:
    ino = created(client)
    closed(client, ino, is_synced=True)
    bench.engine.services.leases.closed(client.session)
    before = bench.layout(ino)
    third = min({1, 2, 3} - set(before.targets[:2]))
    claim(bench, ino)
    made = change(bench, lambda tx, context: plan(tx, context, ino, [(0, third)]))
    assert added(bench, made)
    layout = bench.layout(ino)
    assert layout.replica_count == 3 and layout.replicas_wanted == 2
    assert set(names_of(layout)) == {*names_of(before), *made.names}
    assert bench.faults() == []


def _without_claim(bench: MirrorBench, client: Client, made: Plan) -> None:
    bench.engine.services.leases.closed(SYSTEM_SESSION)


def _writer(bench: MirrorBench, client: Client, made: Plan) -> None:
    opened(client, made.ino)
    assert not change(bench, lambda tx, context: is_claimed(context, made.ino))


def _other_epoch(bench: MirrorBench, client: Client, made: Plan) -> None:
    change(
        bench,
        lambda tx, context: change_layout(
            tx, made.ino, made.ino, 0, lambda one: replace(one, truncate_epoch=1)
        ),
    )


def _other_file_id(bench: MirrorBench, client: Client, made: Plan) -> None:
    request = SetAttr(made.ino, SET_SIZE, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    client.call(Op.SETATTR, request)
    claim(bench, made.ino)


def _lost_power(bench: MirrorBench, client: Client, made: Plan) -> None:
    """The last one of a stripe, which stays: it may lack what the copy has."""
    target = names_of(made.layout)[0].target
    bench.join(target, bench.incarnations[target] + 1)


def _given_up(bench: MirrorBench, client: Client, made: Plan) -> None:
    change(bench, lambda tx, context: give_up(tx, made.ino))


def _removed(bench: MirrorBench, client: Client, made: Plan) -> None:
    client.call(Op.UNLINK, Unlink(ROOT, b"file"))


@pytest.mark.parametrize(
    "event",
    [_without_claim, _writer, _other_epoch, _other_file_id, _lost_power, _given_up, _removed],
)
def test_what_keeps_a_copy_out(
    bench: MirrorBench, client: Client, event: Callable[[MirrorBench, Client, Plan], None]
) -> None:
    ino = degraded(bench, client)
    claim(bench, ino)
    made = planned(bench, ino)
    event(bench, client, made)
    assert not added(bench, made)
    change(bench, lambda tx, context: give_up(tx, ino))
    assert {lone_name(key) for key, _ in bench.records(b"L")} >= set(made.names)
    assert bench.records(b"C") == []
    assert bench.faults() == []


def test_only_what_is_planned_is_added(bench: MirrorBench, client: Client) -> None:
    """Else a job whose plan was given up, and whose objects are deleted, might add them."""
    ino = degraded(bench, client)
    claim(bench, ino)
    made = planned(bench, ino)
    change(bench, lambda tx, context: tx.delete(plan_key(ino)))
    assert not added(bench, made) and not set(made.names) & set(names_of(bench.layout(ino)))


def test_a_plan_is_given_up_at_its_epoch(bench: MirrorBench, client: Client) -> None:
    """Some replicas may have it: writers of the former one are refused, and ask for the layout."""
    ino = degraded(bench, client)
    claim(bench, ino)
    made = planned(bench, ino)
    change(bench, lambda tx, context: give_up(tx, ino))
    assert bench.layout(ino) == replace(made.layout, truncate_epoch=made.epoch)
    change(bench, lambda tx, context: give_up(tx, ino))
    assert bench.layout(ino).truncate_epoch == made.epoch


def test_a_cut_takes_another_epoch(bench: MirrorBench, client: Client) -> None:
    ino = degraded(bench, client)
    claim(bench, ino)
    made = planned(bench, ino)
    assert change(bench, lambda tx, context: next_epoch(tx, ino, made.layout)) == made.epoch + 1
    client.call(Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, 9 << 20, 0, 0, 0, 0, 0))
    client.call(Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, 5, 0, 0, 0, 0, 0))
    assert bench.layout(ino).truncate_epoch == made.epoch + 1


# ---- jobs ---------------------------------------------------------------------------------------


def repair_of(bench: MirrorBench, targets: Targets) -> Repair:
    return Repair(background(bench, targets))


async def test_a_job_makes_the_replicas_that_a_file_lacks(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = degraded(bench, client)
    before = bench.layout(ino)
    targets = Copiers(incarnations={1: 2})
    repair = repair_of(bench, targets)
    assert repair.candidates() == [ino]
    assert await repair.repair(ino)
    layout = bench.layout(ino)
    assert VACANT not in layout.targets and layout.truncate_epoch == 1
    stay = names_of(before)
    made = [name for name in names_of(layout) if name not in stay]
    steps = [(what, set(names)) for what, names in _grouped(targets.done)]
    assert steps == [("copy", set(made)), ("sync", set(stay)), ("raise to 1", set(stay))]
    assert targets.synced and {epoch for _, epoch in targets.synced} == {0}
    assert repair.candidates() == [] and bench.records(b"C") == []
    assert not change(bench, lambda tx, context: is_claimed(context, ino))
    assert bench.faults() == []


async def test_stripes_without_bytes_get_their_replicas(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """Raising the epoch makes their objects: no writer of before makes one later."""
    ino = degraded(bench, client)
    stay = set(names_of(bench.layout(ino)))
    targets = Copiers(absent=set(stay))
    assert await repair_of(bench, targets).repair(ino)
    assert {name for what, name in targets.done if what == "raise to 1"} == stay


async def test_a_replica_whose_object_is_lost_is_dropped(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """The next job copies another one, if there is one; the last one stays, and nothing takes its
    place."""
    ino = degraded(bench, client)
    stay = names_of(bench.layout(ino))
    everything = (1 << bench.layout(ino).stripe_width) - 1
    change(bench, lambda tx, context: made_durable(tx, ino, everything))
    counts = Counter(stripe_of(name.number) for name in stay)
    lost = next(name for name in stay if counts[stripe_of(name.number)] > 1)
    assert not await repair_of(bench, Copiers(absent={lost})).repair(ino)
    assert set(names_of(bench.layout(ino))) == set(stay) - {lost}
    last = next(name for name in stay if counts[stripe_of(name.number)] == 1)
    assert not await repair_of(bench, Copiers(absent={last})).repair(ino)
    assert last in names_of(bench.layout(ino))
    assert not await repair_of(bench, Copiers(absent={last})).repair(ino)
    assert await repair_of(bench, Copiers()).repair(ino)
    assert bench.faults() == []


def made_durable(tx: Transaction, ino: Ino, stripes: int) -> None:
    inode = load(tx, ino)
    save(tx, Inode(inode.attributes, replace(inode.layout(), durable_stripes=stripes).pack()))


def _grouped(done: list[tuple[str, ObjectName]]) -> list[tuple[str, list[ObjectName]]]:
    steps: list[tuple[str, list[ObjectName]]] = []
    for what, name in done:
        if not steps or steps[-1][0] != what:
            steps.append((what, []))
        steps[-1][1].append(name)
    return steps


async def test_a_job_that_fails_leaves_nothing(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = degraded(bench, client)
    for targets in (Copiers(deaf={2}), Copiers(incarnations={1: 9, 2: 9, 3: 9})):
        before = bench.layout(ino)
        assert not await repair_of(bench, targets).repair(ino)
        layout = bench.layout(ino)
        assert layout.targets == before.targets and bench.records(b"C") == []
        assert layout.truncate_epoch == before.truncate_epoch + 1
        assert not change(bench, lambda tx, context: is_claimed(context, ino))
    assert bench.faults() == []


async def test_a_job_that_failed_is_not_tried_again_at_once(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """Each one recalls the file from its writer, and costs it an epoch."""
    ino = degraded(bench, client)
    repair = repair_of(bench, Copiers(deaf={1, 2, 3}))
    assert repair.candidates() == [ino] and not await repair.repair(ino)
    assert repair.candidates() == []
    await trio.sleep(RETRY_S)
    assert repair.candidates() == [ino]


async def test_a_file_that_is_being_written_is_left_alone_for_a_while(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """Its writer may still wait for the target that was dropped."""
    ino = degraded(bench, client)
    opened(client, ino)
    repair = repair_of(bench, Copiers())
    assert repair.candidates() == []
    await trio.sleep(LEFT_ALONE_S - 0.1)
    assert repair.candidates() == []
    await trio.sleep(0.2)
    assert repair.candidates() == [ino]


async def test_a_file_whose_other_replicas_do_not_answer_is_left_alone(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    """They could not be synced, and its writer would be recalled for nothing."""
    ino = degraded(bench, client)
    repair = repair_of(bench, Copiers())
    stays = names_of(bench.layout(ino))[0].target
    bench.now_s += ANSWERING_S
    bench.beat(stays)
    assert repair.candidates() == []
    assert f"target {stays}, which has" in bench.engine.services.jobs.repair.because
    bench.beat()
    assert repair.candidates() == [ino]


async def test_a_writer_comes_first(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = degraded(bench, client)

    def write() -> None:
        opened(client, ino)

    targets = Copiers(incarnations={1: 2}, before_copy=write)
    assert not await repair_of(bench, targets).repair(ino)
    assert VACANT in bench.layout(ino).targets
    assert [what for what, _ in targets.done] == ["copy"], "it stopped as soon as it could"


async def test_a_job_waits_a_while_for_the_writer(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = degraded(bench, client)
    opened(client, ino)
    repair = repair_of(bench, Copiers(incarnations={1: 2}))
    began = trio.current_time()
    assert not await repair.repair(ino)
    assert trio.current_time() - began == pytest.approx(CLAIM_S, abs=1)
    assert not bench.engine.services.leases.is_claimed(ino), "nobody waits behind it"
    async with trio.open_nursery() as tasks:
        results: list[bool] = []

        async def run() -> None:
            results.append(await repair.repair(ino))

        tasks.start_soon(run)
        await trio.sleep(1)
        closed(client, ino, is_synced=True)
    assert results == [True]


async def test_plans_of_a_former_metaserver_are_given_up(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = degraded(bench, client)
    claim(bench, ino)
    made = planned(bench, ino)
    assert [decode(PlanRecord, value).names() for _, value in bench.records(b"C")] == [
        list(made.names)
    ]
    client.bench.engine.sessions.condemn(client.session)
    after = MirrorBench(bench.store)
    for session in after.engine.sessions.all():
        after.engine.sessions.remove(session.id)
    after.engine.end_recovery_if_done()
    targets = Copiers(incarnations={1: 2})
    after.incarnations[1] = 2
    for number in (1, 2, 3):
        after.join(number)
    with trio.move_on_after(2 * LOOK_S):
        await repair_of(after, targets).run()
    assert after.records(b"C") == [] and VACANT not in after.layout(ino).targets
    assert {name.number >> 8 for name in names_of(after.layout(ino))} == {0, 2}
    assert after.faults() == []


async def test_plans_end_at_the_start_whether_or_not_there_is_a_place(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = degraded(bench, client)
    claim(bench, ino)
    made = planned(bench, ino)
    client.call(Op.SESSION_CLOSE, Empty())
    after = MirrorBench(bench.store, nodes=0)
    after.engine.end_recovery_if_done()
    with trio.move_on_after(2 * LOOK_S):
        await repair_of(after, Targets()).run()
    after.settle()
    assert after.records(b"C") == [] and after.layout(ino).truncate_epoch == made.epoch


def test_a_target_without_room_gets_no_copies(bench: MirrorBench) -> None:
    membership = bench.engine.services.membership
    assert membership.place_of_copy(7, [1, 2], bench.now_s) == 3
    assert membership.place_of_copy(7, [1, 2, 3], bench.now_s) is None
    assert {membership.place_of_copy(file_id, [1], bench.now_s) for file_id in range(99)} == {2, 3}
    full = membership.targets()[2]
    full.bytes_free = full.bytes_total // 11
    assert membership.place_of_copy(7, [1, 2], bench.now_s) is None
    full.bytes_free = full.bytes_total // 9
    assert membership.place_of_copy(7, [1, 2], bench.now_s) == 3
    assert membership.place_of_copy(7, [1, 2], bench.now_s + 60) is None, "it is silent"


def test_a_layout_of_other_files_is_no_matter(bench: MirrorBench, client: Client) -> None:
    """A file that was never written and once had a plan gets no other targets by its xattr."""
    ino = degraded(bench, client)
    claim(bench, ino)
    assert added(bench, planned(bench, ino))
    layout = bench.layout(ino)
    assert isinstance(layout, Layout) and layout.generation_last == 1
    with pytest.raises(FsError) as caught:
        client.call(Op.SETXATTR, SetXattr(ino, b"braidfs.layout", b"stripe_width=1", 0))
    assert caught.value.status is Status.EINVAL
