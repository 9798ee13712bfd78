"""The committer when the store has no room: changes wait, reads do not, and nothing is lost."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from fscommon.errors import Status
from fscommon.observe.metrics import Metrics
from fscommon.wire.codec import encode
from fscommon.wire.frame import encode_frame
from fscommon.wire.messages import Lookup, MkDir
from fscommon.wire.ops import Op
from metaserver.committer import Committer
from metaserver.store.memory import MemoryStore
from metaserver.store.waist import Batch, JournalRoomError, StoreFullError

from .bench import ROOT, USER, Bench, Client, parse


class SmallStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.is_full = threading.Event()
        self.error: type[StoreFullError] = StoreFullError
        self.refused = threading.Semaphore(0)

    def commit(self, batch: Batch) -> None:
        if self.is_full.is_set():
            self.refused.release()
            raise self.error("no room")
        super().commit(batch)


@contextmanager
def full(store: SmallStore) -> Iterator[None]:
    store.is_full.set()
    yield
    store.is_full.clear()


def send(client: Client, op: Op, message: object) -> None:
    client.request_id += 1
    frame = encode_frame(op, request_id=client.request_id, body=encode(message))
    for parsed in parse(frame):
        client.bench.engine.handle(client.connection, parsed, client.bench.time())


@pytest.mark.parametrize(
    ("error", "status"), [(StoreFullError, Status.ENOSPC), (JournalRoomError, 0)]
)
async def test_what_does_not_fit_is_committed_later(
    error: type[StoreFullError], status: int
) -> None:
    """A full journal refuses nobody: it has room again by itself."""
    store = SmallStore()
    store.error = error
    bench = Bench(store)
    client = bench.client()
    committer = Committer(bench.engine, store, Metrics("metaserver"), 0.001)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(committer.run)
        with full(store):
            send(client, Op.MKDIR, MkDir(ROOT, b"d", 0o755, USER))
            committer.changed()
            await trio.to_thread.run_sync(store.refused.acquire)
            await trio.to_thread.run_sync(store.refused.acquire)
            send(client, Op.LOOKUP, Lookup(ROOT, b"d"))
            send(client, Op.MKDIR, MkDir(ROOT, b"e", 0o755, USER))
            statuses = [frame.header.status for frame in client.received()]
            assert statuses == [0, 0, status]
        with trio.fail_after(10):
            await committer.wait_durable(bench.engine.progress.txn)
        client.replies.clear()
        assert not bench.engine.progress.room.is_full
        nursery.cancel_scope.cancel()
    assert bench.faults() == []


async def test_the_program_ends_though_it_is_full() -> None:
    """Answered operations are left to the clients' replays."""
    store = SmallStore()
    bench = Bench(store)
    client = bench.client()
    committer = Committer(bench.engine, store, Metrics("metaserver"), 0.001)
    with full(store), trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(committer.run)
            send(client, Op.MKDIR, MkDir(ROOT, b"d", 0o755, USER))
            committer.changed()
            await trio.to_thread.run_sync(store.refused.acquire)
            nursery.cancel_scope.cancel()
        await committer.drain()
    await committer.drain()
    assert bench.engine.progress.durable == bench.engine.progress.txn, "the batch was not lost"
