"""Announcements: packed and unpacked, directories granted first, bounded queues."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from braidfs.announcement import FILES_MAX, SIZE, Announcement, unpack_announcement
from fsclient.fs import announced
from fscommon.errors import FsError, Status
from fscommon.wire.ops import Op

from .test_ahead import PARENT, Reading


def test_it_is_unpacked_as_it_was_packed() -> None:
    for count, replaces in itertools.product((0, 1, FILES_MAX), (False, True)):
        given = Announcement(list(range(5, 5 + count)), [7] * count, replaces)
        packed = given.packed()
        assert len(packed) == SIZE
        seen = unpack_announcement(packed)
        assert list(seen.inos) == given.inos and list(seen.parents) == given.parents
        assert seen.replaces == replaces


@pytest.mark.parametrize(
    "given",
    [
        b"",
        bytes(SIZE - 1),
        bytes(SIZE + 1),
        b"\2" + bytes(SIZE - 1),
        b"\0" * 4 + b"\xff" * (SIZE - 4),
    ],
)
def test_what_is_no_announcement_is_refused(given: bytes) -> None:
    with pytest.raises(ValueError, match="an announcement "):
        unpack_announcement(given)


class Announcing(Reading):
    @asynccontextmanager
    async def announcing(self) -> AsyncIterator[None]:
        async with self.running(), trio.open_nursery() as nursery:
            nursery.start_soon(self.fs.announced.run)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()

    async def announce(self, *inos: int, replaces: bool = False) -> int:
        count = self.fs.announced.announce(inos, [PARENT] * len(inos), replaces=replaces)
        await trio.testing.wait_all_tasks_blocked()
        return count


async def test_their_directory_is_granted_first_and_once() -> None:
    world = Announcing()
    async with world.announcing():
        wanted = world.inos[3:6]
        assert await world.announce(*wanted) == 3
        assert world.granted == set(world.inos)
        assert world.lanes.announced == wanted
        assert await world.announce(*world.inos[:2]) == 2
        assert world.lanes.announced == [*wanted, *world.inos[:2]]
        assert len(world.asked) == 1


async def test_a_new_order_takes_the_place_of_the_old() -> None:
    world = Announcing()
    async with world.announcing():
        await world.announce(*world.inos[:5])
        await world.announce(*world.inos[7:9], replaces=True)
        assert world.lanes.announced == world.inos[7:9]


async def test_a_directory_that_cannot_be_had_holds_nothing_up() -> None:
    world = Announcing()
    world.meta.answers[Op.OPEN_AHEAD] = FsError(Status.ENOENT, "it is gone")
    async with world.announcing():
        await world.announce(*world.inos)
        assert world.granted == set() and world.lanes.announced == world.inos


async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announced, "WAITING_MAX", 2)
    world = Announcing()
    async with world.announcing():
        counts = [
            world.fs.announced.announce([ino], [PARENT], replaces=False) for ino in world.inos[:4]
        ]
        assert counts == [1, 1, 0, 0]
        assert world.fs.announced.announce([world.inos[9]], [PARENT], replaces=True) == 1
        await trio.testing.wait_all_tasks_blocked()
        assert world.lanes.announced == [world.inos[9]]


async def test_it_can_be_off() -> None:
    world = Announcing()
    with pytest.raises(FsError) as refused:
        await world.announce(*world.inos)
    assert refused.value.status is Status.EOPNOTSUPP
