"""Names that lanes remove: requesting directories, order, what is lost, and which records
are used.
"""

from dataclasses import replace

import trio
import trio.testing

from fsclient.fs.change_answers import LOST_NAMED_MAX
from fsclient.fs.delegated_changes import DIRECTORIES_MAX
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_ENTRIES, LEASE_META, unpack_attributes
from fscommon.wire.births import Changed, Removal
from fscommon.wire.messages import Entry, Opened, ReadDirReply, Removed
from fscommon.wire.ops import Op

from . import native_rows as rows
from .changes_world import FOLDER, World
from .fakes import layout, record
from .test_delegated_changes import world

__all__ = ["world"]  # this is the fixture


async def delegated(world: World) -> None:
    world.changes.touched(FOLDER)
    world.changes.touched(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.delegated == {FOLDER}


def gone(ino: int, change_version: int = 9) -> bytes:
    """The record of a file whose name was removed."""
    left = replace(unpack_attributes(record(ino)), nlink=0, ctime_ns=77)
    return replace(left, change_version=change_version).pack()


def remove(world: World, ino: int, name: bytes = b"n") -> None:
    """Lanes remove a name."""
    world.lanes.removals.append(rows.Removal(FOLDER, name, ino, 77, gone(ino)))


def told(world: World) -> list[list[int]]:
    batches = world.meta.requests(Op.CHANGE_BATCH)
    return [[removal.ino for removal in batch.removals] for batch in batches]


async def test_the_second_unlink_asks_for_the_directory_without_slots(world: World) -> None:
    world.changes.touched(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    assert not world.lanes.delegated
    await delegated(world)
    assert [request.count for request in world.meta.requests(Op.DELEGATE)] == [0]
    remove(world, 200)
    world.changes.flush()
    await trio.testing.wait_all_tasks_blocked()
    assert len(world.meta.requests(Op.DELEGATE)) == 1, "nor asks for slots later"


async def test_in_a_tree_that_is_removed_the_first_unlink_asks(world: World) -> None:
    await delegated(world)
    world.fs.leases.table.granted(8, LEASE_META | LEASE_ENTRIES, 1)
    world.changes.touched(8)
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.delegated == {FOLDER, 8}


async def test_creates_in_such_a_directory_ask_for_slots(world: World) -> None:
    await delegated(world)
    world.changes.created(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    assert [request.ino for request in world.meta.requests(Op.DELEGATE)] == [FOLDER, 0]
    assert world.lanes.slots


async def test_an_unlink_of_the_metaservers_counts(world: World) -> None:
    world.meta.answers[Op.UNLINK] = Removed(gone(200))
    for _ in range(2):
        await world.fs.namespace.unlink(FOLDER, b"n")
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.delegated == {FOLDER}


async def test_creations_and_removals_keep_their_order(world: World) -> None:
    await delegated(world)
    world.bear(100, b"a")
    remove(world, 100, b"a")
    world.changes.collect()
    world.bear(101, b"a")
    remove(world, 101, b"a")
    remove(world, 102, b"b")
    world.changes.flush()
    world.meta.deliver_all()
    (batch,) = world.meta.requests(Op.CHANGE_BATCH)
    assert [birth.ino for birth in batch.births] == [100, 101]
    assert batch.removals == (
        Removal(FOLDER, b"a", 100, 77, 1),
        Removal(FOLDER, b"a", 101, 77, 2),
        Removal(FOLDER, b"b", 102, 77, 2),
    )


async def test_lanes_learn_that_they_were_answered(world: World) -> None:
    await delegated(world)
    for number in range(3):
        remove(world, 200 + number)
    world.changes.flush()
    assert world.lanes.removals_answered == 0
    world.meta.deliver_all()
    assert world.lanes.removals_answered == 3
    assert told(world) == [[200, 201, 202]]


async def test_giving_back_waits_for_every_removal(world: World) -> None:
    await delegated(world)
    remove(world, 200)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.changes.give_back, FOLDER)
        await trio.testing.wait_all_tasks_blocked()
        assert world.changes.parents_on_way() == {FOLDER}
        assert set(world.fs.exclusive()) == {FOLDER}
        world.meta.deliver_all()
    assert world.changes.parents_on_way() == set()


async def test_a_removal_that_failed_is_named_and_believed_no_longer(world: World) -> None:
    await delegated(world)
    world.meta.answers[Op.CHANGE_BATCH] = Changed((), (0, int(Status.EPERM)))
    world.lanes.dentries[FOLDER, b"bad"] = 0
    world.lanes.believed[201] = gone(201)
    remove(world, 200, b"good")
    remove(world, 201, b"bad")
    world.changes.flush()
    world.meta.deliver_all()
    assert [line for line in world.logged if "'bad'" in line and "EPERM" in line]
    assert not [line for line in world.logged if "good" in line]
    assert (FOLDER, b"bad") not in world.lanes.dentries
    assert 201 not in world.lanes.believed
    assert world.fs.inodes.find_departed(201) is None


async def test_with_the_session_goes_what_was_not_told(world: World) -> None:
    await delegated(world)
    for number in range(LOST_NAMED_MAX + 5):
        remove(world, 200 + number, b"late-%d" % number)
    world.fs.lost_session()
    assert len([line for line in world.logged if "late-" in line]) == LOST_NAMED_MAX
    assert [line for line in world.logged if line.startswith("5 more")]
    assert world.lanes.removals_answered == LOST_NAMED_MAX + 5


async def test_what_is_gone_says_so_to_who_has_it(world: World) -> None:
    """An OPEN was in flight while the name was removed, and another request uses the inode
    number."""
    world.meta.answers[Op.OPEN] = Opened(record(200, change_version=8), layout(200), b"c")
    opened = await world.fs.files.open(200, 0, kill_set_ids=False)
    assert opened.attributes.nlink == 1
    await delegated(world)
    remove(world, 200)
    world.meta.answers[Op.GETATTR] = Entry(record(200, change_version=8))
    left = await world.fs.namespace.getattr(200)
    assert (left.nlink, left.ctime_ns) == (0, 77)
    remove(world, 201)
    world.meta.answers[Op.GETATTR] = FsError(Status.ESTALE)
    assert (await world.fs.namespace.getattr(201)).nlink == 0


async def test_pages_of_directories_are_stale_after_it(world: World) -> None:
    await delegated(world)
    world.meta.answers[Op.READDIR] = ReadDirReply((), b"", b"", True)
    before = world.fs.inodes.change_count
    world.fs.directories.open(1, FOLDER)
    remove(world, 200)
    list(await world.fs.directories.page(1, 0))
    assert world.fs.inodes.change_count > before


async def test_what_the_kernel_forgot_is_forgotten(world: World) -> None:
    await delegated(world)
    world.fs.leases.table.granted(200, LEASE_META, 1)
    remove(world, 200)
    world.changes.flush()
    world.fs.inodes.forget(200)
    assert world.fs.leases.table.held(200) == 0
    assert world.fs.inodes.find_departed(200) is None


async def test_delegated_directories_are_bounded(world: World) -> None:
    for ino in range(1000, 1000 + DIRECTORIES_MAX + 10):
        world.fs.leases.table.granted(ino, LEASE_META | LEASE_ENTRIES, 1)
        world.changes.touched(ino)
        world.changes.touched(ino)
        await trio.testing.wait_all_tasks_blocked()
    assert len(world.lanes.delegated) == DIRECTORIES_MAX
    assert 1000 not in world.lanes.delegated
