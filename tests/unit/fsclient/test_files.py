"""Open files: registration, close-to-open, written state, truncation, commits."""

import os
import stat
import struct
from dataclasses import replace

import pytest
import trio
import trio.testing

from fsclient.fs.caller import Requester
from fsclient.fs.changes import Change
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import unpack_attributes
from fscommon.wire.codec import encode
from fscommon.wire.messages import (
    COMMIT_KILL_SUIDGID,
    COMMIT_MTIME,
    COMMIT_SIZE,
    SET_KILL_SGID,
    SET_KILL_SUIDGID,
    SET_MODE,
    SET_MTIME,
    SET_SIZE,
    Close,
    Committed,
    Entry,
    Opened,
    Removed,
    Renamed,
    XattrValue,
)
from fscommon.wire.ops import Op

from .fakes import FakeLanes, FakeMetadata, FakeWorld, layout, make_fs, record

WRITTEN = COMMIT_SIZE | COMMIT_MTIME


class World(FakeWorld):
    def opens_as(self, **fields: int) -> None:
        self.meta.answers[Op.OPEN] = opened(5, **fields)

    def attributes_are(self, **fields: int) -> None:
        self.meta.answers[Op.GETATTR] = Entry(record(5, **fields))


def opened(ino: int, file_id: int = 55, **fields: int) -> Opened:
    return Opened(record(ino, **fields), layout(file_id), b"c" * 64)


@pytest.fixture
def world() -> World:
    return World()


async def test_open_tells_the_lanes_before_it_returns(world: World) -> None:
    world.opens_as(size=3)
    file = await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    assert world.lanes.handles == {file.fh: (5, os.O_RDWR, False)}
    assert 5 in world.lanes.known
    assert file.attributes.size == 3
    assert world.fs.inodes.held() == (5,)


async def test_a_reader_keeps_the_right_of_the_writer(world: World) -> None:
    """The lanes have one capability per inode: opening the file to read must not remove the right
    to write."""
    world.opens_as()
    await world.fs.files.open(5, os.O_WRONLY, kill_set_ids=False)
    await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    assert [request.writable for request in world.meta.requests(Op.OPEN)] == [True, True]


async def test_failed_open_holds_nothing(world: World) -> None:
    world.meta.answers[Op.OPEN] = FsError(Status.ENOENT)
    with pytest.raises(FsError, match="ENOENT"):
        await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    assert world.fs.inodes.held() == ()


async def test_the_last_release_is_told(world: World) -> None:
    world.opens_as()
    first = await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    second = await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    world.fs.files.released(first.fh, 5)
    world.fs.closer.flush()
    assert world.meta.told == []
    world.fs.files.released(second.fh, 5)
    world.fs.files.released(second.fh, 5)  # a second time has no effect
    world.fs.closer.flush()
    assert world.meta.told == [(Op.CLOSE, Close((5,)))]


async def test_opened_again_before_the_close_left(world: World) -> None:
    world.opens_as()
    file = await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    world.fs.files.released(file.fh, 5)
    await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    world.fs.closer.flush()
    assert world.meta.told == []


async def test_nothing_is_told_while_disconnected(world: World) -> None:
    world.opens_as()
    file = await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    world.fs.files.released(file.fh, 5)
    world.meta.is_ready = False
    world.fs.closer.flush()
    assert world.meta.told == []


async def test_pages_are_kept_while_nobody_else_wrote(world: World) -> None:
    world.opens_as(data_version=7)
    assert not (await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)).keep_pages
    assert (await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)).keep_pages
    world.opens_as(data_version=8)
    assert not (await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)).keep_pages


async def test_own_commit_keeps_the_pages(world: World) -> None:
    world.opens_as(data_version=7)
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.meta.answers[Op.COMMIT] = Committed(record(5, data_version=8, change_version=1))
    _commit(world, size=10)
    world.opens_as(data_version=8)
    assert (await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)).keep_pages


async def test_foreign_write_between_own_commits_drops_the_pages(world: World) -> None:
    world.opens_as(data_version=7)
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.meta.answers[Op.COMMIT] = Committed(record(5, data_version=9, change_version=2))
    _commit(world, size=10)
    world.opens_as(data_version=9)
    assert not (await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)).keep_pages


async def test_forget_drops_the_page_version(world: World) -> None:
    world.opens_as(data_version=7)
    await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    world.fs.inodes.forget(5)
    assert not (await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)).keep_pages


