"""A bench whose files have two replicas, on storage servers with a target each; and its targets."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import trio
import trio.lowlevel

from fscommon.errors import BraidError, FsError, NobodyThereError, Status, TransportError
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.observe.metrics import Metrics
from fscommon.types import Ino, SessionId, TargetId
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.messages import Close, Create, Open, Opened
from fscommon.wire.objects import ObjectCopied
from fscommon.wire.ops import Op
from fscommon.wire.replicas import DropReplicas
from fscommon.wire.servers import DroppedNames, Heartbeat, Register, TargetDropped, TargetReport
from metaserver.background import Background
from metaserver.committer import Committer
from metaserver.context import Context
from metaserver.dropping import Dropping
from metaserver.engine import Time
from metaserver.eviction import Eviction
from metaserver.membership import NODE_TIMEOUT_S, Node
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import names_of
from metaserver.placement import ReplicaPolicy
from metaserver.reaper import Reaper
from metaserver.records import ObjectName, all_of
from metaserver.repair import Repair
from metaserver.repair_policy import DEFAULT_REPAIR, RepairPolicy
from metaserver.storage import CALL_TIMEOUT_S, DROP_TIMEOUT_S, StorageCalls
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
        self.free: dict[int, int] = {}  # bytes of targets, if it is not half of each
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
        free = self.free.get(number, 1 << 39)
        return TargetReport(number, uuid, self.incarnations[number], 1 << 40, free, 0, 0)

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


def created(client: Client, name: bytes = b"file", parent: int = ROOT) -> Ino:
    opened: Opened = client.call(Op.CREATE, Create(parent, name, 0o644, True, True, USER))
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
    """What targets were asked. `deaf`: they never answer; `ended`: nothing listens there; `hung`:
    their disks do nothing, so that a cut there ends after CALL_TIMEOUT_S; `silent`: a drop there
    ends after DROP_TIMEOUT_S."""

    deaf: set[int] = field(default_factory=set)
    hung: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    incarnations: dict[int, int] = field(default_factory=dict)
    told: list[ObjectName] = field(default_factory=list)
    deleted: list[ObjectName] = field(default_factory=list)
    cut: list[tuple[ObjectName, int]] = field(default_factory=list)
    synced: list[tuple[ObjectName, int]] = field(default_factory=list)
    synced_targets: list[TargetId] = field(default_factory=list)
    fenced: list[tuple[int, SessionId]] = field(default_factory=list)

    async def _reach(self, target: int) -> None:
        await trio.sleep(0.01)
        if target in self.ended:
            raise NobodyThereError("nothing listens there")
        if target in self.deaf:
            raise TransportError("no answer")

    async def drop_names(self, target: int, names: Sequence[ObjectName]) -> None:
        await self._reach(target)
        if target in self.silent:
            await trio.sleep(DROP_TIMEOUT_S)
            raise TransportError("no answer")
        self.told += names

    async def cut_replicas(self, layout: Layout, size: int) -> dict[ObjectName, str]:
        failed: dict[ObjectName, str] = {}
        if any(name.target in self.hung for name in names_of(layout)):
            await trio.sleep(CALL_TIMEOUT_S)  # all are asked at the same time
        for name in names_of(layout):
            try:
                await self._reach(name.target)
                if name.target in self.hung:
                    raise TransportError("no answer")
            except TransportError as error:
                failed[name] = str(error)
            else:
                self.cut.append((name, layout.truncate_epoch))
        return failed

    async def sync(self, name: ObjectName, epoch: int) -> int:
        await self._reach(name.target)
        self.synced.append((name, epoch))
        return self.incarnations.get(name.target, 1)

    async def sync_target(self, target: TargetId) -> int:
        await self._reach(target)
        self.synced_targets.append(target)
        return self.incarnations.get(target, 1)

    async def sync_all(self, objects: Sequence[tuple[ObjectName, int]]) -> list[int | BraidError]:
        done: list[int | BraidError] = []
        for name, epoch in objects:
            try:
                done.append(await self.sync(name, epoch))
            except BraidError as error:
                done.append(error)
        return done

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


@dataclass
class Copiers(Targets):
    """Targets that make copies, and note what was done in which order."""

    done: list[tuple[str, ObjectName]] = field(default_factory=list)
    before_copy: Callable[[], None] = lambda: None
    after_copy: Callable[[ObjectName], None] = lambda name: None
    absent: set[ObjectName] = field(default_factory=set)
    seconds: float = 0.0  # of a copy
    bytes: int = 1  # of an object
    busy: set[int] = field(default_factory=set)  # files that are copied just now
    most: int = 0  # the most at the same time
    copied_twice: list[ObjectName] = field(default_factory=list)  # while another job was at it

    async def copy(
        self, name: ObjectName, source: ObjectName, epoch: int, *, must_exist: bool
    ) -> ObjectCopied:
        await self._reach(name.target)
        await self._reach(source.target)
        self._find(source, must_exist)
        self.before_copy()
        if name.file_id in self.busy:
            self.copied_twice.append(name)
        self.busy.add(name.file_id)
        self.most = max(self.most, len(self.busy))
        await trio.sleep(self.seconds)
        self.busy.discard(name.file_id)
        assert name.number & 255 == source.number & 255 and name.file_id == source.file_id
        self.done.append(("copy", name))
        self.after_copy(name)
        incarnation, of_source = (self.incarnations.get(t.target, 1) for t in (name, source))
        return ObjectCopied(incarnation, of_source, self.bytes)

    def _find(self, name: ObjectName, must_exist: bool) -> None:
        if must_exist and name in self.absent:
            raise FsError(Status.NO_OBJECT)

    async def sync(self, name: ObjectName, epoch: int) -> int:
        self._find(name, True)
        incarnation = await Targets.sync(self, name, epoch)
        self.done.append(("sync", name))
        return incarnation

    async def raise_epoch(self, name: ObjectName, epoch: int, *, must_exist: bool) -> int:
        await self._reach(name.target)
        self._find(name, must_exist)
        self.absent.discard(name)
        self.done.append((f"raise to {epoch}", name))
        return self.incarnations.get(name.target, 1)


class LiveBench(MirrorBench):
    """Its clocks go with the time of trio."""

    def time(self) -> Time:
        with suppress(RuntimeError):  # it is made before trio runs
            self.now_s = 1000.0 + trio.current_time()
            self.now_ns = max(self.now_ns + 1, 10**15 + int(trio.current_time() * 1e9))
        return Time(self.now_ns, self.now_s)


@asynccontextmanager
async def tasks_of(
    bench: MirrorBench, targets: Targets, policy: RepairPolicy = DEFAULT_REPAIR
) -> AsyncIterator[None]:
    """The tasks that have to do with replicas, and the heartbeats of targets that are not ended."""
    async with trio.open_nursery() as tasks:
        dropping = Dropping(bench.engine, CommitsAtOnce(bench), targets, tasks, bench.time)
        parts = background(bench, targets)
        tasks.start_soon(dropping.run)
        tasks.start_soon(Repair(parts, dropping, policy).run)
        tasks.start_soon(Reaper(parts).run)
        tasks.start_soon(Eviction(parts, dropping).run, tasks)
        tasks.start_soon(beats, bench, targets.ended)
        yield
        tasks.cancel_scope.cancel()


async def beats(bench: MirrorBench, ended: Collection[int]) -> None:
    """Heartbeats of all storage servers but those that have ended."""
    while True:
        for number, server in bench.servers.items():
            if number not in ended:
                beat = Heartbeat(number, (bench.report(number),), 0)
                try:
                    server.call(Op.HEARTBEAT, beat)
                except FsError:
                    bench.join(number)
        for _ in range(10):
            bench.settle()
            bench.engine.leases_changed(bench.time())
            await trio.sleep(0.1)


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


def background(bench: Bench, targets: StorageCalls) -> Background:
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
