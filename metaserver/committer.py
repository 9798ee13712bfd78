"""The committer: takes batches from the engine to the store and tells it when they are durable.

One task and one thread at a time: the task freezes a batch every commit interval, or at once when
somebody waits; a thread writes it and waits for the disk while the event loop goes on filling the
next. A store that fails ends the program: what was answered is replayed to the next one.
"""

import time

import trio

from fscommon.observe.metrics import Metrics
from metaserver.engine import Engine
from metaserver.store.waist import Store


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

    def changed(self) -> None:
        """Requests were run: call after each batch of them."""
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
        """At the end: commit what is left. run() has been cancelled."""
        while self._engine.dirty:
            await self._commit()

    async def room(self) -> None:
        """Wait while too much is uncommitted."""
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
        self._dirty = trio.Event()
        self._urgent = trio.Event()
        batch = self._engine.freeze()
        started = time.perf_counter()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._store.commit, batch)
        count = self._engine.committed(fullness=self._store.fullness())
        self._metrics.counter("braidfs_commits_total").inc()
        self._metrics.histogram("braidfs_commit_seconds").observe(time.perf_counter() - started)
        self._metrics.histogram("braidfs_commit_transactions").observe(count)
        committed, self.committed = self.committed, trio.Event()
        room, self._room = self._room, trio.Event()
        committed.set()
        room.set()
        self.changed()
