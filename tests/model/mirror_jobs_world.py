"""The world of mirrors with jobs on whole targets: rebuilds and drains, paused and gone on with, of
targets that die for good, are given up though they answer, or come back in the middle.

Beside what tests/model/mirror_engine_world.py looks at: clients read by views of long ago under a
lease that is new; no copy goes to a target that is nearly full; in the end a drained target has
nothing, a lost one is out of the map, and each object is named by the layout of a file, or was
dropped from one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from fscommon.errors import FsError, Status, TransportError
from fscommon.layout.attributes import LEASE_DATA, unpack_attributes
from fscommon.layout.layout import Layout
from fscommon.types import Ino
from fscommon.wire.admin import TargetSet
from fscommon.wire.codec import decode
from fscommon.wire.jobs import JobSet, TargetRemove
from fscommon.wire.leases import LeaseTake
from fscommon.wire.messages import Close, Create, Empty, SetXattr
from fscommon.wire.objects import ObjectCopied
from fscommon.wire.ops import Op
from metaserver.jobs import DRAIN, REBUILD
from metaserver.namespace.replicas import names_of
from metaserver.placement import ReplicaPolicy
from metaserver.records import ObjectName, PlanRecord, dropped_name
from metaserver.repair import Repair
from metaserver.repair_policy import RepairPolicy
from tests.unit.metaserver.bench import ROOT, USER, Client
from tests.unit.metaserver.mirrors import TWO, LiveBench, background

from .mirror_engine_world import PARTS, FileState, SimCalls, SimClient, SimTarget, World

TARGETS: Final = (1, 2, 3, 4, 5)
FULL: Final = 5  # it is nearly full, and gets no copies
SINGLE: Final = b"single"  # a file with one replica
POLICY: Final = RepairPolicy(rebuild_after_s=30)
SETTLED_S: Final = 400.0
NEXT_MOVE_S: Final = 30.0


class JobCalls(SimCalls):
    async def truncate(self, layout: Layout, size: int) -> None:
        if await self.cut_replicas(layout, size):
            raise TransportError("a target did not answer")

    async def drop_names(self, target: int, names: Sequence[ObjectName]) -> None:
        """It is late now and then, while clients reach the target."""
        if self.world.chance.random() < 0.5:
            await trio.sleep(self.world.chance.uniform(0.5, 8.0))
        await super().drop_names(target, names)

    async def copy(
        self, name: ObjectName, source: ObjectName, epoch: int, *, must_exist: bool
    ) -> ObjectCopied:
        assert name.target != FULL, "it is nearly full"
        return await super().copy(name, source, epoch, must_exist=must_exist)


class JobClient(SimClient):
    """It remembers the first view of each file that it has seen, and reads by it now and then.
    views: those that it has from before the metaserver's restart."""

    def __init__(self, world: "JobsWorld", views: dict[Ino, Layout]) -> None:
        super().__init__(world)
        self.views = views

    async def _open(self, file: FileState, *, writable: bool) -> Layout | None:
        view = await super()._open(file, writable=writable)
        if view is not None and (file.ino not in self.views or self.chance.random() < 0.1):
            self.views[file.ino] = view
        return view

    async def _read(self, file: FileState) -> None:
        former = self.views.get(file.ino)
        if former is None or self.chance.random() < 0.4:
            return await super()._read(file)
        taken = await self._call(Op.LEASE_TAKE, LeaseTake(file.ino, LEASE_DATA))
        if unpack_attributes(taken.attributes).lease_flags & LEASE_DATA:
            await self._read_by(file, former)
        return None

    async def _read_by(self, file: FileState, view: Layout) -> None:
        world = self.world
        held = world.bench.engine.services.leases.held
        for name in names_of(view):
            await trio.sleep(self.chance.uniform(0.0, 0.02))
            try:
                world.targets[name.target].check(self.client.session, name)
            except (FsError, TransportError):
                continue
            if held(self.client.session, file.ino) & LEASE_DATA:
                world.check_read(file, name)


@dataclass
class JobTarget(SimTarget):
    is_gone: bool = False  # for good


