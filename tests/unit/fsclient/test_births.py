"""Births: when a directory is asked for, that nothing overtakes them, what is lost, giving back."""

import os
import struct
from dataclasses import replace
from types import SimpleNamespace

import pyfuse3
import pytest
import trio
import trio.testing

from fsclient.fs.births import (
    BATCH_COUNT_MAX,
    FIRST_HANDLE,
    GATHER_S,
    SLOTS_WANTED,
    SLOTS_WANTED_MAX,
)
from fsclient.fuse.operations import Operations
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_NAMER,
    LEASE_READER,
    LEASE_WRITER,
    unpack_attributes,
    with_lease,
)
from fscommon.layout.layout import unpack_layout
from fscommon.limits import FRAME_BODY_LENGTH_MAX, INLINE_LENGTH_MAX, OPEN_AHEAD_MAX
from fscommon.wire.births import ChangeBatch, Changed, Delegate, Delegated, Slot
from fscommon.wire.messages import (
    COMMIT_KILL_SUIDGID,
    COMMIT_MTIME,
    COMMIT_SIZE,
    SET_MODE,
    Close,
    Committed,
    Opened,
)
from fscommon.wire.ops import Op
from tests.unit.metaserver.bench import ROOT, Bench

from .fakes import DIRECTORY, FakeWorld, layout, record

FOLDER = 7


class World(FakeWorld):
    def __init__(self) -> None:
        super().__init__()
        self.births = self.fs.births
        self.share = (0, 0)  # files and size limit that the metaserver tells
        self.is_full = False
        leases = self.fs.leases
        leases.session_opened(30.0)
        leases.renewed(trio.current_time(), 0)
        leases.table.granted(FOLDER, LEASE_META | LEASE_ENTRIES, 1)
        self.meta.answers[Op.DELEGATE] = self._delegate
        self.meta.answers[Op.CHANGE_BATCH] = Changed(())

    def _delegate(self, request: object) -> Delegated:
        ino = getattr(request, "ino")  # noqa: B009
        slots = tuple(Slot(100 + n, layout(100 + n), b"c") for n in range(4))
        if not ino:
            return Delegated(b"", slots)
        if self.is_full:
            return Delegated(b"", slots)
        self.fs.leases.table.granted(ino, LEASE_NAMER, 2)
        attributes = with_lease(record(ino, mode=DIRECTORY), 1, LEASE_NAMER)
        return Delegated(attributes, slots, (), (), *self.share)

    def bear(
        self, ino: int, name: bytes = b"n", flags: int = os.O_WRONLY, *,
        written: tuple[int, int, int] = (0, 0, 0), is_open: bool = True, inline: bytes = b"",
    ) -> None:  # fmt: skip
        """Lanes make a file. written: how often, size and time that they committed with it."""
        writable = is_open and flags & os.O_ACCMODE != os.O_RDONLY
        birth = ino, FOLDER, name, 0o644, 1, 2, 3, layout(ino), writable, *written, is_open
        self.lanes.births.append((birth, FIRST_HANDLE + ino, inline))

    def batches(self) -> list[list[int]]:
        return [[b.ino for b in batch.births] for batch in self.meta.requests(Op.CHANGE_BATCH)]


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    world = World()
    nursery.start_soon(world.births.run)
    return world


