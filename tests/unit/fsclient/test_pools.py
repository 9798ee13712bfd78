"""Pools of slots: files that lanes make in directories with a layout of their own, how that pool is
forgotten, and how many slots there are."""

import itertools

import pytest
import trio
import trio.testing

from fsclient.fs.caller import Requester
from fsclient.fs.pools import (
    BUSY_S,
    DEFAULT,
    POOLS_MAX,
    SLOTS_MAX,
    SLOTS_WANTED,
    SLOTS_WANTED_MAX,
    Pools,
)
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_ENTRIES, LEASE_META, LEASE_NAMER, with_lease
from fscommon.layout.template import LAYOUT_XATTR
from fscommon.wire.births import Delegate, Delegated, Slot
from fscommon.wire.messages import Entry
from fscommon.wire.ops import Op

from .changes_world import FOLDER, World, started
from .fakes import DIRECTORY, FakeLanes, layout, record

POOL, OTHER = 77, 78
SUB = 8


class PoolWorld:
    """FOLDER has a layout of its own. pool: that of directories."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.changes, self.lanes, self.meta = world.changes, world.lanes, world.meta
        self.pool = POOL
        self.room = 1 << 20  # slots that the metaserver gives
        self.version = 1
        self._inos = itertools.count(1000)
        self.meta.answers[Op.DELEGATE] = self.delegate
        self.meta.answers[Op.SETXATTR] = self.meta.answers[Op.REMOVEXATTR] = self.set_xattr

    def delegate(self, request: Delegate) -> Delegated:
        wanted = request.own_count if request.ino and self.pool else request.count
        count = min(wanted, self.room)
        slots = tuple(Slot(ino, layout(ino), b"c") for ino in itertools.islice(self._inos, count))
        if not request.ino:
            return Delegated(b"", slots)
        self.world.fs.leases.table.granted(request.ino, LEASE_NAMER, 2)
        attributes = with_lease(self.record(request.ino, 1), 1, LEASE_NAMER)
        return Delegated(attributes, slots, pool=self.pool)

    def record(self, ino: int, xattr_count: int) -> bytes:
        return record(ino, mode=DIRECTORY, xattr_count=xattr_count, change_version=self.version)

    def set_xattr(self, request: object) -> Entry:
        return Entry(self.record(getattr(request, "ino"), 1))  # noqa: B009

    async def created(self, directory: int = FOLDER, count: int = 2) -> None:
        for _ in range(count):
            self.changes.created(directory)
        await trio.testing.wait_all_tasks_blocked()

    def asked(self) -> list[Delegate]:
        return self.meta.requests(Op.DELEGATE)

    async def set_layout(self) -> None:
        who = Requester(0, 0, 0, lambda: 1)
        await self.world.fs.namespace.setxattr(FOLDER, LAYOUT_XATTR, b"replicas=2", who)


@pytest.fixture
async def world(nursery: trio.Nursery) -> PoolWorld:
    return PoolWorld(await started(nursery))


async def test_a_directory_with_a_layout_gets_its_pool_and_slots(world: PoolWorld) -> None:
    await world.created()
    assert world.lanes.pools == {FOLDER: POOL}
    assert len(world.lanes.slots_of(POOL)) == SLOTS_WANTED
    assert world.lanes.slots == []
    assert [(r.count, r.own_count) for r in world.asked()] == [(SLOTS_WANTED, SLOTS_WANTED)]


async def test_a_directory_without_one_has_none(world: PoolWorld) -> None:
    world.pool = 0
    await world.created()
    assert world.lanes.pools == {} and len(world.lanes.slots) == SLOTS_WANTED
    assert len(world.asked()) == 1


async def test_more_slots_of_the_pool_are_requested_when_half_are_used(world: PoolWorld) -> None:
    await world.created()
    del world.lanes.slots_of(POOL)[100:]
    world.world.bear(500)
    world.changes.collect()
    await trio.testing.wait_all_tasks_blocked()
    asked = [r for r in world.asked() if r.ino][-1]
    assert (asked.ino, asked.count, asked.own_count) == (FOLDER, 0, 2 * SLOTS_WANTED - 100)
    assert len(world.lanes.slots_of(POOL)) == 2 * SLOTS_WANTED


async def test_without_slots_the_metaserver_is_not_asked_again_and_again(world: PoolWorld) -> None:
    world.room = 0
    await world.created(count=20)
    assert len([r for r in world.asked() if r.ino]) <= 2


async def test_a_second_directory_of_the_pool_needs_no_slots(world: PoolWorld) -> None:
    await world.created()
    world.world.fs.leases.table.granted(SUB, LEASE_META | LEASE_ENTRIES, 1)
    await world.created(SUB)
    assert world.lanes.pools == {FOLDER: POOL, SUB: POOL}
    assert [r.own_count for r in world.asked() if r.ino == SUB] == [0]


async def test_a_directory_of_an_unexpected_pool_asks_once_more(world: PoolWorld) -> None:
    await world.created()
    world.pool = OTHER
    world.world.fs.leases.table.granted(SUB, LEASE_META | LEASE_ENTRIES, 1)
    await world.created(SUB)
    assert world.lanes.pools == {FOLDER: POOL, SUB: OTHER}
    assert len(world.lanes.slots_of(OTHER)) >= SLOTS_WANTED
    assert len([r for r in world.asked() if r.ino == SUB]) == 2


# ---- forgotten ----------------------------------------------------------------------------------


async def test_a_recall_forgets_the_pool(world: PoolWorld) -> None:
    await world.created()
    await world.changes.give_back(FOLDER)
    assert world.lanes.pools == {}


async def test_with_the_session_go_pools(world: PoolWorld) -> None:
    await world.created()
    world.world.fs.lost_session()
    assert world.lanes.pools == {} and world.lanes.own_slots == {}


async def test_a_restart_of_the_metaserver_voids_slots(world: PoolWorld) -> None:
    await world.created()
    world.world.fs.restarted()
    assert not world.lanes.slots_of(POOL)
    await world.created(count=1)
    assert len(world.lanes.slots_of(POOL)) >= SLOTS_WANTED


async def test_before_this_client_sets_a_layout_the_former_is_forgotten(world: PoolWorld) -> None:
    await world.created()
    world.meta.answers[Op.SETXATTR] = lambda request: _is_forgotten(world, request)
    await world.set_layout()
    assert world.lanes.pools == {} and not world.lanes.delegated
    world.pool = OTHER
    await world.created()
    assert world.lanes.pools == {FOLDER: OTHER}


def _is_forgotten(world: PoolWorld, request: object) -> Entry:
    assert world.lanes.pools == {} and not world.lanes.delegated
    return world.set_xattr(request)


async def test_it_stays_forgotten_when_the_change_fails(world: PoolWorld) -> None:
    await world.created()
    world.meta.answers[Op.REMOVEXATTR] = FsError(Status.ENODATA)
    with pytest.raises(FsError):
        await world.world.fs.namespace.removexattr(FOLDER, b"user.none")
    assert world.lanes.pools == {}
    await world.created()
    assert world.lanes.pools == {FOLDER: POOL}


@pytest.mark.parametrize("error", [FsError(Status.ETIMEDOUT), KeyboardInterrupt()])
async def test_a_change_that_may_still_happen_leaves_the_directory_alone(
    world: PoolWorld, error: BaseException
) -> None:
    await world.created()
    with pytest.raises(type(error)), world.changes.xattrs_change(FOLDER):
        raise error
    asked = len(world.asked())
    await world.created()
    assert world.lanes.pools == {} and len(world.asked()) == asked


async def test_a_reply_of_before_the_change_names_no_pool(world: PoolWorld) -> None:
    def meanwhile(request: Delegate) -> Delegated:
        with world.changes.xattrs_change(FOLDER):
            return world.delegate(request)

    world.meta.answers[Op.DELEGATE] = meanwhile
    await world.created()
    assert world.lanes.pools == {} and not world.lanes.delegated
    assert len(world.lanes.slots_of(POOL)) == SLOTS_WANTED, "its slots are good"
    world.meta.answers[Op.DELEGATE] = world.delegate
    await world.created()
    assert world.lanes.pools == {FOLDER: POOL}


async def test_a_reply_during_the_change_names_no_pool(world: PoolWorld) -> None:
    with world.changes.xattrs_change(FOLDER):
        await world.created()
        assert world.asked() and world.lanes.pools == {}
    await world.created()
    assert world.lanes.pools == {FOLDER: POOL}


async def test_a_first_layout_ends_what_lanes_believe_of_the_directory(world: PoolWorld) -> None:
    """Their own changes may have made their record of it newer than that of the reply."""
    world.pool = 0
    await world.created()
    world.lanes.attributes_put(world.record(FOLDER, 0), 0, True)
    await world.set_layout()
    assert not world.lanes.delegated and FOLDER not in world.lanes.believed


async def test_a_layout_asks_at_once_for_a_directory_that_is_held(world: PoolWorld) -> None:
    await world.created()
    await world.set_layout()
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.pools == {FOLDER: POOL}


async def test_an_attribute_that_leaves_none_costs_a_plain_directory_nothing(
    world: PoolWorld,
) -> None:
    world.pool = 0
    await world.created()
    world.meta.answers[Op.SETXATTR] = Entry(world.record(FOLDER, 0))
    await world.set_layout()
    world.meta.answers[Op.REMOVEXATTR] = FsError(Status.ENODATA)
    with pytest.raises(FsError):
        await world.world.fs.namespace.removexattr(FOLDER, b"user.none")
    assert world.lanes.delegated == {FOLDER}


# ---- new directories ----------------------------------------------------------------------------


async def test_a_new_directory_has_the_pool_of_its_parent_at_once(world: PoolWorld) -> None:
    await world.created()
    asked = len(world.asked())
    world.world.fs.leases.table.granted(SUB, LEASE_NAMER, 2)
    inherited = world.changes.pool_of(FOLDER)
    world.changes.made(SUB, parent=FOLDER, has_xattrs=True, inherited=inherited)
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.pools == {FOLDER: POOL, SUB: POOL} and SUB in world.lanes.delegated
    assert len(world.asked()) == asked


async def test_more_slots_for_the_parent_meanwhile_change_nothing(world: PoolWorld) -> None:
    await world.created()
    world.world.fs.leases.table.granted(SUB, LEASE_NAMER, 2)
    inherited = world.changes.pool_of(FOLDER)
    world.lanes.slots_of(POOL).clear()
    await world.created(count=1)
    assert world.lanes.slots_of(POOL)
    world.changes.made(SUB, parent=FOLDER, has_xattrs=True, inherited=inherited)
    assert world.lanes.pools[SUB] == POOL


async def test_a_change_of_the_parents_layout_meanwhile_leaves_it_unknown(world: PoolWorld) -> None:
    await world.created()
    world.world.fs.leases.table.granted(SUB, LEASE_NAMER, 2)
    inherited = world.changes.pool_of(FOLDER)
    with world.changes.xattrs_change(FOLDER):
        pass
    world.changes.made(SUB, parent=FOLDER, has_xattrs=True, inherited=inherited)
    assert SUB not in world.lanes.pools and SUB not in world.lanes.delegated
    await world.created(SUB, count=1)
    assert world.lanes.pools[SUB] == POOL, "its first file asks for it"


async def test_the_first_new_directory_asks_for_its_parent(world: PoolWorld) -> None:
    world.world.fs.leases.table.granted(SUB, LEASE_NAMER, 2)
    world.changes.made(SUB, parent=FOLDER, has_xattrs=True)
    await trio.testing.wait_all_tasks_blocked()
    assert [r.ino for r in world.asked()] == [FOLDER]
    assert world.changes.pool_of(FOLDER) is not None


# ---- bounds -------------------------------------------------------------------------------------


def slots(first: int, count: int) -> list[Slot]:
    return [Slot(ino, layout(ino), b"c") for ino in range(first, first + count)]


class Bounded:
    """Pools of which each has a directory with its number. The metaserver gives what is wanted."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lanes = FakeLanes()
        self.pools = Pools(self.lanes.changes, lambda: self.now)

    def fill(self, pool: int, more: int = 0) -> None:
        """more: so often half of its slots were used."""
        self.pools.told(pool, pool)
        for _ in range(more):
            self.pools.want_more(pool)
        self.pools.put(pool, slots(10_000 * pool, self.pools.missing_in(pool)))

    def counts(self, *pools: int) -> list[int]:
        return [len(self.lanes.slots_of(pool)) for pool in pools]


