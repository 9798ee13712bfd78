"""The task that removes entries of the trash for good when they have expired.

It takes entries from the durable snapshot, the oldest first: a bounded number in one transaction,
and it waits for that transaction before the next. When it is durable, the reaper deletes the
objects. So a crash between any two steps loses nothing and repeats nothing. A tree that has ended,
or whose directory is gone, is forgotten with its last entry. The task is idle during a recovery.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from fscommon.errors import FsError
from fscommon.observe.log import Log
from fscommon.types import Txn
from metaserver.background import Background
from metaserver.context import Context
from metaserver.faults import Faults
from metaserver.forms import Once
from metaserver.namespace.inode import find
from metaserver.namespace.links import discard
from metaserver.namespace.trash import Entry
from metaserver.records import aged_after, aged_key, aged_until, kept_of_aged, trash_tree_key
from metaserver.transaction import Transaction
from metaserver.trash import TrashTable, TreeState

ROUND_MAX: Final = 128  # entries in one transaction, which takes some milliseconds
CHECK_S: Final = 1.0
_SECOND_NS: Final = 10**9
Aged = tuple[bytes, bytes]  # the record of an entry by its age


class TrashExpiry:
    def __init__(self, background: Background) -> None:
        self._engine = background.engine
        self._now = background.clock
        self._committer = background.committer
        self._trash: TrashTable = background.engine.services.trash
        self._log = Log("trash")
        self._faults = Faults(self._log)
        self._told = Once(lambda why: self._log.error("an entry does not expire", error=why))

    async def run(self) -> None:
        while True:
            await trio.sleep(CHECK_S)
            for tree in list(self._trash.trees):
                with self._faults.contained("the expiry of a trash", tree=tree):
                    await self._expire(tree)

    async def _expire(self, tree: int) -> None:
        count = 0
        after = b""  # the last one of the round before: what could not be removed stays behind
        while tree in self._trash.trees and not self._engine.progress.recovering:
            expiry_ns = self._trash.trees[tree].expiry_s * _SECOND_NS
            start, end = aged_until(tree, max(self._now().now_ns - expiry_ns, 0))
            due = self._engine.stored((max(start, after), end), ROUND_MAX)
            if not due:
                break
            after = due[-1][0] + b"\0"
            await self._committer.wait_durable(self._purge(due))
            count += len(due)
        if count:
            self._log.info("expired", tree=tree, entries=count)
        if tree in self._trash.trees and not self._trash.trees[tree].inodes:
            self._engine.system(partial(_forget, tree), self._now())
            self._committer.changed()

    def _purge(self, due: list[Aged]) -> Txn:
        refused: list[str] = []
        txn = self._engine.system(partial(_discard_all, due, refused.append), self._now())
        for why in refused:
            self._told(why)
        self._engine.leases_changed(self._now())  # recalls what others hold on them
        return txn


def _discard_all(
    due: list[Aged], refused: Callable[[str], None], tx: Transaction, context: Context
) -> None:
    """Removes these entries. refused: called with the reason when one cannot be removed."""
    for aged, of_aged in due:
        key = kept_of_aged(aged, of_aged)
        try:
            value = tx.get(key)
            entry = Entry.parse(key, value) if value is not None else None
            if entry is None or aged != aged_key(
                entry.record.tree, entry.record.removed_ns, entry.ino
            ):
                tx.delete(aged)  # it was restored since, or this age is of no entry
            else:
                discard(tx, entry, "expired", context)
        except FsError as error:
            refused(error.message)


def _forget(tree: int, tx: Transaction, context: Context) -> None:
    """Forgets the tree, if it has ended and has nothing in its trash."""
    trash = context.services.trash
    if trash.trees[tree].inodes or next(tx.keys(*aged_after(tree, 0, 0)), None) is not None:
        return
    if trash.trees[tree].state is TreeState.ENDING or find(tx, tree) is None:
        tx.delete(trash_tree_key(tree))
        trash.drop(tree)
