"""Listing directories: cookies, bounded pages, and entries that a change has overtaken."""

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from fsclient.fs.directories import PAGE_COUNT_FIRST, PAGE_COUNT_MAX, Listed
from fsclient.fs.filesystem import FileSystem
from fscommon.errors import FsError
from fscommon.layout.attributes import LEASE_ENTRIES, LEASE_META, LEASE_READER
from fscommon.wire.messages import Empty, Entry, ReadDir, ReadDirReply, Removed
from fscommon.wire.ops import Op

from .fakes import DIRECTORY, FakeLanes, FakeMetadata, make_fs, record


class BigDirectory:
    """A directory of `count` entries with cookies 10, 20, 30..."""

    def __init__(self, count: int, lease_flags: int = 0) -> None:
        self.lease_flags = lease_flags
        self.cookies = [10 * (index + 1) for index in range(count)]

    def answer(self, request: ReadDir) -> ReadDirReply:
        behind = [cookie for cookie in self.cookies if cookie > request.cookie]
        page = behind[: request.count]
        return ReadDirReply(
            tuple(b"f%d" % cookie for cookie in page),
            struct.pack(f"<{len(page)}Q", *page),
            b"".join(record(cookie, lease_flags=self.lease_flags) for cookie in page),
            len(page) == len(behind),
        )


@pytest.fixture
def meta() -> FakeMetadata:
    made = FakeMetadata()
    made.answers[Op.GETATTR] = Entry(record(2, mode=DIRECTORY, parent=1))
    return made


@pytest.fixture
def fs(meta: FakeMetadata) -> FileSystem:
    return make_fs(meta, FakeLanes(), lambda _: None)


async def list_all(fs: FileSystem, fh: int, room: int) -> list[bytes]:
    """Lists as the kernel does: `room` entries at a time, by cookie."""
    names: list[bytes] = []
    cookie = 0
    while True:
        taken = 0
        for dot in await fs.directories.dots(fh, cookie):
            names.append(dot.name)
            cookie = dot.cookie
        was_full = False
        for listed in await fs.directories.page(fh, cookie):
            if taken == room:
                was_full = True
                break
            names.append(listed.name)
            cookie = listed.cookie
            taken += 1
        fs.directories.taken(fh, taken, was_full=was_full)
        if not taken:
            return names


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1000, 5000])
@pytest.mark.parametrize("room", [3, 30, 400])
async def test_every_entry_once(meta: FakeMetadata, fs: FileSystem, count: int, room: int) -> None:
    meta.answers[Op.READDIR] = BigDirectory(count).answer
    fs.directories.open(1, 2)
    names = await list_all(fs, 1, room)
    assert names == [b".", b"..", *(b"f%d" % (10 * (i + 1)) for i in range(count))]


async def test_pages_are_bounded(meta: FakeMetadata, fs: FileSystem) -> None:
    meta.answers[Op.READDIR] = BigDirectory(20000).answer
    fs.directories.open(1, 2)
    await list_all(fs, 1, 100000)
    counts = [request.count for request in meta.requests(Op.READDIR)]
    assert counts[0] == PAGE_COUNT_FIRST
    assert max(counts) == PAGE_COUNT_MAX


async def test_a_full_kernel_buffer_shrinks_the_page(meta: FakeMetadata, fs: FileSystem) -> None:
    meta.answers[Op.READDIR] = BigDirectory(2000).answer
    fs.directories.open(1, 2)
    await list_all(fs, 1, 30)
    assert meta.requests(Op.READDIR)[-1].count == 32


async def test_rewind_sees_what_is_new(meta: FakeMetadata, fs: FileSystem) -> None:
    directory = BigDirectory(3)
    meta.answers[Op.READDIR] = directory.answer
    fs.directories.open(1, 2)
    await list_all(fs, 1, 10)
    directory.cookies.append(99)
    assert b"f99" in await list_all(fs, 1, 10)


