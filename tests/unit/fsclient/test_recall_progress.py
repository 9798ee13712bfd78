"""How far recalls are: which histories exist, and which one each kind of recall has."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from fsclient.leases.connection import RecallConnection
from fsclient.leases.recall_progress import (
    RecallMark,
    RecallProgress,
    RecallState,
    WrongRecallStateError,
)
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_DATA, LEASE_ENTRIES, LEASE_META
from fscommon.wire.codec import encode
from fscommon.wire.frame import Frame
from fscommon.wire.header import Header
from fscommon.wire.leases import Recall, RecallItem, ReturnItem
from fscommon.wire.messages import COMMIT_SIZE, Committed
from fscommon.wire.ops import Op

from .fakes import record
from .test_recalls import WRITER, World

ITEM = RecallItem(4, 7, LEASE_META, 0, 3)


# ---- the machine alone --------------------------------------------------------------------------


def _progress(states: tuple[RecallState, ...]) -> RecallProgress:
    made = RecallProgress(ITEM)
    for state in states:
        made.enter(state)
    return made


def _histories(states: tuple[RecallState, ...] = ()) -> Iterator[str]:
    """Those of all recalls that end, after these states."""
    if _progress(states).has_ended:
        yield _progress(states).history()
        return
    for state in RecallState:
        try:
            _progress((*states, state))
        except WrongRecallStateError:
            continue
        yield from _histories((*states, state))


def test_these_histories_exist_and_no_others() -> None:
    assert set(_histories()) == {
        "waiting → abandoned",
        "waiting → reporting size → returned",
        "waiting → reporting size → failed → returned",
        "waiting → reporting size → abandoned",
        "waiting → masked → forgotten → returned",
        "waiting → masked → failed → returned",
        "waiting → masked → draining → forgotten → returned",
        "waiting → masked → draining → failed → returned",
    }


def test_a_wrong_step_is_named_and_changes_nothing() -> None:
    one = RecallProgress(ITEM)
    with pytest.raises(WrongRecallStateError) as raised:
        one.enter(RecallState.RETURNED)
    assert str(raised.value) == "recall 4 of inode 7: waiting cannot become returned"
    assert one.state is RecallState.WAITING


def test_a_mark_is_noted_once_for_each_state() -> None:
    one = RecallProgress(ITEM)
    one.mark(RecallMark.REPEATED)
    one.mark(RecallMark.REPEATED)
    one.enter(RecallState.MASKED)
    one.mark(RecallMark.REPEATED)
    one.mark(RecallMark.LATE)
    assert repr(one) == "recall 4 of inode 7: waiting (repeated) → masked (repeated, late)"


# ---- recalls in work ----------------------------------------------------------------------------


class Drains:
    """Drains of lanes, which end when the test says so."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._world = world
        self._tokens: list[int] = []
        monkeypatch.setattr(world.lanes, "drain", lambda token, *_: self._tokens.append(token))

    async def finish(self, nursery: trio.Nursery) -> None:
        """All of them, until no recall is in work."""
        while self._world.fs.recalls.in_work():
            await trio.testing.wait_all_tasks_blocked()
            while self._tokens:
                self._world.fs.drains.done(self._tokens.pop(), 0)
        nursery.cancel_scope.cancel()


def _writer(world: World, ino: int = 5) -> None:
    world.fs.inodes.hold(ino).is_writable = True
    world.grant(ino, WRITER)


@pytest.fixture
async def world() -> World:
    return World()


@pytest.fixture
async def writer(world: World) -> World:
    """A world in which this client writes inode 5."""
    _writer(world)
    return world


@pytest.fixture
async def drains(world: World, monkeypatch: pytest.MonkeyPatch) -> Drains:
    return Drains(world, monkeypatch)


@asynccontextmanager
async def _recalled(world: World, drains: Drains, flags: int) -> AsyncIterator[trio.Nursery]:
    """Recall 1 of inode 5 has begun; it comes to its end after this block."""
    async with trio.open_nursery() as nursery:
        world.fs.recalls.start((RecallItem(1, 5, flags, 0, 3),), nursery)
        await trio.testing.wait_all_tasks_blocked()
        yield nursery
        await drains.finish(nursery)


def _ended(world: World) -> list[str]:
    assert world.fs.recalls.in_work() == ()
    return [repr(one) for one in world.fs.recalls.ended]


