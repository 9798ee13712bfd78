"""The task that completes truncates: every attempt has an epoch of its own, and none lasts without
end.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import trio
from trio.testing import MockClock

from fscommon.errors import TransportError
from fscommon.layout.layout import Layout, object_length, unpack_layout
from fscommon.limits import FILE_SIZE_MAX, OBJECT_BYTES_MAX
from fscommon.observe.log import Log
from fscommon.rpc.data import DataCaller
from fscommon.types import Ino, TargetId
from fscommon.wire.messages import SET_SIZE, Open, Opened, SetAttr
from fscommon.wire.ops import Op
from metaserver.committer import Committer
from metaserver.context import Context
from metaserver.membership import Membership
from metaserver.namespace.inode import Inode, load, save
from metaserver.records import Intent, intent_key
from metaserver.storage import StorageCalls
from metaserver.transaction import Transaction
from metaserver.truncation import PARALLEL_MAX, Truncation

from .bench import ROOT, Bench, Client

MIB = 1 << 20

pytestmark = pytest.mark.expects_log("truncate is repeated")


@dataclass
class CommitsAtOnce(Committer):
    """Everything is durable as soon as a task waits for it."""

    bench: Bench

    async def wait_durable(self, txn: int) -> None:
        await trio.lowlevel.checkpoint()
        self.bench.settle()

    def changed(self) -> None:
        self.bench.settle()


@dataclass
class Targets(StorageCalls):
    """The requests that targets received, and how often they fail first."""

    failures: int = 0
    asked: list[tuple[int, int]] = field(default_factory=list)  # each entry has epoch and size

    async def truncate(self, layout: Layout, size: int) -> None:
        await trio.lowlevel.checkpoint()
        self.asked.append((layout.truncate_epoch, size))
        if len(self.asked) <= self.failures:
            raise TransportError("no answer")


class Everywhere(Membership):
    """It has every target."""

    def __init__(self) -> None: ...

    def address_of(self, target: TargetId) -> str:
        return "127.0.0.1:1"


class NoCaller(DataCaller):
    """A connection to a server; a test gives it what its requests do."""

    def __init__(self) -> None: ...


@asynccontextmanager
async def ending(bench: Bench, targets: StorageCalls) -> AsyncIterator[Truncation]:
    async with trio.open_nursery() as tasks:
        truncation = Truncation(bench.engine, CommitsAtOnce(bench), targets, tasks, bench.time)
        truncation.start_fresh()
        yield truncation


def grown(client: Client, size: int) -> int:
    ino = client.create(ROOT, b"file").ino
    resized(client, ino, size)
    client.bench.settle()
    client.take()
    return ino


def resized(client: Client, ino: int, size: int) -> None:
    client.send(Op.SETATTR, SetAttr(ino, SET_SIZE, 0, 0, 0, size, 0, 0, 0, 0, 0))


def opened(client: Client, ino: int) -> Layout:
    reply: Opened = client.call(Op.OPEN, Open(ino, True))
    return unpack_layout(reply.layout)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_each_attempt_has_an_epoch_of_its_own(
    bench: Bench, autojump_clock: MockClock
) -> None:
    client = bench.client()
    ino = grown(client, 1000)
    targets = Targets(failures=2)
    resized(client, ino, 10)
    async with ending(bench, targets):
        pass
    assert targets.asked == [(1, 10), (2, 10), (3, 10)]
    client.take()
    assert opened(client, ino).truncate_epoch == 3, "what its writers send is of the last one"
    assert bench.faults() == []
    resized(client, ino, 5)
    async with ending(bench, targets):
        pass
    assert targets.asked[3:] == [(4, 5)], "one attempt that works costs no other commit"


async def test_after_a_restart_the_epoch_is_another(
    bench: Bench, autojump_clock: MockClock
) -> None:
    """The former attempt may still be in flight."""
    client = bench.client()
    ino = grown(client, 1000)
    resized(client, ino, 10)
    bench.settle()
    after = Bench(bench.store)
    targets = Targets()
    async with ending(after, targets):
        pass
    assert targets.asked == [(2, 10)]
    assert Ino(ino) not in after.engine.services.intents


async def test_an_intent_without_an_inode_ends(bench: Bench, autojump_clock: MockClock) -> None:
    layout = Layout(77, 1 << 20, 1, (1,), truncate_epoch=4)
    key = intent_key(Ino(77))
    bench.engine.system(lambda tx, context: tx.put(key, Intent(5, 4, layout.pack()).pack()))
    bench.settle()
    after = Bench(bench.store)
    targets = Targets()
    async with ending(after, targets):
        pass
    assert targets.asked == []
    assert Ino(77) not in after.engine.services.intents


async def test_what_lies_in_the_record_stays_there(bench: Bench, autojump_clock: MockClock) -> None:
    """A lost writer's file is truncated at the targets, although they have no bytes of it."""
    client = bench.client()
    ino = Ino(client.create(ROOT, b"file").ino)
    kept: list[Layout] = []

    def change(tx: Transaction, context: Context) -> None:
        inode = load(tx, ino)
        inline = replace(inode.layout(), inline=b"tiny")
        save(tx, Inode(replace(inode.attributes, size=4), inline.pack()))
        objects = replace(inline, inline=b"", truncate_epoch=1)
        tx.put(intent_key(ino), Intent(4, 1, objects.pack()).pack())
        context.services.intents.add(ino)

    def look(tx: Transaction, context: Context) -> None:
        kept.append(load(tx, ino).layout())

    bench.engine.system(change)
    async with ending(bench, Targets(failures=1)):
        pass
    bench.engine.system(look)
    assert (kept[0].inline, kept[0].truncate_epoch) == (b"tiny", 2)


