"""Bytes written to a new file before it is reported to the metaserver are reported with its
creation.
"""

import pytest
import trio
import trio.testing

from fsclient.fs.delegated_changes import GATHER_S
from fscommon.errors import Status
from fscommon.layout.attributes import LEASE_READER, LEASE_WRITER, unpack_attributes
from fscommon.layout.layout import unpack_layout
from fscommon.wire.messages import COMMIT_KILL_SUIDGID, COMMIT_MTIME, COMMIT_SIZE, Committed
from fscommon.wire.ops import Op

from .changes_world import World, commit, delegated, gathered, set_attributes, started
from .fakes import record


@pytest.fixture
async def world(nursery: trio.Nursery) -> World:
    return await started(nursery)


async def test_size_and_time_are_told_with_the_creation(world: World) -> None:
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
    world.changes.flush()
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
    world.changes.flush()
    commit(world, 100, 10, 55, COMMIT_SIZE | COMMIT_MTIME)
    world.meta.deliver_all()
    assert len(world.meta.requests(Op.COMMIT)) == 3
    assert [birth.changes for birth in world.meta.requests(Op.CHANGE_BATCH)[0].births] == [0]


async def test_what_lanes_committed_and_closed_is_told_as_it_is(world: World) -> None:
    await delegated(world)
    world.bear(100, b"a", written=(2, 4096, 66), is_open=False)
    world.bear(101, b"b", written=(1, 5, 77))
    world.bear(102, b"c", written=(1, 4, 88), is_open=False, inline=b"tiny")
    world.changes.flush()
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
    assert not fs.inodes.closed, "the metaserver knows it from the creation"
    assert [fs.leases.table.held(ino) for ino in (100, 101)] == [LEASE_READER, LEASE_WRITER]


async def test_files_that_are_being_written_wait_for_a_moment(world: World) -> None:
    await delegated(world)
    world.lanes.spared = {101}
    for ino in (100, 101, 102):
        world.bear(ino, b"%d" % ino)
    world.changes.wait()
    await gathered(world)
    world.changes.before(Op.CLOSE)
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
    world.changes.wait()
    await trio.sleep(3 * GATHER_S)
    assert world.meta.waiting == []
    world.changes.before(Op.OPEN)
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
    world.changes.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    assert (batch.births[0].changes, batch.births[0].size) == (1, 10)
    assert len(batch.settings) == 1
    assert [later.mtime_ns for later in world.meta.requests(Op.COMMIT)] == [66]


async def test_bytes_are_told_with_the_creation(world: World) -> None:
    await delegated(world)
    world.bear(100)
    commit(world, 100, 4, 55, COMMIT_SIZE | COMMIT_MTIME, inline=b"tiny")
    assert world.lanes.committed[0][:2] == (9, 0)
    world.changes.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    (born,) = batch.births
    assert unpack_layout(born.layout).inline == b"tiny"
    assert (born.changes, born.size, born.mtime_ns) == (1, 4, 55)
    assert world.lanes.reported_creations == [100]


async def test_bytes_that_come_too_late_or_do_not_fit_stay_with_the_lanes(world: World) -> None:
    await delegated(world)
    world.bear(100)
    flags = COMMIT_SIZE | COMMIT_MTIME
    commit(world, 100, 5, 55, flags, inline=b"tiny")  # another task has taken it meanwhile
    commit(world, 100, 4, 55, flags | COMMIT_KILL_SUIDGID, inline=b"tiny")
    world.changes.flush()
    commit(world, 100, 4, 55, flags, inline=b"tiny")
    world.meta.deliver_all()
    assert [status for _, status, _ in world.lanes.committed] == [Status.ESTALE] * 3
    assert world.meta.requests(Op.COMMIT) == []
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    assert not unpack_layout(batch.births[0].layout).inline
    assert batch.births[0].changes == 0


async def test_nothing_is_added_to_a_creation_that_has_its_bytes(world: World) -> None:
    await delegated(world)
    world.bear(100)
    world.meta.answers[Op.COMMIT] = Committed(record(100))
    commit(world, 100, 4, 55, COMMIT_SIZE | COMMIT_MTIME, inline=b"tiny")
    commit(world, 100, 9, 66, COMMIT_SIZE | COMMIT_MTIME)
    world.changes.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    assert (batch.births[0].changes, batch.births[0].size) == (1, 4)
    (later,) = world.meta.requests(Op.COMMIT)
    assert later.size == 9