def test_pools_in_use_have_equal_shares() -> None:
    world = Bounded()
    world.fill(1, more=5)
    assert world.counts(1) == [SLOTS_WANTED_MAX]
    world.fill(2, more=5)
    assert world.counts(1, 2) == [SLOTS_MAX // 2] * 2
    assert len(world.pools.take_returned()) == SLOTS_WANTED_MAX - SLOTS_MAX // 2
    assert not world.pools.is_short(1) and not world.pools.is_short(2)
    for pool in (3, 4):
        world.fill(pool, more=5)
    assert world.counts(1, 2, 3, 4) == [SLOTS_MAX // 4] * 4
    assert not any(world.pools.is_short(pool) for pool in (1, 2, 3, 4))


def test_a_pool_that_wants_little_leaves_the_rest_to_others() -> None:
    world = Bounded()
    world.fill(1)
    world.fill(2, more=5)
    assert world.counts(1, 2) == [SLOTS_WANTED, SLOTS_WANTED_MAX]


def test_the_pool_that_was_not_used_for_longest_goes_first() -> None:
    world = Bounded()
    for pool in (1, 2, 3):
        world.fill(pool, more=2)
        world.now += 1
    world.pools.used(1)
    assert world.pools.take_used() == (1,)
    assert world.pools.take_used() == ()
    before = world.counts(1, 2, 3)
    world.now += BUSY_S - 1.5
    world.fill(4, more=2)
    assert world.counts(1, 2, 3) == [before[0], 0, before[2]]
    returned = world.pools.take_returned()
    assert len(returned) >= before[1]
    assert world.pools.take_returned() == ()
    world.pools.not_returned(returned)
    assert world.pools.take_returned() == returned
    assert world.pools.is_short(2) and world.pools.missing_in(2) > 0, "it gets some again"


def test_the_clusters_default_is_a_pool_like_others() -> None:
    world = Bounded()
    for _ in range(5):
        world.pools.want_more(DEFAULT)
    world.pools.put(DEFAULT, slots(1, world.pools.missing(is_sure=True)))
    assert world.counts(DEFAULT) == [SLOTS_WANTED_MAX]
    world.pools.used(500)
    world.pools.take_used()
    world.fill(1, more=5)
    assert world.counts(DEFAULT, 1) == [SLOTS_MAX // 2] * 2
    world.now += BUSY_S + 1
    world.pools.put(1, slots(90_000, world.pools.missing_in(1)))
    assert world.counts(DEFAULT, 1) == [0, SLOTS_WANTED_MAX]
    assert not world.pools.is_short(DEFAULT), "nobody uses it"
    world.pools.used(500)
    world.pools.take_used()
    assert world.pools.is_short(DEFAULT)
    assert world.pools.missing(is_sure=True) == SLOTS_MAX // 2


def test_pools_are_bounded() -> None:
    world = Bounded()
    for pool in range(1, POOLS_MAX + 4):
        world.fill(pool)
    counts = world.counts(*range(1, POOLS_MAX + 4))
    assert counts[:3] == [0, 0, 0] and all(counts[3:])
    assert sum(counts) <= SLOTS_MAX


async def test_returned_slots_go_back_with_the_next_request(world: PoolWorld) -> None:
    await world.created()
    world.room = 0
    for number in range(POOLS_MAX + 1):
        world.pool = 100 + number
        world.world.fs.leases.table.granted(SUB + number, LEASE_META | LEASE_ENTRIES, 1)
        await world.created(SUB + number)
    returned = {ino for request in world.asked() for ino in request.returned}
    assert returned == set(range(1000, 1000 + SLOTS_WANTED))
    assert world.asked()[0].returned == ()