class JobsWorld(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.targets = {number: JobTarget(number) for number in TARGETS}
        self.files[SINGLE] = FileState(Ino(0))
        self.calls = JobCalls()
        self.calls.world = self
        self.lost: int | None = None
        self.views: list[dict[Ino, Layout]] = [{}, {}, {}]  # of each client

    @staticmethod
    def _bench(**options: Any) -> LiveBench:
        settings = replace(TWO, stripe_width_max=1, replicas=ReplicaPolicy(2, replicas_max=2))
        return LiveBench(settings=settings, **options)

    # ---- what goes on --------------------------------------------------------------------

    async def run(self, seconds: float) -> None:
        self.bench = self._bench(nodes=len(TARGETS))
        self.bench.free[FULL] = (1 << 40) // 20
        self.bench.engine.end_recovery_if_done()
        for target in self.targets.values():
            self._registered(target)
        self._make_files()
        for part in range(PARTS):
            if part:
                self._restart()
                self.bench.free[FULL] = (1 << 40) // 20
            async with trio.open_nursery() as tasks:
                self._start(tasks)
                await self._live(seconds / PARTS)
                if part < PARTS - 1:
                    await self._amid_a_move()
                if part == PARTS - 1:
                    self._heal()
                    self._resume()
                    await trio.sleep(SETTLED_S)
                    self.check_whole()
                tasks.cancel_scope.cancel()

    async def _amid_a_move(self) -> None:
        """Waits until replicas have left a layout whose names still answer: the metaserver ends
        then, and their targets do not hear of the next one at once."""
        self._drain(self.chance.choice(list(self.targets.values())), JobClient(self, {}))
        with trio.move_on_after(NEXT_MOVE_S):
            while not (names := self._unsettled()):  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.02)
            for name in names:
                self.targets[name.target].is_silent = True

    def _unsettled(self) -> list[ObjectName]:
        plans = [decode(PlanRecord, value) for _, value in self.bench.records(b"C")]
        return [name for one in plans if one.is_added for name in one.gone()]

    def _make_files(self) -> None:
        maker = self.bench.writer()
        for name, file in self.files.items():
            made = maker.call(Op.CREATE, Create(ROOT, name, 0o644, True, True, USER))
            file.ino = Ino(unpack_attributes(made.attributes).ino)
            maker.tell(Op.CLOSE, Close((file.ino,)))
            if name == SINGLE:
                maker.call(Op.SETXATTR, SetXattr(file.ino, b"braidfs.layout", b"replicas=1", 0))
        maker.call(Op.SESSION_CLOSE, Empty())

    def _clients(self) -> list[SimClient]:
        return [JobClient(self, views) for views in self.views]

    def _repair(self, dropping: Any) -> Repair:
        return Repair(background(self.bench, self.calls), dropping, POLICY)

    # ---- jobs and faults -----------------------------------------------------------------

    def _kinds(self) -> list[Callable[[SimTarget, SimClient], None]]:
        jobs = [self._drain, self._drain, self._end_drain, self._pause, self._unpause]
        return [*super()._kinds(), *jobs, self._give_up]

    def _ask(self, op: Op, message: Any) -> Any:
        """An administrator asks. None: the request is refused."""
        try:
            return Client(self.bench, self.bench.connect("admin")).call(op, message)
        except FsError as error:
            assert error.status in (Status.EBUSY, Status.NOT_READY, Status.EINVAL, Status.ENOENT)
            return None

    def _drain(self, target: SimTarget, client: SimClient) -> None:
        """At most one at a time, so that there are places."""
        known = self.bench.engine.services.membership.target(target.number)
        is_one = any(one.is_draining for one in self.bench.engine.services.membership.targets())
        if known is not None and not is_one and target.number not in (self.lost, FULL):
            self._ask(Op.TARGET_SET, TargetSet((target.number,), True, moves=True))

    def _end_drain(self, target: SimTarget, client: SimClient) -> None:
        for one in self.bench.engine.services.membership.targets():
            if one.is_draining and self.chance.random() < 0.5:
                self._ask(Op.TARGET_SET, TargetSet((one.id,), False))

    def _pause(self, target: SimTarget, client: SimClient) -> None:
        jobs = [job for job in self.bench.engine.services.jobs if not job.has_ended]
        self._ask(Op.JOB_SET, JobSet(self.chance.choice(jobs).id, True))

    def _unpause(self, target: SimTarget, client: SimClient) -> None:
        for job in self.bench.engine.services.jobs:
            if job.is_paused and not job.has_ended:
                self._ask(Op.JOB_SET, JobSet(job.id, False))

    def _give_up(self, target: SimTarget, client: SimClient) -> None:
        """One target of this world is lost, which has no file alone: it dies, or goes on."""
        if self.lost is not None or target.number == FULL or not target.is_alive:
            return
        layouts = [self.bench.layout(file.ino) for file in self.files.values()]
        if any({one.target for one in names_of(layout)} <= {target.number} for layout in layouts):
            return
        assert isinstance(target, JobTarget)
        dies = self.chance.random() < 0.5
        if dies and any(not self._has_another(target, layout) for layout in layouts):
            return
        if self._ask(Op.TARGET_REMOVE, TargetRemove((target.number,), True)) is None:
            return
        self.lost = target.number
        if dies:
            target.is_gone = True
            target.end(power=True)  # so that nothing takes it for a sound replica
            self._disconnect(target)

    def _has_another(self, target: SimTarget, layout: Layout) -> bool:
        """Whether a replica elsewhere has all that this one has."""
        names = names_of(layout)
        if target.number not in {name.target for name in names}:
            return True
        others = [self.targets[one.target] for one in names if one.target != target.number]
        return any(one.incarnation == self._known(one) for one in others)

    def _heal(self) -> None:
        super()._heal()
        for target in self.targets.values():
            assert isinstance(target, JobTarget)
            if target.is_gone:
                target.is_alive = False

    def _resume(self) -> None:
        self._unpause(self.targets[1], JobClient(self, {}))

    # ---- what must be the case -----------------------------------------------------------

    def check_whole(self) -> None:
        super().check_whole()
        services = self.bench.engine.services
        named = {dropped_name(key) for key, _ in self.bench.records(b"Y")}
        for file in self.files.values():
            named.update(names_of(self.bench.layout(file.ino)))
        for target in services.membership.targets():
            if target.is_draining:
                assert target.is_drained, f"target {target.id} is not empty"
        for kind in (DRAIN, REBUILD):
            assert services.jobs.under_way(kind) == [], services.jobs.rows(0.0)
        if self.lost is not None:
            assert services.membership.target(self.lost) is None, "a lost target is in the map"
        for number, sim in self.targets.items():
            if number == self.lost:
                continue
            there = {ObjectName(number, *key) for key in sim.objects}
            assert there <= named, f"{there - named} is of no file"

    def wanted(self, file: FileState) -> int:
        return 1 if file is self.files[SINGLE] else 2
