"""Files opened ahead: when a page is requested, what is used of it, and that waste ends it."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing

from fsclient.fs import ahead
from fsclient.fs.ahead import (
    AGAIN_S,
    DIRECTORIES_MIN,
    EAGER_MAX,
    EAGER_USED,
    OPENS_MIN,
    REST_S_MAX,
    WITHIN_S,
    AheadGuard,
    AheadPolicy,
)
from fsclient.fs.changes import Change
from fsclient.fs.delegated_changes import FIRST_HANDLE
from fsclient.leases.table import KnownLimit
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_CHILDREN,
    LEASE_DATA,
    LEASE_ENTRIES,
    LEASE_META,
    unpack_attributes,
    with_lease,
)
from fscommon.limits import OPEN_AHEAD_MAX
from fscommon.wire.ahead import OpenAhead, OpenedAhead
from fscommon.wire.leases import RecallItem, ReturnItem
from fscommon.wire.messages import Open, Opened
from fscommon.wire.ops import Op

from .fakes import layout, record
from .test_kept import closed
from .test_recalls import NEVER_NS, World

PARENT = 3
READER = LEASE_META | LEASE_DATA
NAMES = LEASE_META | LEASE_ENTRIES
FIRST = 100  # the inode number of the first file


# ---- the policy -------------------------------------------------------------------------------


def opened(policy: AheadPolicy, inos: range, now: float = 0.0) -> bool:
    return [policy.opened(PARENT, ino, now) for ino in inos][-1]


def test_a_few_different_files_of_a_directory_are_the_sign() -> None:
    policy = AheadPolicy()
    assert not opened(policy, range(OPENS_MIN - 1))
    assert not opened(policy, range(1)), "again the same"
    assert opened(policy, range(OPENS_MIN - 1, OPENS_MIN))


def gone_into(policy: AheadPolicy, directories: range, now: float = 0.0) -> None:
    for directory in directories:
        for ino in range(OPENS_MIN):
            policy.opened(directory, ino, now)


def test_behind_a_few_directories_the_first_file_of_another_is_the_sign() -> None:
    policy = AheadPolicy()
    gone_into(policy, range(1, DIRECTORIES_MIN))
    assert not policy.opened(100, 1, 1.0)
    gone_into(policy, range(50, 51))
    assert policy.opened(101, 1, 1.0) and policy.ask(101) is not None
    assert not policy.opened(102, 1, WITHIN_S + 2), "that was long ago"


def test_directories_of_which_nothing_is_used_end_that() -> None:
    policy = AheadPolicy()
    gone_into(policy, range(1, DIRECTORIES_MIN + 1))
    asked = [policy.opened(100 + n, 1, 1.0) for n in range(2 * EAGER_MAX)]
    assert asked == [True] * EAGER_MAX + [False] * EAGER_MAX
    assert not policy.opened(1000, 1, 1.0, EAGER_USED - 1)
    assert policy.opened(1001, 1, 1.0, EAGER_USED)
    assert not policy.opened(1002, 1, 1.0, EAGER_USED)
    gone_into(policy, range(2000, 2001), 1.0)
    assert policy.ask(2000) is not None, "by several of its files as ever"


def test_files_opened_now_and_then_are_not() -> None:
    policy = AheadPolicy()
    for number in range(4 * OPENS_MIN):
        assert not policy.opened(PARENT, number, number * (WITHIN_S + 1))


def test_each_open_that_comes_all_the_same_asks_for_twice_as_much() -> None:
    policy = AheadPolicy()
    opened(policy, range(OPENS_MIN))
    asked = []
    for number in range(6):
        page = policy.ask(PARENT)
        assert page is not None and policy.ask(PARENT) is None, "one at a time"
        assert not policy.opened(PARENT, 50, 1.0), "it is on its way"
        asked.append(page)
        policy.answered(PARENT, 1000 + number, 1.0, end=False)
        assert policy.opened(PARENT, 50, 1.0)
    assert asked[0] == (0, ahead.PAGE_COUNT_FIRST)
    assert asked[1] == (1000, 2 * ahead.PAGE_COUNT_FIRST)
    assert asked[-1][1] == OPEN_AHEAD_MAX


def test_at_its_end_a_directory_rests() -> None:
    policy = AheadPolicy()
    opened(policy, range(OPENS_MIN))
    policy.ask(PARENT)
    policy.answered(PARENT, 1000, 1.0, end=True)
    assert not opened(policy, range(50, 60), now=AGAIN_S)
    assert opened(policy, range(50, 60), now=AGAIN_S + 2)
    assert policy.ask(PARENT) == (0, ahead.PAGE_COUNT_FIRST)


def test_a_directory_that_others_change_is_asked_for_again_later() -> None:
    policy = AheadPolicy()
    opened(policy, range(OPENS_MIN))
    policy.ask(PARENT)
    policy.answered(PARENT, 0, 1.0, end=False)
    assert not policy.opened(PARENT, 50, 1.5)
    assert policy.opened(PARENT, 50, 2.5) and policy.ask(PARENT) == (0, ahead.PAGE_COUNT_FIRST)


def test_directories_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "DIRECTORIES_MAX", 2)
    policy = AheadPolicy()
    for parent in range(1, 4):
        for ino in range(OPENS_MIN):
            policy.opened(parent, ino, 0.0)
    assert policy.ask(1) is None
    assert policy.ask(2) is not None and policy.ask(3) is not None


# ---- the guard --------------------------------------------------------------------------------


def test_what_is_used_pays() -> None:
    guard = AheadGuard()
    assert all(guard.may_ask(600 * n, 100 * n, float(n)) for n in range(20))


def test_what_is_not_used_makes_it_rest_longer_and_longer() -> None:
    guard = AheadGuard()
    now, unused, rests = 0.0, 0, []
    for _ in range(10):
        unused += ahead.JUDGED_MIN
        assert not guard.may_ask(0, unused, now)
        began = now
        while not guard.may_ask(0, unused, now):
            now += 1
        rests.append(now - began)
    assert rests[:3] == [10, 20, 40] and rests[-1] == REST_S_MAX
    assert guard.may_ask(ahead.JUDGED_MIN, unused, now)  # it is worth it again
    assert not guard.may_ask(ahead.JUDGED_MIN, unused + ahead.JUDGED_MIN, now)
    assert guard.may_ask(ahead.JUDGED_MIN, unused + ahead.JUDGED_MIN, now + 10)


# ---- the client -------------------------------------------------------------------------------


class Reading(World):
    """A client that reads the files of one directory."""

    def __init__(self, count: int = 20) -> None:
        super().__init__()
        self.inos = list(range(FIRST, FIRST + count))
        self.meta.answers[Op.OPEN] = self._open
        self.meta.answers[Op.OPEN_AHEAD] = self.page
        self.flags = READER
        self.parent = PARENT
        self.grant(PARENT, NAMES)
        for ino in self.inos:
            self.fs.inodes.parents.note(ino, PARENT)

    def _open(self, request: Open) -> Opened:
        reply = Opened(with_lease(record(request.ino), NEVER_NS, READER), layout(55), b"c" * 64)
        self.leases.replied(Op.OPEN, reply, 1)
        return reply

    def page(self, request: OpenAhead) -> OpenedAhead:
        """The page that the metaserver returns: without files that this client has open."""
        held = self.fs.inodes.held()
        inos = [ino for ino in self.inos if ino not in held and ino >= request.cookie]
        page = inos[: request.count]
        reply = OpenedAhead(
            names=tuple([b"%d" % ino for ino in page]),
            attributes=b"".join([with_lease(record(i), NEVER_NS, self.flags) for i in page]),
            layouts=tuple([layout(1000 + ino) for ino in page]),
            capabilities=b"c" * 64 * len(page),
            cookie=page[-1] + 1 if page else request.cookie,
            end=len(page) == len(inos),
        )
        self.leases.replied(Op.OPEN_AHEAD, reply, 2)
        return reply

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.fs.ahead.run)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()

    async def read(self, *inos: int) -> None:
        """An application reads, through Python."""
        for ino in inos:
            file = await self.fs.files.open(ino, os.O_RDONLY, kill_set_ids=False)
            self.fs.released(file.fh, ino)
        await trio.testing.wait_all_tasks_blocked()

    @property
    def granted(self) -> set[int]:
        """The files that lanes know by their directory's grant."""
        return set(self.lanes.children)

    @property
    def asked(self) -> list[OpenAhead]:
        return self.meta.requests(Op.OPEN_AHEAD)


