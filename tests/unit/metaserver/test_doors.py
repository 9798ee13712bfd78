"""What a peer sends can end its request or its connection, but never the metaserver or another
peer's connection.

The tests run the whole metaserver over a transport in memory. A refused request must not have been
executed in part, so each test ends with fsck of the store.
"""

import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import client_secret
from fscommon.errors import FsError, Status, TransportError
from fscommon.limits import UNREAD_BYTES_MAX
from fscommon.net.memory import MemoryTransport
from fscommon.net.stream import FrameStream, connect
from fscommon.rpc.caller import Caller as RpcCaller
from fscommon.rpc.caller import open_caller
from fscommon.wire.births import Birth, ChangeBatch, Setting
from fscommon.wire.codec import encode
from fscommon.wire.frame import encode_frame
from fscommon.wire.header import Header
from fscommon.wire.keys import KEY_READ_ONLY, KeyCreate
from fscommon.wire.leases import LeaseReturn, ReturnItem
from fscommon.wire.messages import (
    SET_MODE,
    Caller,
    Create,
    Empty,
    GetAttr,
    MkDir,
    MkNod,
    ReadDir,
    SessionOpen,
    SetAttr,
    TmpFile,
)
from fscommon.wire.ops import Op
from metaserver import dispatch, eviction
from metaserver.connection import Share
from metaserver.context import Context
from metaserver.fsck import check
from metaserver.sessions import Session
from metaserver.store.memory import MemoryStore
from metaserver.transaction import Transaction
from tests.unit.waiting import eventually

from .bench import ROOT, USER, Bench
from .test_server import KEY, META, Running, running

HUGE = 1 << 40  # it is beyond 32 bits


@asynccontextmanager
async def world() -> AsyncIterator[Running]:
    store = MemoryStore()
    async with running(store) as metaserver:
        yield metaserver
        async with metaserver.caller("admin") as other:
            await other.call(Op.STATUS, Empty(), 5)
    assert check(store.snapshot()) == []


async def status_of(caller: RpcCaller, op: Op, request: Any) -> Status:
    with pytest.raises(FsError) as caught:
        await caller.call(op, request, 5)
    return caught.value.status


NOTHING = SetAttr(ROOT, SET_MODE, 0, 0, 0, 0, 0, 0, 0, 0, 0)
BIRTH = Birth(5, ROOT, b"f", 0o644, 0, 0, 0, b"", True)
SETTING = Setting(5, SET_MODE, HUGE, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("op", "request_"),
    [
        (Op.CREATE, Create(ROOT, b"f", HUGE, True, True, USER)),
        (Op.CREATE, Create(ROOT, b"f", 0o644, True, True, Caller(HUGE, 0, 0))),
        (Op.CREATE, Create(ROOT, b"f", 0o644, True, True, Caller(0, 0, 0, (1, -1)))),
        (Op.CREATE, Create(-1, b"f", 0o644, True, True, USER)),
        (Op.CREATE, Create(ROOT, b"f" * 5000, 0o644, True, True, USER)),
        (Op.MKDIR, MkDir(ROOT, b"f", HUGE, USER)),
        (Op.MKNOD, MkNod(ROOT, b"f", 0o10644, HUGE, USER)),
        (Op.MKNOD, MkNod(ROOT, b"f", HUGE, 0, USER)),
        (Op.TMPFILE, TmpFile(ROOT, HUGE, True, USER)),
        (Op.SETATTR, replace(NOTHING, mode=HUGE)),
        (Op.SETATTR, replace(NOTHING, uid=-1)),
        (Op.SETATTR, replace(NOTHING, valid=-1)),
        (Op.SETATTR, replace(NOTHING, mtime_ns=1 << 63)),
        (Op.CHANGE_BATCH, ChangeBatch((replace(BIRTH, mode=HUGE),))),
        (Op.CHANGE_BATCH, ChangeBatch((), (), (SETTING,))),
        (Op.LEASE_RETURN, LeaseReturn((ReturnItem(-1, 1, 0, True),))),
        (Op.SESSION_OPEN, SessionOpen(0, "n", (-1,), 0)),
        (Op.SESSION_OPEN, SessionOpen(0, "n", (), 0, (), True, (-1,))),
    ],
)
async def test_a_value_out_of_its_range_is_refused(op: Op, request_: Any) -> None:
    async with world() as metaserver, metaserver.client() as client:
        assert await status_of(client, op, request_) is Status.BAD_REQUEST
        await client.call(Op.GETATTR, GetAttr(ROOT), 5)  # it is on the same connection


