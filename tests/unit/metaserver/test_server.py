"""The whole metaserver over a transport in memory, with a storage server that only records
calls.
"""

import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from fscommon.auth.handshake import HelloFields
from fscommon.errors import FsError, RefusedError, Status, TransportError
from fscommon.layout.attributes import unpack_attributes
from fscommon.net.memory import MemoryStream, MemoryTransport
from fscommon.net.serve import Peer, serve
from fscommon.net.stream import FrameStream, connect
from fscommon.net.tls import CERTIFICATE_METRIC, TlsTransport
from fscommon.observe.metrics import Metrics
from fscommon.rpc.caller import Caller as RpcCaller
from fscommon.rpc.caller import open_caller
from fscommon.types import Ino
from fscommon.wire.codec import encode
from fscommon.wire.frame import encode_frame
from fscommon.wire.header import FLAG_REPLY
from fscommon.wire.messages import (
    SET_SIZE,
    Close,
    Create,
    Empty,
    Open,
    SessionOpen,
    SetAttr,
    Unlink,
)
from fscommon.wire.ops import Op
from fscommon.wire.servers import Register, TargetReport
from metaserver import reaper
from metaserver.config import MetaserverConfig
from metaserver.fsck import check
from metaserver.records import all_of
from metaserver.server import Metaserver
from metaserver.store.memory import MemoryStore
from tests.cluster.certificates import Certificates
from tests.unit.waiting import eventually

from .bench import ROOT, USER

KEY = b"k" * 32
META, STORAGE = "127.0.0.1:7400", "127.0.0.1:7411"


@dataclass
class FakeStorage:
    """Answers every data op with OK once `answers` says so. A DELETE_ALL counts as a DELETE of each
    object. With `is_old` it is refused, and the connection is closed."""

    calls: list[tuple[Op, int, int, int]] = field(default_factory=list)
    status: int = 0
    frames: Counter[Op] = field(default_factory=Counter)
    is_old: bool = False

    async def serve(self, peer: Peer, stream: FrameStream) -> None:
        assert peer.purpose == "server"
        while batch := await stream.receive_batch():
            for frame in batch:
                header = frame.header
                op = Op(header.op)
                self.frames[op] += 1
                is_refused = op is Op.DELETE_ALL and self.is_old
                body = b""
                if not self.status and op is Op.DELETE_ALL and not is_refused:
                    names = struct.iter_unpack("<QII", frame.body)
                    self.calls += [(Op.DELETE, ino, index, 0) for ino, index, _ in names]
                    body = bytes(2 * header.length)
                elif not self.status and not is_refused:
                    self.calls.append((op, header.file_id, header.stripe_index, header.offset))
                await stream.send(
                    encode_frame(
                        header.op,
                        flags=FLAG_REPLY,
                        request_id=header.request_id,
                        body=body,
                        status=int(Status.BAD_REQUEST) if is_refused else self.status,
                    )
                )
                if is_refused:
                    return

    def of(self, op: Op) -> list[tuple[int, int, int]]:
        return [call[1:] for call in self.calls if call[0] is op]


@dataclass
class Running:
    transport: MemoryTransport
    storage: FakeStorage
    store: MemoryStore
    server: Metaserver
    stopping: trio.Event

    @asynccontextmanager
    async def caller(self, purpose: str = "meta") -> AsyncIterator[RpcCaller]:
        async with open_caller(
            META, key=KEY, hello=HelloFields(purpose, "test"), timeout_s=5, transport=self.transport
        ) as caller:
            yield caller

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RpcCaller]:
        async with self.caller() as caller:
            await caller.call(Op.SESSION_OPEN, SessionOpen(0, "test", (), 0), 5)
            yield caller


@asynccontextmanager
async def running(store: MemoryStore, **settings: float) -> AsyncIterator[Running]:
    transport, storage = MemoryTransport(), FakeStorage()
    config = MetaserverConfig(Path("unused"), Path("unused"), listen=META, **settings)  # type: ignore[arg-type]
    server = Metaserver(config, store, Metrics("metaserver"), key=KEY, transport=transport)
    async with trio.open_nursery() as nursery:
        await nursery.start(_serve_storage, transport, storage)
        stopping = trio.Event()
        await nursery.start(server.run, stopping)
        running = Running(transport, storage, store, server, stopping)
        async with running.caller("server") as caller:
            reports = tuple(
                TargetReport(0, bytes([i]) * 16, 1, 1 << 40, 1 << 39, 0, 0) for i in (1, 2)
            )
            await caller.call(Op.REGISTER, Register(0, b"n" * 16, "n", STORAGE, b"", reports), 5)
        yield running
        stopping.set()
        nursery.cancel_scope.cancel()


