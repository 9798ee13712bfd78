"""Drops replicas that writers cannot reach, and settles dropped names: no client gets an answer for
them any more.

A drop is a transaction of the metaserver; when it is durable, each target is told the names of its
objects that were dropped, together. The requests that asked run again when all names are settled,
or when that has lasted too long. A name is settled when its target has acknowledged it, or cannot
answer: its lease has run out, or its process has ended. A storage server registers before it serves
again, and asks which names were dropped (docs/decisions/0063-mirrors.md).
"""

from collections.abc import Callable, Collection, Iterable
from typing import Final

import trio

from fscommon.errors import FsError, NobodyThereError, Status
from fscommon.limits import DROP_NAMES_MAX
from fscommon.observe.log import Log, RateLimit
from fscommon.tasks import open_tasks
from fscommon.types import NodeId
from metaserver.committer import Committer
from metaserver.context import Context
from metaserver.drops import Drop
from metaserver.engine import Engine, Time
from metaserver.faults import Faults
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import droppable, remove_replicas
from metaserver.ops.replicas import drop_key
from metaserver.records import ObjectName, dropped_key
from metaserver.sessions import SYSTEM_SESSION
from metaserver.storage import STORAGE_ERRORS, StorageCalls
from metaserver.transaction import Transaction

ANSWER_S_MAX: Final = 20.0  # a request waits so long for dropped names, and is told to ask again
RETRY_S: Final = 0.25
_LOG_S: Final = 10.0


class Dropping:
    def __init__(
        self,
        engine: Engine,
        committer: Committer,
        storage: StorageCalls,
        tasks: trio.Nursery,
        clock: Callable[[], Time],
    ) -> None:
        self._engine = engine
        self._committer = committer
        self._storage = storage
        self._tasks = tasks
        self._now = clock
        self._drops = engine.services.drops
        self._work = trio.Event()
        self._changed = trio.Event()  # replaced when names were settled
        self._pending: dict[int, dict[ObjectName, None]] = {}  # by target: names to be settled
        self._log = Log("replicas")
        self._faults = Faults(self._log)
        self._lines = RateLimit(_LOG_S)
        self._suspects = RateLimit(_LOG_S)
        self._drops.wake = self._wake

    def _wake(self) -> None:
        self._work.set()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work = trio.Event()
            for drop in self._drops.take_wanted():
                self._tasks.start_soon(self._carry_out, drop)

    async def _carry_out(self, drop: Drop) -> None:
        late = drop.names  # unless it goes well
        with self._faults.contained("a drop of replicas", ino=drop.ino):
            self._drop(drop)
            await self._committer.wait_durable(self._engine.progress.txn)
            with trio.move_on_after(ANSWER_S_MAX):
                await self.settle(drop.names)
            late = tuple(self._unsettled(drop.names))
        self._drops.late(late)
        self._engine.resume(drop_key(drop.ino), self._now())
        self._committer.changed()

    def _drop(self, drop: Drop) -> None:
        dropped: list[ObjectName] = []
        membership = self._engine.services.membership

        def change(tx: Transaction, context: Context) -> None:
            inode = find(tx, drop.ino)
            if inode is None or not inode.is_file:
                return
            layout = inode.layout()
            if (layout.file_id, layout.truncate_epoch) != (drop.file_id, drop.epoch):
                return
            now_s = context.now_s
            dropped.extend(
                droppable(layout, drop.names, lambda one: membership.is_answering(one, now_s))
            )
            remove_replicas(tx, drop.ino, layout, dropped)

        now = self._now()
        self._engine.system(change, now)
        if dropped:
            self._tell(drop, dropped, now.now_s)

    def _tell(self, drop: Drop, dropped: list[ObjectName], now_s: float) -> None:
        membership = self._engine.services.membership
        targets = sorted({name.target for name in dropped})
        is_lost = drop.session == SYSTEM_SESSION  # so fsck has found
        why = "their targets have lost" if is_lost else "a client cannot reach"
        suppressed = self._lines.permit()
        if suppressed is not None:
            self._log.warning(
                f"replicas are dropped that {why}",
                ino=drop.ino,
                targets=targets,
                session=drop.session,
                suppressed=suppressed or None,
            )
        if is_lost:
            return
        up = [target for target in targets if membership.is_answering(target, now_s)]
        if up and self._drops.suspects(drop.session, up, now_s):
            suppressed = self._suspects.permit()
            if suppressed is not None:
                self._log.warning(
                    "a client drops replicas of many targets that are up: it may be cut off itself",
                    session=drop.session,
                    suppressed=suppressed or None,
                )

    # ---- settling ------------------------------------------------------------------------

    async def settle(self, names: Collection[ObjectName]) -> None:
        """Waits until nobody gets an answer for these names, as far as they were dropped durably.
        The caller has waited for that."""
        waiting = set(self._unsettled(names))
        for name in waiting:
            pending = self._pending.setdefault(name.target, {})
            if not pending:
                self._tasks.start_soon(self._settle_at, name.target)
            pending[name] = None
        while waiting:
            await self._changed.wait()
            waiting = {name for name in waiting if not self._drops.is_settled(name)}

    def _unsettled(self, names: Iterable[ObjectName]) -> list[ObjectName]:
        """Returns the names among these that were dropped, and are not settled."""
        dropped: list[ObjectName] = []

        def look(tx: Transaction, context: Context) -> None:
            for name in names:
                if tx.get(dropped_key(name)) is not None and not self._drops.is_settled(name):
                    dropped.append(name)

        self._engine.system(look)
        return dropped

    async def _settle_at(self, target: int) -> None:
        """Tells a target its dropped names until it has acknowledged all, or cannot answer."""
        pending = self._pending[target]
        while pending:
            some = list(pending)[:DROP_NAMES_MAX]
            is_done = False
            with self._faults.contained("the settling of dropped names", target=target):
                is_done = await self._is_settled_at(target, some)
            if not is_done:
                await trio.sleep(RETRY_S)
                continue
            self._drops.settled(some)
            for name in some:
                del pending[name]
            changed, self._changed = self._changed, trio.Event()
            changed.set()
        del self._pending[target]

    async def _is_settled_at(self, target: int, names: list[ObjectName]) -> bool:
        """The lease of a silent target may run out while it is asked: nobody waits longer."""
        cannot_answer = self._engine.services.membership.cannot_answer
        if cannot_answer(target):
            return True
        has_heard = False

        async def watch(scope: trio.CancelScope) -> None:
            while not cannot_answer(target):  # noqa: ASYNC110 - no event tells of that
                await trio.sleep(RETRY_S)
            scope.cancel()

        async with open_tasks() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope)
            has_heard = await self._has_heard(target, names)
            tasks.cancel_scope.cancel()
        return has_heard or cannot_answer(target)

    async def _has_heard(self, target: int, names: list[ObjectName]) -> bool:
        try:
            await self._storage.drop_names(target, names)
        except NobodyThereError:
            return self._has_lost_its_connection(target)
        except STORAGE_ERRORS as error:
            # A server tells all its targets before it registers, and registers before it serves.
            return isinstance(error, FsError) and error.status is Status.NO_TARGET
        return True

    def _has_lost_its_connection(self, target: int) -> bool:
        """Whether the target's process has ended, as nothing listens at its address: then its
        connection to this metaserver has ended, too."""
        membership = self._engine.services.membership
        known = membership.target(target)
        node = membership.node(NodeId(known.node)) if known is not None else None
        connection = node.connection if node is not None else None
        return connection is not None and not connection.is_open
