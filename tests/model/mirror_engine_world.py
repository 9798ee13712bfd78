"""The metaserver's part of mirrors in a simulated world: its engine and its tasks, over targets and
clients that do what tests/model/mirror_*.py has them do. One seed decides everything.

A file has one stripe, and its content is a number; each write is of a greater one. Targets are cut
off, killed, and lose power; clients are killed while they write. The world never takes the power of
a target that has the only replica of a file.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import trio

from fscommon.errors import FsError, NobodyThereError, Status, TransportError
from fscommon.layout.attributes import LEASE_DATA, unpack_attributes
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.types import Ino, SessionId, TargetId
from fscommon.wire.codec import decode
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.header import FLAG_ONEWAY
from fscommon.wire.leases import LeaseReturn, Recall, ReturnItem
from fscommon.wire.messages import Close, Commit, Create, Empty, Open, SessionOpen, SessionRenew
from fscommon.wire.objects import ObjectCopied
from fscommon.wire.ops import Op
from fscommon.wire.replicas import DropReplicas, Synced
from fscommon.wire.servers import Heartbeat, TargetDropped
from metaserver.dropping import Dropping
from metaserver.eviction import Eviction
from metaserver.membership import NODE_TIMEOUT_S, Node
from metaserver.namespace.replicas import names_of
from metaserver.reaper import Reaper
from metaserver.records import ObjectName
from metaserver.repair import Repair
from metaserver.truncation import Truncation
from metaserver.unsynced import Unsynced
from tests.unit.metaserver.bench import ROOT, USER, Client, parse
from tests.unit.metaserver.mirrors import TWO, CommitsAtOnce, LiveBench, Targets, background

NODES: Final = (1, 2, 3, 4)
FILES: Final = (b"a", b"b")
STUCK_S: Final = 5.0
PARTS: Final = 2  # lives of the metaserver


@dataclass
class Stored:
    value: int = 0
    durable: int = 0
    epoch: int = 0


@dataclass
class SimTarget:
    """One target and its storage server."""

    number: int
    objects: dict[tuple[int, int], Stored] = field(default_factory=dict)
    dropped: set[tuple[int, int]] = field(default_factory=set)
    fenced: set[SessionId] = field(default_factory=set)
    incarnation: int = 1
    is_alive: bool = True
    is_cut: bool = False  # from the clients and the metaserver's data connections
    is_silent: bool = False  # its heartbeats are lost
    is_serving: bool = False
    heard_s: float = 0.0

    def serves(self) -> bool:
        return self.is_serving and trio.current_time() - self.heard_s < NODE_TIMEOUT_S - 0.5

    def end(self, *, power: bool) -> None:
        self.is_alive = self.is_serving = False
        self.dropped.clear()
        self.fenced.clear()
        if power:
            self.incarnation += 1
            for stored in self.objects.values():
                stored.value = stored.durable

    def check(self, session: SessionId, name: ObjectName) -> None:
        if not self.is_alive:
            raise NobodyThereError("ended")
        if self.is_cut:
            raise TransportError("cut off")
        if not self.serves():
            raise FsError(Status.NOT_READY)
        if session in self.fenced:
            raise FsError(Status.FENCED)
        if name[1:] in self.dropped:
            raise FsError(Status.DROPPED)

    def change(self, session: SessionId, name: ObjectName, epoch: int) -> Stored:
        self.check(session, name)
        stored = self.objects.setdefault((name.file_id, name.number), Stored())
        if epoch < stored.epoch:
            raise FsError(Status.STALE_TRUNCATE_EPOCH)
        return stored


class SimCalls(Targets):
    """The metaserver's calls to these targets."""

    world: "World"

    async def _at(self, target: int) -> SimTarget:
        await trio.sleep(self.world.chance.uniform(0.001, 0.05))
        found = self.world.targets[target]
        if not found.is_alive:
            raise NobodyThereError("ended")
        if found.is_cut:
            raise TransportError("cut off")
        return found

    async def drop_names(self, target: int, names: Sequence[ObjectName]) -> None:
        (await self._at(target)).dropped.update(name[1:] for name in names)

    async def cut_replicas(self, layout: Layout, size: int) -> dict[ObjectName, str]:
        failed: dict[ObjectName, str] = {}
        for name in names_of(layout):
            try:
                stored = (await self._at(name.target)).objects.setdefault(name[1:], Stored())
            except TransportError as error:
                failed[name] = str(error)
            else:
                stored.epoch = max(stored.epoch, layout.truncate_epoch)
        return failed

    async def sync(self, name: ObjectName, epoch: int) -> int:
        target = await self._at(name.target)
        stored = target.change(SessionId(0), name, epoch)
        stored.durable = stored.value
        return target.incarnation

    async def sync_target(self, target: TargetId) -> int:
        found = await self._at(target)
        if not found.serves():
            raise FsError(Status.NOT_READY)
        for stored in found.objects.values():
            stored.durable = stored.value
        return found.incarnation

    async def raise_epoch(self, name: ObjectName, epoch: int, *, must_exist: bool) -> int:
        target = await self._at(name.target)
        stored = target.change(SessionId(0), name, 1 << 31)
        stored.epoch = max(stored.epoch, epoch)
        return target.incarnation

    async def copy(
        self, name: ObjectName, source: ObjectName, epoch: int, *, must_exist: bool
    ) -> ObjectCopied:
        sink, origin = await self._at(name.target), await self._at(source.target)
        value = origin.change(SessionId(0), source, 1 << 31).value
        await trio.sleep(self.world.chance.uniform(0.0, 1.0))
        stored = sink.change(SessionId(0), name, 1 << 31)
        assert stored == Stored(), "the name was never used"
        stored.value = stored.durable = value
        stored.epoch = epoch
        return ObjectCopied(sink.incarnation, origin.incarnation, 1)

    async def fence(self, node: Node, session: SessionId) -> None:
        (await self._at(node.id)).fenced.add(session)

    async def delete_objects(self, groups: Sequence[Sequence[ObjectName]]) -> list[str]:
        answers: list[str] = []
        for group in groups:
            try:
                for name in group:
                    (await self._at(name.target)).objects.pop(name[1:], None)
                answers.append("")
            except TransportError as error:
                answers.append(str(error))
        return answers


