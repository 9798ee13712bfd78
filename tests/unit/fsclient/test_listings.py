"""Listings that are kept under leases: given again without a question as long as nothing can have
changed, and never a moment longer."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from fsclient.fs import listings
from fsclient.fs.filesystem import FileSystem
from fscommon.layout.attributes import LEASE_ENTRIES, LEASE_META, with_lease
from fscommon.wire.messages import Entry, ReadDir, ReadDirReply, Removed
from fscommon.wire.ops import Op

from .fakes import DIRECTORY, FakeLanes, FakeMetadata, make_fs, record
from .test_directories import BigDirectory, list_all

PARENT = 2
COUNT = 700


class World:
    """A directory whose names and inodes are leased to the client."""

    def __init__(self, count: int = COUNT) -> None:
        self.meta = FakeMetadata()
        self.fs: FileSystem = make_fs(self.meta, FakeLanes(), lambda _: None)
        self.directory = BigDirectory(count)
        self.meta.answers[Op.GETATTR] = Entry(record(PARENT, mode=DIRECTORY, parent=1))
        self.meta.answers[Op.READDIR] = self.answer
        self.meta.answers[Op.UNLINK] = Removed(record(20, nlink=0))
        leases = self.fs.leases
        leases.session_opened(30.0)
        leases.renewed(trio.current_time(), 0)
        leases.table.granted(PARENT, LEASE_ENTRIES | LEASE_META, 1)
        for ino in self.directory.cookies:
            leases.table.granted(ino, LEASE_META, 1)
        self._handle = 0

    def answer(self, request: ReadDir) -> ReadDirReply:
        """With leases, as the metaserver writes them into its records."""
        reply = self.directory.answer(request)
        entries = tuple(
            replace(entry, attributes=with_lease(entry.attributes, 1, LEASE_META))
            for entry in reply.entries
        )
        own = record(PARENT, lease_flags=LEASE_ENTRIES | LEASE_META, mode=DIRECTORY)
        return replace(reply, entries=entries, parents=own)

    async def list(self, room: int = 100) -> list[bytes]:
        self._handle += 1
        self.fs.directories.open(self._handle, PARENT)
        names = await list_all(self.fs, self._handle, room)
        self.fs.directories.release(self._handle)
        return names

    @property
    def questions(self) -> int:
        return len(self.meta.asked)


@pytest.mark.parametrize("count", [0, 1, 128, 129, COUNT])
@pytest.mark.parametrize("room", [7, 400])
async def test_given_again_without_a_question(count: int, room: int) -> None:
    world = World(count)
    first = await world.list()
    asked = world.questions
    assert await world.list(room) == first
    assert len(first) == count + 2
    assert world.questions == asked


LOSSES: dict[str, Callable[[FileSystem], object]] = {
    "names": lambda fs: fs.inodes.lost_lease(PARENT, LEASE_ENTRIES),
    "one inode": lambda fs: fs.inodes.lost_lease(4000, LEASE_META),
    "all leases": lambda fs: fs.leases.table.clear(),
    "inodes, without a word": lambda fs: fs.leases.table.give_up(4000, LEASE_META, _Limit()),
    "a name of its own": lambda fs: fs.complete.noted(PARENT),
    "attributes of its own": lambda fs: fs.inodes.changed(),
}


class _Limit:
    request_id = 99


@pytest.mark.parametrize("loss", LOSSES)
async def test_asked_for_again_after(loss: str) -> None:
    world = World()
    await world.list()
    world.directory.cookies.remove(50)
    LOSSES[loss](world.fs)
    assert b"f50" not in await world.list()


async def test_the_end_of_the_leases_ends_it() -> None:
    world = World()
    await world.list()
    world.directory.cookies.remove(50)
    world.fs.leases.table.until = trio.current_time() - 1
    assert b"f50" not in await world.list()


async def test_lost_in_the_middle_of_giving() -> None:
    """The rest is asked for; what was given stays given once."""
    world = World()
    await world.list()
    directories, fs = world.fs.directories, world.fs
    directories.open(99, PARENT)
    await directories.dots(99, 0)
    asked = world.questions
    first = [one.name for one in await directories.page(99, 0)][:30]
    assert world.questions == asked
    world.directory.cookies.remove(500)
    fs.inodes.lost_lease(PARENT, LEASE_ENTRIES)
    rest = [one.name for one in await directories.page(99, 300)]
    assert world.questions == asked + 1
    assert first[-1] == b"f300" and rest[0] == b"f310" and b"f500" not in rest


async def test_one_inode_lost_in_the_middle() -> None:
    world = World(300)
    await world.list()
    directories, fs = world.fs.directories, world.fs
    directories.open(99, PARENT)
    await directories.dots(99, 0)
    fs.inodes.lost_lease(1000, LEASE_META)
    asked = world.questions
    assert [one.name for one in await directories.page(99, 0)][-1] == b"f990"
    assert world.questions == asked
    assert next(await directories.page(99, 990)).name == b"f1000"
    assert world.questions == asked + 1


@pytest.mark.parametrize("loss", LOSSES)
async def test_not_kept_when_something_was_lost_while_it_was_taken(loss: str) -> None:
    world = World()

    def lose_between(request: ReadDir) -> ReadDirReply:
        reply = world.answer(request)
        if len(world.meta.requests(Op.READDIR)) == 3:
            LOSSES[loss](world.fs)
        return reply

    world.meta.answers[Op.READDIR] = lose_between
    await world.list()
    asked = world.questions
    world.directory.cookies.remove(50)
    assert b"f50" not in await world.list()
    assert world.questions > asked


async def test_they_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "ENTRIES_MAX", COUNT)
    world = World(COUNT)
    await world.list()
    asked = world.questions
    await world.list()
    assert world.questions > asked


async def test_names_from_before_the_lease_are_not_kept() -> None:
    """The page came while the names were not leased, and the lease with another reply, which was
    noted before the page was looked at."""
    world = World()

    def unleased(request: ReadDir) -> ReadDirReply:
        return replace(world.answer(request), parents=b"")

    world.meta.answers[Op.READDIR] = unleased
    await world.list()
    asked = world.questions
    await world.list()
    assert world.questions > asked