def _received_or_reset(
    receive: Callable[[MemoryStream], Awaitable[bytes]],
) -> Callable[[MemoryStream], Awaitable[bytes]]:
    async def receive_or_fail(stream: MemoryStream) -> bytes:
        received = await receive(stream)
        if not received:
            raise TransportError("Connection reset by peer")
        return received

    return receive_or_fail


@pytest.mark.parametrize("closes_first", [True, False])
async def test_who_has_closed_its_session_may_leave(
    closes_first: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A socket that is closed with something unread is reset. Of a client that did not close its
    session first the log says so."""
    async with running(MemoryStore()) as metaserver:
        hello = HelloFields("meta", "test")
        stream = await connect(
            META, key=KEY, hello=hello, timeout_s=5, transport=metaserver.transport
        )
        opening = encode(SessionOpen(0, "test", (), 0))
        await stream.send(encode_frame(Op.SESSION_OPEN, request_id=1, body=opening))
        assert await stream.receive_batch()
        last = Op.SESSION_CLOSE if closes_first else Op.BARRIER
        await stream.send(encode_frame(last, request_id=2, body=encode(Empty())))
        monkeypatch.setattr(MemoryStream, "receive", _received_or_reset(MemoryStream.receive))
        await stream.aclose()
        await eventually(lambda: len(metaserver.server.engine.sessions) == (not closes_first))
        await trio.testing.wait_all_tasks_blocked(0.05)
    said = [one for one in caplog.records if "connection ended" in one.getMessage()]
    assert len(said) == (0 if closes_first else 1)


async def test_the_end_of_its_certificate_is_a_metric(certificates: Certificates) -> None:
    transport, metrics, stopping = TlsTransport(certificates.settings()), Metrics("m"), trio.Event()
    config = MetaserverConfig(Path("unused"), Path("unused"), listen="127.0.0.1:0")
    server = Metaserver(config, MemoryStore(), metrics, key=KEY, transport=transport)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, stopping)
        await trio.testing.wait_all_tasks_blocked()
        shown = metrics.registry.get_sample_value(CERTIFICATE_METRIC)
        assert shown is not None and shown == transport.certificate_ends_s()
        stopping.set()


async def test_whose_lease_has_run_out_accepts_no_connection() -> None:
    """It would answer nobody, and who has connected would look no further."""
    transport, stopping, lease = MemoryTransport(), trio.Event(), [True]
    config = MetaserverConfig(Path("unused"), Path("unused"), listen=META)
    server = Metaserver(
        config,
        MemoryStore(),
        Metrics("m"),
        key=KEY,
        transport=transport,
        may_answer=lambda: lease[0],
    )
    hello = HelloFields("meta", "test")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, stopping)
        for holds in (True, False, True):
            lease[0] = holds
            with nullcontext() if holds else pytest.raises(RefusedError, match="the journal"):
                stream = await connect(META, key=KEY, hello=hello, timeout_s=5, transport=transport)
                await stream.aclose()
        stopping.set()


async def _serve_storage(
    transport: MemoryTransport, storage: FakeStorage, task_status: trio.TaskStatus[object]
) -> None:
    await serve(
        STORAGE, key=KEY, on_connection=storage.serve, transport=transport, task_status=task_status
    )


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - the tasks signal no event
            await trio.sleep(0.01)


def grow_and(ino: int, size: int) -> SetAttr:
    return SetAttr(ino, SET_SIZE, 0, 0, 0, size, 0, 0, 0, 5 << 20, 1)


async def test_a_shrink_cuts_every_object_before_it_is_answered() -> None:
    async with running(MemoryStore()) as run, run.client() as client:
        opened = await client.call(Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER), 5)
        ino = unpack_attributes(opened.attributes).ino
        shrunk = await client.call(Op.SETATTR, grow_and(ino, (2 << 20) + 5), 5)
        assert unpack_attributes(shrunk.attributes).size == (2 << 20) + 5
        assert sorted(run.storage.of(Op.TRUNCATE)) == [(ino, 0, (1 << 20) + 5), (ino, 1, 1 << 20)]
        grown = await client.call(Op.SETATTR, grow_and(ino, 9 << 20), 5)
        assert unpack_attributes(grown.attributes).size == 9 << 20


async def test_a_shrink_goes_on_when_a_storage_server_comes_back() -> None:
    async with running(MemoryStore()) as run, run.client() as client:
        opened = await client.call(Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER), 5)
        ino = unpack_attributes(opened.attributes).ino
        run.storage.status = int(Status.EIO)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call, Op.SETATTR, grow_and(ino, 5), 10)
            await until(lambda: Ino(ino) in run.server.engine.services.intents)
            run.storage.status = 0
        assert len(run.storage.of(Op.TRUNCATE)) >= 2


async def test_removed_files_lose_their_objects() -> None:
    store = MemoryStore()
    async with running(store) as run, run.client() as client:
        for name in (b"closed", b"open"):
            opened = await client.call(Op.CREATE, Create(ROOT, name, 0o644, True, True, USER), 5)
            ino = unpack_attributes(opened.attributes).ino
            if name == b"closed":
                closed = ino
                await client.call(Op.CLOSE, Close((ino,)), 5)
            await client.call(Op.UNLINK, Unlink(ROOT, name), 5)
        await until(lambda: len(run.storage.of(Op.DELETE)) >= 2)
        assert {call[0] for call in run.storage.of(Op.DELETE)} == {closed}
        await client.call(Op.CLOSE, Close((ino,)), 5)
        await until(lambda: len(run.storage.of(Op.DELETE)) >= 4)
        await until(lambda: not run.server.engine.stored(all_of(b"O"), 9))
    assert check(store.snapshot()) == []


async def _remove(client: RpcCaller, count: int) -> None:
    inos = []
    for number in range(count):
        name = b"%d" % number
        opened = await client.call(Op.CREATE, Create(ROOT, name, 0o644, True, True, USER), 5)
        inos.append(unpack_attributes(opened.attributes).ino)
    await client.call(Op.CLOSE, Close(tuple(inos)), 5)
    for number in range(count):
        await client.call(Op.UNLINK, Unlink(ROOT, b"%d" % number), 5)


async def test_objects_are_deleted_together() -> None:
    store = MemoryStore()
    async with running(store) as run, run.client() as client:
        await _remove(client, 300)
        await until(lambda: len(run.storage.of(Op.DELETE)) == 600)
        assert len(set(run.storage.of(Op.DELETE))) == 600
        assert run.storage.frames[Op.DELETE_ALL] < 20
        await until(lambda: not run.server.engine.stored(all_of(b"Z"), 9))


async def test_a_storage_server_of_before_is_asked_for_one_object_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaper, "RETRY_S", 0.1)
    async with running(MemoryStore()) as run, run.client() as client:
        run.storage.is_old = True
        await _remove(client, 3)
        await until(lambda: len(run.storage.of(Op.DELETE)) == 6)
        assert run.storage.frames == {Op.DELETE_ALL: 1, Op.DELETE: 6}


async def test_a_silent_client_is_fenced_and_its_file_cut() -> None:
    store = MemoryStore()
    async with running(store, session_timeout_s=0.3) as run:
        async with run.client() as client:
            opened = await client.call(Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER), 5)
            ino = unpack_attributes(opened.attributes).ino
            session = run.server.engine.sessions.ids()[0]
            await until(
                lambda: bool(run.storage.of(Op.FENCE)) and not len(run.server.engine.sessions)
            )
            assert run.storage.of(Op.FENCE) == [(0, 0, session)]
            await until(lambda: len(run.storage.of(Op.TRUNCATE)) == 2)
        async with run.client() as client:
            await client.call(Op.OPEN, Open(ino, False), 5)
            with pytest.raises(FsError):
                await client.call(Op.OPEN, Open(4711, False), 5)


async def test_every_answer_is_timed() -> None:
    """Answers at once, answers held until durable, and refusals: each is in the histogram."""
    async with running(MemoryStore()) as cluster, cluster.client() as client:
        await client.call(Op.CREATE, Create(ROOT, b"f", 0o644, True, True, USER), 5)
        with pytest.raises(FsError):
            await client.call(Op.UNLINK, Unlink(ROOT, b"none"), 5)
        registry = cluster.server._metrics.registry

        def count(op: str) -> float | None:
            return registry.get_sample_value("braidfs_request_seconds_count", {"op": op})

        assert [count(op) for op in ("SESSION_OPEN", "CREATE", "UNLINK")] == [1, 1, 1]
        seconds = registry.get_sample_value("braidfs_request_seconds_sum", {"op": "SESSION_OPEN"})
        assert seconds is not None and 0 < seconds < 5


async def test_everything_answered_is_committed_at_a_clean_stop() -> None:
    store = MemoryStore()
    async with running(store) as run, run.client() as client:
        for index in range(50):
            request = Create(ROOT, b"%d" % index, 0o644, True, True, USER)
            await client.call(Op.CREATE, request, 5)
        await client.call(Op.BARRIER, Empty(), 5)
    assert len(list(store.snapshot().range(b"D", b"E"))) == 50
