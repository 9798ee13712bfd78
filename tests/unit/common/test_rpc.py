"""Caller and DataCaller: replies reach their callers, failures reach all that wait."""

import functools
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import FsError, ProtocolError, Status, TransportError
from fscommon.net.address import Address
from fscommon.net.memory import MemoryTransport
from fscommon.net.serve import Peer, serve
from fscommon.net.stream import FrameStream
from fscommon.rpc.caller import Caller, open_caller
from fscommon.rpc.data import DataCaller, ObjectStat
from fscommon.tasks import open_tasks
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.header import FLAG_MUST_EXIST, FLAG_REPLY
from fscommon.wire.messages import Entry, Failure, Lookup
from fscommon.wire.ops import Op

KEY = b"k" * 32
HELLO = HelloFields("server", "n")


def reply(frame: Frame, body: bytes = b"", status: int = 0, op: int | None = None) -> bytes:
    return encode_frame(
        frame.header.op if op is None else op,
        flags=FLAG_REPLY,
        request_id=frame.header.request_id,
        status=status,
        body=body,
    )


Handler = Callable[[Frame, FrameStream], Awaitable[None]]


@asynccontextmanager
async def calling(handle: Handler) -> AsyncIterator[Caller]:
    """A caller whose requests go to handle, one after another."""

    async def on_connection(peer: Peer, stream: FrameStream) -> None:
        stream.take_payloads(1 << 20)
        while batch := await stream.receive_batch():
            for frame in batch:
                await handle(frame, stream)

    transport = MemoryTransport()
    async with open_tasks() as tasks:
        address: Address = await tasks.start(
            functools.partial(
                serve, Address("m", 0), key=KEY, on_connection=on_connection, transport=transport
            )
        )
        opened = open_caller(address, key=KEY, hello=HELLO, timeout_s=10, transport=transport)
        with trio.fail_after(20):
            async with opened as caller:
                yield caller
        tasks.cancel_scope.cancel()


async def answer_lookup(frame: Frame, stream: FrameStream) -> None:
    request = decode(Lookup, frame.body)
    await stream.send(reply(frame, encode(Entry(request.name * 2))))


async def test_a_call() -> None:
    async with calling(answer_lookup) as caller:
        assert await caller.call(Op.LOOKUP, Lookup(1, b"ab"), 5) == Entry(b"abab")
        assert caller.is_open
    assert not caller.is_open


async def test_replies_in_another_order() -> None:
    held: list[Frame] = []

    async def handle(frame: Frame, stream: FrameStream) -> None:
        held.append(frame)
        if len(held) == 10:
            for one in reversed(held):
                await answer_lookup(one, stream)

    async with calling(handle) as caller, trio.open_nursery() as nursery:

        async def call(name: bytes) -> None:
            assert await caller.call(Op.LOOKUP, Lookup(1, name), 5) == Entry(name * 2)

        for index in range(10):
            nursery.start_soon(call, b"%d" % index)


async def test_a_status() -> None:
    async def handle(frame: Frame, stream: FrameStream) -> None:
        await stream.send(reply(frame, encode(Failure("gone")), Status.ENOENT))

    async with calling(handle) as caller:
        with pytest.raises(FsError, match="ENOENT: gone") as raised:
            await caller.call(Op.LOOKUP, Lookup(1, b""), 5)
        assert raised.value.status is Status.ENOENT


async def test_a_status_without_words() -> None:
    async def handle(frame: Frame, stream: FrameStream) -> None:
        await stream.send(reply(frame, status=Status.NO_TARGET))

    async with calling(handle) as caller:
        with pytest.raises(FsError, match="NO_TARGET"):
            await caller.exchange(Op.STAT, timeout_s=5)


async def test_an_unknown_status() -> None:
    async def handle(frame: Frame, stream: FrameStream) -> None:
        await stream.send(reply(frame, status=9999))

    async with calling(handle) as caller:
        with pytest.raises(ProtocolError, match="9999"):
            await caller.exchange(Op.STAT, timeout_s=5)


async def test_no_answer_in_time_and_the_late_one_is_dropped() -> None:
    held: list[Frame] = []

    async def handle(frame: Frame, stream: FrameStream) -> None:
        held.append(frame)
        if len(held) == 2:
            for one in held:
                await answer_lookup(one, stream)

    async with calling(handle) as caller:
        with pytest.raises(TransportError, match=r"did not answer LOOKUP within 0\.05 s"):
            await caller.call(Op.LOOKUP, Lookup(1, b"a"), 0.05)
        assert await caller.call(Op.LOOKUP, Lookup(1, b"b"), 5) == Entry(b"bb")


@pytest.mark.parametrize(
    "answer",
    [
        lambda frame: encode_frame(Op.LOOKUP, request_id=frame.header.request_id),
        lambda frame: encode_frame(Op.LOOKUP, flags=FLAG_REPLY, request_id=999),
        lambda frame: encode_frame(Op.LOOKUP, flags=FLAG_REPLY, request_id=0),
        lambda frame: reply(frame, op=Op.GETATTR),
        lambda frame: b"nonsense" * 20,
    ],
)
async def test_a_breach_ends_the_connection(answer: Callable[[Frame], bytes]) -> None:
    async def handle(frame: Frame, stream: FrameStream) -> None:
        await stream.send(answer(frame))

    async with calling(handle) as caller:
        with pytest.raises(TransportError):
            await caller.call(Op.LOOKUP, Lookup(1, b""), 5)
        assert not caller.is_open
        with pytest.raises(TransportError):
            await caller.call(Op.LOOKUP, Lookup(1, b""), 5)


