"""A bench whose files have two replicas, on storage servers with a target each; and its targets."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import trio
import trio.lowlevel

from fscommon.errors import FsError, NobodyThereError, Status, TransportError
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.observe.metrics import Metrics
from fscommon.types import Ino, SessionId
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.messages import Close, Create, Open, Opened
from fscommon.wire.ops import Op
from fscommon.wire.replicas import DropReplicas
from fscommon.wire.servers import DroppedNames, Heartbeat, Register, TargetDropped, TargetReport
from metaserver.background import Background
from metaserver.committer import Committer
from metaserver.context import Context
from metaserver.dropping import Dropping
from metaserver.engine import Time
from metaserver.membership import NODE_TIMEOUT_S, Node
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import names_of
from metaserver.placement import ReplicaPolicy
from metaserver.records import ObjectName, all_of
from metaserver.storage import StorageCalls
from metaserver.store.waist import Store
from metaserver.times import Clock
from metaserver.transaction import Transaction

from .bench import ROOT, SETTINGS, USER, Bench, Client

TWO: Final = replace(SETTINGS, replicas=ReplicaPolicy(2, replicas_max=3))


class MirrorBench(Bench):
    """Target N is the only one of storage server N."""

    def __init__(self, store: Store | None = None, nodes: int = 3, **options: Any) -> None:
        super().__init__(store, targets=0, **{"settings": TWO, **options})
        self.incarnations = dict.fromkeys(range(1, nodes + 1), 1)
        self.servers: dict[int, Client] = {}
        for number in self.incarnations:
            self.join(number)

    def join(self, number: int, incarnation: int = 0) -> None:
        """A process of the storage server registers."""
        self.ask_to_join(number, incarnation)
        self.settle()
        self.servers[number].take()

    def ask_to_join(self, number: int, incarnation: int = 0) -> None:
        self.incarnations[number] = incarnation or self.incarnations[number]
        server = self.servers[number] = Client(self, self.connect("server"))
        address, name = f"127.0.0.1:{number}", f"n{number}"
        uuid, reports = bytes([number]) * 16, (self.report(number),)
        request = Register(0, uuid, name, address, b"", reports, FEATURE_REPLICAS, name)
        server.send(Op.REGISTER, request)

    def report(self, number: int) -> TargetReport:
        uuid = bytes([number, 0]) * 8
        return TargetReport(number, uuid, self.incarnations[number], 1 << 40, 1 << 39, 0, 0)

    def beat(self, *silent: int) -> None:
        """All storage servers but these send a heartbeat."""
        for number, server in self.servers.items():
            if number not in silent:
                server.call(Op.HEARTBEAT, Heartbeat(number, (self.report(number),), 0))

    def lose(self, *numbers: int) -> None:
        """These storage servers are silent until their leases have run out."""
        for _ in range(4):
            self.now_s += NODE_TIMEOUT_S / 3
            self.beat(*numbers)
        silent = self.engine.services.membership.expire(self.now_s)
        assert {node.id for node in silent} == set(numbers)

    def dropped_of(self, target: int) -> list[tuple[int, int]]:
        """The names that the target is told before it serves."""
        page: DroppedNames = self.servers[target].call(
            Op.TARGET_DROPPED, TargetDropped(target, 0, 0)
        )
        assert page.end
        return list(zip(page.file_ids, page.objects, strict=True))

    def layout(self, ino: int) -> Layout:
        layouts: list[Layout] = []

        def look(tx: Transaction, context: Context) -> None:
            inode = find(tx, ino)
            assert inode is not None
            layouts.append(inode.layout())

        self.engine.system(look)
        return layouts[0]

    def records(self, letter: bytes) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        self.engine.system(lambda tx, context: found.extend(tx.range(*all_of(letter))))
        return found

    def writer(self) -> Client:
        return self.client(features=FEATURE_REPLICAS)


def created(client: Client, name: bytes = b"file") -> Ino:
    opened: Opened = client.call(Op.CREATE, Create(ROOT, name, 0o644, True, True, USER))
    return Ino(unpack_layout(opened.layout).file_id)


def opened(client: Client, ino: int, *, writable: bool = True) -> Layout:
    reply: Opened = client.call(Op.OPEN, Open(ino, writable))
    return unpack_layout(reply.layout)


def closed(client: Client, ino: int, serial: int = 1, *, is_synced: bool = False) -> None:
    client.tell(Op.CLOSE, Close((ino,), () if is_synced else (ino,), serial))


def drop_of(ino: int, layout: Layout, *targets: int) -> DropReplicas:
    names = [name for name in names_of(layout) if name.target in targets]
    numbers = tuple(name.number for name in names)
    places = tuple(name.target for name in names)
    return DropReplicas(ino, layout.file_id, layout.truncate_epoch, numbers, places)


@dataclass
class CommitsAtOnce(Committer):
    """Everything is durable as soon as a task waits for it."""

    bench: Bench
    committed: trio.Event = field(default_factory=trio.Event)

    async def wait_durable(self, txn: int) -> None:
        await trio.lowlevel.checkpoint()
        self.bench.settle()

    def changed(self) -> None:
        self.bench.settle()


@dataclass
class Targets(StorageCalls):
    """What targets were asked. `deaf`: they never answer; `ended`: nothing listens there."""

    deaf: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    incarnations: dict[int, int] = field(default_factory=dict)
    told: list[ObjectName] = field(default_factory=list)
    deleted: list[ObjectName] = field(default_factory=list)
    cut: list[tuple[ObjectName, int]] = field(default_factory=list)
    synced: list[tuple[ObjectName, int]] = field(default_factory=list)
    fenced: list[tuple[int, SessionId]] = field(default_factory=list)

    async def _reach(self, target: int) -> None:
        await trio.sleep(0.01)
        if target in self.ended:
            raise NobodyThereError("nothing listens there")
        if target in self.deaf:
            raise TransportError("no answer")

    async def drop_names(self, target: int, names: Sequence[ObjectName]) -> None:
        await self._reach(target)
        self.told += names

    async def cut_replicas(self, layout: Layout, size: int) -> dict[ObjectName, str]:
        failed: dict[ObjectName, str] = {}
        for name in names_of(layout):
            try:
                await self._reach(name.target)
            except TransportError as error:
                failed[name] = str(error)
            else:
                self.cut.append((name, layout.truncate_epoch))
        return failed

    async def sync(self, name: ObjectName, epoch: int) -> int:
        await self._reach(name.target)
        self.synced.append((name, epoch))
        return self.incarnations.get(name.target, 1)

    async def fence(self, node: Node, session: SessionId) -> None:
        await self._reach(node.id)
        self.fenced.append((node.id, session))

    async def delete_objects(self, groups: Sequence[Sequence[ObjectName]]) -> list[str]:
        await trio.sleep(0.01)
        answers = []
        for group in groups:
            gone = [name for name in group if name.target not in self.deaf | self.ended]
            self.deleted += gone
            answers.append("" if len(gone) == len(group) else "no answer")
        return answers


@asynccontextmanager
async def dropping(bench: Bench, targets: Targets) -> AsyncIterator[Dropping]:
    async with trio.open_nursery() as tasks:
        task = Dropping(bench.engine, CommitsAtOnce(bench), targets, tasks, bench.time)
        tasks.start_soon(task.run)
        await trio.lowlevel.checkpoint()
        yield task
        tasks.cancel_scope.cancel()


class BenchClock(Clock):
    """Its seconds count whether or not anything runs."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self._bench = bench

    def __call__(self) -> Time:
        return self._bench.time()


def background(bench: Bench, targets: Targets) -> Background:
    clock = BenchClock(bench)
    return Background(bench.engine, CommitsAtOnce(bench), targets, Metrics("meta"), clock)


async def answer(client: Client, seconds: float) -> Any:
    """The reply that comes within so many seconds. None: there is none."""
    for _ in range(int(seconds / 0.05)):
        if client.received():
            return client.take()
        await trio.sleep(0.05)
    return None


def refused(client: Client, op: Op, request: Any) -> Status:
    try:
        client.call(op, request)
    except FsError as error:
        return error.status
    raise AssertionError("it was not refused")