async def test_seek_to_any_cookie(meta: FakeMetadata, fs: FileSystem) -> None:
    meta.answers[Op.READDIR] = BigDirectory(100).answer
    fs.directories.open(1, 2)
    assert next(await fs.directories.page(1, 500)).name == b"f510"
    assert next(await fs.directories.page(1, 20)).name == b"f30"


async def leased_page(fs: FileSystem, cookie: int) -> list[Listed]:
    """Entries of the open directory 1 behind the cookie, all of which have leases."""
    page = list(await fs.directories.page(1, cookie))
    leased = [entry for entry in page if isinstance(entry, Listed)]
    assert leased == page
    return leased


async def test_entries_overtaken_by_a_change_are_stale(meta: FakeMetadata, fs: FileSystem) -> None:
    meta.answers[Op.READDIR] = BigDirectory(100).answer
    meta.answers[Op.UNLINK] = Removed(record(20, nlink=0))
    fs.directories.open(1, 2)
    first = await leased_page(fs, 0)
    assert not any(listed.is_stale for listed in first)
    await fs.namespace.unlink(2, b"f20")
    assert all(listed.is_stale for listed in await leased_page(fs, 10))


async def test_only_entries_whose_lease_was_lost_are_stale(
    meta: FakeMetadata, fs: FileSystem
) -> None:
    meta.answers[Op.READDIR] = BigDirectory(100).answer
    fs.directories.open(1, 2)
    first = await leased_page(fs, 0)
    fs.inodes.lost_lease(first[3].attributes.ino, LEASE_META)
    again = await leased_page(fs, first[0].cookie)
    assert [listed.name for listed in again if listed.is_stale] == [first[3].name]
    fs.inodes.lost_lease(2, LEASE_ENTRIES)
    assert all(listed.is_stale for listed in await leased_page(fs, first[0].cookie))


async def test_unknown_handle(fs: FileSystem) -> None:
    with pytest.raises(FsError, match="EBADF"):
        await fs.directories.page(77, 0)


async def test_hostile_empty_page(meta: FakeMetadata, fs: FileSystem) -> None:
    """A page without entries that is not the end would be requested again without end."""
    meta.answers[Op.READDIR] = ReadDirReply((), b"", b"", False)
    fs.directories.open(1, 2)
    with pytest.raises(FsError, match="EIO"):
        await fs.directories.page(1, 0)


@pytest.mark.parametrize(
    "columns", [((b"x",), b"", b""), ((b"x",), bytes(8), bytes(127)), ((), bytes(8), bytes(128))]
)
async def test_columns_that_do_not_fit(
    meta: FakeMetadata, fs: FileSystem, columns: tuple[tuple[bytes, ...], bytes, bytes]
) -> None:
    meta.answers[Op.READDIR] = ReadDirReply(*columns, True)
    fs.directories.open(1, 2)
    with pytest.raises(FsError, match="EIO"):
        await fs.directories.page(1, 0)


async def test_released_directory_is_gone(meta: FakeMetadata, fs: FileSystem) -> None:
    def never(_: Any) -> ReadDirReply:
        raise AssertionError

    meta.answers[Op.READDIR] = never
    fs.directories.open(1, 2)
    fs.directories.release(1)
    assert len(fs.directories) == 0


async def test_lost_changes_are_told_once_by_fsync(meta: FakeMetadata, fs: FileSystem) -> None:
    """Each handle of that directory gets the error once, and no handle of another directory."""
    meta.answers[Op.BARRIER] = Empty()
    for fh, ino in ((1, 2), (2, 2), (3, 5)):
        fs.directories.open(fh, ino)
    await fs.directories.sync(1)
    fs.directories.lose({2})
    fs.directories.open(4, 2)
    for fh in (1, 2):
        with pytest.raises(FsError, match="EIO"):
            await fs.directories.sync(fh)
    for fh in (1, 2, 3, 4):
        await fs.directories.sync(fh)


# ---- what lanes get, to answer again without a request -------------------------------------------


