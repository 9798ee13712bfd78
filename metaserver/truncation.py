"""Ends truncates: cuts every object of an inode with an intent, then clears the intent (rule 19).
It also ends spills: an intent with inline bytes moves these into the file's objects
(docs/decisions/0037-inline-data.md).

For each inode in the table of intents, when the intent is durable, TRUNCATE goes to every target;
it is repeated with backoff until all have answered. Then the record is deleted. When that is
durable, the inode may grow again, and the requests that waited go on. Intents found at the start
end in the same way. Each inode has a task. PARALLEL_MAX tasks send requests at the same time; a
task that waits for a target that is down sends none.

A request of an attempt could arrive late, when the attempt was given up or this program was killed,
and would undo what a writer has written since. So each attempt has its own truncate epoch, durable
before the attempt begins, and targets refuse requests of earlier attempts. The first attempt has
the epoch of the intent.

The places of a replicated file are those of its inode, whatever the intent says: replicas may be
dropped meanwhile. One on a target that is down, or that was not cut for UNREACHABLE_S, is dropped,
rather than waited for, while another one of its stripe is there; the truncate ends when nobody gets
an answer from it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Final

import trio

from fscommon.layout.layout import Layout, unpack_layout
from fscommon.observe.log import Log
from fscommon.types import Ino
from metaserver.committer import Committer
from metaserver.context import Context
from metaserver.dropping import Dropping
from metaserver.engine import Engine, Time
from metaserver.faults import Faults
from metaserver.namespace.inode import Inode, find, save
from metaserver.namespace.replicas import (
    droppable,
    dropped_names,
    names_of,
    next_epoch,
    remove_replicas,
    with_places_of,
)
from metaserver.records import Intent, ObjectName, intent_key, unpack_intent
from metaserver.storage import STORAGE_ERRORS, StorageCalls
from metaserver.transaction import Transaction

PARALLEL_MAX: Final = 64
BACKOFF_S_MIN: Final = 0.05
BACKOFF_S_MAX: Final = 2.0
UNREACHABLE_S: Final = 4.0  # as long as clients wait that write
REPLICATED_BACKOFF_S_MAX: Final = 0.5


class Truncation:
    def __init__(
        self,
        engine: Engine,
        committer: Committer,
        storage: StorageCalls,
        tasks: trio.Nursery,
        clock: Callable[[], Time],
        dropping: Dropping | None = None,
    ) -> None:
        """dropping: settles the names of replicas that are dropped. None: a test has no such."""
        self._now = clock
        self._dropping = dropping
        self._tasks = tasks
        self._engine = engine
        self._committer = committer
        self._storage = storage
        self._log = Log("truncation")
        self._faults = Faults(self._log)
        # Since when targets have failed to cut a file, by the file and the target.
        self._failing: dict[Ino, dict[int, float]] = {}
        self._limit = trio.CapacityLimiter(PARALLEL_MAX)

    def start_fresh(self) -> None:
        """Starts a task for each new intent. The caller calls this after each batch of requests."""
        for ino in self._engine.services.intents.take_fresh():
            self._tasks.start_soon(self._end, ino)

    async def _end(self, ino: Ino) -> None:
        await self._committer.wait_durable(self._engine.progress.txn)
        with self._faults.contained("the end of a truncate", ino=ino):
            await self._carry_out(ino)
            self._engine.truncated(ino, self._now())
        self.start_fresh()
        self._committer.changed()

    async def _carry_out(self, ino: Ino) -> None:
        intent = self._intent(ino)
        if intent is None:
            return
        layout: Layout | None = unpack_layout(intent.layout)
        if self._engine.services.intents.is_former(ino):
            layout = await self._raise_epoch(ino)
        for delay_s in _delays():
            if layout is None:
                break
            layout = await self._until_up(ino, layout)
            if await self._is_done(ino, layout, intent.size):
                break
            await trio.sleep(min(delay_s, _longest_pause_s(layout)))
            layout = await self._raise_epoch(ino)
        self._failing.pop(ino, None)
        if layout is not None and layout.is_replicated:
            await self._settle(layout)
        await self._clear(ino)

    def _intent(self, ino: Ino) -> Intent | None:
        found: list[bytes | None] = []

        def look(tx: Transaction, context: Context) -> None:
            found.append(tx.get(intent_key(ino)))

        self._engine.system(look)
        return unpack_intent(found[0]) if found[0] is not None else None

    async def _until_up(self, ino: Ino, layout: Layout) -> Layout:
        """Waits while a target is down: without requests, with one log line, and without a place
        among the PARALLEL_MAX tasks. A replica is not waited for, but dropped, when another one of
        its stripe is up. Returns the layout with the replicas that stay."""
        membership = self._engine.services.membership
        is_told = False
        while True:
            if layout.is_replicated:
                layout = await self._without_lost(ino, layout)
            target = membership.down_of(layout)
            if target is None:
                return layout
            if not is_told:
                self._log.warning("it waits for a target that is down", ino=ino, target=target)
            is_told = True
            await trio.sleep(_longest_pause_s(layout))

    async def _without_lost(self, ino: Ino, layout: Layout) -> Layout:
        """Drops replicas on targets that are down, as far as another one of their stripe is up.
        Returns the layout with the replicas that the file has then: places change meanwhile."""
        membership = self._engine.services.membership
        found = [layout]

        def change(tx: Transaction, context: Context) -> None:
            inode = find(tx, ino)
            if inode is None or inode.layout().file_id != layout.file_id:
                return
            now = inode.layout()
            late_s = trio.current_time() - UNREACHABLE_S
            failing = self._failing.get(ino, {})
            lost = [
                name
                for name in names_of(now)
                if self._is_missing(name.target, context.now_s)
                or failing.get(name.target, inf) < late_s
            ]
            gone = droppable(
                now,
                lost,
                lambda one: one not in failing and membership.is_answering(one, context.now_s),
            )
            remove_replicas(tx, ino, now, gone)
            if gone:
                targets = sorted({name.target for name in gone})
                self._log.warning(
                    "replicas that cannot be cut are dropped", ino=ino, targets=targets
                )
            found.append(with_places_of(layout, find(tx, ino) or inode))

        await self._committer.wait_durable(self._engine.system(change, self._now()))
        return found[-1]

    def _is_missing(self, target: int, now_s: float) -> bool:
        """Whether the target cannot answer, or has been down for so long that clients would not
        wait for it either. (One that this metaserver has not heard of yet is not down.)"""
        membership = self._engine.services.membership
        known = membership.target(target)
        if known is None or membership.cannot_answer(target):
            return True
        node = membership.node(known.node)
        if node is None or not node.is_registered:
            return False
        silent_s = 0.0 if membership.is_there(node.id) else now_s - node.heard_s
        return max(silent_s, membership.down_s(known.id, now_s)) > UNREACHABLE_S

    async def _settle(self, layout: Layout) -> None:
        """Nobody may open the file while a replica answers that was dropped from it."""
        if self._dropping is not None:
            dropped: list[ObjectName] = []
            self._engine.system(
                lambda tx, context: dropped.extend(dropped_names(tx, layout.file_id))
            )
            await self._dropping.settle(dropped)

    async def _is_done(self, ino: Ino, layout: Layout, size: int) -> bool:
        what = "spill" if layout.inline else "truncate"
        try:
            async with self._limit:
                if layout.is_replicated:
                    began_s = trio.current_time()
                    failed = await self._storage.cut_replicas(layout, size)
                    return self._are_cut(ino, failed, began_s)
                if layout.inline:
                    await self._storage.spill(layout)
                else:
                    await self._storage.truncate(layout, size)
            return True
        except* STORAGE_ERRORS as group:
            self._log.warning(f"{what} is repeated", ino=ino, error=group.exceptions[0])
        return False

    def _are_cut(self, ino: Ino, failed: dict[ObjectName, str], began_s: float) -> bool:
        """Notes which targets have failed since this attempt began. Returns whether none has."""
        before = self._failing.pop(ino, {})
        if failed:
            targets = {name.target for name in failed}
            self._failing[ino] = {one: before.get(one, began_s) for one in targets}
            self._log.warning("truncate is repeated", ino=ino, error=next(iter(failed.values())))
        return not failed

    async def _raise_epoch(self, ino: Ino) -> Layout | None:
        """Raises the truncate epoch, so that the targets refuse what was sent to them before.
        Returns the layout of the intent, with the bytes of a spill; None if the inode is gone."""
        raised: list[Layout] = []

        def change(tx: Transaction, context: Context) -> None:
            raw = tx.get(intent_key(ino))
            assert raw is not None, "an intent goes only when it was carried out"
            intent = unpack_intent(raw)
            layout = unpack_layout(intent.layout)
            inode = find(tx, ino)
            if inode is None:
                return
            layout = with_places_of(layout, inode)
            layout = replace(layout, truncate_epoch=next_epoch(tx, ino, layout))
            raised.append(layout)
            known = replace(inode.layout(), truncate_epoch=layout.truncate_epoch)
            save(tx, Inode(inode.attributes, known.pack()))
            raised_intent = Intent(intent.size, layout.truncate_epoch, layout.pack())
            tx.put(intent_key(ino), raised_intent.pack())

        await self._committer.wait_durable(self._engine.system(change))
        return raised[0] if raised else None

    async def _clear(self, ino: Ino) -> None:
        txn = self._engine.system(lambda tx, context: tx.delete(intent_key(ino)))
        await self._committer.wait_durable(txn)


def _longest_pause_s(layout: Layout) -> float:
    return REPLICATED_BACKOFF_S_MAX if layout.is_replicated else BACKOFF_S_MAX


def _delays() -> Iterator[float]:
    delay_s = BACKOFF_S_MIN
    while True:
        yield delay_s
        delay_s = min(delay_s * 2, BACKOFF_S_MAX)
