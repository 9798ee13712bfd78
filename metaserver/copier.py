"""Copies one file's objects to other targets: to make replicas that it lacks, or to move some.

It claims the file by a shared DATA lease of the metaserver itself, which recalls its writer. It
plans the new objects, has each copied from another replica of its stripe, has all replicas that
stay synced, raises their epoch, and puts the new ones into the layout; replicas that leave go in
the same change (metaserver.namespace.copies). If anything fails it gives the plan up; the file is
tried again later.

A writer takes the claim away at once, or after `hold_s`. Once replicas have left the layout nobody
gets the claim before their names are settled: a client with the former view might read there what
is older than what a writer has written elsewhere. The metaserver that finds such a file after a
restart has claimed it already, and settles its names.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from math import inf
from typing import Final

import trio

from fscommon.errors import FsError, Status
from fscommon.observe.log import Log
from fscommon.types import Ino
from fscommon.wire.codec import decode
from metaserver.background import Background
from metaserver.claims import Claims
from metaserver.context import Context
from metaserver.dropping import Dropping
from metaserver.faults import Faults
from metaserver.namespace.copies import Plan, add, finish, give_up, is_claimed, moved, plan
from metaserver.namespace.inode import find
from metaserver.namespace.places import GivenUpError, Wanted
from metaserver.namespace.replicas import droppable, name_of, remove_replicas, stripe_of
from metaserver.records import ObjectName, PlanRecord, all_of, number_of
from metaserver.repair_policy import DEFAULT_REPAIR, MIB, RepairPolicy
from metaserver.sessions import SYSTEM_SESSION
from metaserver.storage import STORAGE_ERRORS
from metaserver.transaction import Transaction

_TRIES_MAX: Final = 1 << 16


class WrittenError(GivenUpError):
    """Somebody writes to the file."""


class LostObjectError(GivenUpError):
    """A target has lost the object of a replica, which was durable once."""

    def __init__(self, name: ObjectName) -> None:
        super().__init__(f"target {name.target} has lost its object {name.number:x}")
        self.name = name


# Says what a claimed file is to get. None: nothing. It raises GivenUpError.
Choose = Callable[[Transaction, Context, Ino], Wanted | None]


@dataclass(frozen=True, slots=True)
class Copied:
    """How it ended. why: it did not succeed; "": it did. is_written: it will when nobody writes.
    is_needless: nothing was to be done. tries: so many in a row did not succeed."""

    moved: int = 0  # bytes
    why: str = ""
    is_written: bool = False
    is_needless: bool = False
    tries: int = 0


class Pace:
    """Bounds the bytes that go to each target, over some seconds. Where there is a bound, a target
    gets one object at a time, as nobody knows before how long it is."""

    def __init__(self, policy: RepairPolicy) -> None:
        self._rate = policy.rate_mib * MIB
        self._turns: dict[int, trio.Lock] = {}  # by target
        self._next_s: dict[int, float] = {}  # by target: when the next copy to it may begin

    @asynccontextmanager
    async def of(self, target: int) -> AsyncIterator[Callable[[int], None]]:
        """Inside, an object is copied there; what it yields is told how many bytes that were."""
        if not self._rate:
            yield lambda count: None
            return
        async with self._turns.setdefault(target, trio.Lock()):
            await trio.sleep_until(self._next_s.get(target, 0.0))
            began_s = trio.current_time()

            def sent(count: int) -> None:
                self._next_s[target] = began_s + count / self._rate

            yield sent


class Copier:
    def __init__(
        self,
        background: Background,
        dropping: Dropping | None = None,
        policy: RepairPolicy = DEFAULT_REPAIR,
    ) -> None:
        """dropping: settles the names of replicas that leave. None: a test moves none."""
        self._engine = background.engine
        self._change = background.change
        self._committer = background.committer
        self._claims = Claims(background, SYSTEM_SESSION)
        self._storage = background.storage
        self._now = background.clock
        self._dropping = dropping
        self._pace = Pace(policy)
        self._log = Log("repair")
        self._faults = Faults(self._log)
        self._tries: dict[Ino, int] = {}  # failed ones of files: another source is taken
        self.receiving: Counter[int] = Counter()  # objects that are being copied to each target

    def begin(self) -> list[Ino]:
        """Gives up all plans of a metaserver of before. Returns the files whose names of replicas
        that have left must be settled."""
        plans: list[tuple[bytes, bytes]] = []
        self._change(lambda tx, context: plans.extend(tx.readable(*all_of(b"C"))))
        for key, _ in plans:
            ino = Ino(number_of(key))
            with self._faults.contained("the end of a plan", ino=ino):
                self._change(lambda tx, context, ino=ino: give_up(tx, ino))  # type: ignore[misc]
        return [Ino(number_of(key)) for key, value in plans if decode(PlanRecord, value).is_added]

    async def copy(self, ino: Ino, choose: Choose, hold_s: float = 0.0) -> Copied:
        """hold_s: so long a writer waits for the end."""
        await self.settle(ino)  # if an earlier move could not
        if not self._engine.services.scrubs.is_trusted(ino):
            return Copied(why="its replicas are compared first, as the names were restored")
        try:
            await self._claim(ino, hold_s)
            made = await self._plan(ino, choose)
            if made is None:
                return Copied(is_needless=True)
            self.receiving.update(name.target for name in made.names)
            try:
                count = await self._copy_all(made)
                await self._add(made)
            finally:
                self.receiving.subtract(name.target for name in made.names)
        except (*STORAGE_ERRORS, GivenUpError) as error:
            if len(self._tries) > _TRIES_MAX:
                self._tries.clear()
            self._tries[ino] = self._tries.get(ino, 0) + 1
            if isinstance(error, LostObjectError):
                self._drop(ino, error.name)
            is_written = isinstance(error, WrittenError)
            return Copied(why=str(error), is_written=is_written, tries=self._tries[ino])
        finally:
            self._change(lambda tx, context: give_up(tx, ino))  # if it was not added
            if not self._moved(ino):
                self._claims.give_back(ino)
        self._tries.pop(ino, None)
        await self.settle(ino)
        return Copied(count)

    async def settle(self, ino: Ino) -> None:
        """Lets others have the file when nobody gets an answer from replicas that have left it."""
        names = self._moved(ino)
        if not names:
            return
        assert self._dropping is not None, "who moves replicas settles their names"
        await self._dropping.settle(names)
        self._change(lambda tx, context: finish(tx, ino))
        self._claims.give_back(ino)

    # ---- the steps -----------------------------------------------------------------------

    async def _claim(self, ino: Ino, hold_s: float) -> None:
        if why := await self._claims.take(ino):
            raise WrittenError(why)
        leases = self._engine.services.leases
        leases.hold(SYSTEM_SESSION, ino, hold_s, self._now().now_s)

    async def _plan(self, ino: Ino, choose: Choose) -> Plan | None:
        """The plan is durable when this returns: no object is made without it. None: nothing is to
        be done."""
        plans: list[Plan | None] = []

        def change(tx: Transaction, context: Context) -> None:
            wanted = choose(tx, context, ino)
            if wanted is not None:
                plans.append(plan(tx, context, ino, wanted.places, wanted.gone))

        self._change(change)
        if not plans:
            return None
        await self._committer.wait_durable(self._engine.progress.txn)
        if plans[0] is None:
            raise GivenUpError("it is being changed, or has no objects")
        return plans[0]

    async def _copy_all(self, made: Plan) -> int:
        """Returns how many bytes were copied."""
        count = 0
        for name in made.names:
            source = self._source(made, name)
            async with self._pace.of(name.target) as sent:
                self._check_claim(made)
                with self._told_what_is_lost(made, source):
                    copied = await self._storage.copy(
                        name, source, made.epoch, must_exist=_was_durable(made, source)
                    )
                    self._check_power(made, source, copied.source_incarnation)
                sent(copied.bytes)
            count += copied.bytes
        for name in made.staying():
            self._check_claim(made)
            with self._told_what_is_lost(made, name):
                synced = await self._storage.sync(name, made.layout.truncate_epoch)
                self._check_power(made, name, synced)
        for name in made.staying():
            self._check_claim(made)
            with self._told_what_is_lost(made, name):
                raised = await self._storage.raise_epoch(
                    name, made.epoch, must_exist=_was_durable(made, name)
                )
                self._check_power(made, name, raised)
        return count

    @staticmethod
    @contextmanager
    def _told_what_is_lost(made: Plan, name: ObjectName) -> Iterator[None]:
        """An object that is missing is lost if it was durable once; else it is a hole, of which
        there is nothing to be synced. Raising the epoch makes it."""
        try:
            yield
        except FsError as error:
            if error.status is not Status.NO_OBJECT:
                raise
            if _was_durable(made, name):
                raise LostObjectError(name) from error

    def _drop(self, ino: Ino, name: ObjectName) -> None:
        """The next try takes another replica. The last one stays, although it is lost."""
        membership, now_s = self._engine.services.membership, self._now().now_s

        def change(tx: Transaction, context: Context) -> None:
            inode = find(tx, ino)
            if inode is None or not inode.is_file:
                return
            layout = inode.layout()
            gone = droppable(layout, [name], lambda one: membership.is_answering(one, now_s))
            remove_replicas(tx, ino, layout, gone)

        self._change(change)

    def _source(self, made: Plan, name: ObjectName) -> ObjectName:
        """A replica of the stripe whose target answers: after a failure another one, if there is
        one."""
        membership, now_s = self._engine.services.membership, self._now().now_s
        layout = made.layout
        found = [
            name_of(layout, one)
            for one in layout.replicas()
            if one.stripe_index == stripe_of(name.number)
            and membership.is_answering(one.target, now_s)
        ]
        if not found:
            raise GivenUpError("no replica of a stripe is up")
        return found[self._tries.get(made.ino, 0) % len(found)]

    def _check_claim(self, made: Plan) -> None:
        if not self._is_claimed(made.ino):
            raise WrittenError("it is being written")

    def _is_claimed(self, ino: Ino) -> bool:
        found: list[bool] = []
        self._change(lambda tx, context: found.append(is_claimed(context, ino)))
        return found[0]

    @staticmethod
    def _check_power(made: Plan, name: ObjectName, incarnation: int) -> None:
        if made.incarnations.get(name.target) != incarnation:
            raise GivenUpError(f"target {name.target} has lost what was not synced")

    async def _add(self, made: Plan) -> None:
        done: list[bool] = []

        def change(tx: Transaction, context: Context) -> None:
            done.append(add(tx, context, made))
            if done[0] and made.gone:
                leases = context.services.leases
                leases.hold(SYSTEM_SESSION, made.ino, inf, context.now_s)

        self._change(change)
        await self._committer.wait_durable(self._engine.progress.txn)
        if not done[0]:
            raise GivenUpError("it has changed meanwhile")

    def _moved(self, ino: Ino) -> list[ObjectName]:
        names: list[ObjectName] = []
        self._change(lambda tx, context: names.extend(moved(tx, ino)))
        return names


def _was_durable(made: Plan, name: ObjectName) -> bool:
    return bool(made.layout.durable_stripes >> stripe_of(name.number) & 1)
