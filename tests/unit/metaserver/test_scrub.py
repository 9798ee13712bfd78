"""Scrubs: what becomes of damage, the walk and its pace, reports, and what was found."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import pytest
import trio
from trio.testing import MockClock

from fscommon.errors import FsError, Status
from fscommon.types import Ino
from fscommon.wire.messages import Unlink
from fscommon.wire.objects import RANGES_MAX, ObjectMended, ObjectSummed
from fscommon.wire.ops import Op
from fscommon.wire.scrub import (
    DAMAGED,
    DIFFERENT,
    DROPPED,
    FINDINGS_MAX,
    LEFT,
    MENDED,
    MISSING,
    RECORDS_LOST,
    Finding,
    Scrub,
    Scrubbing,
    ScrubList,
    ScrubListed,
    ScrubState,
)
from fscommon.wire.servers import DamagedObject
from metaserver.context import Context
from metaserver.namespace.inode import Inode, load, save
from metaserver.namespace.replicas import change_layout, names_of
from metaserver.records import FindingRecord, ObjectName
from metaserver.repair_policy import RepairPolicy
from metaserver.scrub import Scrub as ScrubTask
from metaserver.scrub_file import FileScrub, Scrubbed
from metaserver.scrubs import ASKED_MAX, KEPT_MAX, Place, ScrubTable
from metaserver.sessions import SCRUB_SESSION
from metaserver.transaction import Transaction

from .bench import ROOT, Client
from .mirrors import LiveBench, MirrorBench, Targets, background, closed, created, dropping, opened

pytestmark = [pytest.mark.expects_log("a scrub found an object", "a replica is not equal")]
DAYS: Final = 0.02  # within which all is scrubbed
PASS_S: Final = DAYS * 86400
SIZE: Final = 1 << 20
WHOLE: Final = ObjectSummed(SIZE, 1, b"digest" + bytes(10), 0, (), (), SIZE, 0, 1)


def _damaged(blocks: int) -> ObjectSummed:
    offsets = tuple(range(0, 8192 * min(blocks, RANGES_MAX), 8192))
    return replace(WHOLE, blocks_damaged=blocks, offsets=offsets, lengths=(4096,) * len(offsets))


@dataclass
class Devices(Targets):
    """Targets whose objects are as `objects` says, or whole; by mending, from whom it can be had,
    they become so. missing: there are none of these."""

    objects: dict[ObjectName, ObjectSummed] = field(default_factory=dict)
    missing: set[ObjectName] = field(default_factory=set)
    no_help: set[ObjectName] = field(default_factory=set)  # sources that have the same damage
    sums: list[tuple[ObjectName, bool]] = field(default_factory=list)
    mends: list[tuple[ObjectName, ObjectName]] = field(default_factory=list)
    each_s: float = 0.01

    def lose(self, name: ObjectName, what: str) -> None:
        if what == MISSING:
            self.missing.add(name)
        else:
            self.objects[name] = replace(WHOLE, digest=b"")

    async def sum(self, name: ObjectName, *, reads: bool, timeout_s: float) -> ObjectSummed:
        await self._reach(name.target)
        await trio.sleep(self.each_s)
        self.sums.append((name, reads))
        if name in self.missing:
            raise FsError(Status.NO_OBJECT)
        found = self.objects.get(name, WHOLE)
        return found if reads else replace(found, bytes=0, blocks_damaged=0, offsets=(), lengths=())

    async def mend(
        self, name: ObjectName, source: ObjectName, damaged: ObjectSummed | ObjectMended
    ) -> ObjectMended:
        await self._reach(name.target)
        if source.target in self.deaf:
            raise FsError(Status.EIO, "the source is lost")
        self.mends.append((name, source))
        if source in self.no_help:
            return ObjectMended(0, damaged.offsets, damaged.lengths)
        now = self.objects[name]
        count = min(now.blocks_damaged, len(damaged.offsets))
        self.objects[name] = _damaged(now.blocks_damaged - count)
        return ObjectMended(count, (), ())


@pytest.fixture
def bench() -> MirrorBench:
    return LiveBench()


@pytest.fixture
def client(bench: MirrorBench) -> Client:
    client = bench.writer()
    bench.engine.attach(bench.connect("recall"), client.session)
    return client


def made(bench: MirrorBench, client: Client, name: bytes = b"file") -> Ino:
    """A file with bytes that were durable."""
    ino = created(client, name)
    closed(client, ino, is_synced=True)
    client.bench.engine.services.leases.closed(client.session)
    bench.engine.attach(bench.connect("recall"), client.session)

    def fill(tx: Transaction, context: Context) -> None:
        inode = load(tx, ino)
        layout = inode.layout()
        every = (1 << layout.stripe_width) - 1
        save(tx, Inode(replace(inode.attributes, size=64 * SIZE), inode.tail))
        change_layout(tx, ino, ino, 0, lambda one: replace(one, durable_stripes=every))

    bench.engine.system(fill)
    bench.settle()
    return ino


def pair_of(bench: MirrorBench, ino: Ino) -> list[ObjectName]:
    """The two replicas of the first stripe."""
    return [name for name in names_of(bench.layout(ino)) if name.number == 0]


async def scrubbed(
    bench: MirrorBench, targets: Devices, ino: Ino, *, reads: bool = True
) -> Scrubbed:
    async with dropping(bench, targets) as task:
        return await FileScrub(background(bench, targets), task).scrub(ino, reads=reads)


def found(bench: MirrorBench) -> dict[ObjectName, tuple[str, str, int]]:
    rows = bench.engine.services.scrubs.findings.items()
    return {place.name: (row.what, row.outcome, row.blocks) for place, row in rows}


# ---- one file -----------------------------------------------------------------------------------


async def test_a_whole_file(bench: MirrorBench, client: Client, autojump_clock: MockClock) -> None:
    ino, targets = made(bench, client), Devices()
    names = names_of(bench.layout(ino))
    done = await scrubbed(bench, targets, ino)
    assert done == Scrubbed(len(names), len(names) * SIZE, True)
    assert {name for name, _ in targets.sums} == set(names)
    assert found(bench) == {} and targets.mends == []
    assert await scrubbed(bench, targets, Ino(ROOT)) == Scrubbed()
    assert await scrubbed(bench, targets, Ino(999)) == Scrubbed()


@pytest.mark.parametrize("blocks", [1, 3 * RANGES_MAX + 1])
async def test_damage_is_mended_from_the_other(
    bench: MirrorBench, client: Client, autojump_clock: MockClock, blocks: int
) -> None:
    ino = made(bench, client)
    one, other = pair_of(bench, ino)
    targets = Devices(objects={one: _damaged(blocks), other: _damaged(1)})
    assert (await scrubbed(bench, targets, ino)).is_whole
    assert found(bench) == {one: (DAMAGED, MENDED, blocks), other: (DAMAGED, MENDED, 1)}
    assert set(targets.mends) == {(one, other), (other, one)}
    assert names_of(bench.layout(ino)) and bench.records(b"Y") == []


async def test_what_a_device_does_not_take_is_made_elsewhere(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = made(bench, client)
    one, other = pair_of(bench, ino)
    targets = Devices(objects={one: _damaged(2)}, no_help={other})
    await scrubbed(bench, targets, ino)
    assert found(bench) == {one: (DAMAGED, DROPPED, 2)}
    assert one not in names_of(bench.layout(ino)) and one in targets.told


async def test_damage_of_both_is_left(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = made(bench, client)
    one, other = pair_of(bench, ino)
    targets = Devices(objects={one: _damaged(2), other: _damaged(1)}, no_help={one, other})
    before = names_of(bench.layout(ino))
    await scrubbed(bench, targets, ino)
    assert found(bench) == {one: (DAMAGED, LEFT, 2), other: (DAMAGED, LEFT, 1)}
    assert names_of(bench.layout(ino)) == before
    targets.objects.clear()  # somebody has written the blocks again
    await scrubbed(bench, targets, ino)
    assert found(bench) == {}


async def test_a_source_that_does_not_answer_condemns_nobody(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = made(bench, client)
    one, other = pair_of(bench, ino)
    targets = Devices(objects={one: _damaged(2)}, deaf={other.target})
    assert not (await scrubbed(bench, targets, ino)).is_whole
    assert found(bench) == {one: (DAMAGED, LEFT, 2)}
    assert one in names_of(bench.layout(ino))


@pytest.mark.parametrize("what", [MISSING, RECORDS_LOST])
async def test_what_is_lost_is_dropped_if_another_is_whole(
    bench: MirrorBench, client: Client, autojump_clock: MockClock, what: str
) -> None:
    ino = made(bench, client)
    one, other = pair_of(bench, ino)
    targets = Devices()
    targets.lose(one, what)
    await scrubbed(bench, targets, ino)
    assert found(bench) == {one: (what, DROPPED, 0)}
    assert one not in names_of(bench.layout(ino))
    targets.lose(other, what)
    await scrubbed(bench, targets, ino)
    assert found(bench)[other] == (what, LEFT, 0), "the last one stays"
    assert other in names_of(bench.layout(ino))


async def test_a_hole_is_not_missing(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = created(client)
    closed(client, ino, is_synced=True)
    bench.settle()
    targets = Devices(missing=set(names_of(bench.layout(ino))))
    assert (await scrubbed(bench, targets, ino)).is_whole
    assert found(bench) == {}


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"epoch": 2, "length": 1}, {"epoch": 1, "length": 9}),
        ({"epoch": 1, "length": 9}, {"epoch": 1, "length": 1}),
        ({}, {}),
    ],
)
async def test_of_replicas_that_differ_one_stays(
    bench: MirrorBench,
    client: Client,
    autojump_clock: MockClock,
    better: dict[str, int],
    worse: dict[str, int],
) -> None:
    ino = made(bench, client)
    low, high = sorted(pair_of(bench, ino))
    best, other = (low, high) if not better else (high, low)
    targets = Devices(
        objects={best: replace(WHOLE, **better), other: replace(WHOLE, digest=b"x", **worse)}  # type: ignore[arg-type]
    )
    assert (await scrubbed(bench, targets, ino)).is_whole
    assert found(bench) == {other: (DIFFERENT, DROPPED, 0)}
    assert best in names_of(bench.layout(ino)) and other not in names_of(bench.layout(ino))
    assert (other, False) in targets.sums, "it was looked at again"
    assert not bench.engine.services.leases.held(SCRUB_SESSION, ino)
    assert [one for one in bench.faults() if not one.startswith("account")] == []


async def test_nothing_is_compared_beside_a_writer(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    ino = made(bench, client)
    one, _ = pair_of(bench, ino)
    targets = Devices(objects={one: replace(WHOLE, digest=b"x")})
    task = background(bench, targets)
    async with dropping(bench, targets) as drops:
        scrub = FileScrub(task, drops)
        opened(client, ino)  # for writing; it answers no recall
        assert not (await scrub.scrub(ino)).is_whole
        assert found(bench) == {} and one in names_of(bench.layout(ino))


# ---- what is asked for --------------------------------------------------------------------------


@asynccontextmanager
async def scrubbing(bench: MirrorBench, targets: Devices, days: float) -> AsyncIterator[None]:
    """The task runs, and storage servers send heartbeats."""
    async with dropping(bench, targets) as drops, trio.open_nursery() as tasks:
        policy = RepairPolicy(scrub_days=days)
        tasks.start_soon(ScrubTask(background(bench, targets), drops, policy).run)
        tasks.start_soon(_beat, bench)
        yield
        tasks.cancel_scope.cancel()


async def _beat(bench: MirrorBench) -> None:
    while True:
        bench.time()
        bench.beat()
        await trio.sleep(2)


async def eventually(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    with trio.fail_after(seconds):
        while not is_so():  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.5)


def listed(bench: MirrorBench) -> tuple[ScrubState, tuple[Finding, ...]]:
    reply: ScrubListed = Client(bench, bench.connect("admin")).call(Op.SCRUB_LIST, ScrubList())
    assert reply.end
    return reply.state, reply.findings


def asked(bench: MirrorBench, *inos: int) -> Scrubbing:
    reply: Scrubbing = Client(bench, bench.connect("admin")).call(Op.SCRUB, Scrub(inos))
    return reply


async def test_a_pass_and_its_pace(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    inos = [made(bench, client, b"file%d" % number) for number in range(5)]
    one, _ = pair_of(bench, inos[2])
    targets = Devices(objects={one: _damaged(1)})
    async with scrubbing(bench, targets, days=DAYS):
        await eventually(lambda: listed(bench)[0].passes == 1)
        read = len(targets.sums)
        assert {name.file_id for name, _ in targets.sums} == set(inos)
        state, findings = listed(bench)
        assert (state.mended, state.left, state.files, state.is_fast) == (1, 0, 6, False)
        assert [(row.ino, row.what, row.outcome) for row in findings] == [
            (inos[2], DAMAGED, MENDED)
        ]
        await trio.sleep(0.8 * PASS_S)
        assert len(targets.sums) == read, "once in scrub_days is enough"
        await trio.sleep(0.15 * PASS_S)
        assert listed(bench)[0].passes == 2
        wanted = asked(bench).passes
        await eventually(lambda: listed(bench)[0].passes >= wanted)
        assert len(targets.sums) == 3 * read
        await trio.sleep(5)
    bench.settle()
    again = MirrorBench(bench.store)
    assert len(again.engine.services.scrubs.findings) == 1, "it is kept"
    assert again.engine.services.jobs.scrub.record.passes == 3


async def test_files_that_are_named_or_reported(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    inos = [made(bench, client, b"file%d" % number) for number in range(3)]
    targets = Devices()
    async with scrubbing(bench, targets, days=0):
        reply = asked(bench, inos[1], 12345)
        await eventually(lambda: listed(bench)[0].files_done == reply.files == 2)
        assert {name.file_id for name, _ in targets.sums} == {inos[1]}
        assert listed(bench)[0].passes == 0
        targets.sums.clear()
        one, other = pair_of(bench, inos[2])
        targets.objects = {one: _damaged(1)}
        targets.no_help = {other}
        targets.deaf = {other.target}
        report = DamagedObject(one.target, one.file_id, one.number)
        of_no_file = DamagedObject(one.target, (1 << 64) - 1, one.number)
        bench.engine.services.scrubs.report([of_no_file, report])
        await eventually(lambda: found(bench) == {one: (DAMAGED, LEFT, 1)})
        read = len(targets.sums)
        bench.engine.services.scrubs.report([report])
        await trio.sleep(5)
        assert len(targets.sums) == read, "that is known"
        targets.deaf, targets.no_help = set(), set()
        await trio.sleep(700)
        assert found(bench) == {one: (DAMAGED, MENDED, 1)}, "it was tried again"
        client.call(Op.UNLINK, Unlink(ROOT, b"file2"))


async def test_after_a_restore_files_are_compared_before_they_are_trusted(
    bench: MirrorBench, client: Client, autojump_clock: MockClock
) -> None:
    inos = [made(bench, client, b"file%d" % number) for number in range(3)]
    stale = max(pair_of(bench, inos[0]))
    silent = pair_of(bench, inos[2])[0].target
    scrubs = bench.engine.services.scrubs
    scrubs.compared = 0
    assert not any(scrubs.is_trusted(ino) for ino in inos)
    targets = Devices(objects={stale: replace(WHOLE, digest=b"x")}, deaf={silent})
    async with scrubbing(bench, targets, days=0):
        await trio.sleep(20)
        assert listed(bench)[0].comparing and not scrubs.is_trusted(inos[2])
        targets.deaf = set()
        await eventually(lambda: not listed(bench)[0].comparing, 200)
        assert all(scrubs.is_trusted(ino) for ino in inos)
        assert not any(reads for _, reads in targets.sums), "the records say it"
        assert found(bench) == {stale: (DIFFERENT, DROPPED, 0)}


def test_what_is_kept_and_what_waits_is_bounded() -> None:
    table = ScrubTable()
    for number in range(KEPT_MAX + 10):
        outcome = LEFT if number < 5 else MENDED
        place = Place(Ino(number), ObjectName(1, number, 0))
        table.found(place, FindingRecord(DAMAGED, outcome, 1, number))
    assert len(table.findings) == KEPT_MAX and len(table.left()) == 5
    assert table.counts == {(LEFT, DAMAGED): 5, (MENDED, DAMAGED): KEPT_MAX + 5}
    assert sum(row is None for _, row in table.take_findings()) == 10
    assert table.ask([Ino(1)] * ASKED_MAX) and not table.ask([Ino(2)])
    assert table.next_asked() == 1 and table.ask([Ino(2)])


def test_findings_come_in_pages(bench: MirrorBench) -> None:
    scrubs = bench.engine.services.scrubs
    for number in range(FINDINGS_MAX + 5):
        place = Place(Ino(number), ObjectName(1, number, 0))
        scrubs.found(place, FindingRecord(DAMAGED, LEFT, 1, 1))
    admin = Client(bench, bench.connect("admin"))
    first: ScrubListed = admin.call(Op.SCRUB_LIST, ScrubList())
    last = first.findings[-1]
    assert not first.end and first.state.left == FINDINGS_MAX + 5
    rest: ScrubListed = admin.call(Op.SCRUB_LIST, ScrubList(last.ino, last.target, last.object))
    assert rest.end and len(rest.findings) == 5


def test_what_may_not_be_asked(bench: MirrorBench) -> None:
    admin = Client(bench, bench.connect("admin"))
    bench.engine.services.jobs.scrub.changed(is_paused=True)
    with pytest.raises(FsError) as raised:
        admin.call(Op.SCRUB, Scrub())
    assert raised.value.status is Status.EBUSY
