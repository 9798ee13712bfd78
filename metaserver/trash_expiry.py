"""The task that removes entries of the trash for good when they have expired.

It takes entries from the durable snapshot, the oldest first: a bounded number in one transaction,
and it waits for that transaction before the next. When it is durable, the reaper deletes the
objects. So a crash between any two steps loses nothing and repeats nothing. A tree that has ended,
or whose directory is gone, is forgotten with its last entry. The task is idle during a recovery.
"""

from functools import partial
from typing import Final

import trio

from fscommon.observe.log import Log
from fscommon.types import Txn
from metaserver.background import Background
from metaserver.context import Context
from metaserver.faults import Faults
from metaserver.namespace.inode import find
from metaserver.namespace.links import discard
from metaserver.namespace.trash import Entry
from metaserver.records import aged_until, kept_of_aged, trash_tree_key
from metaserver.transaction import Transaction
from metaserver.trash import TrashTable, TreeState

ROUND_MAX: Final = 128  # entries in one transaction, which takes some milliseconds
CHECK_S: Final = 1.0
_SECOND_NS: Final = 10**9


class TrashExpiry:
    def __init__(self, background: Background) -> None:
        self._engine = background.engine
        self._now = background.clock
        self._committer = background.committer
        self._trash: TrashTable = background.engine.services.trash
        self._log = Log("trash")
        self._faults = Faults(self._log)

    async def run(self) -> None:
        while True:
            await trio.sleep(CHECK_S)
            for tree in list(self._trash.trees):
                with self._faults.contained("the expiry of a trash", tree=tree):
                    await self._expire(tree)

    async def _expire(self, tree: int) -> None:
        count = 0
        while tree in self._trash.trees and not self._engine.progress.recovering:
            if not self._trash.trees[tree].inodes:
                self._engine.system(partial(_forget, tree), self._now())
                self._committer.changed()
                break
            expiry_ns = self._trash.trees[tree].expiry_s * _SECOND_NS
            keys = aged_until(tree, max(self._now().now_ns - expiry_ns, 0))
            due = self._engine.stored(keys, ROUND_MAX)
            if not due:
                break
            await self._committer.wait_durable(self._purge(due))
            count += len(due)
        if count:
            self._log.info("expired", tree=tree, entries=count)

    def _purge(self, due: list[tuple[bytes, bytes]]) -> Txn:
        keys = [kept_of_aged(key, value) for key, value in due]
        txn = self._engine.system(partial(_discard_all, keys), self._now())
        self._engine.leases_changed(self._now())  # recalls what others hold on them
        return txn


def _discard_all(keys: list[bytes], tx: Transaction, context: Context) -> None:
    for key in keys:
        value = tx.get(key)
        if value is not None:  # it was not restored since
            discard(tx, Entry.parse(key, value), "expired", context)


def _forget(tree: int, tx: Transaction, context: Context) -> None:
    """Forgets the tree, if it has ended and has nothing in its trash."""
    trash = context.services.trash
    if trash.trees[tree].inodes:
        return
    if trash.trees[tree].state is TreeState.ENDING or find(tx, tree) is None:
        tx.delete(trash_tree_key(tree))
        trash.drop(tree)
