"""copy_file_range at the client: what targets copy, what is left to the kernel, and what happens to
the sink when it fails.
"""

import os

import pytest
import trio
import trio.testing

from fsclient.fs.copies import LENGTH_MAX
from fsclient.fs.drains import Extent
from fscommon.errors import FsError, Status
from fscommon.limits import COPY_LENGTH_MIN
from fscommon.wire.messages import (
    COMMIT_MTIME,
    COMMIT_SYNCED,
    SET_GROW,
    SET_SIZE,
    Commit,
    Committed,
    Entry,
    GetAttr,
    Opened,
    SetAttr,
)
from fscommon.wire.ops import Op

from .fakes import FakeWorld, layout, record

SOURCE, SINK = 5, 6
SIZE = 10 << 20


class World(FakeWorld):
    def __init__(self) -> None:
        super().__init__()
        self.sizes = {SOURCE: SIZE, SINK: 0}
        self.changes: list[SetAttr] = []
        self.meta.answers[Op.OPEN] = lambda request: self.opened(request.ino)
        self.meta.answers[Op.GETATTR] = self.getattr
        self.meta.answers[Op.SETATTR] = self.setattr
        self.meta.answers[Op.COMMIT] = Committed(record(SINK))

    def opened(self, ino: int) -> Opened:
        return Opened(record(ino, size=self.sizes[ino]), layout(ino), b"c" * 64)

    def getattr(self, request: GetAttr) -> Entry:
        return Entry(record(request.ino, size=self.sizes[request.ino]))

    def setattr(self, request: SetAttr) -> Opened:
        self.changes.append(request)
        self.sizes[request.ino] = request.size
        return self.opened(request.ino)

    async def open(self) -> None:
        await self.fs.files.open(SOURCE, os.O_RDONLY, kill_set_ids=False)
        await self.fs.files.open(SINK, os.O_WRONLY, kill_set_ids=False)

    async def copy(self, begin: int = 0, sink_begin: int = 0, length: int = SIZE) -> int:
        return await self.fs.copies.copy(
            Extent(SOURCE, begin), Extent(SINK, sink_begin), length, kill_set_ids=False
        )

    async def refused(self, begin: int = 0, sink_begin: int = 0, length: int = SIZE) -> Status:
        with pytest.raises(FsError) as caught:
            await self.copy(begin, sink_begin, length)
        return caught.value.status


@pytest.fixture
def world() -> World:
    return World()


async def test_the_sink_grows_first_and_what_is_durable_is_committed(world: World) -> None:
    await world.open()
    world.lanes.copies.stripes = 0b101
    assert await world.copy(4096, 8192) == SIZE - 4096
    assert world.lanes.copies.made == [(SOURCE, 4096, SINK, 8192, SIZE - 4096)]
    (grown,) = world.changes
    assert (grown.ino, grown.size, grown.valid) == (SINK, SIZE + 4096, SET_SIZE | SET_GROW)
    (commit,) = [request for op, request in world.meta.asked if op is Op.COMMIT]
    assert isinstance(commit, Commit)
    assert commit.flags == COMMIT_MTIME | COMMIT_SYNCED and commit.stripe_bits == 0b101


async def test_whole_blocks_within_the_source_and_no_more_at_once_than_is_bounded(
    world: World,
) -> None:
    world.sizes[SOURCE] = LENGTH_MAX * 2 + 5
    await world.open()
    assert await world.copy(length=1 << 62) == LENGTH_MAX
    assert await world.copy(LENGTH_MAX, LENGTH_MAX, LENGTH_MAX + 5) == LENGTH_MAX
    assert await world.refused(2 * LENGTH_MAX) is Status.EOPNOTSUPP, "the odd end"


async def test_what_the_kernel_is_to_copy(world: World) -> None:
    await world.open()
    assert await world.refused(begin=1) is Status.EOPNOTSUPP
    assert await world.refused(sink_begin=100) is Status.EOPNOTSUPP
    assert await world.refused(length=COPY_LENGTH_MIN - 1) is Status.EOPNOTSUPP
    assert await world.refused(begin=SIZE) is Status.EOPNOTSUPP
    with pytest.raises(FsError) as caught:
        await world.fs.copies.copy(
            Extent(SOURCE, 0), Extent(SOURCE, SIZE), SIZE, kill_set_ids=False
        )
    assert caught.value.status is Status.EOPNOTSUPP
    world.lanes.copies.reach = COPY_LENGTH_MIN - 4096
    world.sizes[SINK] = 5
    assert await world.refused() is Status.EOPNOTSUPP
    assert world.lanes.copies.made == [] and world.changes == []


async def test_an_empty_sink_is_laid_out_like_the_source(world: World) -> None:
    await world.open()
    world.lanes.copies.reach = 0

    def setattr_(request: SetAttr) -> Opened:
        world.lanes.copies.reach = 1 << 40
        return world.setattr(request)

    world.meta.answers[Op.SETATTR] = setattr_
    assert await world.copy() == SIZE
    like, grown = world.changes
    assert (like.ino, like.size, like.like) == (SINK, 0, SOURCE)
    assert (grown.size, grown.like) == (SIZE, 0)


@pytest.mark.parametrize("before", [0, 4096, 2 * SIZE])
async def test_a_copy_that_fails_leaves_the_size_as_it_was(world: World, before: int) -> None:
    world.sizes[SINK] = before
    await world.open()
    world.lanes.copies.status = int(Status.ENOSPC)
    assert await world.refused() is Status.ENOSPC
    assert world.sizes[SINK] == before
    assert len(world.changes) == (0 if before > SIZE else 2)


async def test_a_quota_speaks_before_the_copy(world: World) -> None:
    await world.open()
    world.meta.answers[Op.SETATTR] = FsError(Status.EDQUOT)
    assert await world.refused() is Status.EDQUOT
    assert world.lanes.copies.made == []


async def test_a_copy_under_way_is_not_called_back(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """A signal does not interrupt it: bytes copied later would overwrite what is written then."""
    await world.open()
    world.lanes.copies.waits = True
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_copying, world, scope)
            assert await world.copy() == SIZE
    assert world.sizes[SINK] == SIZE


async def _cancel_when_copying(world: World, scope: trio.CancelScope) -> None:
    await trio.sleep(1)
    assert world.lanes.copies.made
    scope.cancel()
    await trio.sleep(1)
    world.lanes.finish_copy()


async def test_source_and_sink_are_durable_before_targets_copy(world: World) -> None:
    """A target that lost bytes that it had not synced would copy the bytes from before, and
    succeed."""
    await world.open()
    await world.copy()
    drained = [(ino, sync) for _, ino, sync in world.lanes.drained]
    assert drained[:2] == [(SOURCE, True), (SINK, True)]