async def test_lanes_have_the_rest_of_the_directory() -> None:
    world = Reading()
    async with world.running():
        await world.read(*world.inos[: OPENS_MIN - 1])
        assert world.asked == []
        await world.read(world.inos[OPENS_MIN - 1])
        assert world.asked == [OpenAhead(PARENT, 0, ahead.PAGE_COUNT_FIRST)]
        assert world.granted == set(world.inos[OPENS_MIN:])
        last = world.inos[-1]
        assert world.lanes.dentries[PARENT, b"%d" % last] == last
        assert set(world.fs.inodes.held()) == set(world.inos[:OPENS_MIN])
        assert world.leases.table.held(last) == 0, "nothing is kept here for each file"


async def test_it_can_be_off() -> None:
    world = Reading()
    await world.read(*world.inos[:10])
    assert world.asked == []


async def test_opens_for_writing_are_no_sign() -> None:
    world = Reading()
    async with world.running():
        for ino in world.inos[:10]:
            file = await world.fs.files.open(ino, os.O_RDWR, kill_set_ids=False)
            world.fs.released(file.fh, ino)
        await trio.testing.wait_all_tasks_blocked()
        assert world.asked == []


async def test_names_that_changed_meanwhile_are_not_believed() -> None:
    world = Reading()

    def page(request: OpenAhead) -> OpenedAhead:
        world.fs.complete.noted(PARENT)
        return world.page(request)

    world.meta.answers[Op.OPEN_AHEAD] = page
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        assert world.lanes.dentries == {} and world.granted == set(world.inos[OPENS_MIN:])


