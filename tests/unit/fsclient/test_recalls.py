"""Recalls over fakes: what is given up, in which order, and what is returned."""

import itertools
import os

import pytest
import trio
import trio.testing

from fsclient.leases.former import ABSENT_S
from fsclient.leases.holder import CONTENDED_MAX, CONTENDED_S
from fsclient.leases.recalls import RESTORED_MAX
from fsclient.leases.table import KnownLimit
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    with_lease,
)
from fscommon.wire.leases import LeaseReturn, RecallItem, ReturnItem
from fscommon.wire.messages import (
    COMMIT_SIZE,
    RENAME_EXCHANGE,
    Committed,
    Entry,
    Opened,
    ReadDirReply,
    Renamed,
)
from fscommon.wire.ops import Op

from .fakes import FakeWorld, layout, record

WRITER = LEASE_META | LEASE_DATA | LEASE_META_EXCLUSIVE | LEASE_DATA_EXCLUSIVE
NEVER_NS = 30_000_000_000


class World(FakeWorld):
    """A client that holds leases."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = self.fs.leases
        self.leases.session_opened(30.0)
        self.leases.renewed(trio.current_time(), 0)

    def grant(self, ino: int, flags: int, request_id: int = 1) -> None:
        reply = Entry(with_lease(record(ino), NEVER_NS, flags))
        self.leases.replied(Op.GETATTR, reply, request_id)

    async def recall(self, *items: RecallItem) -> None:
        async with trio.open_nursery() as nursery:
            self.fs.recalls.start(items, nursery)

    @property
    def returned(self) -> list[ReturnItem]:
        items: list[ReturnItem] = []
        for op, message in self.meta.told:
            if op is Op.LEASE_RETURN:
                assert isinstance(message, LeaseReturn)
                items += message.items
        return items


async def test_names_are_forgotten_then_returned() -> None:
    world = World()
    world.grant(7, LEASE_META | LEASE_ENTRIES)
    await world.recall(RecallItem(1, 7, LEASE_ENTRIES, 0, 3))
    assert world.lanes.dropped == [(7, LEASE_ENTRIES)]
    assert world.returned == [ReturnItem(7, LEASE_ENTRIES, 1)]
    assert world.leases.holds(7, LEASE_META)
    assert not world.leases.holds(7, LEASE_ENTRIES)
    world.grant(7, LEASE_ENTRIES, 3)
    assert not world.leases.holds(7, LEASE_ENTRIES)


async def test_what_is_not_held_is_returned_at_once() -> None:
    world = World()
    await world.recall(RecallItem(4, 9, LEASE_DATA, 0, 3))
    assert world.lanes.dropped == []
    assert world.returned == [ReturnItem(9, LEASE_DATA, 4)]


async def test_shared_leases_recalled_together_are_returned_together() -> None:
    world = World()
    for ino in (7, 8, 9):
        world.grant(ino, LEASE_META | LEASE_DATA)
    world.fs.inodes.hold(5)
    world.grant(5, WRITER)
    recalls = [RecallItem(ino, ino, LEASE_META | LEASE_DATA, 0, 3) for ino in (7, 8, 9)]
    await world.recall(*recalls, RecallItem(5, 5, WRITER, 0, 3))
    together = [len(told.items) for _, told in world.meta.told if isinstance(told, LeaseReturn)]
    assert sorted(together) == [1, 3]
    assert not any(world.leases.holds(ino, LEASE_META) for ino in (5, 7, 8, 9))
    world.grant(8, LEASE_DATA, 3)
    assert not world.leases.holds(8, LEASE_DATA)


async def test_one_that_is_recalled_again_meanwhile_waits_its_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.lanes.notifies = False  # the first takes its time
    for ino in (7, 8):
        world.grant(ino, LEASE_META | LEASE_DATA)
    async with trio.open_nursery() as nursery:
        world.fs.recalls.start((RecallItem(1, 7, LEASE_DATA, 0, 3),), nursery)
        await trio.testing.wait_all_tasks_blocked()
        items = (RecallItem(2, 7, LEASE_META, 0, 3), RecallItem(3, 8, LEASE_META, 0, 3))
        world.fs.recalls.start(items, nursery)
        await trio.testing.wait_all_tasks_blocked()
        assert world.returned == []
    assert sorted(item.recall for item in world.returned) == [1, 2, 3]
    assert world.returned[-1].recall == 2


async def test_a_kernel_that_waits_for_a_lock_does_not_hold_names(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.lanes.notifies = False
    world.grant(7, LEASE_ENTRIES)
    await world.recall(RecallItem(1, 7, LEASE_ENTRIES, 0, 3))
    assert world.fs.recalls.late_count == 1
    assert len(world.returned) == 1


def _page(*names: bytes, end: bool) -> ReadDirReply:
    cookies = b"".join(cookie.to_bytes(8, "little") for cookie in range(1, len(names) + 1))
    return ReadDirReply(names, cookies, b"", end)


async def test_names_that_a_former_process_told_expire_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    pages = [_page(b"a", b"b", end=False), _page(b"c", end=True), _page(end=True)]
    world.meta.answers[Op.READDIR] = lambda _request: pages.pop(0)
    world.fs.recalls.former.follow(30.0)
    began = trio.current_time()
    await world.recall(RecallItem(1, 7, LEASE_ENTRIES, 0, 3))
    assert world.lanes.expired == [(7, b"a"), (7, b"b"), (7, b"c")]
    assert world.lanes.dropped == [(7, LEASE_ENTRIES)], "though nobody knows of the lease"
    assert trio.current_time() - began >= ABSENT_S, "what was not there may still be believed"
    assert world.returned == [ReturnItem(7, LEASE_ENTRIES, 1)]
    await world.recall(RecallItem(2, 7, LEASE_ENTRIES, 0, 5))
    assert len(world.lanes.expired) == 3


async def test_a_former_process_is_believed_for_one_lease(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.fs.recalls.former.follow(30.0)
    await trio.sleep(30.0)
    await world.recall(RecallItem(1, 7, LEASE_ENTRIES, 0, 3))
    assert not world.lanes.expired
    assert world.lanes.dropped == []


async def test_former_names_that_cannot_be_asked_for_are_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.meta.answers[Op.READDIR] = FsError(Status.EIO)
    world.fs.recalls.former.follow(30.0)
    await world.recall(RecallItem(1, 7, LEASE_ENTRIES, 0, 3))
    assert len(world.returned) == 1
    assert any("directory 7" in line for line in world.logged)


async def test_an_exclusive_lease_is_drained_and_committed_first() -> None:
    world = World()
    world.fs.inodes.hold(5)
    world.grant(5, WRITER)
    states: list[tuple[int, int]] = []
    told = world.meta.tell

    def tell(op: Op, message: object, *, urgent: bool = False) -> object:
        states.append((len(world.lanes.drained), world.lanes.leased[5][1]))
        assert urgent
        return told(op, message, urgent=urgent)

    world.meta.tell = tell  # type: ignore[method-assign, assignment]
    await world.recall(RecallItem(1, 5, WRITER, 0, 3))
    # Writes that went on during the recall were drained too, and no more are let through.
    assert states == [(2, 0)]
    assert world.lanes.leased[5] == (0, 0)
    assert world.lanes.dropped == [(5, LEASE_META | LEASE_DATA)]


async def test_bytes_size_and_pages_leave_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other client may read before the lease is returned: none of the three waits for
    another."""
    world = World()
    world.fs.inodes.hold(5).is_writable = True
    world.grant(5, WRITER)
    world.lanes.written[5] = (4096, 77, COMMIT_SIZE)
    world.meta.answers[Op.COMMIT] = Committed(record(5, size=4096))
    world.lanes.notifies = False  # the kernel waits for a locked page
    tokens: list[int] = []
    monkeypatch.setattr(world.lanes, "drain", lambda token, *_: tokens.append(token))
    async with trio.open_nursery() as nursery:
        world.fs.recalls.start((RecallItem(1, 5, WRITER, 0, 3),), nursery)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert world.lanes.dropped == [(5, LEASE_META | LEASE_DATA)]
        assert world.meta.requests(Op.COMMIT)[0].size == 4096
        assert len(tokens) == 1 and world.returned == []
        world.fs.drains.done(tokens.pop(), 0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_used", [False, True])
async def test_pages_are_waited_for_again_only_where_requests_went_on(is_used: bool) -> None:
    world = World()
    world.fs.inodes.hold(5)
    world.grant(5, WRITER)
    world.lanes.used_during_recall = frozenset({5} if is_used else ())
    await world.recall(RecallItem(1, 5, WRITER, 0, 3))
    assert world.lanes.barriers == int(is_used)
    assert len(world.returned) == 1


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("is_sent", [False, True])
async def test_what_is_sent_again_arrives_before_a_shared_lease_is_returned(
    is_open: bool, is_sent: bool
) -> None:
    world = World()
    if is_open:
        world.fs.inodes.hold(5)
    world.grant(5, LEASE_META | LEASE_DATA)
    world.lanes.used_during_recall = frozenset({5} if is_sent else ())
    await world.recall(RecallItem(1, 5, LEASE_META | LEASE_DATA, 0, 3))
    assert len(world.lanes.drained) == int(is_sent) and len(world.returned) == 1


async def test_a_commit_that_fails_is_made_again_before_the_return() -> None:
    world = World()
    world.fs.inodes.hold(5).is_writable = True
    world.grant(5, WRITER)
    world.lanes.written[5] = (4096, 77, COMMIT_SIZE)
    world.meta.answers[Op.COMMIT] = FsError(Status.ETIMEDOUT)
    await world.recall(RecallItem(1, 5, WRITER, 0, 3))
    assert len(world.lanes.drained) == 2
    assert world.returned == [ReturnItem(5, WRITER, 1)]


async def test_a_downgrade_keeps_pages() -> None:
    world = World()
    world.fs.inodes.hold(5)
    world.grant(5, WRITER)
    await world.recall(RecallItem(1, 5, LEASE_META_EXCLUSIVE | LEASE_DATA_EXCLUSIVE, 0, 3))
    assert world.lanes.dropped == []
    assert world.lanes.leased[5] == (LEASE_META | LEASE_DATA, 0)
    assert len(world.lanes.drained) == 2


async def test_a_file_that_others_write_is_opened_past_the_page_cache(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """This lasts for a while: the kernel may know an old size, which ends buffered reads."""
    world = World()
    world.meta.answers[Op.OPEN] = Opened(
        with_lease(record(5), NEVER_NS, LEASE_META | LEASE_DATA), layout(1), b"c" * 64
    )

    requests = itertools.count(2000)

    async def is_direct() -> bool:
        world.grant(5, LEASE_META | LEASE_DATA, next(requests))
        assert world.leases.is_cached(5)
        return (await world.fs.files.open(5, os.O_RDONLY, kill_set_ids=False)).direct

    assert not await is_direct()
    await world.recall(RecallItem(1, 5, LEASE_DATA_EXCLUSIVE, 0, 3))
    assert not await is_direct(), "others only read it"
    await world.recall(RecallItem(2, 5, LEASE_META | LEASE_DATA, 0, 3))
    assert await is_direct()
    await trio.sleep(CONTENDED_S)
    assert not await is_direct()


async def test_contended_files_are_bounded() -> None:
    world = World()
    for ino in range(2, CONTENDED_MAX + 3):
        world.leases.bytes_recalled(ino)
    assert not world.leases.is_contended(2)
    assert world.leases.is_contended(3) and world.leases.is_contended(CONTENDED_MAX + 2)


async def test_a_question_for_the_size_keeps_everything() -> None:
    world = World()
    world.fs.inodes.hold(5).is_writable = True
    world.grant(5, WRITER)
    world.lanes.written[5] = (4096, 77, COMMIT_SIZE)
    world.meta.answers[Op.COMMIT] = Committed(record(5, size=4096))
    async with trio.open_nursery() as nursery:
        world.fs.recalls.start((RecallItem(2, 5, 0, 0, 3),), nursery)
        while not world.meta.waiting:
            await trio.lowlevel.checkpoint()
        assert world.returned == []
        world.meta.deliver_all()
    assert world.meta.requests(Op.COMMIT)[0].size == 4096
    assert world.returned == [ReturnItem(5, 0, 2)]
    assert world.leases.holds(5, WRITER)
    assert world.lanes.drained == []


async def test_a_repeated_recall_is_worked_on_once() -> None:
    world = World()
    world.grant(7, LEASE_ENTRIES)
    item = RecallItem(1, 7, LEASE_ENTRIES, 0, 3)
    await world.recall(item, item)
    assert len(world.returned) == 1


async def test_leases_that_end_take_the_pages_along(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    world.grant(5, LEASE_DATA)
    world.grant(6, WRITER)
    with trio.move_on_after(35):
        await world.fs.recalls.watch_end(trio.current_time)
    assert (5, LEASE_DATA) in world.lanes.dropped
    assert not world.leases.holds(6, WRITER)
    assert world.leases.exclusive() == (6,)  # its unwritten bytes may still be written
    assert len(world.logged) == 1


async def test_an_evicted_session_holds_nothing_and_names_what_was_lost() -> None:
    world = World()
    world.fs.inodes.hold(5)
    world.fs.inodes.hold(6)
    world.grant(5, WRITER)
    world.lanes.lost.add(5)
    world.fs.lost_session()
    assert not world.leases.holds(5, LEASE_META)
    assert [line for line in world.logged if "lost" in line] == [
        "written bytes of inode 5 are lost: its next fsync or close fails"
    ]


@pytest.mark.parametrize("is_writable", [True, False])
async def test_who_is_about_to_write_asks_once(is_writable: bool) -> None:
    """The kernel asks for the file's capability before it writes: the lease comes with the answer,
    if the file is open for writing."""
    world = World()
    world.fs.inodes.hold(5).is_writable = is_writable
    opened = Opened(with_lease(record(5), NEVER_NS, WRITER), layout(5), b"")

    def answer(_request: object) -> Opened:
        world.leases.replied(Op.OPEN, opened, 1)
        return opened

    world.meta.answers[Op.OPEN] = answer
    world.meta.answers[Op.GETXATTR] = FsError(Status.ENODATA)
    for name in (b"security.capability", b"user.a"):
        with pytest.raises(FsError, match="ENODATA"):
            await world.fs.namespace.getxattr(5, name)
    assert len(world.meta.requests(Op.OPEN)) == is_writable
    assert len(world.meta.requests(Op.GETXATTR)) == 2 * (not is_writable)
    assert world.leases.holds(5, LEASE_DATA_EXCLUSIVE) is is_writable


async def test_a_stat_takes_the_lease_once_where_it_was_written_under_before() -> None:
    world = World()
    world.fs.inodes.hold(5).is_writable = True
    requests = itertools.count(2000)

    def answer(_request: object) -> Opened:
        opened = Opened(with_lease(record(5), NEVER_NS, WRITER), layout(5), b"")
        world.leases.replied(Op.OPEN, opened, next(requests))
        return opened

    world.meta.answers[Op.OPEN] = answer
    world.meta.answers[Op.GETATTR] = Entry(record(5))
    world.meta.answers[Op.COMMIT] = Committed(record(5, size=4096))

    async def opens_of_a_stat() -> int:
        before = len(world.meta.requests(Op.OPEN))
        await world.fs.namespace.getattr(5)
        return len(world.meta.requests(Op.OPEN)) - before

    assert await opens_of_a_stat() == 0, "it never wrote"
    world.grant(5, WRITER, next(requests))
    world.lanes.written[5] = (4096, 77, COMMIT_SIZE)
    takes = []
    for recall in range(1, 4):
        await world.recall(RecallItem(recall, 5, WRITER, 0, 3))
        takes.append(await opens_of_a_stat())
    assert takes[0] == 1, "it takes turns with another writer"
    assert takes[-1] == 0, "it only looks now"


async def test_nothing_is_asked_for_while_it_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = World()
    world.fs.inodes.hold(5)
    world.grant(5, LEASE_DATA)
    world.lanes.notifies = False
    asked: list[int] = []
    opened = Opened(with_lease(record(5), NEVER_NS, LEASE_DATA), layout(9), b"")

    def answer(_request: object) -> Opened:
        asked.append(len(world.returned))
        return opened

    world.meta.answers[Op.OPEN] = answer
    async with trio.open_nursery() as nursery:
        world.fs.recalls.start((RecallItem(1, 5, LEASE_DATA, 0, 3),), nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(world.fs.files.ask, 5)
    assert asked == [1]
    assert world.lanes.asked == [(5, 0)]


async def test_another_metaserver_is_told_what_is_being_given_up() -> None:
    world = World()
    world.fs.inodes.hold(5)
    world.grant(5, WRITER)
    world.leases.table.give_up(5, WRITER, KnownLimit(3))
    world.leases.recalling[5] = WRITER
    assert world.leases.exclusive() == (5,)


async def test_an_evicted_session_makes_the_kernel_forget_its_own_files_too() -> None:
    world = World()
    world.grant(5, WRITER)
    world.fs.recalls.evicted()
    assert (5, LEASE_META | LEASE_DATA) in world.lanes.dropped


async def test_recalls_of_one_inode_are_answered_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer to the second recall would end the first, whose bytes are not drained yet."""
    world = World()
    world.fs.inodes.hold(5)
    world.grant(5, WRITER)
    tokens: list[int] = []

    def drain(token: int, ino: int, sync: bool, commit: bool) -> None:
        tokens.append(token)

    monkeypatch.setattr(world.lanes, "drain", drain)  # it ends when this test says so
    downgrade = RecallItem(1, 5, LEASE_META_EXCLUSIVE | LEASE_DATA_EXCLUSIVE, 0, 3)
    async with trio.open_nursery() as nursery:
        world.fs.recalls.start((downgrade, RecallItem(2, 5, WRITER, 0, 3)), nursery)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert len(tokens) == 1
        assert world.returned == []
        while len(world.returned) < 2:
            if tokens:
                world.fs.drains.done(tokens.pop(), 0)
            await trio.testing.wait_all_tasks_blocked(0.01)
    assert {item.recall for item in world.returned} == {1, 2}


# ---- a restarted metaserver ---------------------------------------------------------------------


def _told(world: World) -> dict[int, int]:
    batches = list(world.fs.restorable())
    return {lease.ino: lease.flags for batch in batches for lease in batch.leases}


async def test_bytes_and_names_outlive_the_metaserver_attributes_do_not() -> None:
    world = World()
    world.grant(7, LEASE_META | LEASE_DATA)
    world.grant(8, LEASE_META | LEASE_ENTRIES)
    world.grant(9, WRITER)
    world.fs.restarted()
    assert _told(world) == {7: LEASE_DATA, 8: LEASE_ENTRIES}
    assert world.leases.holds(7, LEASE_DATA) and not world.leases.holds(7, LEASE_META)
    assert world.leases.holds(9, WRITER), "SESSION_OPEN has it"
    assert all(facets == LEASE_META for _, facets in world.lanes.dropped)
    world.fs.recalls.lost((7, 9, 123))
    assert not world.leases.holds(7, LEASE_DATA) and world.leases.holds(9, WRITER)
    assert (7, LEASE_DATA) in world.lanes.dropped
    world.fs.recalls.lost(None)
    assert not world.leases.holds(8, LEASE_ENTRIES) and world.leases.holds(9, WRITER)
    assert _told(world) == {}


async def test_leases_of_open_files_come_first_and_the_youngest_then() -> None:
    world = World()
    count = RESTORED_MAX + 10
    for ino in range(100, 100 + count):
        world.grant(ino, LEASE_DATA)
    for ino in range(100, 105):
        world.fs.inodes.hold(ino)
    told = _told(world)
    assert list(told) == [*range(100, 105), *range(110, 100 + count)]
    assert not world.leases.holds(105, LEASE_DATA), "what is not told is not held"


@pytest.mark.parametrize("flags", (0, RENAME_EXCHANGE))
async def test_a_name_that_is_taken_along_expires_where_it_may_not_be_believed(flags: int) -> None:
    world = World()
    world.grant(7, LEASE_ENTRIES)  # the kernel uses cached names here, and has none of directory 8
    replaced = record(6) if flags else b""
    world.meta.answers[Op.RENAME] = Renamed(record(5), replaced)
    await world.fs.namespace.rename(7, b"old", 8, b"new", flags)
    assert world.lanes.expired == [(8, b"new")]
    await world.fs.namespace.rename(7, b"old", 7, b"new", flags)
    assert world.lanes.expired == [(8, b"new")]