async def test_writer_sees_its_own_size(world: World) -> None:
    world.opens_as(size=3, mtime_ns=10)
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.lanes.written[5] = (4096, 20, WRITTEN)
    world.attributes_are(size=3, mtime_ns=10)
    seen = await world.fs.namespace.getattr(5)
    assert (seen.size, seen.mtime_ns, seen.blocks) == (4096, 20, 8)


async def test_size_does_not_go_back_while_a_commit_is_on_its_way(world: World) -> None:
    world.opens_as(size=3)
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.meta.answers[Op.COMMIT] = Committed(record(5, size=4096, change_version=2))
    payload = struct.pack("<QIIQ", 55, WRITTEN, 0, 0)
    world.fs.files.commit(9, 5, 4096, 20, payload)
    world.attributes_are(size=3, change_version=1)
    assert (await world.fs.namespace.getattr(5)).size == 4096
    world.meta.deliver_all()
    assert world.lanes.committed == [(9, 0, record(5, size=4096, change_version=2))]
    assert (await world.fs.namespace.getattr(5)).size == 4096  # the older answer changes nothing


async def test_failed_commit_is_told_to_the_lanes(world: World) -> None:
    world.meta.answers[Op.COMMIT] = FsError(Status.ENOSPC)
    _commit(world, size=1)
    assert world.lanes.committed == [(9, int(Status.ENOSPC), b"")]
    assert world.logged


async def test_times_take_the_written_state_along(world: World) -> None:
    """cp -p does: write, utimes, close. The close must not change the time again."""
    world.opens_as()
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.lanes.written[5] = (4096, 20, WRITTEN)
    world.meta.answers[Op.SETATTR] = opened(5, size=4096, mtime_ns=1)
    await world.fs.files.setattr(5, Change(mtime_ns=1))
    request = world.meta.requests(Op.SETATTR)[0]
    assert (request.written_size, request.written_mtime_ns) == (4096, 20)
    assert (request.valid, request.mtime_ns) == (SET_MTIME, 1)
    assert world.lanes.written == {}


async def test_pending_kill_does_not_undo_a_chmod(world: World) -> None:
    world.opens_as()
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.lanes.written[5] = (1, 1, COMMIT_KILL_SUIDGID)
    world.meta.answers[Op.SETATTR] = opened(5)
    await world.fs.files.setattr(5, Change(mode=0o4755))
    await world.fs.files.setattr(5, Change(size=0, kill_set_ids=True))
    first, second = world.meta.requests(Op.SETATTR)
    assert first.valid == SET_MODE
    assert second.valid == SET_SIZE | SET_KILL_SUIDGID


@pytest.mark.parametrize(
    ("mode", "is_member", "asks"),
    [(0o2767, False, 2), (0o2767, True, 1), (0o767, False, 1), (0o2777, False, 1)],
)
async def test_a_set_group_id_bit_without_execution_goes_for_strangers(
    world: World, mode: int, is_member: bool, asks: int
) -> None:
    world.meta.answers[Op.SETATTR] = opened(5, mode=stat.S_IFREG | mode, gid=7)
    change = Change(size=0, kill_set_ids=True, in_group=lambda gid: is_member and gid == 7)
    await world.fs.files.setattr(5, change)
    requests = world.meta.requests(Op.SETATTR)
    assert [r.valid for r in requests] == [
        SET_SIZE | SET_KILL_SUIDGID,
        SET_KILL_SUIDGID | SET_KILL_SGID,
    ][:asks]


async def test_lanes_know_which_files_have_set_id_bits(world: World) -> None:
    world.opens_as(mode=stat.S_IFREG | 0o4755, gid=7)
    await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    assert not world.lanes.set_ids
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    assert world.lanes.set_ids == {(5, stat.S_IFREG | 0o4755, 7)}


async def test_failed_setattr_commits_what_it_took(world: World) -> None:
    world.opens_as()
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.lanes.written[5] = (4096, 20, WRITTEN)
    world.meta.answers[Op.SETATTR] = FsError(Status.EPERM)
    world.meta.answers[Op.COMMIT] = Committed(record(5, size=4096))
    with pytest.raises(FsError):
        await world.fs.files.setattr(5, Change(mode=0o600))
    world.meta.deliver_all()
    request = world.meta.requests(Op.COMMIT)[0]
    assert (request.file_id, request.size, request.mtime_ns) == (55, 4096, 20)


