"""Files with several replicas: what lanes report of them, and what the metaserver is told."""

import os
import struct

import pytest
import trio

from fsclient.fs.drains import Extent
from fscommon.errors import FsError, Status
from fscommon.layout.layout import Layout
from fscommon.wire.messages import Close, Commit, Committed, Entry, Opened
from fscommon.wire.ops import Op
from fscommon.wire.replicas import DROPS_MAX, DropReplicas, Synced

from .fakes import FakeWorld, layout, record

INO = 5
FILE_ID = 55
BOTH = Layout(
    FILE_ID, 1 << 20, 1, (7, 8), 2, truncate_epoch=3, generations=(0, 2), generation_last=2
)
LEFT = Layout(
    FILE_ID, 1 << 20, 1, (7, 0), 2, truncate_epoch=3, generations=(0, 2), generation_last=2
)
LOST = (2 << 8, 8)  # the number of the object, and its target
OTHER = (0, 7)


def opened(of: Layout) -> Opened:
    return Opened(record(INO), of.pack(), b"c" * 64)


def dropping(*rows: tuple[int, int]) -> bytes:
    return struct.pack("<QI", FILE_ID, 3) + b"".join(struct.pack("<II", *row) for row in rows)


class World(FakeWorld):
    fh = 0  # of the open file


@pytest.fixture
async def world() -> World:
    world = World()
    world.meta.answers[Op.OPEN] = opened(BOTH)
    world.fh = (await world.fs.files.open(INO, os.O_RDWR, kill_set_ids=False)).fh
    return world


# ---- drops ----------------------------------------------------------------


async def test_a_replica_that_fails_is_dropped_and_lanes_get_the_view(world: World) -> None:
    world.meta.answers[Op.DROP_REPLICAS] = opened(LEFT)
    await world.fs.files.replicas.drop(INO, dropping(LOST))
    (request,) = world.meta.requests(Op.DROP_REPLICAS)
    assert request == DropReplicas(INO, FILE_ID, 3, (LOST[0],), (LOST[1],))
    assert world.lanes.known[INO] == (record(INO), LEFT.pack(), b"c" * 64)
    assert not world.lanes.resized
    assert world.fs.files.replicas.dropped_count == 1
    assert "target 8 does not store" in world.logged[-1]


async def test_a_drop_that_is_refused_is_no_error(world: World) -> None:
    world.meta.answers[Op.DROP_REPLICAS] = FsError(Status.BUSY)
    await world.fs.files.replicas.drop(INO, dropping(LOST))
    assert "could not be dropped" in world.logged[-1]
    world.meta.answers[Op.DROP_REPLICAS] = opened(BOTH)
    await world.fs.files.replicas.drop(INO, dropping(LOST))
    assert len(world.meta.requests(Op.DROP_REPLICAS)) == 2, "lanes ask again"
    assert world.fs.files.replicas.dropped_count == 0


async def test_what_fails_during_a_drop_is_dropped_at_once_behind_it(world: World) -> None:
    """A server that is lost may have several targets; lanes would ask again only after 2 s."""
    world.meta.answers[Op.DROP_REPLICAS] = opened(BOTH)
    async with trio.open_nursery() as tasks:
        for row in (LOST, OTHER, OTHER):
            tasks.start_soon(world.fs.files.replicas.drop, INO, dropping(row))
    rows = [one.targets for one in world.meta.requests(Op.DROP_REPLICAS)]
    assert sorted(rows) == [(7,), (8,)]


async def test_many_rows_go_in_several_requests(world: World) -> None:
    world.meta.answers[Op.DROP_REPLICAS] = opened(BOTH)
    rows = [(stripe, 100 + stripe) for stripe in range(DROPS_MAX + 1)]
    await world.fs.files.replicas.drop(INO, dropping(*rows))
    first, second = world.meta.requests(Op.DROP_REPLICAS)
    assert len(first.objects) == DROPS_MAX
    assert (second.objects, second.targets) == ((DROPS_MAX,), (100 + DROPS_MAX,))


async def test_one_line_is_logged_for_a_target_that_many_files_lose(world: World) -> None:
    world.meta.answers[Op.DROP_REPLICAS] = opened(LEFT)
    before = len(world.logged)
    for _ in range(20):
        await world.fs.files.replicas.drop(INO, dropping(LOST))
    assert len(world.logged) == before + 1


# ---- commits ----------------------------------------------------------------


def committing(*rows: tuple[int, int]) -> bytes:
    head = struct.pack("<QIHHQ", FILE_ID, 4, 0, len(rows), 1)
    return head + b"".join(struct.pack("<IQ", *row) for row in rows)


