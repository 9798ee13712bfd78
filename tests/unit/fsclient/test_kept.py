"""Inodes kept open after their last close: lanes open them alone, and give them up in time."""

import os

import pytest

from fsclient.fs.inodes import KEPT_MAX, Inodes
from fscommon.layout.attributes import (
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    with_lease,
)
from fscommon.wire.leases import RecallItem
from fscommon.wire.messages import Close, Opened
from fscommon.wire.ops import Op

from .fakes import layout, record
from .test_recalls import NEVER_NS, World

INO = 5
READER = LEASE_META | LEASE_DATA
WRITER = READER | LEASE_META_EXCLUSIVE | LEASE_DATA_EXCLUSIVE
OWN_HANDLE = 1 << 62


async def read_once(world: World, flags: int = READER, mode: int = os.O_RDONLY) -> None:
    """An application opens and closes the file, with these leases."""
    attributes = with_lease(record(INO), NEVER_NS, flags)
    reply = Opened(attributes, layout(55), b"c" * 64)
    world.meta.answers[Op.OPEN] = reply
    world.leases.replied(Op.OPEN, reply, 1)
    file = await world.fs.files.open(INO, mode, kill_set_ids=False)
    world.fs.released(file.fh, INO)


def closed(world: World) -> list[int]:
    """Inodes that were or will be reported to the metaserver as closed."""
    told = [
        ino
        for op, message in world.meta.told
        if op is Op.CLOSE and isinstance(message, Close)
        for ino in message.inos
    ]
    return [*told, *world.fs.inodes.closed]


async def test_a_file_that_was_read_is_kept() -> None:
    world = World()
    await read_once(world)
    assert world.lanes.kept == {INO}
    assert world.fs.inodes.held() == (INO,) and not world.fs.inodes.is_open(INO)
    assert closed(world) == []


async def test_a_file_that_was_written_is_not() -> None:
    world = World()
    await read_once(world, WRITER, os.O_WRONLY)
    assert world.lanes.kept == set() and closed(world) == [INO]


async def test_the_last_writer_ends_it() -> None:
    world = World()
    await read_once(world)
    await read_once(world, WRITER, os.O_WRONLY)
    assert world.lanes.kept == set() and closed(world) == [INO]


@pytest.mark.parametrize("is_told", [False, True])
async def test_one_that_is_read_just_after_it_was_written(is_told: bool) -> None:
    """The metaserver has it open for writing until it hears of a CLOSE: it is kept only then."""
    world = World()
    await read_once(world, WRITER, os.O_WRONLY)
    if is_told:
        world.fs.closer.flush()
    await read_once(world)
    assert world.lanes.kept == ({INO} if is_told else set())
    assert closed(world) == [INO]
    await read_once(world)
    assert world.lanes.kept == ({INO} if is_told else set()), "it was still not told"
    world.fs.closer.flush()
    await read_once(world)
    assert world.lanes.kept == {INO}


async def test_nothing_is_kept_without_a_lease() -> None:
    world = World()
    await read_once(world, LEASE_META)
    assert world.lanes.kept == set() and closed(world) == [INO]


@pytest.mark.parametrize("flags", [LEASE_DATA, LEASE_META])
async def test_a_recall_finds_it_closed(flags: int) -> None:
    """CLOSE goes first: when another client gets the lease, the file must be open nowhere."""
    world = World()
    await read_once(world)
    await world.recall(RecallItem(1, INO, flags, 0, 3))
    assert world.lanes.kept == set()
    assert [op for op, _ in world.meta.told] == [Op.CLOSE, Op.LEASE_RETURN]


async def test_a_file_that_another_client_writes_is_not_kept() -> None:
    world = World()
    world.leases.bytes_recalled(INO)
    await read_once(world)
    assert world.lanes.kept == set() and closed(world) == [INO]


async def test_handles_of_lanes_are_taken_over() -> None:
    world = World()
    await read_once(world)
    world.lanes.own_handles[INO] = 2
    await world.recall(RecallItem(1, INO, LEASE_DATA, 0, 3))
    assert closed(world) == [] and world.fs.inodes.is_open(INO)
    world.fs.released(OWN_HANDLE + 1, INO)
    assert closed(world) == []
    world.fs.released(OWN_HANDLE + 2, INO)
    assert closed(world) == [INO] and world.fs.inodes.held() == ()
    world.fs.released(OWN_HANDLE + 3, INO)  # no application has this handle
    assert closed(world) == [INO]


async def test_a_removed_file_is_not_kept() -> None:
    world = World()
    await read_once(world)
    world.fs.inodes.departed_record(INO, record(INO))
    assert world.lanes.kept == set() and closed(world) == [INO]


async def test_a_lost_session_keeps_nothing() -> None:
    world = World()
    await read_once(world)
    world.fs.lost_session()
    assert world.lanes.kept == set() and world.fs.inodes.held() == ()


async def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT_MAX >= 1 << 14
    monkeypatch.setattr("fsclient.fs.inodes.KEPT_MAX", 3)
    world = World()
    inodes: Inodes = world.fs.inodes
    for ino in range(10, 15):
        world.grant(ino, READER)
        inodes.hold(ino)
        inodes.may_keep_pages(inodes.see_record(record(ino)))
        inodes.release(ino)
    assert world.lanes.kept == {12, 13, 14}
    assert inodes.closed.keys() == {10, 11}
