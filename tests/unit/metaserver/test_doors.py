"""What a peer sends ends its request, or its connection: never the metaserver, and nobody else's.

The whole metaserver over a transport in memory. Whatever of a request is refused must not have been
done, so each test ends with fsck of the store.
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import client_secret
from fscommon.errors import FsError, Status
from fscommon.net.memory import MemoryTransport
from fscommon.rpc.caller import Caller as RpcCaller
from fscommon.rpc.caller import open_caller
from fscommon.wire.births import Birth, ChangeBatch, Setting
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
    SessionOpen,
    SetAttr,
    TmpFile,
)
from fscommon.wire.ops import Op
from metaserver import dispatch
from metaserver.fsck import check
from metaserver.store.memory import MemoryStore
from tests.unit.waiting import eventually

from .bench import ROOT, USER
from .test_server import KEY, META, Running, running

HUGE = 1 << 40  # beyond 32 bits


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
        await client.call(Op.GETATTR, GetAttr(ROOT), 5)  # on the same connection


async def test_opens_of_a_read_only_key_that_no_inode_has() -> None:
    """Half a minute later its session expires, and everything that it named is looked at."""
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
        monkeypatch.setitem(dispatch._ROWS, int(Op.MKDIR), replace(row, function=fault))
        request = MkDir(ROOT, b"d", 0o755, USER)
        assert await status_of(client, Op.MKDIR, request) is Status.EIO
        monkeypatch.undo()
        await client.call(Op.MKDIR, request, 5)
    (record,) = [one for one in caplog.records if "this is a bug" in one.getMessage()]
    assert record.exc_info and re.search("nobody thought of", str(record.exc_info[1]))


def _header(op: Op) -> Header:
    return Header(int(op))