@pytest.mark.parametrize("flags", [0, LEASE_META, LEASE_DATA])
async def test_what_is_not_leased_is_not_taken(flags: int) -> None:
    world = Reading()
    world.flags = flags
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        assert world.granted == set()


async def test_what_was_recalled_meanwhile_is_not_taken() -> None:
    """The recall arrived before the task that waits for the reply ran."""
    world = Reading()
    gone = world.inos[-1]

    def page(request: OpenAhead) -> OpenedAhead:
        reply = world.page(request)
        world.leases.table.give_up(gone, READER, KnownLimit(5))
        return reply

    world.meta.answers[Op.OPEN_AHEAD] = page
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        assert world.granted == set(world.inos[OPENS_MIN:]) - {gone}


async def test_what_was_opened_meanwhile_stays_as_it_is() -> None:
    world = Reading()
    mine = world.inos[-1]

    def page(request: OpenAhead) -> OpenedAhead:
        reply = world.page(request)
        world.fs.inodes.hold(mine).is_writable = True
        return reply

    world.meta.answers[Op.OPEN_AHEAD] = page
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        inode = world.fs.inodes.get(mine)
        assert inode is not None and inode.holds == 1 and inode.is_writable
        assert mine not in world.granted and world.leases.table.held(mine) == READER


async def test_layouts_of_before_a_truncate_are_not_used() -> None:
    world = Reading()
    other = world.inos[5]
    world.meta.answers[Op.SETATTR] = Opened(record(other), layout(9000), b"c" * 64)
    call = world.meta.call

    async def slowly(op: Op, message: object, reply: type, *, urgent: bool = False) -> object:
        outcome: object = await call(op, message, reply, urgent=urgent)
        if isinstance(message, OpenAhead):
            await world.fs.files.setattr(other, Change(size=0))
        return outcome

    world.meta.call = slowly  # type: ignore[method-assign, assignment]
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        assert world.granted == set()


async def test_what_is_opened_or_changed_through_python_is_a_lease_of_its_own() -> None:
    world = Reading()
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        opened, changed, truncated = world.inos[-3:]
        await world.fs.files.open(opened, os.O_RDONLY, kill_set_ids=False)
        newer = replace(unpack_attributes(record(changed)), change_version=9)
        world.fs.inodes.see_record(newer.pack())
        world.meta.answers[Op.SETATTR] = Opened(record(truncated), layout(9000), b"c" * 64)
        await world.fs.files.setattr(truncated, Change(size=0))
        assert not world.granted & {opened, changed, truncated}
        assert {world.leases.table.held(ino) for ino in (opened, changed, truncated)} == {READER}


async def test_what_lanes_have_open_is_taken_over() -> None:
    """The metaserver is told of the open file before the lease goes back, and of its close when it
    is closed."""
    world = Reading()
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        ino = world.inos[-1]
        world.lanes.use_child(ino)
        world.lanes.use_child(ino)
        await world.recall(RecallItem(1, ino, READER, 0, 3))
        assert ino not in world.granted and world.fs.inodes.is_open(ino)
        told = [item for item in world.returned if item.ino == ino]
        assert told == [ReturnItem(ino, 0, 0, is_open=True), ReturnItem(ino, READER, 1)]
        for _ in range(2):
            world.fs.released(FIRST_HANDLE, ino)
        assert not world.fs.inodes.is_open(ino) and ino in closed(world)


