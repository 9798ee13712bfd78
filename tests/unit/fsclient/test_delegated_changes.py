"""Delegated changes: when a directory is requested, that no request overtakes them, what is lost,
and giving back.
"""

from dataclasses import replace

import pyfuse3
import pytest
import trio
import trio.testing

from fsclient.fs.delegated_changes import BATCH_COUNT_MAX, FIRST_HANDLE
from fsclient.fs.pools import SLOTS_WANTED, SLOTS_WANTED_MAX
from fsclient.fuse.operations import Operations
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_NAMER,
    LEASE_WRITER,
    unpack_attributes,
)
from fscommon.limits import FRAME_BODY_LENGTH_MAX, INLINE_LENGTH_MAX, OPEN_AHEAD_MAX
from fscommon.wire.births import ChangeBatch, Changed, Delegate, Delegated
from fscommon.wire.messages import COMMIT_MTIME, COMMIT_SIZE, Close, Opened
from fscommon.wire.ops import Op
from tests.unit.metaserver.bench import ROOT, Bench

from . import native_rows as rows
from .changes_world import FOLDER, World, commit, delegated, gathered, set_attributes, started
from .fakes import Context, layout, record
from .unasked_ports import UnaskedIo


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    return await started(nursery)


async def test_the_second_create_asks_for_the_directory(world: World) -> None:
    world.changes.created(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    assert not world.lanes.delegated
    await delegated(world)
    assert world.meta.requests(Op.DELEGATE)[0].count == SLOTS_WANTED
    assert len(world.lanes.slots) == 4


async def test_a_directory_that_was_made_is_delegated_at_once(world: World) -> None:
    world.changes.made(FOLDER)
    world.changes.made(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    (asked,) = world.meta.requests(Op.DELEGATE)
    assert (asked.ino, asked.count) == (0, SLOTS_WANTED), "with the first, slots are asked for"
    assert not world.lanes.delegated
    world.fs.leases.table.granted(8, LEASE_NAMER, 2)
    world.lanes.creations_refuse((1000,), (7,))
    world.changes.made(8)
    assert world.lanes.delegated == {8}
    assert world.lanes.refused_owners == ((), ()), "it would not be given where somebody has limits"
    world.changes.made(FOLDER)
    world.lanes.may_delegate = False
    world.fs.leases.table.granted(9, LEASE_NAMER, 3)
    world.changes.made(9)
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.delegated == {8}
    assert len(world.meta.requests(Op.DELEGATE)) == 1
    await world.changes.give_back(8)
    assert not world.lanes.delegated


async def test_what_lanes_left_in_a_delegated_directory_asks_for_limits(world: World) -> None:
    world.fs.leases.table.granted(8, LEASE_NAMER, 2)
    world.changes.made(8)
    for _ in range(3):
        world.changes.touched(8)
        await trio.testing.wait_all_tasks_blocked()
    (asked,) = world.meta.requests(Op.DELEGATE)
    assert asked.ino == 0


async def test_without_leases_nothing_is_asked_for_a_new_directory(world: World) -> None:
    world.changes.made(8)
    await trio.testing.wait_all_tasks_blocked()
    assert world.meta.requests(Op.DELEGATE) == []


async def test_a_directory_without_a_lease_is_not_asked_for(world: World) -> None:
    for _ in range(5):
        world.changes.created(8)
    await trio.testing.wait_all_tasks_blocked()
    assert world.meta.requests(Op.DELEGATE) == []


async def test_a_refused_directory_is_left_alone_for_a_while(world: World) -> None:
    world.meta.answers[Op.DELEGATE] = FsError(Status.ENOSPC)
    for _ in range(4):
        world.changes.created(FOLDER)
        await trio.testing.wait_all_tasks_blocked()
    assert len(world.meta.requests(Op.DELEGATE)) == 1


async def test_a_directory_under_limits_is_left_alone_for_a_while(world: World) -> None:
    world.meta.answers[Op.DELEGATE] = Delegated(b"", (), (1000, 1001), (7,))
    for _ in range(4):
        world.changes.created(FOLDER)
        await trio.testing.wait_all_tasks_blocked()
    assert len(world.meta.requests(Op.DELEGATE)) == 1
    assert not world.lanes.delegated
    assert world.lanes.refused_owners == ((1000, 1001), (7,))
    assert world.logged == []


async def test_creations_go_in_order_one_batch_at_a_time(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.changes.wait()
    await gathered(world)
    world.bear(101)
    world.changes.wait()
    world.bear(102)
    world.changes.wait()
    assert len(world.meta.waiting) == 1
    world.meta.deliver_all()
    assert not world.meta.waiting, "changes gather anew"
    await gathered(world)
    world.meta.deliver_all()
    assert world.batches() == [[100], [101, 102]]
    assert world.fs.inodes.held() == (100, 101, 102)
    assert world.fs.leases.table.held(100) == LEASE_WRITER


async def test_what_gathered_goes_before_any_other_request(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.changes.wait()
    world.bear(101)
    world.changes.flush()  # the client of the metaserver does this before each request
    world.meta.deliver_all()
    assert world.batches() == [[100, 101]]


async def test_a_file_that_is_closed_at_once_is_held_before(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.fs.files.released(FIRST_HANDLE + 100, 100)
    assert world.fs.inodes.held() == ()
    world.changes.flush()
    world.fs.closer.flush()
    assert (Op.CLOSE, Close((100,))) in world.meta.told
    world.meta.deliver_all()
    assert world.batches() == [[100]]


async def test_directories_are_asked_for_together_and_slots_once(world: World) -> None:
    world.fs.leases.table.granted(8, LEASE_META | LEASE_ENTRIES, 1)
    for _ in range(3):
        world.changes.created(FOLDER)
        world.changes.created(8)
    await trio.testing.wait_all_tasks_blocked()
    asked = world.meta.requests(Op.DELEGATE)
    assert sorted(request.ino for request in asked) == sorted((FOLDER, 8))
    assert sorted(request.count for request in asked) == [0, SLOTS_WANTED]
    assert world.lanes.delegated == {FOLDER, 8}


async def test_more_slots_are_asked_for_the_more_are_used(world: World) -> None:
    await delegated(world)
    assert len(world.lanes.slots) < SLOTS_WANTED // 2
    for _ in range(10):
        world.changes.flush()
        await trio.testing.wait_all_tasks_blocked()
    counts = [request.count for request in world.meta.requests(Op.DELEGATE)]
    assert counts[0] == SLOTS_WANTED < counts[1] < counts[-1] <= SLOTS_WANTED_MAX


async def test_what_the_metaserver_refuses_is_named(world: World) -> None:
    await delegated(world)
    world.meta.answers[Op.CHANGE_BATCH] = Changed((0, int(Status.EEXIST)))
    world.lanes.lost.add(101)
    world.bear(100, b"good")
    world.bear(101, b"bad")
    world.changes.flush()
    world.meta.deliver_all()
    assert [line for line in world.logged if "bad" in line and "EEXIST" in line]
    assert not [line for line in world.logged if "good" in line]


async def test_giving_back_waits_for_every_creation(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.changes.wait()
    world.bear(101)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.changes.give_back, FOLDER)
        await trio.testing.wait_all_tasks_blocked()
        assert world.lanes.delegated == set()
        assert world.changes.parents_on_way() == {FOLDER}
        world.meta.deliver_all()
    assert world.batches() == [[100, 101]]
    assert world.changes.parents_on_way() == set()
    world.changes.created(FOLDER)
    world.changes.created(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    assert not world.lanes.delegated, "not at once again"


async def test_a_delegated_directory_is_named_at_a_restart(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.changes.flush()
    assert set(world.fs.exclusive()) == {FOLDER, 100}
    world.fs.restarted()
    assert world.lanes.slots == []
    assert set(world.fs.exclusive()) == {FOLDER, 100}


async def test_slots_are_asked_for_anew(world: World) -> None:
    """Slots are requested when targets are added, or get no new files any more."""
    await delegated(world)
    asked = len(world.meta.requests(Op.DELEGATE))
    world.changes.renew_slots()
    assert world.lanes.slots == []
    await trio.testing.wait_all_tasks_blocked()
    assert [r.ino for r in world.meta.requests(Op.DELEGATE)[asked:]] == [0]
    assert len(world.lanes.slots) == 4


async def test_with_the_session_goes_what_was_not_told(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.changes.flush()
    world.bear(101, b"late")
    world.fs.lost_session()
    assert [line for line in world.logged if "late" in line]
    assert world.lanes.slots == []
    world.bear(102)
    world.changes.flush()
    assert len(world.meta.waiting) == 1


# ---- attributes that lanes set ------------------------------------------------------------------


def told(world: World) -> list[int]:
    return [s.ino for batch in world.meta.requests(Op.CHANGE_BATCH) for s in batch.settings]


async def test_settings_go_behind_the_creations_before_them(world: World) -> None:
    await delegated(world)
    world.bear(100)
    set_attributes(world, 100)
    world.changes.flush()
    assert world.fs.inodes.is_being_set(100)
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    assert [b.ino for b in batch.births] == [s.ino for s in batch.settings] == [100]
    assert batch.settings[0].mode == 0o600
    assert not world.fs.inodes.is_being_set(100) and world.lanes.removals_answered == 1


async def test_what_was_set_is_seen_here(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.changes.collect()
    world.fs.inodes.see_record(replace(unpack_attributes(record(100)), change_version=6).pack())
    set_attributes(world, 100)
    world.fs.inodes.catch_up()
    known = world.fs.inodes.known(100)
    assert known is not None and known.mode & 0o777 == 0o600


async def test_a_reply_of_before_is_not_believed(world: World) -> None:
    """An earlier reply may have the same version without the attributes that were set."""
    await delegated(world)
    world.bear(100)
    set_attributes(world, 100)
    world.changes.flush()
    world.fs.leases.table.granted(100, LEASE_WRITER, 3)
    late = record(100, change_version=7, lease_flags=LEASE_WRITER)
    world.fs.inodes.see_record(late)
    assert 100 not in world.lanes.believed and world.fs.inodes.known(100) is None
    world.meta.deliver_all()
    world.fs.inodes.see_record(late)
    assert 100 in world.lanes.believed and world.fs.inodes.known(100) is not None


async def test_settings_that_are_refused_are_named_and_forgotten(world: World) -> None:
    await delegated(world)
    world.meta.answers[Op.CHANGE_BATCH] = Changed((), setting_errors=(int(Status.EPERM),))
    world.bear(100)
    world.changes.collect()
    world.fs.inodes.see_record(record(100))
    set_attributes(world, 100)
    world.changes.flush()
    world.meta.deliver_all()
    assert [line for line in world.logged if "100" in line and "EPERM" in line]
    assert 100 not in world.lanes.believed and world.fs.inodes.known(100) is None


async def test_whoever_asks_for_a_file_waits_for_its_settings(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.changes.flush()
    world.meta.deliver_all()
    set_attributes(world, 100)
    settled = False

    async def report() -> None:
        nonlocal settled
        await world.changes.report(100)
        settled = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(report)
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.meta.waiting) == 1 and not settled
        world.meta.deliver_all()
    assert settled and told(world) == [100]


class Upcalls(UnaskedIo):
    def upcall(self, slot: int) -> rows.Upcall:
        return rows.Upcall(slot, 1, 3)


class SetsOwner(pyfuse3.SetattrFields):
    update_uid = True  # and nothing else


async def test_an_upcall_knows_what_lanes_did_before_it(world: World) -> None:
    """A file was created a moment ago, and its new owner has a limit: lanes are told of it."""
    await delegated(world)
    world.bear(100)
    operations = Operations(world.fs, Upcalls(), 1, 0.0)
    limited = Opened(record(100, uid=7), layout(100), b"c" * 64, size_limit=5000)
    world.meta.answers[Op.SETATTR] = limited
    attributes = pyfuse3.EntryAttributes()
    attributes.st_uid = 7
    await operations.setattr(100, attributes, SetsOwner(), None, Context(umask=0))
    assert world.lanes.size_limits[100] == 5000


def test_a_batch_of_creations_with_bytes_fits_a_frame() -> None:
    assert BATCH_COUNT_MAX * (INLINE_LENGTH_MAX + 1024) < FRAME_BODY_LENGTH_MAX
    assert OPEN_AHEAD_MAX * (INLINE_LENGTH_MAX + 1024) < FRAME_BODY_LENGTH_MAX


async def test_the_record_is_the_one_that_the_metaserver_makes(world: World) -> None:
    """They differ in the tree and in what is granted: the client uses its record under its
    lease."""
    bench = Bench()
    client = bench.client()
    (slot,) = client.call(Op.DELEGATE, Delegate(ROOT, 1)).slots
    await delegated(world)
    birth = slot.ino, FOLDER, b"n", 0o640, 7, 8, 1000, slot.layout, True, 0, 0, 1000, True
    world.lanes.creations.append(rows.Creation(*birth, FIRST_HANDLE))
    for size, mtime_ns in ((100, 900), (5000, 2000)):
        commit(world, slot.ino, size, mtime_ns, COMMIT_SIZE | COMMIT_MTIME)
    world.changes.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    (born,) = batch.births
    client.call(Op.CHANGE_BATCH, ChangeBatch((replace(born, parent=ROOT),)))
    made = client.lookup(ROOT, b"n")
    committed = unpack_attributes(world.lanes.committed[-1][2])
    assert replace(made, lease_ns=0, lease_flags=0) == replace(committed, lease_flags=0)
