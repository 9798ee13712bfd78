"""Dropped names reach native code before clients are served, and a lease that ran out is not
renewed.
"""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from fscommon.errors import FsError, Status
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.servers import DroppedNames, FormerRegister, Register, TargetDropped
from storageserver import membership
from storageserver.membership import HEARTBEAT_S
from tests.unit.waiting import eventually

from .fakes import FakeMetaserver, World, make_world

pytestmark = pytest.mark.trio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with make_world(tmp_path) as made:
        yield made


async def test_it_says_what_it_understands_and_what_fails_with_it(world: World) -> None:
    async with world.running(domain="rack 7"):
        last = world.metaserver.registrations[-1]
        assert isinstance(last, Register)
        assert (last.features, last.domain) == (FEATURE_REPLICAS, "rack 7")


async def test_all_names_are_known_before_clients_are_served(world: World) -> None:
    names = [(file_id, number) for file_id in (5, 9, 1 << 63) for number in (0, 256, 3)]
    world.metaserver.dropped = {2: names, 99: [(1, 1)]}
    async with world.running():
        assert sorted(world.native.dropped) == sorted((2, *name) for name in names)
        drops = [call for call in world.native.calls if call[0] == "drop_names"]
        assert drops == [("drop_names", 1, True)] + [("drop_names", 2, True)] * 3, (
            "there was no table of sessions yet"
        )
        assert world.metaserver.asked[:3] == [
            TargetDropped(1, 0, 0),
            TargetDropped(2, 0, 0),
            TargetDropped(2, 5, 256),
        ]
        assert world.native.live is not None


async def test_names_are_asked_for_with_each_registration(world: World) -> None:
    async with world.running():
        assert world.native.dropped == []
        world.metaserver.dropped[1] = [(7, 256)]
        world.metaserver.hang_up = True
        await eventually(lambda: world.native.dropped == [(1, 7, 256)])


async def test_a_long_list_is_read_with_heartbeats_in_between(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease counts from the last one."""
    ahead_s = 0.0

    def boot_time_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + int(ahead_s * 1e9)

    def later() -> None:
        nonlocal ahead_s
        ahead_s += HEARTBEAT_S

    monkeypatch.setattr(membership, "_boot_time_ns", boot_time_ns)
    world.metaserver.dropped[1] = [(file_id, 0) for file_id in range(60)]
    world.metaserver.on_page = later
    async with world.running():
        await eventually(lambda: world.native.until_ns > 0)
        assert len(world.metaserver.heartbeats) >= 19
        assert world.metaserver.heartbeats[-2].session_version == 0
        assert world.native.until_ns > boot_time_ns() + 7 * 1_000_000_000


@pytest.mark.parametrize(
    "page",
    [
        DroppedNames((), (), end=False),
        DroppedNames((5,), (), end=True),
        DroppedNames((0,), (0,), end=False),
    ],
)
async def test_a_list_that_makes_no_sense_is_no_leave_to_serve(
    world: World, monkeypatch: pytest.MonkeyPatch, page: DroppedNames
) -> None:
    monkeypatch.setattr(FakeMetaserver, "_dropped", lambda self, frame: page)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.server().run)
        await eventually(lambda: len(world.metaserver.registrations) >= 4)
        assert world.native.live is None
        world.service.stopping.set()


async def test_a_metaserver_that_gave_the_server_up_is_told_of_it_anew(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.running():
        count = len(world.metaserver.registrations)
        world.metaserver.dropped[2] = [(8, 0)]
        world.metaserver.refuse = FsError(Status.NO_TARGET, "your lease has run out: register")
        with trio.fail_after(0.5 + HEARTBEAT_S):  # without a backoff
            await eventually(lambda: world.native.dropped == [(2, 8, 0)])
        assert len(world.metaserver.registrations) == count + 1
        assert "no metaserver" not in caplog.messages


async def test_a_lease_that_ran_out_here_is_not_renewed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a guest that stood still: the metaserver may have dropped names meanwhile."""
    async with world.running():
        await eventually(lambda: world.native.until_ns > 0)
        until_ns = world.native.until_ns
        count = len(world.metaserver.registrations)
        world.metaserver.dropped[1] = [(8, 0)]

        def asleep() -> Any:
            return until_ns + 20 * 1_000_000_000

        monkeypatch.setattr(membership, "_boot_time_ns", asleep)
        await eventually(lambda: len(world.metaserver.registrations) == count + 1)
        await eventually(lambda: world.native.until_ns > asleep())
        assert world.native.dropped == [(1, 8, 0)]


async def test_a_metaserver_of_before_has_no_dropped_names(world: World) -> None:
    world.metaserver.is_former = True
    async with world.running():
        await eventually(lambda: world.native.until_ns > 0)
        assert {type(one) for one in world.metaserver.registrations} == {FormerRegister}
        assert world.metaserver.asked == []
        world.metaserver.is_former = False  # it is upgraded
        world.metaserver.hang_up = True
        await eventually(lambda: world.metaserver.asked != [])
        last = world.metaserver.registrations[-1]
        assert isinstance(last, Register) and last.features == FEATURE_REPLICAS