class CuttingCaller(NoCaller):
    """Answers each truncate() with cut(stripe index, length, must_exist)."""

    def __init__(self, cut: Callable[[int, int, bool], bool]) -> None:
        super().__init__()
        self._cut = cut

    async def truncate(
        self,
        target: int,
        file_id: int,
        stripe_index: int,
        *,
        length: int,
        epoch: int,
        must_exist: bool,
        timeout_s: float,
    ) -> bool:
        await trio.lowlevel.checkpoint()
        return self._cut(stripe_index, length, must_exist)


def reach(monkeypatch: pytest.MonkeyPatch, caller: DataCaller) -> None:
    """The caller reaches every target."""

    async def to_target(self: StorageCalls, target: int) -> DataCaller:
        await trio.lowlevel.checkpoint()
        return caller

    monkeypatch.setattr(StorageCalls, "_to_target", to_target)


@pytest.mark.parametrize("size", [FILE_SIZE_MAX, 1 << 62, 2 * OBJECT_BYTES_MAX + 1, 4096])
async def test_no_object_is_cut_to_what_none_can_hold(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    layout = Layout(1, 1 << 20, 2, (1, 2))

    def cut(_stripe_index: int, length: int, _must_exist: bool) -> bool:
        lengths.append(length)
        return True

    reach(monkeypatch, CuttingCaller(cut))
    async with trio.open_nursery() as tasks:
        calls = StorageCalls(Everywhere(), key=b"", tasks=tasks)
        await calls.truncate(layout, size)
    wanted = [min(object_length(layout, index, size), OBJECT_BYTES_MAX) for index in range(2)]
    assert sorted(lengths) == sorted(wanted)


@pytest.mark.expects_log("lost an object")
async def test_what_a_disk_has_lost_is_not_made_by_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception is a file that is to have no bytes any more. Nothing is retried for it."""
    asked: dict[int, tuple[int, bool]] = {}
    layout = Layout(1, 1 << 20, 4, (1, 2, 3, 4), durable_stripes=0b1011)

    def cut(stripe_index: int, length: int, must_exist: bool) -> bool:
        asked[stripe_index] = (length, must_exist)
        return not must_exist

    reach(monkeypatch, CuttingCaller(cut))
    async with trio.open_nursery() as tasks:
        calls = StorageCalls(Everywhere(), key=b"", tasks=tasks)
        await calls.truncate(layout, 3 << 20)
        assert asked == {0: (MIB, True), 1: (MIB, True), 2: (MIB, False), 3: (0, False)}
        await calls.truncate(layout, 0)
        assert set(asked.values()) == {(0, False)}


UNKNOWN = 99  # the bench's cluster has no such target


def _without_objects(client: Client, bench: Bench, *, inline: bytes = b"") -> Ino:
    """A file of 8 bytes, half of which are on a target that the cluster does not have."""
    ino = Ino(client.create(ROOT, b"file").ino)

    def change(tx: Transaction, context: Context) -> None:
        inode = load(tx, ino)
        layout = replace(inode.layout(), stripe_width=2, targets=(1, UNKNOWN), inline=inline)
        save(tx, Inode(replace(inode.attributes, size=8), layout.pack()))

    bench.engine.system(change)
    bench.settle()
    return ino


@asynccontextmanager
async def _ended_by_storage(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[list[tuple[int, str]]]:
    """Runs the real StorageCalls; returns the requests that the targets received."""
    asked: list[tuple[int, str]] = []

    class Caller(NoCaller):
        async def truncate(
            self,
            target: int,
            file_id: int,
            stripe_index: int,
            *,
            length: int,
            epoch: int,
            must_exist: bool,
            timeout_s: float,
        ) -> bool:
            await trio.lowlevel.checkpoint()
            asked.append((target, "truncate"))
            return True

        async def write_durably(
            self,
            target: int,
            file_id: int,
            stripe_index: int,
            content: bytes,
            *,
            epoch: int,
            timeout_s: float,
        ) -> None:
            await trio.lowlevel.checkpoint()
            asked.append((target, "write"))

    async def to(self: StorageCalls, address: str) -> DataCaller:
        await trio.lowlevel.checkpoint()
        return Caller()

    monkeypatch.setattr(StorageCalls, "_to", to)
    with trio.fail_after(60):
        async with trio.open_nursery() as tasks:
            membership = bench.engine.services.membership
            calls = StorageCalls(membership, key=b"", tasks=tasks)
            async with ending(bench, calls):
                pass
            yield asked


@pytest.mark.expects_log("no such target")
async def test_a_cut_does_not_wait_for_a_target_that_there_is_not(
    bench: Bench, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = bench.client()
    ino = _without_objects(client, bench)
    resized(client, ino, 4)
    async with _ended_by_storage(bench, monkeypatch) as asked:
        assert asked == [(1, "truncate")]
        assert ino not in bench.engine.services.intents
    client.take()
    assert opened(client, ino).targets == (1, UNKNOWN), "what was there is lost"


async def test_tiny_bytes_go_to_a_target_that_there_is(
    bench: Bench, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = bench.client()
    ino = _without_objects(client, bench, inline=b"12345678")
    client.send(Op.OPEN, Open(ino, True, moves=True))
    bench.settle()
    async with _ended_by_storage(bench, monkeypatch) as asked:
        assert ino not in bench.engine.services.intents
    layout = unpack_layout(client.take().layout)
    assert set(layout.targets) <= {1, 2}
    assert not layout.inline
    assert (layout.targets[0], "write") in asked


@pytest.mark.parametrize("is_removed", [False, True])
async def test_deletions_do_not_wait_for_it_either(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    """A target that was removed is nothing to complain of."""
    if is_removed:
        bench.engine.services.membership.put_removed(TargetId(UNKNOWN), bytes(16))

    class Caller(NoCaller):
        async def delete_all(
            self, objects: Sequence[tuple[int, int, int]], *, timeout_s: float
        ) -> list[bool]:
            await trio.lowlevel.checkpoint()
            return [True for _ in objects]

    async def to(self: StorageCalls, address: str) -> DataCaller:
        await trio.lowlevel.checkpoint()
        return Caller()

    told: list[str] = []
    monkeypatch.setattr(StorageCalls, "_to", to)
    monkeypatch.setattr(Log, "error", lambda _, event, **__: told.append(event))
    layouts = [Layout(7, MIB, 2, (1, UNKNOWN)), Layout(8, MIB, 1, (UNKNOWN,))]
    async with trio.open_nursery() as tasks:
        calls = StorageCalls(bench.engine.services.membership, key=b"", tasks=tasks)
        assert await calls.delete_all(layouts) == ["", ""]
    assert ["no such target" in line for line in told] == ([] if is_removed else [True])


@pytest.mark.expects_log("waits for a target that is down")
async def test_those_that_wait_for_a_target_hold_up_no_others(
    bench: Bench, autojump_clock: MockClock
) -> None:
    membership = bench.engine.services.membership
    node = membership.nodes()[0].id
    client = bench.client()
    targets = Targets()
    on_first = [_file_on(client, bench, b"%d" % i, 1) for i in range(PARALLEL_MAX + 1)]
    on_second = _file_on(client, bench, b"other", 2)
    membership.unserved(node, [TargetId(2)])
    with trio.fail_after(600):
        for ino in (*on_first, on_second):
            resized(client, ino, 4)
        async with ending(bench, targets):
            await trio.sleep(100)
            assert len(targets.asked) == 1, "what is down is not even asked"
            intents = bench.engine.services.intents
            assert on_second not in intents and set(on_first) <= set(intents)
            first = membership.target(1)
            assert first is not None
            first.is_served = True
    assert len(targets.asked) == PARALLEL_MAX + 2
    assert len(bench.engine.services.intents) == 0


def _file_on(client: Client, bench: Bench, name: bytes, target: int) -> Ino:
    """A file of 8 bytes."""
    ino = Ino(client.create(ROOT, name).ino)

    def change(tx: Transaction, context: Context) -> None:
        inode = load(tx, ino)
        layout = replace(inode.layout(), stripe_width=1, targets=(target,))
        save(tx, Inode(replace(inode.attributes, size=8), layout.pack()))

    bench.engine.system(change)
    bench.settle()
    return ino
