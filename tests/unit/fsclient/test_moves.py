"""Names that lanes change: requesting directories, order, what is lost, and which records
are used.
"""

from dataclasses import replace

import trio
import trio.testing

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.wire.births import Changed, Move
from fscommon.wire.messages import Entry, Opened, Renamed
from fscommon.wire.ops import Op

from . import native_rows as rows
from .changes_world import FOLDER, World
from .fakes import DIRECTORY, layout, record
from .test_delegated_changes import world
from .test_removals import delegated, gone, remove

__all__ = ["world"]  # this is the fixture


def changed(ino: int, change_version: int = 9, **fields: int) -> bytes:
    """The record of a file that has another name."""
    now = replace(unpack_attributes(record(ino, **fields)), ctime_ns=77)
    return replace(now, change_version=change_version).pack()


def move(world: World, ino: int, name: bytes, new_name: bytes, replaced: int = 0) -> None:
    """Lanes change a name."""
    left = gone(replaced) if replaced else bytes(128)
    row = rows.Move(FOLDER, name, new_name, ino, replaced, 77, changed(ino), left)
    world.lanes.moves.append(row)


async def test_the_second_rename_asks_for_the_directory(world: World) -> None:
    world.meta.answers[Op.RENAME] = Renamed(record(200), b"")
    for _ in range(2):
        await world.fs.namespace.rename(FOLDER, b"a", FOLDER, b"b", 0)
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.delegated == {FOLDER}


async def test_a_rename_of_a_directory_or_into_another_one_asks_for_nothing(world: World) -> None:
    world.meta.answers[Op.RENAME] = Renamed(record(200, mode=DIRECTORY), b"")
    for _ in range(3):
        await world.fs.namespace.rename(FOLDER, b"a", FOLDER, b"b", 0)
    world.meta.answers[Op.RENAME] = Renamed(record(200), b"")
    for _ in range(3):
        await world.fs.namespace.rename(FOLDER, b"a", FOLDER + 1, b"b", 0)
    await trio.testing.wait_all_tasks_blocked()
    assert not world.lanes.delegated


async def test_they_are_told_in_their_order(world: World) -> None:
    await delegated(world)
    world.bear(100, b"t")
    move(world, 100, b"t", b"f")
    world.changes.collect()
    world.bear(101, b"t")
    remove(world, 100, b"f")
    move(world, 101, b"t", b"f")
    world.changes.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    assert [birth.ino for birth in batch.births] == [100, 101]
    assert [(removal.ino, removal.after) for removal in batch.removals] == [(100, 2)]
    assert batch.moves == (
        Move(FOLDER, b"t", b"f", 100, 0, 77, 1),
        Move(FOLDER, b"t", b"f", 101, 0, 77, 3),
    )
    assert world.lanes.removals_answered == 3


async def test_what_other_replies_say_meanwhile_is_not_believed(world: World) -> None:
    """Records of the file are not used until the metaserver has answered; records of the file that
    it replaced are not used at all."""
    await delegated(world)
    world.meta.answers[Op.OPEN] = Opened(record(300), layout(300), b"c" * 64)
    await world.fs.files.open(300, 0, kill_set_ids=False)
    move(world, 300, b"t", b"f", replaced=301)
    world.changes.flush()
    assert world.fs.inodes.is_being_set(300)
    departed = world.fs.inodes.find_departed(301)
    assert departed is not None and departed.nlink == 0
    world.meta.deliver_all()
    assert not world.fs.inodes.is_being_set(300)


async def test_giving_back_waits_for_every_move(world: World) -> None:
    await delegated(world)
    move(world, 200, b"a", b"b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.changes.give_back, FOLDER)
        await trio.testing.wait_all_tasks_blocked()
        assert world.changes.parents_on_way() == {FOLDER}
        world.meta.deliver_all()
    assert world.changes.parents_on_way() == set()


async def test_one_that_is_refused_has_its_old_name(world: World) -> None:
    await delegated(world)
    world.lanes.complete[FOLDER] = set()
    move(world, 200, b"a", b"b", replaced=201)
    move(world, 202, b"c", b"d")
    answer = Changed((), move_errors=(int(Status.ESTALE), 0))
    world.meta.answers[Op.CHANGE_BATCH] = answer
    world.changes.flush()
    world.meta.deliver_all()
    assert world.lanes.complete[FOLDER] == {b"a", b"b"}
    assert world.fs.inodes.find_departed(201) is None
    (logged,) = world.logged
    assert "renamed file 'a' (inode 200)" in logged and "'b': ESTALE" in logged
    assert not world.fs.inodes.is_being_set(200)


async def test_a_lost_session_loses_them(world: World) -> None:
    await delegated(world)
    world.meta.answers[Op.GETATTR] = Entry(record(200))
    move(world, 200, b"a", b"b")
    world.changes.lose()
    assert [line for line in world.logged if "renamed file 'a'" in line]
    assert not world.changes.parents_on_way()
    assert not world.fs.inodes.is_being_set(200)


async def test_a_batch_that_fails_as_a_whole(world: World) -> None:
    await delegated(world)
    world.meta.answers[Op.CHANGE_BATCH] = FsError(Status.EIO)
    move(world, 200, b"a", b"b")
    world.changes.flush()
    world.meta.deliver_all()
    assert [line for line in world.logged if "did not become 'b': EIO" in line]
