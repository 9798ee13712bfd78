"""Makes replicas again that were dropped: one file at a time.

The `Y` records of dropped names say which files may lack replicas. A job claims the file by a
shared DATA lease of the metaserver itself, which recalls its writer, and which a new writer takes
away at once. It plans the replicas, has each copied from another one of its stripe into a new
object, has all replicas that stay synced, raises their epoch, and adds the new ones
(metaserver.namespace.copies). If anything fails it gives the plan up; the file is tried again
later. A plan that is found at the start is given up, too: its claim has ended.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from fscommon.errors import BraidError, FsError, Status
from fscommon.layout.attributes import LEASE_DATA
from fscommon.layout.layout import Layout, is_replicated
from fscommon.observe.log import Log, RateLimit
from fscommon.types import Ino
from fscommon.wire.leases import ReturnItem
from metaserver.background import Background
from metaserver.context import Context
from metaserver.faults import Faults
from metaserver.leases.holders import Need
from metaserver.namespace.copies import Plan, add, give_up, is_claimed, plan
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import (
    counts_of,
    droppable,
    name_of,
    names_of,
    remove_replicas,
    stripe_of,
)
from metaserver.records import ObjectName, all_of, number_of, unpack_number
from metaserver.sessions import SYSTEM_SESSION
from metaserver.storage import STORAGE_ERRORS
from metaserver.transaction import Transaction

LOOK_S: Final = 5.0
RETRY_S: Final = 30.0  # a file whose job has failed rests so long: a job is in its writers' way
CLAIM_S: Final = 5.0  # a job waits so long for the file's writer
_CLAIM_LOOK_S: Final = 0.1
_FOUND_MAX: Final = 512  # records of one look
_RESTING_MAX: Final = 1 << 16
_LOG_S: Final = 60.0


class GivenUpError(BraidError):
    """The file cannot get its replicas now; the message says why."""


class LostObjectError(GivenUpError):
    """A target has lost the object of a replica, which was durable once."""

    def __init__(self, name: ObjectName) -> None:
        super().__init__(f"target {name.target} has lost its object {name.number:x}")
        self.name = name


class Repair:
    def __init__(self, background: Background) -> None:
        self._engine = background.engine
        self._committer = background.committer
        self._storage = background.storage
        self._now = background.clock
        self._log = Log("repair")
        self._faults = Faults(self._log)
        self._failures = RateLimit(_LOG_S)
        self._after = b""  # the record with which the last look ended
        self._resting: dict[Ino, float] = {}  # files whose jobs have failed, until these times

    async def run(self) -> None:
        await self._until_recovered()
        self._give_up_all()
        while True:
            await trio.sleep(LOOK_S)
            with self._faults.contained("the repair of files"):
                for ino in self.candidates():
                    await self.repair(ino)

    async def _until_recovered(self) -> None:
        while self._engine.progress.recovering:  # noqa: ASYNC110 - the end has no event
            await trio.sleep(LOOK_S)

    def _give_up_all(self) -> None:
        def change(tx: Transaction, context: Context) -> None:
            for key, _ in list(tx.range(*all_of(b"C"))):
                give_up(tx, Ino(number_of(key)))

        self._change(change)

    def candidates(self) -> list[Ino]:
        """Returns files that may lack replicas, behind those of the last look."""
        start, end = all_of(b"Y")
        found = self._engine.stored((max(start, self._after), end), _FOUND_MAX)
        self._after = found[-1][0] + b"\0" if len(found) == _FOUND_MAX else b""
        inos: dict[Ino, None] = {}
        without_place: set[Ino] = set()
        now_s = trio.current_time()
        if len(self._resting) > _RESTING_MAX:
            self._resting.clear()

        def look(tx: Transaction, context: Context) -> None:
            for _, value in found:
                ino = Ino(unpack_number(value))
                if ino in inos or ino in without_place or self._resting.get(ino, 0.0) > now_s:
                    continue
                places = _places(tx, context, ino)
                if places:
                    inos[ino] = None
                elif places is not None:
                    without_place.add(ino)

        self._change(look)
        if without_place and not inos and self._failures.permit() is not None:
            self._log.warning(
                "files lack replicas, and no target can take them: one in another failure domain "
                "that is up and less than 90 % full",
                files=len(without_place),
            )
        return list(inos)

    async def repair(self, ino: Ino) -> bool:
        """Gives the file the replicas that it lacks. Returns False if that is not possible now."""
        try:
            await self._claim(ino)
            made = await self._plan(ino)
            await self._copy_all(made)
            await self._add(made)
        except (*STORAGE_ERRORS, GivenUpError) as error:
            self._resting[ino] = trio.current_time() + RETRY_S
            if isinstance(error, LostObjectError):
                self._drop(ino, error.name)
            suppressed = self._failures.permit()
            if suppressed is not None:
                self._log.warning(
                    "a file gets its replicas later",
                    ino=ino,
                    error=error,
                    suppressed=suppressed or None,
                )
            return False
        finally:
            self._change(lambda tx, context: give_up(tx, ino))  # if it was not added
            self._give_claim_back(ino)
        self._resting.pop(ino, None)
        self._log.info("a file has its replicas again", ino=ino)
        return True

    # ---- the steps -----------------------------------------------------------------------

    async def _claim(self, ino: Ino) -> None:
        leases = self._engine.services.leases
        leases.connected(SYSTEM_SESSION)
        needs = [Need(ino, LEASE_DATA)]
        claim = leases.admit(SYSTEM_SESSION, needs, self._now().now_s)
        with trio.move_on_after(CLAIM_S):
            while claim is not None:
                self._engine.leases_changed(self._now())
                await trio.sleep(_CLAIM_LOOK_S)
                if not claim.waits:
                    claim = leases.admit(SYSTEM_SESSION, needs, self._now().now_s, claim)
        if claim is not None:
            leases.cancel(claim)
            raise GivenUpError("it is being written")
        if not leases.grant(SYSTEM_SESSION, ino, LEASE_DATA, 0, self._now().now_s) & LEASE_DATA:
            raise GivenUpError("its lease is contended")

    def _give_claim_back(self, ino: Ino) -> None:
        item = ReturnItem(ino, LEASE_DATA)
        self._engine.services.leases.returned(SYSTEM_SESSION, [item], self._now().now_s)
        self._engine.leases_changed(self._now())
        self._committer.changed()

    async def _plan(self, ino: Ino) -> Plan:
        """The plan is durable when this returns: no object is made without it."""
        plans: list[Plan | None] = []
        self._change(
            lambda tx, context: plans.append(
                plan(tx, context, ino, _places(tx, context, ino) or ())
            )
        )
        await self._committer.wait_durable(self._engine.progress.txn)
        made = plans[0]
        if made is None:
            raise GivenUpError("there is no place for them, or it is being changed")
        return made

    async def _copy_all(self, made: Plan) -> None:
        for name in made.names:
            self._check_claim(made)
            source = self._source(made, name)
            with self._told_what_is_lost(made, source):
                copied = await self._storage.copy(
                    name, source, made.epoch, must_exist=_was_durable(made, source)
                )
                self._check_power(made, source, copied.source_incarnation)
        for name in names_of(made.layout):
            self._check_claim(made)
            with self._told_what_is_lost(made, name):
                synced = await self._storage.sync(name, made.layout.truncate_epoch)
                self._check_power(made, name, synced)
        for name in names_of(made.layout):
            self._check_claim(made)
            with self._told_what_is_lost(made, name):
                raised = await self._storage.raise_epoch(
                    name, made.epoch, must_exist=_was_durable(made, name)
                )
                self._check_power(made, name, raised)

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
        membership, now_s = self._engine.services.membership, self._now().now_s
        layout = made.layout
        for one in layout.replicas():
            same = one.stripe_index == stripe_of(name.number)
            if same and membership.is_answering(one.target, now_s):
                return name_of(layout, one)
        raise GivenUpError("no replica of a stripe is up")

    def _check_claim(self, made: Plan) -> None:
        found: list[bool] = []
        self._change(lambda tx, context: found.append(is_claimed(context, made.ino)))
        if not found[0]:
            raise GivenUpError("it is being written")

    @staticmethod
    def _check_power(made: Plan, name: ObjectName, incarnation: int) -> None:
        if made.incarnations.get(name.target) != incarnation:
            raise GivenUpError(f"target {name.target} has lost what was not synced")

    async def _add(self, made: Plan) -> None:
        done: list[bool] = []
        self._change(lambda tx, context: done.append(add(tx, context, made)))
        await self._committer.wait_durable(self._engine.progress.txn)
        if not done[0]:
            raise GivenUpError("it has changed meanwhile")

    def _change(self, operation: Callable[[Transaction, Context], object]) -> None:
        def run(tx: Transaction, context: Context) -> None:
            operation(tx, context)

        self._engine.system(run, self._now())


def _was_durable(made: Plan, name: ObjectName) -> bool:
    return bool(made.layout.durable_stripes >> stripe_of(name.number) & 1)


def _degraded(tx: Transaction, ino: Ino) -> Layout | None:
    """Returns the layout of a file that lacks replicas; None: it lacks none."""
    inode = find(tx, ino)
    if inode is None or not inode.is_file or not is_replicated(inode.tail):
        return None
    layout = inode.layout()
    counts = counts_of(layout)
    return layout if any(n < layout.replicas_wanted for n in counts.values()) else None


def _places(tx: Transaction, context: Context, ino: Ino) -> list[tuple[int, int]] | None:
    """Returns where the file is to get replicas: stripe index and target. []: there is no place for
    them; None: it lacks none."""
    layout = _degraded(tx, ino)
    if layout is None:
        return None
    counts = counts_of(layout)
    places: list[tuple[int, int]] = []
    for stripe in range(layout.stripe_width):
        present = [one.target for one in layout.replicas() if one.stripe_index == stripe]
        for _ in range(counts[stripe], layout.replicas_wanted):
            target = context.services.membership.place_of_copy(
                layout.file_id + stripe, present, context.now_s
            )
            if target is not None:
                present.append(target)
                places.append((stripe, target))
    return places