class Leased:
    """A directory whose names and inodes are leased to the client."""

    def __init__(self) -> None:
        self.meta, self.lanes = FakeMetadata(), FakeLanes()
        self.fs = make_fs(self.meta, self.lanes, lambda _: None)
        self.directory = BigDirectory(100, LEASE_META)
        self.meta.answers[Op.GETATTR] = Entry(record(2, mode=DIRECTORY, parent=1))
        self.meta.answers[Op.READDIR] = self.answer
        leases = self.fs.leases
        leases.session_opened(30.0)
        leases.renewed(trio.current_time(), 0)
        leases.table.granted(2, LEASE_ENTRIES | LEASE_META, 1)
        for ino in self.directory.cookies:
            leases.table.granted(ino, LEASE_META, 1)
        self.meanwhile: Callable[[FileSystem], object] = lambda _: None

    def answer(self, request: ReadDir) -> ReadDirReply:
        own = record(2, lease_flags=LEASE_ENTRIES | LEASE_META, mode=DIRECTORY)
        reply = replace(self.directory.answer(request), parents=own)
        self.meanwhile(self.fs)
        return reply

    async def fetch(self) -> None:
        self.fs.directories.open(1, 2)
        await self.fs.directories.page(1, 0)


async def test_lanes_are_told_what_is_leased() -> None:
    world = Leased()
    await world.fetch()
    assert world.lanes.listed == {2: [(b"f%d" % ino, ino, ino) for ino in world.directory.cookies]}
    assert set(world.directory.cookies) <= set(world.lanes.believed)


LOSSES: dict[str, Callable[[FileSystem], object]] = {
    "names": lambda fs: fs.inodes.lost_lease(2, LEASE_ENTRIES),
    "all leases": lambda fs: fs.leases.table.clear(),
    "a name of its own": lambda fs: fs.complete.noted(2),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_lanes_are_told_no_names_after(loss: str) -> None:
    world = Leased()
    world.meanwhile = LOSSES[loss]
    await world.fetch()
    assert world.lanes.listed == {}


async def test_lanes_are_not_told_of_an_inode_that_was_lost() -> None:
    world = Leased()
    world.meanwhile = lambda fs: fs.inodes.lost_lease(70, LEASE_META)
    await world.fetch()
    assert 70 not in world.lanes.believed and 80 in world.lanes.believed


async def test_lanes_are_told_no_attributes_that_may_be_of_before_a_change() -> None:
    world = Leased()
    world.meanwhile = lambda fs: fs.inodes.changed()
    await world.fetch()
    assert not set(world.directory.cookies) & set(world.lanes.believed)


async def test_names_from_before_the_lease_are_not_told() -> None:
    """The page arrived while the names were not leased; the lease came with another reply, which
    was noted before the page was processed."""
    world = Leased()
    world.meta.answers[Op.READDIR] = lambda request: replace(world.answer(request), parents=b"")
    await world.fetch()
    assert world.lanes.listed == {}


async def test_what_more_is_known_of_some_of_a_page_is_seen_to() -> None:
    """Of a page, one file is known by its directory's grant from before, one is open, one is being
    set, one is not leased: lanes get the others at once."""
    world = Leased()
    inodes = world.fs.inodes
    inodes.hold(20)
    inodes.was_set(30, record(30))
    world.fs.leases.table.forget(40)
    await world.fetch()
    known = inodes.get(20)
    assert known is not None and known.attributes is not None
    assert 30 not in world.lanes.believed and 40 not in world.lanes.believed
    assert {10, 20, 50} <= set(world.lanes.believed)
    assert 50 in inodes.without_xattrs and 40 not in inodes.without_xattrs


async def test_one_of_a_page_that_is_newer_than_its_grant_is_held_by_itself() -> None:
    world = Leased()
    world.lanes.children[10] = (2, record(10))
    newer = b"".join(
        record(ino, lease_flags=LEASE_META, change_version=1) for ino in world.directory.cookies
    )
    world.meta.answers[Op.READDIR] = lambda asked: replace(world.answer(asked), attributes=newer)
    await world.fetch()
    assert 10 not in world.lanes.children
    assert world.lanes.believed[10]
    assert world.fs.leases.table.held(10) == LEASE_READER