async def test_the_end_of_the_connection_reaches_all_who_wait() -> None:
    async def handle(frame: Frame, stream: FrameStream) -> None:
        if frame.header.request_id == 5:
            await stream.aclose()

    async with calling(handle) as caller, trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(TransportError):
                await caller.call(Op.LOOKUP, Lookup(1, b""), 5)

        for _ in range(5):
            nursery.start_soon(call)


async def test_failures_leave_open_caller_bare() -> None:
    with pytest.raises(FsError):
        async with calling(answer_lookup):
            raise FsError(Status.EIO)


async def test_data_operations_travel_in_the_header() -> None:
    seen: list[Frame] = []

    async def handle(frame: Frame, stream: FrameStream) -> None:
        seen.append(frame)
        body = struct.pack("<QQII", 10, 20, 3, 0) if frame.header.op == Op.STAT else b""
        await stream.send(reply(frame, body))

    async with calling(handle) as caller:
        calls = DataCaller(caller)
        await calls.truncate(1, 2, 3, length=4, epoch=5, must_exist=False, timeout_s=5)
        await calls.delete(1, 2, 3, timeout_s=5)
        assert await calls.stat(1, 2, 3, timeout_s=5) == ObjectStat(10, 20, 3)
        await calls.fence(99, timeout_s=5)
    truncate, delete, stat, fence = [frame.header for frame in seen]
    assert (truncate.op, truncate.offset, truncate.epoch) == (Op.TRUNCATE, 4, 5)
    assert (fence.op, fence.offset) == (Op.FENCE, 99)
    for header in (truncate, delete, stat):
        assert (header.target, header.file_id, header.stripe_index) == (1, 2, 3)


async def test_a_cut_of_what_must_exist_tells_that_it_does_not() -> None:
    seen: list[int] = []

    async def handle(frame: Frame, stream: FrameStream) -> None:
        seen.append(frame.header.flags)
        await stream.send(reply(frame, status=Status.NO_OBJECT))

    async with calling(handle) as caller:
        calls = DataCaller(caller)
        assert not await calls.truncate(1, 2, 3, length=4, epoch=5, must_exist=True, timeout_s=5)
        with pytest.raises(FsError):
            await calls.truncate(1, 2, 3, length=4, epoch=5, must_exist=False, timeout_s=5)
    assert seen == [FLAG_MUST_EXIST, 0]


async def test_many_objects_are_named_by_one_request() -> None:
    sent: list[tuple[int, list[int]]] = []

    async def handle(frame: Frame, stream: FrameStream) -> None:
        inos = [ino for ino, _, _ in struct.iter_unpack("<QII", frame.body)]
        assert frame.header.op == Op.DELETE_ALL and frame.header.length == len(inos)
        sent.append((frame.header.target, inos))
        statuses = [Status.EIO if ino % 100 == 7 else Status.OK for ino in inos]
        await stream.send(reply(frame, struct.pack(f"<{len(inos)}H", *statuses)))

    objects = [(1 + number % 2, number, 0) for number in range(1200)]
    async with calling(handle) as caller:
        gone = await DataCaller(caller).delete_all(objects, timeout_s=5)
    assert [o[1] for o, is_gone in zip(objects, gone, strict=True) if not is_gone] == list(
        range(7, 1200, 100)
    )
    assert [(target, len(inos)) for target, inos in sent] == [
        (1, 256),
        (1, 256),
        (1, 88),
        (2, 256),
        (2, 256),
        (2, 88),
    ]


async def test_an_answer_of_another_length_is_refused() -> None:
    async def handle(frame: Frame, stream: FrameStream) -> None:
        await stream.send(reply(frame, b"\0\0"))

    async with calling(handle) as caller:
        with pytest.raises(ProtocolError, match="DELETE_ALL"):
            await DataCaller(caller).delete_all([(1, 2, 3), (1, 2, 4)], timeout_s=5)


async def test_many_objects_are_deleted_in_one_go() -> None:
    sent: list[list[int]] = []

    async def handle(frame: Frame, stream: FrameStream) -> None:
        file_id = frame.header.file_id
        sent.append([frame.header.target, file_id, frame.header.stripe_index])
        if file_id % 100 == 7:
            await stream.send(reply(frame, encode(Failure("")), status=Status.EIO))
        elif file_id != 13:  # it is never answered
            await stream.send(reply(frame, b""))

    objects = [(1, number, 0) for number in range(300)]
    async with calling(handle) as caller:
        gone = await DataCaller(caller).delete_singly(objects, timeout_s=0.5)
    assert [o[1] for o, is_gone in zip(objects, gone, strict=True) if not is_gone] == [
        7,
        13,
        107,
        207,
    ]
    assert sent == [list(one) for one in objects]


async def test_an_end_of_the_connection_ends_the_deletion_of_many() -> None:
    async def handle(frame: Frame, stream: FrameStream) -> None:
        if frame.header.file_id == 5:
            await stream.aclose()
        else:
            await stream.send(reply(frame, b""))

    async with calling(handle) as caller:
        calls = DataCaller(caller)
        gone = await calls.delete_singly([(1, number, 0) for number in range(9)], timeout_s=5)
        assert gone[:5] == [True] * 5 and not any(gone[5:])
        with pytest.raises(TransportError):
            await calls.delete_singly([(1, 1, 0)], timeout_s=5)


async def test_a_short_stat_is_refused() -> None:
    async def handle(frame: Frame, stream: FrameStream) -> None:
        await stream.send(reply(frame, b"short"))

    async with calling(handle) as caller:
        with pytest.raises(ProtocolError, match="STAT"):
            await DataCaller(caller).stat(1, 2, 3, timeout_s=5)


async def test_two_failures_stay_a_group() -> None:
    async def fails() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError

    with pytest.raises(BaseExceptionGroup):
        async with open_tasks() as tasks:
            tasks.start_soon(fails)
            await trio.testing.wait_all_tasks_blocked()
            raise ValueError
