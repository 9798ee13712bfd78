"""Copies and scrubs beside clients, and objects of which readers have met damage."""

import pytest
import trio
import trio.testing

from fscommon.wire.servers import DAMAGED_MAX, DamagedObject
from storageserver.care import ELSEWHERE_S, PART, REST_S_MAX, Care
from storageserver.damage import AGAIN_S, Damage

pytestmark = pytest.mark.trio
MIB = 1 << 20


class Device:
    """A target whose pieces take a time, with or without clients."""

    def __init__(self) -> None:
        self.has_clients = False
        self.care = Care(lambda target: self.has_clients and target == 1)
        self.at_once = 0
        self.at_once_most = 0
        self.busy_s = 0.0

    async def move(self, count: int, took_s: float, *, target: int = 1, each: int = MIB) -> None:
        pace = self.care.of_target(target)
        for _ in range(count):
            async with pace.piece(each):
                self.at_once += 1
                self.at_once_most = max(self.at_once_most, self.at_once)
                await trio.sleep(took_s)
                self.busy_s += took_s
                self.at_once -= 1

    async def move_together(self, tasks: int, count: int, took_s: float) -> float:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(tasks):
                nursery.start_soon(self.move, count, took_s)
        return trio.current_time() - began


async def test_without_clients_all_of_it(autojump_clock: trio.testing.MockClock) -> None:
    device = Device()
    assert await device.move_together(4, 10, 0.1) == pytest.approx(1.0)
    assert device.at_once_most == 4


async def test_beside_clients_a_part_of_it(autojump_clock: trio.testing.MockClock) -> None:
    device = Device()
    device.has_clients = True
    took_s = await device.move_together(4, 10, 0.01)
    assert device.at_once_most == 1
    assert device.busy_s / took_s == pytest.approx(PART, rel=0.1)


async def test_less_of_it_while_the_device_is_slow(autojump_clock: trio.testing.MockClock) -> None:
    device = Device()
    device.has_clients = True
    await device.move(10, 0.01)
    began = trio.current_time()
    await device.move(10, 0.05)
    assert 0.5 / (trio.current_time() - began) == pytest.approx(PART / 2, rel=0.1)
    began = trio.current_time()
    await device.move(1, 100.0)
    assert trio.current_time() - began == pytest.approx(100 + REST_S_MAX)


async def test_a_rest_ends_when_clients_have_gone(autojump_clock: trio.testing.MockClock) -> None:
    device = Device()
    device.has_clients = True
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(device.move, 1, 1.0)
        await trio.sleep(1.5)
        device.has_clients = False
    assert 1.5 <= trio.current_time() - began < 1.7


async def test_clients_where_the_bytes_come_from(autojump_clock: trio.testing.MockClock) -> None:
    device = Device()
    pace = device.care.of_target(1)
    pace.source_serves_clients()
    began = trio.current_time()
    await device.move(1, 0.1)
    assert trio.current_time() - began == pytest.approx(min(0.1 / PART, ELSEWHERE_S), rel=0.3)
    await trio.sleep(ELSEWHERE_S)
    began = trio.current_time()
    await device.move_together(4, 1, 0.1)
    assert trio.current_time() - began == pytest.approx(0.1)


async def test_damage_is_told_once_in_a_while(autojump_clock: trio.testing.MockClock) -> None:
    damage = Damage()
    for number in range(DAMAGED_MAX + 1):
        damage.met(1, number, 0)
        damage.met(1, number, 0)
    first = damage.news()
    assert len(first) == DAMAGED_MAX and damage.news() == first, "it was not told yet"
    damage.told(first)
    assert damage.news() == (DamagedObject(1, DAMAGED_MAX, 0),)
    damage.told(damage.news())
    damage.met(1, 0, 0)
    assert damage.news() == ()
    await trio.sleep(AGAIN_S + 1)
    damage.met(1, 0, 0)
    assert damage.news() == (DamagedObject(1, 0, 0),)