async def test_a_commit_says_in_which_incarnation_targets_acknowledged(world: World) -> None:
    world.meta.answers[Op.COMMIT] = Committed(record(INO))
    world.fs.files.commit(9, INO, 100, 200, committing((7, 11), (8, 12)))
    world.meta.deliver_all()
    (request,) = world.meta.requests(Op.COMMIT)
    assert request == Commit(INO, FILE_ID, 4, 100, 200, 1, False, (7, 8), (11, 12))
    assert world.lanes.committed == [(9, 0, record(INO))]


async def test_lanes_learn_that_a_target_has_lost_what_it_acknowledged(world: World) -> None:
    world.meta.answers[Op.COMMIT] = FsError(Status.STALE_INCARNATION)
    world.fs.files.commit(9, INO, 100, 200, committing((7, 11)))
    world.meta.deliver_all()
    assert world.lanes.committed == [(9, int(Status.STALE_INCARNATION), b"")]


# ---- closes ----------------------------------------------------------------


def closed(world: World) -> Close:
    world.fs.released(world.fh, INO)
    world.fs.closer.flush()
    op, message = world.meta.told[-1]
    assert op is Op.CLOSE
    assert isinstance(message, Close)
    return message


async def test_a_close_names_what_is_not_synced_and_synced_names_the_close(world: World) -> None:
    world.lanes.unsynced = {INO}
    close = closed(world)
    assert (close.inos, close.unsynced) == ((INO,), (INO,))
    replicas = world.fs.files.replicas
    replicas.synced(INO)
    replicas.tell_synced()
    assert world.meta.told[-1][1] is close, "more was written meanwhile"
    world.lanes.unsynced = set()
    replicas.synced(INO)
    replicas.tell_synced()
    assert world.meta.told[-1] == (Op.SYNCED, Synced((INO,), (close.serial,)))
    replicas.synced(INO)
    replicas.tell_synced()
    assert len(world.meta.requests(Op.SYNCED)) == 0
    assert sum(op is Op.SYNCED for op, _ in world.meta.told) == 1


async def test_a_later_close_has_a_higher_serial_number(world: World) -> None:
    world.lanes.unsynced = {INO}
    first = closed(world)
    world.fh = (await world.fs.files.open(INO, os.O_RDWR, kill_set_ids=False)).fh
    second = closed(world)
    assert second.serial > first.serial > 0
    world.lanes.unsynced = set()
    world.fs.files.replicas.synced(INO)
    world.fs.files.replicas.tell_synced()
    assert world.meta.told[-1] == (Op.SYNCED, Synced((INO,), (second.serial,)))


async def test_nothing_is_told_to_another_session(world: World) -> None:
    world.lanes.unsynced = {INO}
    closed(world)
    world.lanes.unsynced = set()
    world.fs.files.replicas.lose()
    world.fs.files.replicas.synced(INO)
    world.fs.files.replicas.tell_synced()
    assert all(op is not Op.SYNCED for op, _ in world.meta.told)


async def test_a_file_with_one_replica_is_closed_as_ever() -> None:
    world = World()
    world.meta.answers[Op.OPEN] = Opened(record(INO), layout(FILE_ID), b"c" * 64)
    world.fh = (await world.fs.files.open(INO, os.O_RDWR, kill_set_ids=False)).fh
    world.lanes.unsynced = {INO}
    assert closed(world) == Close((INO,))


async def test_servers_do_not_copy_replicated_files(world: World) -> None:
    other = INO + 1
    world.meta.answers[Op.GETATTR] = Entry(record(INO, size=1 << 20))
    world.meta.answers[Op.OPEN] = lambda request: Opened(
        record(request.ino, size=1 << 20), BOTH.pack(), b"c" * 64
    )
    await world.fs.files.open(other, os.O_RDWR, kill_set_ids=False)
    with pytest.raises(FsError, match="replica"):
        await world.fs.copies.copy(Extent(INO, 0), Extent(other, 0), 1 << 20, kill_set_ids=False)
    assert world.lanes.copies.made == []


async def test_a_file_that_lanes_made_and_closed_counts_as_closed_by_0(world: World) -> None:
    replicas = world.fs.files.replicas
    world.lanes.unsynced = {INO}
    replicas.born_closed(INO)
    replicas.tell_synced()
    assert all(op is not Op.SYNCED for op, _ in world.meta.told)
    world.lanes.unsynced = set()
    replicas.synced(INO)
    replicas.born_closed(INO + 1)  # it is synced already
    replicas.tell_synced()
    assert world.meta.told[-1] == (Op.SYNCED, Synced((INO, INO + 1), (0, 0)))