async def test_truncate_drains_then_resizes(world: World) -> None:
    world.opens_as(size=100)
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.meta.answers[Op.SETATTR] = opened(5, file_id=56, size=0, change_version=3)
    seen = await world.fs.files.setattr(5, Change(size=0))
    assert seen.size == 0
    assert world.lanes.drained == [(1, 5, False)]
    assert world.lanes.resized == [5]


async def test_truncate_of_a_file_that_is_not_open_drains_nothing(world: World) -> None:
    """Lanes may know the file all the same."""
    world.meta.answers[Op.SETATTR] = opened(5, size=0)
    await world.fs.files.setattr(5, Change(size=0))
    assert world.lanes.drained == []
    assert world.lanes.resized == [5]
    assert 5 not in world.lanes.known


async def test_failed_drain_fails_the_truncate(world: World) -> None:
    world.opens_as()
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.lanes.drain_status = int(Status.ENOSPC)
    with pytest.raises(FsError, match="ENOSPC"):
        await world.fs.files.setattr(5, Change(size=0))
    assert world.meta.requests(Op.SETATTR) == []


async def test_create_and_truncate_of_what_was_there(world: World) -> None:
    world.meta.answers[Op.CREATE] = opened(5, size=9)
    world.meta.answers[Op.SETATTR] = opened(5, size=0, change_version=2)
    requester = Requester(1, 2, 0o22, lambda: 0)
    file = await world.fs.files.create(1, b"f", 0o644, os.O_WRONLY | os.O_TRUNC, requester)
    assert file.attributes.size == 0
    assert world.lanes.resized == [5]


async def test_orphaned_create_is_closed(world: World) -> None:
    world.fs.files.orphaned(Op.CREATE, encode(opened(5)))
    world.fs.closer.flush()
    assert world.meta.told == [(Op.CLOSE, Close((5,)))]


async def test_orphaned_open_of_an_open_file_leaves_it_open(world: World) -> None:
    world.opens_as()
    await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    world.fs.files.orphaned(Op.OPEN, encode(opened(5)))
    world.fs.closer.flush()
    assert world.meta.told == []


async def test_reopen_after_eviction(world: World) -> None:
    world.opens_as()
    await world.fs.files.open(5, os.O_WRONLY, kill_set_ids=False)
    world.lanes.known.clear()
    await world.fs.reopen_all()
    assert list(world.lanes.known) == [5]
    assert world.meta.requests(Op.OPEN)[-1].writable


async def test_reopen_of_a_file_that_is_read_for_what_was_written_before(world: World) -> None:
    """An open for reading in between would take the right away again."""
    world.opens_as()
    await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    await world.fs.files.reopen(5)
    assert not world.meta.requests(Op.OPEN)[-1].writable
    await world.fs.files.reopen(5, True)
    await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    assert [one.writable for one in world.meta.requests(Op.OPEN)[-2:]] == [True, True]


async def test_reopen_of_a_closed_file_gives_the_lanes_a_capability(world: World) -> None:
    world.opens_as()
    given: list[int] = []
    world.lanes.inodes.put = lambda *_: given.append(5)  # type: ignore[method-assign]
    await world.fs.files.reopen(5)
    assert given == [5]
    assert world.fs.inodes.held() == ()
    assert world.fs.inodes.closed.keys() == {5}
    assert not world.lanes.forgotten and not world.logged


@pytest.mark.parametrize(
    ("status", "forgotten", "logged"),
    [(Status.EPERM, [5], 1), (Status.ESTALE, [5], 0), (Status.DISCONNECTED, [], 0)],
)
async def test_reopen_of_a_closed_file_that_fails(
    world: World, status: Status, forgotten: list[int], logged: int
) -> None:
    world.meta.answers[Op.OPEN] = FsError(status)
    await world.fs.files.reopen(5)
    assert world.lanes.forgotten == forgotten
    assert len([line for line in world.logged if "inode 5" in line]) == logged


async def test_reopen_that_fails_while_the_file_is_opened_loses_nothing(world: World) -> None:
    def opened_meanwhile(_: object) -> FsError:
        world.fs.inodes.hold(5)
        return FsError(Status.EBUSY)

    world.meta.answers[Op.OPEN] = opened_meanwhile
    await world.fs.files.reopen(5)
    assert not world.lanes.forgotten


async def test_lost_session_names_what_may_not_be_durable(world: World) -> None:
    world.lanes.lost.add(5)
    world.lanes.unsynced.update(range(1000, 1200))
    world.fs.files.lose()
    written, unsynced = world.logged
    assert "inode 5 " in written
    assert "200 files" in unsynced and ": inodes 1" in unsynced and unsynced.endswith(", ...")