async def test_opens_of_a_read_only_key_that_no_inode_has() -> None:
    """Half a minute later its session expires, and all inodes that it named are processed."""
    async with world() as metaserver:
        async with metaserver.caller("admin") as admin:
            made = await admin.call(Op.KEY_CREATE, KeyCreate("k", 1, ":/", KEY_READ_ONLY, 0), 5)
        secret = client_secret(KEY, made.cluster, made.id)
        hello = HelloFields("meta", "stranger", key=made.id)
        transport: MemoryTransport = metaserver.transport
        async with open_caller(
            META, key=secret, hello=hello, timeout_s=5, transport=transport
        ) as stranger:
            wrong = SessionOpen(0, "stranger", (-1, 1 << 63), 0)
            assert await status_of(stranger, Op.SESSION_OPEN, wrong) is Status.BAD_REQUEST
            opened = await stranger.call(
                Op.SESSION_OPEN, replace(wrong, opens=((1 << 64) - 1, 1 << 63, 0)), 5
            )
        engine = metaserver.server.engine
        engine.sessions.condemn(opened.session)
        await eventually(lambda: opened.session not in engine.sessions)


async def test_a_fault_of_an_op_costs_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: object) -> None:
        raise ValueError("what nobody thought of")

    row = dispatch.row_of(_header(Op.MKDIR))
    async with world() as metaserver, metaserver.client() as client:
        monkeypatch.setitem(dispatch._ROWS, int(Op.MKDIR), replace(row, run=fault))
        request = MkDir(ROOT, b"d", 0o755, USER)
        assert await status_of(client, Op.MKDIR, request) is Status.EIO
        monkeypatch.undo()
        await client.call(Op.MKDIR, request, 5)
    (record,) = [one for one in caplog.records if "this is a bug" in one.getMessage()]
    assert record.exc_info and re.search("nobody thought of", str(record.exc_info[1]))


def _header(op: Op) -> Header:
    return Header(int(op))