def _in_work(world: World) -> list[str]:
    return [repr(one) for one in world.fs.recalls.in_work()]


async def test_shared_leases_are_masked_forgotten_and_returned(world: World) -> None:
    world.grant(7, LEASE_META | LEASE_ENTRIES)
    for ino in (8, 9):
        world.grant(ino, LEASE_META | LEASE_DATA)
    await world.recall(
        RecallItem(1, 7, LEASE_ENTRIES, 0, 3),
        RecallItem(2, 8, LEASE_DATA, 0, 3),
        RecallItem(3, 9, LEASE_DATA, 0, 3),
        RecallItem(4, 10, LEASE_DATA, 0, 3),  # nothing is held of it
    )
    assert sorted(_ended(world)) == [
        "recall 1 of inode 7: waiting → masked → forgotten → returned",
        "recall 2 of inode 8: waiting → masked → forgotten → returned",
        "recall 3 of inode 9: waiting → masked → forgotten → returned",
        "recall 4 of inode 10: waiting → masked → forgotten → returned",
    ]


async def test_exclusive_leases_are_drained(writer: World, drains: Drains) -> None:
    async with trio.open_nursery() as nursery:
        writer.fs.recalls.start((RecallItem(1, 5, WRITER, 0, 3),), nursery)
        assert _in_work(writer) == ["recall 1 of inode 5: waiting"]
        await trio.testing.wait_all_tasks_blocked()
        assert _in_work(writer) == ["recall 1 of inode 5: waiting → masked → draining"]
        assert writer.returned == []
        await drains.finish(nursery)
    assert _ended(writer) == [
        "recall 1 of inode 5: waiting → masked → draining → forgotten → returned"
    ]


async def test_a_recall_that_demands_the_size_gives_nothing_up(writer: World) -> None:
    await writer.recall(RecallItem(1, 5, 0, 0, 3))
    assert _ended(writer) == ["recall 1 of inode 5: waiting → reporting size → returned"]


async def test_a_second_recall_waits_while_the_first_one_drains(
    writer: World, drains: Drains
) -> None:
    async with _recalled(writer, drains, LEASE_DATA) as nursery:
        writer.fs.recalls.start((RecallItem(2, 5, WRITER, 0, 3),), nursery)
        await trio.testing.wait_all_tasks_blocked()
        assert _in_work(writer) == [
            "recall 1 of inode 5: waiting → masked → draining",
            "recall 2 of inode 5: waiting",
        ]
    assert _ended(writer) == [
        "recall 1 of inode 5: waiting → masked → draining → forgotten → returned",
        "recall 2 of inode 5: waiting → masked → forgotten → returned",
    ]
    assert [item.recall for item in writer.returned] == [1, 2]


class Stream:
    """A connection for recalls on which these items arrive; then it is lost, or stays."""

    def __init__(self, *batches: tuple[RecallItem, ...], is_lost: bool) -> None:
        self._frames = [Frame(Header(Op.RECALL), encode(Recall(items))) for items in batches]
        self._is_lost = is_lost
        self.is_read = trio.Event()

    async def receive_batch(self) -> list[Frame]:
        await trio.lowlevel.checkpoint()
        if not self._frames:
            await trio.testing.wait_all_tasks_blocked()
            self.is_read.set()
            if not self._is_lost:
                await trio.sleep_forever()
        frames, self._frames = self._frames, []
        return frames

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class Session:
    """Its recalls come over these connections, one after another."""

    number, address, wants_recalls = 1, "metaserver", True

    def __init__(self, *streams: Stream) -> None:
        self._streams = list(streams)

    def look_at_map(self) -> None:
        raise AssertionError("no map has changed")

    async def dial(self, _address: str, _session: int) -> Stream:
        await trio.lowlevel.checkpoint()
        return self._streams.pop(0)


async def test_a_recall_that_a_new_connection_repeats_goes_on(
    writer: World, drains: Drains, autojump_clock: trio.testing.MockClock
) -> None:
    item = RecallItem(1, 5, WRITER, 0, 3)
    again = Stream((), (item,), is_lost=False)
    session = Session(Stream((), (item,), is_lost=True), again)
    async with trio.open_nursery() as nursery:

        def recalled(items: tuple[RecallItem, ...]) -> None:
            writer.fs.recalls.start(items, nursery)

        connection = RecallConnection(session, session.dial, recalled, writer.logged.append)
        nursery.start_soon(connection.run)
        await again.is_read.wait()
        assert connection.connection_count == 2
        assert _in_work(writer) == ["recall 1 of inode 5: waiting → masked → draining (repeated)"]
        await drains.finish(nursery)
    assert _ended(writer) == [
        "recall 1 of inode 5: waiting → masked → draining (repeated) → forgotten → returned"
    ]
    assert writer.returned == [ReturnItem(5, WRITER, 1)]