async def test_a_recall_finds_it_closed() -> None:
    world = Reading()
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        ino = world.inos[-1]
        await world.recall(RecallItem(1, ino, READER, 0, 3))
        assert ino not in world.granted and (ino, READER) in world.lanes.dropped
        assert world.returned == [ReturnItem(ino, READER, 1)]


async def test_all_that_is_open_is_said_when_a_session_opens() -> None:
    world = Reading()
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        ino = world.inos[-1]
        world.lanes.use_child(ino)
        assert set(world.fs.inodes.single_open()) == {*world.inos[:OPENS_MIN], ino}
        assert world.lanes.is_paused, "nothing more is opened without a word"
        world.fs.inodes.resume()
        assert not world.lanes.is_paused and ino not in world.granted


async def test_a_failure_is_no_end(autojump_clock: trio.testing.MockClock) -> None:
    world = Reading()
    world.meta.answers[Op.OPEN_AHEAD] = FsError(Status.ESTALE)
    async with world.running():
        await world.read(*world.inos[:10])
        assert len(world.asked) == 1 and world.logged == []
        await trio.sleep(AGAIN_S + 1)
        world.leases.renewed(trio.current_time(), 0)
        world.meta.answers[Op.OPEN_AHEAD] = world.page
        world.fs.inodes.unkeep_all()
        await world.read(*world.inos[:10])
        assert len(world.asked) == 2 and len(world.granted) == 10


async def test_columns_of_different_lengths_are_refused() -> None:
    world = Reading()
    world.meta.answers[Op.OPEN_AHEAD] = OpenedAhead((b"a",), b"", (), b"", 1, True)
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        assert len(world.logged) == 1 and world.granted == set()


async def test_the_directory_of_long_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "GRANTED_MAX", 100)
    world = Reading(60)
    other = list(range(1000, 1060))
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        assert world.granted == set(world.inos[OPENS_MIN:])
        old, world.inos, world.parent = world.inos, other, PARENT + 1
        world.grant(PARENT + 1, NAMES)
        for ino in other:
            world.fs.inodes.parents.note(ino, PARENT + 1)
        await world.read(*other[:OPENS_MIN])
        assert world.granted == set(other[OPENS_MIN:])
        given_up = [item.ino for item in world.returned if item.flags == READER]
        assert set(given_up) == set(old[OPENS_MIN:])
        assert world.returned[-1] == ReturnItem(PARENT, LEASE_CHILDREN, 0)
        assert {(ino, READER) for ino in given_up} <= set(world.lanes.dropped)


async def test_leases_that_ended_leave_nothing_granted() -> None:
    """A page that is in flight meanwhile is returned when it arrives."""
    world = Reading()

    def page(request: OpenAhead) -> OpenedAhead:
        reply = world.page(request)
        world.fs.ahead.clear()
        return reply

    world.meta.answers[Op.OPEN_AHEAD] = page
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        assert world.granted == set() and world.lanes.children == {}
        returned = world.returned
        assert {item.ino for item in returned[:-1]} == set(world.inos[OPENS_MIN:])
        assert returned[-1] == ReturnItem(PARENT, LEASE_CHILDREN, 0)
        assert all(world.leases.table.held(ino) == 0 for ino in world.inos[OPENS_MIN:])


async def test_a_restart_begins_anew() -> None:
    world = Reading()
    async with world.running():
        await world.read(*world.inos[:OPENS_MIN])
        ino = world.inos[-1]
        world.lanes.use_child(ino)
        world.fs.restarted()
        assert world.granted == set() and world.fs.inodes.held() == (ino,)
        assert {(ino, LEASE_META) for ino in world.inos} <= set(world.lanes.dropped)
        told = {one.ino: one.flags for batch in world.fs.restorable() for one in batch.leases}
        assert told.items() >= dict.fromkeys(world.inos, LEASE_DATA).items()
        world.grant(PARENT, NAMES)
        await world.read(*world.inos[:OPENS_MIN])
        assert len(world.asked) == 2 and world.granted == set(world.inos[OPENS_MIN:-1])