async def test_a_fault_of_an_eviction_costs_that_eviction_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example a fault in an inode that a session named: the metaserver goes on, and evicts
    others."""
    really = eviction.forget

    async with world() as metaserver:
        key = await _key(metaserver)
        streams = [await _connected(metaserver, key) for _ in range(2)]
        engine = metaserver.server.engine
        ill, well = engine.sessions.ids()

        def forget(tx: Transaction, context: Context, session: Session) -> None:
            if session.id == ill:
                raise ValueError("a record that nobody thought of")
            really(tx, context, session)

        monkeypatch.setattr(eviction, "forget", forget)
        engine.sessions.condemn(ill)
        engine.sessions.condemn(well)
        await eventually(lambda: well not in engine.sessions)
        assert ill in engine.sessions
        monkeypatch.undo()
        await eventually(lambda: ill not in engine.sessions)
        for stream in streams:
            await stream.aclose()
    assert any("an eviction failed: this is a bug" in one.getMessage() for one in caplog.records)


# ---- shares ----------------------------------------------------------------------------------


async def _fill(client: RpcCaller, count: int) -> None:
    for number in range(count):
        name = b"%d" % number + b"x" * 240
        await client.call(Op.MKDIR, MkDir(ROOT, name, 0o755, USER), 5)


async def _connected(metaserver: Running, credential: tuple[int, bytes]) -> FrameStream:
    """A client with a session, as a stream of frames."""
    hello = HelloFields("meta", "greedy", key=credential[0])
    transport = metaserver.transport
    stream = await connect(META, key=credential[1], hello=hello, timeout_s=5, transport=transport)
    opened = 0
    while not opened:
        body = encode(SessionOpen(0, "n", (), 0))
        await stream.send(encode_frame(Op.SESSION_OPEN, request_id=1, body=body))
        (frame,) = await stream.receive_batch()
        opened = frame.header.status == 0
    return stream


async def _key(metaserver: Running, flags: int = 0) -> tuple[int, bytes]:
    async with metaserver.caller("admin") as admin:
        made = await admin.call(Op.KEY_CREATE, KeyCreate("k", 1, ":/", flags, 0), 5)
    return made.id, client_secret(KEY, made.cluster, made.id)


READ_ALL = encode(ReadDir(ROOT, 0, 1024))


async def test_answers_that_are_not_read_are_bounded_and_end_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metaserver.peers.UNREAD_SECONDS_MAX", 0.5)
    async with world() as metaserver:
        async with metaserver.client() as client:
            await _fill(client, 200)
        key = await _key(metaserver, KEY_READ_ONLY)
        stream = await _connected(metaserver, key)
        share = metaserver.server._peers.share_of(
            metaserver.server.engine.services.keys.get(key[0])
        )
        many = [encode_frame(Op.READDIR, request_id=n, body=READ_ALL) for n in range(2, 2002)]
        highest = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_until_it_ends, stream, b"".join(many))
            with trio.fail_after(30):
                # This lasts until it is disconnected.
                while metaserver.server._peers._sending or not highest:
                    highest = max(highest, share.unread_bytes)
                    await trio.sleep(0.02)
            nursery.cancel_scope.cancel()
        assert 100_000 < highest < 2 * UNREAD_BYTES_MAX, "2,000 answers have 150 MB"
        await eventually(lambda: share.unread_bytes == 0)
        await stream.aclose()


async def _send_until_it_ends(stream: FrameStream, outgoing: bytes) -> None:
    with contextlib.suppress(TransportError):
        await stream.send(outgoing)


def test_a_key_whose_share_is_used_up_is_busy() -> None:
    bench = Bench()
    client = bench.client()
    client.connection.share = Share(1000)
    client.connection.waits(1000)
    with pytest.raises(FsError) as caught:
        client.call(Op.GETATTR, GetAttr(ROOT))
    assert caught.value.status is Status.BUSY
    client.connection.waits(-1000)
    client.call(Op.GETATTR, GetAttr(ROOT))


async def test_a_connection_has_one_session_and_a_key_not_ever_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metaserver.ops.session.SESSIONS_PER_KEY_MAX", 2)
    async with world() as metaserver:
        key = await _key(metaserver)
        streams = [await _connected(metaserver, key) for _ in range(2)]
        hello = HelloFields("meta", "one more", key=key[0])
        again = encode(SessionOpen(0, "n", (), 0))
        await streams[0].send(encode_frame(Op.SESSION_OPEN, request_id=2, body=again))
        (frame,) = await streams[0].receive_batch()
        assert frame.header.status == Status.BAD_REQUEST
        async with open_caller(
            META, key=key[1], hello=hello, timeout_s=5, transport=metaserver.transport
        ) as more:
            with pytest.raises(FsError, match="2 clients are mounted with the key 'k'") as caught:
                await more.call(Op.SESSION_OPEN, SessionOpen(0, "n", (), 0), 5)
        assert caught.value.status is Status.EDQUOT
        for stream in streams:
            await stream.aclose()


async def test_who_opens_no_session_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaserver.peers.SESSION_OPEN_SECONDS_MAX", 0.3)
    async with world() as metaserver, metaserver.client() as client:
        id_, secret = await _key(metaserver)
        for purpose, key in (("meta", 0), ("meta", id_), ("admin", id_)):
            hello = HelloFields(purpose, "silent", key=key)
            stream = await connect(
                META,
                key=secret if key else KEY,
                hello=hello,
                timeout_s=5,
                transport=metaserver.transport,
            )
            with trio.fail_after(20):
                assert await stream.receive_batch() == []
        await client.call(Op.GETATTR, GetAttr(ROOT), 5)