@dataclass
class FileState:
    """acked: the last write that all replicas of the view have acknowledged. maybe: what may be
    read instead, until somebody has read it: writes of clients that were killed."""

    ino: Ino
    acked: int = 0
    maybe: set[int] = field(default_factory=set)
    pending: int = 0


class GoneError(Exception):
    """The client was killed, or its session has ended."""


class SimClient:
    """A client, life after life: each has a session of its own."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.chance = world.chance
        self.is_killed = False
        self.serial = 0

    async def run(self) -> None:
        while True:
            try:
                await self._live()
            except GoneError:
                await trio.sleep(self.chance.uniform(0.5, 3.0))

    async def _live(self) -> None:
        bench = self.world.bench
        self.is_killed = False
        self.client = Client(bench, bench.connect())
        hello = SessionOpen(0, "c", (), 0, features=FEATURE_REPLICAS)
        self.client.session = SessionId((await self._call(Op.SESSION_OPEN, hello)).session)
        self.recalls = bench.connect("recall")
        bench.engine.attach(self.recalls, self.client.session)
        while True:
            file = self.chance.choice(list(self.world.files.values()))
            if self.chance.random() < 0.6:
                await self._write(file)
            else:
                await self._read(file)
            await self._call(Op.SESSION_RENEW, SessionRenew(0))
            await self._idle(self.chance.uniform(0.0, 1.0))

    # ---- requests ------------------------------------------------------------------------

    async def _call(self, op: Op, message: Any) -> Any:
        """Sends again while the metaserver says that it is not ready."""
        while True:
            self._check_alive()
            self.client.send(op, message)
            while not self.client.received():
                await trio.sleep(0.02)
                self._check_alive()
                if not self.client.connection.is_open:
                    raise GoneError
            try:
                return self.client.take()
            except FsError as error:
                if error.status is Status.UNKNOWN_SESSION:
                    raise GoneError from None
                if error.status not in (Status.NOT_READY, Status.BUSY):
                    raise
            await trio.sleep(0.2)

    def _check_alive(self) -> None:
        if self.is_killed:
            raise GoneError

    async def _idle(self, seconds: float) -> None:
        """Gives back what is recalled: nothing is being written."""
        until_s = trio.current_time() + seconds
        while trio.current_time() < until_s:
            self._check_alive()
            for frame in parse(b"".join(self.recalls.outbox)):
                items = tuple(
                    ReturnItem(one.ino, one.flags, one.recall)
                    for one in decode(Recall, frame.body).items
                    if one.ino
                )
                if items:
                    self.client.send(Op.LEASE_RETURN, LeaseReturn(items), flags=FLAG_ONEWAY)
            self.recalls.outbox.clear()
            await trio.sleep(0.05)

    # ---- a file --------------------------------------------------------------------------

    async def _open(self, file: FileState, *, writable: bool) -> Layout | None:
        """Returns the layout; None: it got no lease."""
        opened = await self._call(Op.OPEN, Open(file.ino, writable))
        flags = unpack_attributes(opened.attributes).lease_flags
        wanted = LEASE_DATA << 3 if writable else LEASE_DATA
        return unpack_layout(opened.layout) if flags & wanted else None

    async def _write(self, file: FileState) -> None:
        view = await self._open(file, writable=True)
        if view is None:
            return await self._close(file, ())
        acked: dict[int, int] = {}
        for _ in range(self.chance.randint(1, 3)):
            view, acked = await self._write_one(file, view)
        while True:
            commit = Commit(
                file.ino, view.file_id, 0, 0, 0, 0, False, tuple(acked), tuple(acked.values())
            )
            try:
                await self._call(Op.COMMIT, commit)
                break
            except FsError as error:
                assert error.status is Status.STALE_INCARNATION, error
                view = await self._open(file, writable=True) or view
                view, acked = await self._write_again(file, view, file.acked)
        await self._close(file, (file.ino,))
        if self.chance.random() < 0.5 and await self._sync(view, acked):
            serial = self.serial
            self.client.send(Op.SYNCED, Synced((file.ino,), (serial,)), flags=FLAG_ONEWAY)

    async def _close(self, file: FileState, unsynced: tuple[int, ...]) -> None:
        self.serial += 1
        close = Close((file.ino,), unsynced, self.serial)
        self.client.send(Op.CLOSE, close, flags=FLAG_ONEWAY)

    async def _write_one(self, file: FileState, view: Layout) -> tuple[Layout, dict[int, int]]:
        self.world.last_value += 1
        value = file.pending = self.world.last_value
        file.maybe.add(value)
        try:
            view, acked = await self._write_again(file, view, value)
        finally:
            file.pending = 0
        file.acked = value
        file.maybe.clear()
        return view, acked

    async def _write_again(
        self, file: FileState, view: Layout, value: int
    ) -> tuple[Layout, dict[int, int]]:
        """Writes to all replicas of the view; drops those that cannot be reached for long."""
        since_s = trio.current_time()
        while True:
            acked: dict[int, int] = {}
            failed: list[ObjectName] = []
            names = names_of(view)
            self.chance.shuffle(names)
            for name in names:
                await trio.sleep(self.chance.uniform(0.0, 0.02))
                self._check_alive()
                target = self.world.targets[name.target]
                try:
                    target.change(self.client.session, name, view.truncate_epoch).value = value
                    acked[name.target] = target.incarnation
                except FsError as error:
                    if error.status is Status.FENCED:
                        raise GoneError from None
                    failed.append(name)
                except TransportError:
                    failed.append(name)
            if not failed:
                return view, acked
            if trio.current_time() - since_s > STUCK_S / 2:
                view = await self._drop(file, view, failed)
            else:
                await trio.sleep(0.3)
                view = await self._look(file)

    async def _look(self, file: FileState) -> Layout:
        return unpack_layout((await self._call(Op.OPEN, Open(file.ino, True))).layout)

    async def _drop(self, file: FileState, view: Layout, names: list[ObjectName]) -> Layout:
        numbers = tuple(name.number for name in names)
        targets = tuple(name.target for name in names)
        request = DropReplicas(file.ino, view.file_id, view.truncate_epoch, numbers, targets)
        layout = unpack_layout((await self._call(Op.DROP_REPLICAS, request)).layout)
        for name in set(names) - set(names_of(layout)):
            self.world.check_refused(name)
        await trio.sleep(0.1)
        return layout

    async def _sync(self, view: Layout, acked: dict[int, int]) -> bool:
        """True: all replicas of the view have the bytes durably."""
        for name in names_of(view):
            self._check_alive()
            await trio.sleep(self.chance.uniform(0.0, 0.05))
            target = self.world.targets[name.target]
            try:
                stored = target.change(self.client.session, name, view.truncate_epoch)
            except (FsError, TransportError):
                return False
            if acked.get(name.target) != target.incarnation:
                return False
            stored.durable = stored.value
        return True

    async def _read(self, file: FileState) -> None:
        view = await self._open(file, writable=False)
        if view is not None:
            held = self.world.bench.engine.services.leases.held
            name = self.chance.choice(names_of(view))
            try:
                self.world.targets[name.target].check(self.client.session, name)
            except (FsError, TransportError):
                pass
            else:
                if held(self.client.session, file.ino) & LEASE_DATA:
                    self.world.check_read(file, name)
        await self._close(file, ())


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.targets = {number: SimTarget(number) for number in NODES}
        self.files = {name: FileState(Ino(0)) for name in FILES}
        self.last_value = 0
        self.calls = SimCalls()
        self.calls.world = self
        self.bench: LiveBench

    # ---- what must be the case -----------------------------------------------------------

    def check_refused(self, name: ObjectName) -> None:
        """A dropped name answers no client."""
        target = self.targets[name.target]
        is_refused = name[1:] in target.dropped or not target.is_alive or not target.serves()
        assert is_refused, f"{name} was dropped, and answers"

    def check_read(self, file: FileState, name: ObjectName) -> None:
        stored = self.targets[name.target].objects.get((name.file_id, name.number), Stored())
        allowed = {file.acked, *file.maybe}
        assert stored.value in allowed, f"{name} has {stored.value}, not one of {allowed}"
        if not file.pending:
            file.acked = stored.value
            file.maybe.clear()

    def check_whole(self) -> None:
        """When faults have ended, all replicas are there, and equal; nothing is left undone."""
        for file in self.files.values():
            layout = self.bench.layout(file.ino)
            names = names_of(layout)
            assert len(names) == self.wanted(file), f"{layout} lacks replicas"
            values = [self.targets[name.target].objects[name[1:]].value for name in names]
            assert len(set(values)) == 1, f"{layout} has {values}"
            for name in names:
                self.check_read(file, name)
        for letter in (b"W", b"U", b"C", b"L", b"F", b"T"):
            assert self.bench.records(letter) == [], letter
        assert self.bench.records(b"H") == [] and self.bench.faults() == []

    def wanted(self, file: FileState) -> int:
        """How many replicas the file is to have."""
        return 2

    # ---- what goes on --------------------------------------------------------------------

    async def run(self, seconds: float) -> None:
        self.bench = self._bench(nodes=len(NODES))
        self.bench.engine.end_recovery_if_done()
        for target in self.targets.values():
            self._registered(target)
        maker = self.bench.writer()
        for name, file in self.files.items():
            made = maker.call(Op.CREATE, Create(ROOT, name, 0o644, True, True, USER))
            file.ino = Ino(unpack_layout(made.layout).file_id)
        maker.call(Op.SESSION_CLOSE, Empty())
        for part in range(PARTS):
            if part:
                self._restart()
            async with trio.open_nursery() as tasks:
                self._start(tasks)
                await self._live(seconds / PARTS)
                if part == PARTS - 1:
                    self._heal()
                    await trio.sleep(200)
                    self.check_whole()
                tasks.cancel_scope.cancel()

    async def _live(self, seconds: float) -> None:
        """Clients and faults for a while; the clients are killed at the end."""
        clients = self._clients()
        async with trio.open_nursery() as people:
            for client in clients:
                people.start_soon(client.run)
            with trio.move_on_after(seconds):
                await self._faults(clients)
            people.cancel_scope.cancel()

    def _clients(self) -> list[SimClient]:
        return [SimClient(self) for _ in range(3)]

    def _repair(self, dropping: Dropping) -> Repair:
        return Repair(background(self.bench, self.calls), dropping)

    def _restart(self) -> None:
        """Another metaserver goes on with what is durable. Storage servers register with it when
        they notice; clients of before do not come back."""
        _ = self.sessions_seen
        self.bench = self._bench(nodes=0, store=self.bench.store)
        self.bench.incarnations = {one: target.incarnation for one, target in self.targets.items()}

    @staticmethod
    def _bench(**options: Any) -> LiveBench:
        return LiveBench(settings=replace(TWO, stripe_width_max=1), **options)

    def _start(self, tasks: trio.Nursery) -> None:
        bench, calls = self.bench, self.calls
        committer = CommitsAtOnce(bench)
        dropping = Dropping(bench.engine, committer, calls, tasks, bench.time)
        self.truncation = Truncation(bench.engine, committer, calls, tasks, bench.time, dropping)
        tasks.start_soon(dropping.run)
        tasks.start_soon(Eviction(background(bench, calls), dropping).run, tasks)
        tasks.start_soon(Unsynced(background(bench, calls), self.chance.choice((1, 32))).run)
        tasks.start_soon(self._repair(dropping).run)
        tasks.start_soon(Reaper(background(bench, calls)).run)
        tasks.start_soon(self._turn)
        for target in self.targets.values():
            tasks.start_soon(self._beats, target)

    async def _turn(self) -> None:
        """What the metaserver does after each batch of requests."""
        while True:
            self.bench.settle()
            self.truncation.start_fresh()
            self.bench.engine.leases_changed(self.bench.time())
            await trio.sleep(0.02)

    async def _beats(self, target: SimTarget) -> None:
        while True:
            await trio.sleep(self.chance.uniform(0.8, 1.2))
            if not target.is_alive or target.is_silent:
                continue
            self.bench.incarnations[target.number] = target.incarnation
            server = self.bench.servers.get(target.number)
            asked_s = trio.current_time()
            report = self.bench.report(target.number)
            try:
                if server is None or not server.connection.is_open or not target.is_serving:
                    self._registered(target)
                else:
                    server.call(Op.HEARTBEAT, Heartbeat(target.number, (report,), 0))
                    target.heard_s = asked_s
            except FsError as error:
                assert error.status is Status.NO_TARGET, error
                self._registered(target)

    def _registered(self, target: SimTarget) -> None:
        """A storage server registers, and reads which names were dropped before it serves."""
        asked_s = trio.current_time()
        self.bench.join(target.number, target.incarnation)
        server = self.bench.servers[target.number]
        page = server.call(Op.TARGET_DROPPED, TargetDropped(target.number, 0, 0))
        assert page.end
        target.dropped.update(zip(page.file_ids, page.objects, strict=True))
        sessions = self.bench.engine.sessions
        known = set(sessions.ids())
        target.fenced.update(one for one in self.sessions_seen if one not in known)
        # One that has left the cluster is retired: nobody says which of its names were dropped.
        member = self.bench.engine.services.membership.target(TargetId(target.number))
        target.is_serving, target.heard_s = member is not None, asked_s

    @property
    def sessions_seen(self) -> set[SessionId]:
        self._seen = getattr(self, "_seen", set()) | set(self.bench.engine.sessions.ids())
        return self._seen

    # ---- faults --------------------------------------------------------------------------

    async def _faults(self, clients: list[SimClient]) -> None:
        kinds = self._kinds()
        while True:
            await trio.sleep(self.chance.uniform(0.5, 8.0))
            _ = self.sessions_seen
            target = self.chance.choice(list(self.targets.values()))
            self.chance.choice(kinds)(target, self.chance.choice(clients))

    def _kinds(self) -> list[Callable[[SimTarget, SimClient], None]]:
        return [
            self._cut,
            self._silence,
            self._kill,
            self._lose_power,
            self._kill_client,
            lambda target, client: self._heal(),
        ]

    def _cut(self, target: SimTarget, client: SimClient) -> None:
        target.is_cut = True

    def _silence(self, target: SimTarget, client: SimClient) -> None:
        target.is_silent = True

    def _kill(self, target: SimTarget, client: SimClient) -> None:
        target.end(power=False)
        self._disconnect(target)

    def _lose_power(self, target: SimTarget, client: SimClient) -> None:
        """Not of a target that alone has a file, or alone has it since others lost power."""
        for file in self.files.values():
            names = names_of(self.bench.layout(file.ino))
            others = [self.targets[one.target] for one in names if one.target != target.number]
            sound = [one for one in others if one.incarnation == self._known(one)]
            if len(others) < len(names) and not sound:
                return
        target.end(power=True)
        self._disconnect(target)

    def _disconnect(self, target: SimTarget) -> None:
        server = self.bench.servers.get(target.number)
        if server is not None:
            self.bench.engine.closed(server.connection)

    def _known(self, target: SimTarget) -> int:
        known = self.bench.engine.services.membership.target(target.number)
        return known.incarnation if known is not None else 0

    def _kill_client(self, target: SimTarget, client: SimClient) -> None:
        client.is_killed = True

    def _heal(self) -> None:
        for target in self.targets.values():
            target.is_cut = target.is_silent = False
            target.is_alive = True