async def delegated(world: World) -> None:
    world.births.created(FOLDER)
    world.births.created(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.delegated == {FOLDER}


async def gathered(world: World) -> None:
    for _ in range(100):
        await trio.sleep(GATHER_S)
        if world.meta.waiting:
            return


async def test_the_second_create_asks_for_the_directory(world: World) -> None:
    world.births.created(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    assert not world.lanes.delegated
    await delegated(world)
    assert world.meta.requests(Op.DELEGATE)[0].count == SLOTS_WANTED
    assert len(world.lanes.slots) == 4


async def test_a_directory_that_was_made_is_delegated_at_once(world: World) -> None:
    world.births.made(FOLDER)
    world.births.made(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    (asked,) = world.meta.requests(Op.DELEGATE)
    assert (asked.ino, asked.count) == (0, SLOTS_WANTED), "with the first, slots are asked for"
    assert not world.lanes.delegated
    world.fs.leases.table.granted(8, LEASE_NAMER, 2)
    world.lanes.refused_owners = ((1000,), (7,))
    world.births.made(8)
    assert world.lanes.delegated == {8}
    assert world.lanes.refused_owners == ((), ()), "it would not be given where somebody has limits"
    world.births.made(FOLDER)
    world.lanes.may_delegate = False
    world.fs.leases.table.granted(9, LEASE_NAMER, 3)
    world.births.made(9)
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.delegated == {8}
    assert len(world.meta.requests(Op.DELEGATE)) == 1
    await world.births.give_back(8)
    assert not world.lanes.delegated


async def test_what_lanes_left_in_a_delegated_directory_asks_for_limits(world: World) -> None:
    world.fs.leases.table.granted(8, LEASE_NAMER, 2)
    world.births.made(8)
    for _ in range(3):
        world.births.touched(8)
        await trio.testing.wait_all_tasks_blocked()
    (asked,) = world.meta.requests(Op.DELEGATE)
    assert asked.ino == 0


async def test_without_leases_nothing_is_asked_for_a_new_directory(world: World) -> None:
    world.births.made(8)
    await trio.testing.wait_all_tasks_blocked()
    assert world.meta.requests(Op.DELEGATE) == []


async def test_a_directory_without_a_lease_is_not_asked_for(world: World) -> None:
    for _ in range(5):
        world.births.created(8)
    await trio.testing.wait_all_tasks_blocked()
    assert world.meta.requests(Op.DELEGATE) == []


async def test_a_refused_directory_is_left_alone_for_a_while(world: World) -> None:
    world.meta.answers[Op.DELEGATE] = FsError(Status.ENOSPC)
    for _ in range(4):
        world.births.created(FOLDER)
        await trio.testing.wait_all_tasks_blocked()
    assert len(world.meta.requests(Op.DELEGATE)) == 1


async def test_a_directory_under_limits_is_left_alone_for_a_while(world: World) -> None:
    world.meta.answers[Op.DELEGATE] = Delegated(b"", (), (1000, 1001), (7,))
    for _ in range(4):
        world.births.created(FOLDER)
        await trio.testing.wait_all_tasks_blocked()
    assert len(world.meta.requests(Op.DELEGATE)) == 1
    assert not world.lanes.delegated
    assert world.lanes.refused_owners == ((1000, 1001), (7,))
    assert world.logged == []


async def test_births_go_in_order_one_batch_at_a_time(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.births.wait()
    await gathered(world)
    world.bear(101)
    world.births.wait()
    world.bear(102)
    world.births.wait()
    assert len(world.meta.waiting) == 1
    world.meta.deliver_all()
    assert not world.meta.waiting, "births gather anew"
    await gathered(world)
    world.meta.deliver_all()
    assert world.batches() == [[100], [101, 102]]
    assert world.fs.inodes.held() == (100, 101, 102)
    assert world.fs.leases.table.held(100) == LEASE_WRITER


async def test_what_gathered_goes_before_any_other_request(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.births.wait()
    world.bear(101)
    world.births.flush()  # as the client of the metaserver does before each request
    world.meta.deliver_all()
    assert world.batches() == [[100, 101]]


async def test_a_file_that_is_closed_at_once_is_held_before(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.fs.files.released(FIRST_HANDLE + 100, 100)
    assert world.fs.inodes.held() == ()
    world.births.flush()
    world.fs.closer.flush()
    assert (Op.CLOSE, Close((100,))) in world.meta.told
    world.meta.deliver_all()
    assert world.batches() == [[100]]


async def test_directories_are_asked_for_together_and_slots_once(world: World) -> None:
    world.fs.leases.table.granted(8, LEASE_META | LEASE_ENTRIES, 1)
    for _ in range(3):
        world.births.created(FOLDER)
        world.births.created(8)
    await trio.testing.wait_all_tasks_blocked()
    asked = world.meta.requests(Op.DELEGATE)
    assert sorted(request.ino for request in asked) == sorted((FOLDER, 8))
    assert sorted(request.count for request in asked) == [0, SLOTS_WANTED]
    assert world.lanes.delegated == {FOLDER, 8}


async def test_more_slots_are_asked_for_the_more_are_used(world: World) -> None:
    await delegated(world)
    assert len(world.lanes.slots) < SLOTS_WANTED // 2
    for _ in range(10):
        world.births.flush()
        await trio.testing.wait_all_tasks_blocked()
    counts = [request.count for request in world.meta.requests(Op.DELEGATE)]
    assert counts[0] == SLOTS_WANTED < counts[1] < counts[-1] <= SLOTS_WANTED_MAX


async def test_what_the_metaserver_refuses_is_named(world: World) -> None:
    await delegated(world)
    world.meta.answers[Op.CHANGE_BATCH] = Changed((0, int(Status.EEXIST)))
    world.lanes.lost.add(101)
    world.bear(100, b"good")
    world.bear(101, b"bad")
    world.births.flush()
    world.meta.deliver_all()
    assert [line for line in world.logged if "bad" in line and "EEXIST" in line]
    assert not [line for line in world.logged if "good" in line]


async def test_giving_back_waits_for_every_birth(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.births.wait()
    world.bear(101)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.births.give_back, FOLDER)
        await trio.testing.wait_all_tasks_blocked()
        assert world.lanes.delegated == set()
        assert world.births.parents_on_way() == {FOLDER}
        world.meta.deliver_all()
    assert world.batches() == [[100, 101]]
    assert world.births.parents_on_way() == set()
    world.births.created(FOLDER)
    world.births.created(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    assert not world.lanes.delegated, "not at once again"


async def test_a_delegated_directory_is_named_at_a_restart(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.births.flush()
    assert set(world.fs.exclusive()) == {FOLDER, 100}
    world.fs.restarted()
    assert world.lanes.slots == []
    assert set(world.fs.exclusive()) == {FOLDER, 100}


async def test_slots_are_asked_for_anew(world: World) -> None:
    """When targets come, or get no new files any more."""
    await delegated(world)
    asked = len(world.meta.requests(Op.DELEGATE))
    world.births.renew_slots()
    assert world.lanes.slots == []
    await trio.testing.wait_all_tasks_blocked()
    assert [r.ino for r in world.meta.requests(Op.DELEGATE)[asked:]] == [0]
    assert len(world.lanes.slots) == 4


async def test_with_the_session_goes_what_was_not_told(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.births.flush()
    world.bear(101, b"late")
    world.fs.lost_session()
    assert [line for line in world.logged if "late" in line]
    assert world.lanes.slots == []
    world.bear(102)
    world.births.flush()
    assert len(world.meta.waiting) == 1


# ---- attributes that lanes set ------------------------------------------------------------------


def set_attributes(world: World, ino: int, version: int = 7) -> None:
    """By lanes."""
    known = replace(unpack_attributes(record(ino)), mode=0o100600, change_version=version)
    world.lanes.settings = (
        *world.lanes.settings, (ino, SET_MODE, 0o600, 0, 0, 0, 0, 5, 0, known.pack()),
    )  # fmt: skip


def told(world: World) -> list[int]:
    return [s.ino for batch in world.meta.requests(Op.CHANGE_BATCH) for s in batch.settings]


async def test_settings_go_behind_the_births_before_them(world: World) -> None:
    await delegated(world)
    world.bear(100)
    set_attributes(world, 100)
    world.births.flush()
    assert world.fs.inodes.is_being_set(100)
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    assert [b.ino for b in batch.births] == [s.ino for s in batch.settings] == [100]
    assert batch.settings[0].mode == 0o600
    assert not world.fs.inodes.is_being_set(100) and world.lanes.removals_answered == 1


async def test_what_was_set_is_seen_here(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.births.collect()
    world.fs.inodes.see_record(replace(unpack_attributes(record(100)), change_version=6).pack())
    set_attributes(world, 100)
    world.fs.inodes.catch_up()
    known = world.fs.inodes.known(100)
    assert known is not None and known.mode & 0o777 == 0o600


async def test_a_reply_of_before_is_not_believed(world: World) -> None:
    """It may have the same version, and not what was set."""
    await delegated(world)
    world.bear(100)
    set_attributes(world, 100)
    world.births.flush()
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
    world.births.collect()
    world.fs.inodes.see_record(record(100))
    set_attributes(world, 100)
    world.births.flush()
    world.meta.deliver_all()
    assert [line for line in world.logged if "100" in line and "EPERM" in line]
    assert 100 not in world.lanes.believed and world.fs.inodes.known(100) is None


async def test_whoever_asks_for_a_file_waits_for_its_settings(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.births.flush()
    world.meta.deliver_all()
    set_attributes(world, 100)
    settled = False

    async def settle() -> None:
        nonlocal settled
        await world.births.settle(100)
        settled = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle)
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.meta.waiting) == 1 and not settled
        world.meta.deliver_all()
    assert settled and told(world) == [100]


async def test_an_upcall_knows_what_lanes_did_before_it(world: World) -> None:
    """A file that was made a moment ago, whose new owner has a limit: lanes are told of it."""
    await delegated(world)
    world.bear(100)
    upcalls = SimpleNamespace(upcall=lambda slot: (slot, 1, 3, 0))
    operations = Operations(world.fs, upcalls, 1, 0.0)
    limited = Opened(record(100, uid=7), layout(100), b"c" * 64, size_limit=5000)
    world.meta.answers[Op.SETATTR] = limited
    fields = SimpleNamespace(update_mode=False, update_uid=True, update_gid=False,
                             update_size=False, update_atime=False, update_mtime=False,
                             update_ctime=False)  # fmt: skip
    attributes = pyfuse3.EntryAttributes()
    attributes.st_uid = 7
    caller = SimpleNamespace(pid=3, uid=0, gid=0, umask=0)
    await operations.setattr(100, attributes, fields, None, caller)
    assert world.lanes.size_limits[100] == 5000


# ---- what is written before the birth is told ----------------------------------------------------


def commit(
    world: World, ino: int, size: int, mtime_ns: int, flags: int, *, durable: int = 0,
    inline: bytes = b"",
) -> None:  # fmt: skip
    """Lanes commit what was written."""
    payload = struct.pack("<QIIQ", ino, flags, durable, 0) + inline
    world.fs.files.commit(9, ino, size, mtime_ns, payload)


async def test_size_and_time_are_told_with_the_birth(world: World) -> None:
    await delegated(world)
    world.bear(100)
    commit(world, 100, 4096, 55, COMMIT_SIZE | COMMIT_MTIME)
    commit(world, 100, 1000, 66, COMMIT_MTIME)
    assert world.meta.requests(Op.COMMIT) == []
    for number in (0, 1):
        token, status, raw = world.lanes.committed[number]
        record_ = unpack_attributes(raw)
        assert (token, status) == (9, 0)
        assert (record_.ino, record_.size, record_.mtime_ns) == (100, 4096, (55, 66)[number])
        assert (record_.data_version, record_.change_version) == (2 + number, 2 + number)
    world.births.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    (born,) = batch.births
    assert (born.changes, born.size, born.mtime_ns) == (2, 4096, 66)


async def test_what_is_told_already_or_must_be_durable_is_committed(world: World) -> None:
    await delegated(world)
    world.meta.answers[Op.COMMIT] = Committed(record(100))
    world.bear(100)
    commit(world, 100, 10, 55, COMMIT_SIZE | COMMIT_MTIME, durable=1)
    commit(world, 100, 10, 55, COMMIT_SIZE | COMMIT_MTIME | COMMIT_KILL_SUIDGID)
    world.births.flush()
    commit(world, 100, 10, 55, COMMIT_SIZE | COMMIT_MTIME)
    world.meta.deliver_all()
    assert len(world.meta.requests(Op.COMMIT)) == 3
    assert [birth.changes for birth in world.meta.requests(Op.CHANGE_BATCH)[0].births] == [0]


async def test_what_lanes_committed_and_closed_is_told_as_it_is(world: World) -> None:
    await delegated(world)
    world.bear(100, b"a", written=(2, 4096, 66), is_open=False)
    world.bear(101, b"b", written=(1, 5, 77))
    world.bear(102, b"c", written=(1, 4, 88), is_open=False, inline=b"tiny")
    world.births.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    told = [
        (b.changes, b.size, b.mtime_ns, b.writable, b.is_open, unpack_layout(b.layout).inline)
        for b in batch.births
    ]
    assert told == [
        (2, 4096, 66, False, False, b""),
        (1, 5, 77, True, True, b""),
        (1, 4, 88, False, False, b"tiny"),
    ]
    fs = world.fs
    assert fs.inodes.held() == (101,)
    assert fs.inodes.closed == set(), "the metaserver knows it from the birth"
    assert [fs.leases.table.held(ino) for ino in (100, 101)] == [LEASE_READER, LEASE_WRITER]


async def test_files_that_are_being_written_wait_for_a_moment(world: World) -> None:
    await delegated(world)
    world.lanes.spared = {101}
    for ino in (100, 101, 102):
        world.bear(ino, b"%d" % ino)
    world.births.wait()
    await gathered(world)
    world.births.before(Op.CLOSE)
    world.meta.deliver_all()
    assert world.batches() == [[100]]
    world.lanes.spared = set()
    await gathered(world)
    world.meta.deliver_all()
    assert world.batches() == [[100], [101, 102]]


async def test_while_only_such_files_wait_they_are_looked_at_again(world: World) -> None:
    await delegated(world)
    world.lanes.spared = {100}
    world.bear(100)
    world.births.wait()
    await trio.sleep(3 * GATHER_S)
    assert world.meta.waiting == []
    world.births.before(Op.OPEN)
    world.meta.deliver_all()
    assert world.batches() == [[100]], "whatever else is asked for comes behind it"


async def test_what_is_written_after_its_time_was_set_is_committed_behind_that(
    world: World,
) -> None:
    await delegated(world)
    world.meta.answers[Op.COMMIT] = Committed(record(100))
    world.bear(100)
    set_attributes(world, 100)
    commit(world, 100, 10, 55, COMMIT_SIZE)
    commit(world, 100, 10, 66, COMMIT_SIZE | COMMIT_MTIME)
    world.births.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    assert (batch.births[0].changes, batch.births[0].size) == (1, 10)
    assert len(batch.settings) == 1
    assert [later.mtime_ns for later in world.meta.requests(Op.COMMIT)] == [66]


async def test_bytes_are_told_with_the_birth(world: World) -> None:
    await delegated(world)
    world.bear(100)
    commit(world, 100, 4, 55, COMMIT_SIZE | COMMIT_MTIME, inline=b"tiny")
    assert world.lanes.committed[0][:2] == (9, 0)
    world.births.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    (born,) = batch.births
    assert unpack_layout(born.layout).inline == b"tiny"
    assert (born.changes, born.size, born.mtime_ns) == (1, 4, 55)
    assert world.lanes.told_births == [100]


async def test_bytes_that_come_too_late_or_do_not_fit_stay_with_the_lanes(world: World) -> None:
    await delegated(world)
    world.bear(100)
    flags = COMMIT_SIZE | COMMIT_MTIME
    commit(world, 100, 5, 55, flags, inline=b"tiny")  # taken by somebody else meanwhile
    commit(world, 100, 4, 55, flags | COMMIT_KILL_SUIDGID, inline=b"tiny")
    world.births.flush()
    commit(world, 100, 4, 55, flags, inline=b"tiny")
    world.meta.deliver_all()
    assert [status for _, status, _ in world.lanes.committed] == [Status.ESTALE] * 3
    assert world.meta.requests(Op.COMMIT) == []
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    assert not unpack_layout(batch.births[0].layout).inline
    assert batch.births[0].changes == 0


async def test_nothing_is_added_to_a_birth_that_has_its_bytes(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.meta.answers[Op.COMMIT] = Committed(record(100))
    commit(world, 100, 4, 55, COMMIT_SIZE | COMMIT_MTIME, inline=b"tiny")
    commit(world, 100, 9, 66, COMMIT_SIZE | COMMIT_MTIME)
    world.births.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    assert (batch.births[0].changes, batch.births[0].size) == (1, 4)
    (later,) = world.meta.requests(Op.COMMIT)
    assert later.size == 9


def test_a_batch_of_births_with_bytes_fits_a_frame() -> None:
    assert BATCH_COUNT_MAX * (INLINE_LENGTH_MAX + 1024) < FRAME_BODY_LENGTH_MAX
    assert OPEN_AHEAD_MAX * (INLINE_LENGTH_MAX + 1024) < FRAME_BODY_LENGTH_MAX


async def test_the_record_is_the_one_that_the_metaserver_makes(world: World) -> None:
    """But for the tree and what is granted: the client believes it under its lease."""
    bench = Bench()
    client = bench.client()
    (slot,) = client.call(Op.DELEGATE, Delegate(ROOT, 1)).slots
    await delegated(world)
    birth = slot.ino, FOLDER, b"n", 0o640, 7, 8, 1000, slot.layout, True, 0, 0, 1000, True
    world.lanes.births.append((birth, FIRST_HANDLE, b""))
    for size, mtime_ns in ((100, 900), (5000, 2000)):
        commit(world, slot.ino, size, mtime_ns, COMMIT_SIZE | COMMIT_MTIME)
    world.births.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    (born,) = batch.births
    client.call(Op.CHANGE_BATCH, ChangeBatch((replace(born, parent=ROOT),)))
    made = client.lookup(ROOT, b"n")
    committed = unpack_attributes(world.lanes.committed[-1][2])
    assert replace(made, lease_ns=0, lease_flags=0) == replace(committed, lease_flags=0)