async def test_a_recall_goes_on_when_the_metaserver_was_restarted(
    writer: World, drains: Drains
) -> None:
    async with _recalled(writer, drains, WRITER):
        writer.fs.restarted()
        assert writer.leases.exclusive() == (5,), "the new metaserver is told of it"
    assert _ended(writer) == [
        "recall 1 of inode 5: "
        "waiting → masked → draining (metaserver restarted) → forgotten → returned"
    ]
    assert writer.leases.exclusive() == ()


async def test_a_recall_ends_after_its_session_was_lost(writer: World, drains: Drains) -> None:
    async with _recalled(writer, drains, WRITER):
        writer.fs.lost_session()
    assert _ended(writer) == [
        "recall 1 of inode 5: waiting → masked → draining (session lost) → forgotten → returned"
    ]


@pytest.mark.parametrize(
    ("flags", "history"),
    [
        (LEASE_META | LEASE_DATA, "waiting → masked (late) → forgotten → returned"),
        (WRITER, "waiting → masked → draining (late) → forgotten → returned"),
    ],
)
async def test_a_kernel_that_does_not_forget_in_time_is_marked(
    world: World, autojump_clock: trio.testing.MockClock, flags: int, history: str
) -> None:
    world.fs.inodes.hold(5)
    world.grant(5, flags)
    world.lanes.notifies = False
    await world.recall(RecallItem(1, 5, flags, 0, 3))
    assert _ended(world) == [f"recall 1 of inode 5: {history}"]
    assert world.fs.recalls.late_count == 1


async def test_what_cannot_be_written_is_returned_as_failed(writer: World) -> None:
    writer.lanes.drain_status = Status.EIO
    await writer.recall(RecallItem(1, 5, WRITER, 0, 3))
    assert _ended(writer) == [
        "recall 1 of inode 5: waiting → masked → draining → failed → returned"
    ]
    assert writer.returned == [ReturnItem(5, WRITER, 1)]


async def test_a_size_that_cannot_be_reported_is_returned_as_failed(
    writer: World, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def fail(_ino: int) -> None:
        await trio.lowlevel.checkpoint()
        raise FsError(Status.EIO)

    monkeypatch.setattr(writer.fs.files, "report_size", fail)
    await writer.recall(RecallItem(1, 5, 0, 0, 3))
    assert _ended(writer) == ["recall 1 of inode 5: waiting → reporting size → failed → returned"]


async def test_a_client_that_stops_returns_only_what_it_gave_up(
    writer: World, drains: Drains
) -> None:
    _writer(writer, 6)
    writer.lanes.written[6] = (4096, 77, COMMIT_SIZE)
    writer.meta.answers[Op.COMMIT] = Committed(record(6, size=4096))
    async with trio.open_nursery() as nursery:
        writer.fs.recalls.start((RecallItem(1, 5, WRITER, 0, 3),), nursery)
        await trio.testing.wait_all_tasks_blocked()
        items = (
            RecallItem(2, 5, LEASE_META, 0, 3),  # it has to wait for its turn
            RecallItem(3, 6, 0, 0, 3),  # its commit is not answered
        )
        writer.fs.recalls.start(items, nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sorted(_ended(writer)) == [
        "recall 1 of inode 5: waiting → masked → draining → failed → returned",
        "recall 2 of inode 5: waiting → abandoned",
        "recall 3 of inode 6: waiting → reporting size → abandoned",
    ]
    assert [item.recall for item in writer.returned] == [1]


async def test_recalls_that_wait_for_their_grants_are_abandoned_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def answered(_request_id: int) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(world.meta, "answered", answered)
    async with trio.open_nursery() as nursery:
        items = tuple(RecallItem(ino, ino, LEASE_DATA, 9, 3) for ino in (7, 8))
        world.fs.recalls.start(items, nursery)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert _ended(world) == [
        "recall 7 of inode 7: waiting → abandoned",
        "recall 8 of inode 8: waiting → abandoned",
    ]
    assert world.returned == []
