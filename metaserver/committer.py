"""The committer: writes the engine's batches to the store and reports when they are durable.

There is one task, and one thread at a time. The task freezes a batch every commit interval, or at
once when a request waits for it. The thread writes the batch and waits for the disk; meanwhile the
event loop fills the next batch. While the store is full, every request that needs a commit waits,
and reads go on. This should not happen, as a nearly full store accepts few changes. A batch whose
outcome is not known, as its journal did not answer, is committed again until it is. If the store
fails, or another metaserver has become active, `run` raises; clients replay what was answered to
the next one.
"""

import contextlib
import time
from typing import Final

import trio

from fscommon.observe.log import Log, RateLimit
from fscommon.observe.metrics import Metrics
from metaserver.engine import Engine
from metaserver.store.waist import (
    Batch,
    JournalRoomError,
    Store,
    StoreFullError,
    StoreRoom,
    StoreUncertainError,
)

FULL_RETRY_S: Final = 0.5
UNCERTAIN_RETRY_S: Final = 0.05
DRAIN_S_MAX: Final = 10.0
LOG_WAITING_S: Final = 60.0  # between two log lines while changes wait


class Committer:
    def __init__(self, engine: Engine, store: Store, metrics: Metrics, interval_s: float) -> None:
        self._engine = engine
        self._store = store
        self._metrics = metrics
        self._interval_s = interval_s
        self._dirty = trio.Event()
        self._urgent = trio.Event()
        self._room = trio.Event()
        self.committed = trio.Event()  # replaced after every commit
        self._frozen: Batch | None = None  # a batch that did not fit into the store yet
        self._log = Log("committer")

    def changed(self) -> None:
        """Reports that requests have run. The caller reports this after each batch of them."""
        if self._engine.dirty or self._engine.urgent:
            self._dirty.set()
        if self._engine.urgent:
            self._urgent.set()

    async def run(self) -> None:
        while True:
            await self._dirty.wait()
            if not self._engine.urgent:
                with trio.move_on_after(self._interval_s):
                    await self._urgent.wait()
            await self._commit()

    async def drain(self) -> None:
        """Commits what is left when the program ends. run() has been cancelled before. What does
        not fit into the store, or is uncertain for DRAIN_S_MAX, is left to the clients' replays."""
        until_s = trio.current_time() + DRAIN_S_MAX
        with contextlib.suppress(StoreFullError):
            while self._engine.dirty or self._frozen is not None:
                try:
                    await self._commit_once()
                except StoreUncertainError as error:
                    if trio.current_time() > until_s:
                        self._log.error("changes are left to the clients", error=error)
                        return
                    await trio.sleep(UNCERTAIN_RETRY_S)

    async def room(self) -> None:
        """Waits while too much is uncommitted."""
        while self._engine.overfull:
            self._engine.urgent = True
            self.changed()
            await self._room.wait()

    async def wait_durable(self, txn: int) -> None:
        while self._engine.progress.durable < txn:
            self._engine.urgent = True
            self.changed()
            await self.committed.wait()

    async def _commit(self) -> None:
        full = RateLimit(LOG_WAITING_S, trio.current_time)
        uncertain = RateLimit(LOG_WAITING_S, trio.current_time)
        while True:
            try:
                return await self._commit_once()
            except JournalRoomError as error:
                if full.permit() is not None:
                    self._log.error("changes wait: the journal is full", error=error)
                await trio.sleep(FULL_RETRY_S)
            except StoreFullError as error:
                self._engine.progress.has_room(StoreRoom(0, 0))
                if full.permit() is not None:
                    self._log.error("changes wait: the store is full", error=error)
                await trio.sleep(FULL_RETRY_S)
            except StoreUncertainError as error:
                if uncertain.permit() is not None:
                    self._log.error("changes wait: the journal does not answer", error=error)
                await trio.sleep(UNCERTAIN_RETRY_S)

    async def _commit_once(self) -> None:
        """Raises StoreFullError, StoreUncertainError, and keeps the batch; raises StoreError."""
        if self._frozen is None:
            self._dirty = trio.Event()
            self._urgent = trio.Event()
            self._frozen = self._engine.freeze()
        started = time.perf_counter()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._store.commit, self._frozen)
        self._frozen = None
        count = self._engine.committed(self._store.room())
        self._metrics.counter("braidfs_commits_total").inc()
        self._metrics.histogram("braidfs_commit_seconds").observe(time.perf_counter() - started)
        self._metrics.histogram("braidfs_commit_transactions").observe(count)
        committed, self.committed = self.committed, trio.Event()
        room, self._room = self._room, trio.Event()
        committed.set()
        room.set()
        self.changed()