async def test_removed_inode_that_the_kernel_knows(world: World) -> None:
    world.meta.answers[Op.UNLINK] = Removed(record(5, nlink=0, size=3))
    await world.fs.namespace.unlink(1, b"f")
    world.meta.answers[Op.GETATTR] = FsError(Status.ENOENT)
    assert (await world.fs.namespace.getattr(5)).nlink == 0
    world.fs.inodes.forget(5)
    with pytest.raises(FsError):
        await world.fs.namespace.getattr(5)


async def test_long_names(world: World) -> None:
    with pytest.raises(FsError, match="ENAMETOOLONG"):
        await world.fs.namespace.lookup(1, b"x" * 256)


def test_groups_are_read_only_when_needed() -> None:
    asked: list[int] = []

    def pid() -> int:
        asked.append(1)
        return os.getpid()

    requester = Requester(1000, 1000, 0o22, pid)
    assert requester.for_mode(0o644).groups == ()
    assert not asked
    assert set(requester.for_mode(0o2755).groups) == set(os.getgroups())


def test_group_that_is_gone() -> None:
    assert Requester(1, 1, 0, lambda: 2**22 + 5).for_mode(0o2777).groups == ()


def _commit(world: World, size: int) -> None:
    world.fs.files.commit(9, 5, size, 20, struct.pack("<QIIQ", 55, WRITTEN, 0, 0))
    world.meta.deliver_all()


def test_records_of_the_fakes_are_real() -> None:
    assert unpack_attributes(record(5, size=3)).size == 3


async def test_inode_without_xattrs_is_believed_for_a_moment(
    autojump_clock: trio.testing.MockClock,
) -> None:
    meta = FakeMetadata()
    fs = make_fs(meta, FakeLanes(), lambda _: None, believe_s=1.0)
    meta.answers[Op.GETATTR] = Entry(record(5))
    meta.answers[Op.GETXATTR] = XattrValue(b"v")
    meta.answers[Op.SETXATTR] = Entry(record(5, xattr_count=1))
    await fs.namespace.getattr(5)
    assert await fs.namespace.listxattr(5) == ()
    with pytest.raises(FsError, match="ENODATA"):
        await fs.namespace.getxattr(5, b"user.a")
    await trio.sleep(1.1)
    assert await fs.namespace.getxattr(5, b"user.a") == b"v"
    await fs.namespace.getattr(5)
    await fs.namespace.setxattr(5, b"user.a", b"v", Requester(0, 0, 0, lambda: 0))
    assert await fs.namespace.getxattr(5, b"user.a") == b"v"


# ---- quotas -------------------------------------------------------------------------------------


async def test_lanes_are_told_how_far_a_file_may_grow(world: World) -> None:
    world.meta.answers[Op.OPEN] = replace(opened(5), size_limit=100)
    await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)
    assert world.lanes.size_limits == {}, "readers need none"
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    assert world.lanes.size_limits == {5: 100}
    world.meta.answers[Op.COMMIT] = Committed(record(5, size=10), size_limit=60)
    _commit(world, size=10)
    assert world.lanes.size_limits == {5: 60}


async def test_what_was_added_is_charged_before_there_is_more_room(world: World) -> None:
    world.meta.answers[Op.OPEN] = replace(opened(5), size_limit=4096)
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.lanes.written[5] = (4096, 20, WRITTEN)
    world.meta.answers[Op.COMMIT] = Committed(record(5, size=4096), size_limit=4096)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.fs.files.ask, 5, 9000)
        await trio.testing.wait_all_tasks_blocked()
        world.meta.answers[Op.OPEN] = replace(opened(5, size=4096), size_limit=10_000)
        world.meta.deliver_all()
    assert [op for op, _ in world.meta.asked][-2:] == [Op.COMMIT, Op.OPEN]
    assert world.meta.requests(Op.OPEN)[-1].wanted == 9000
    assert world.lanes.size_limits == {5: 10_000}
    assert world.lanes.asked == [(5, 0)]


async def test_a_file_moved_into_a_tree_asks_before_it_grows(world: World) -> None:
    world.meta.answers[Op.OPEN] = replace(opened(5), size_limit=-1)
    await world.fs.files.open(5, os.O_RDWR, kill_set_ids=False)
    world.meta.answers[Op.RENAME] = Renamed(record(5, tree=2), b"")
    await world.fs.namespace.rename(1, b"a", 2, b"b", 0)
    assert world.lanes.size_limits == {5: 0}
