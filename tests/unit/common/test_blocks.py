"""BlockCaller: what it takes for the bytes of an object, and what not."""

import struct
from collections.abc import Callable

import pytest

from fscommon.errors import FsError, ProtocolError, Status, TransportError
from fscommon.net.stream import FrameStream
from fscommon.rpc.blocks import BlockCaller, piece_of
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.header import FLAG_MUST_EXIST, FLAG_RAW, FLAG_REPLY, Header

from .test_rpc import calling

CONTENT = bytes(range(256)) * 20  # a block, and a part of one


class FakeObject:
    """Answers one request after the other with what it was given."""

    def __init__(self, *answers: Callable[[Header], dict[str, object]]) -> None:
        self.answers = list(answers)
        self.asked: list[Header] = []

    async def __call__(self, frame: Frame, stream: FrameStream) -> None:
        self.asked.append(frame.header)
        fields: dict[str, object] = {"offset": 1, **self.answers.pop(0)(frame.header)}
        head = {"flags": FLAG_REPLY, "request_id": frame.header.request_id}
        await stream.send(encode_frame(frame.header.op, **head, **fields))  # type: ignore[arg-type]


def bytes_of(content: bytes, *, damaged: bool = False) -> Callable[[Header], dict[str, object]]:
    sent = b"\xff" + content[1:] if damaged else content
    return lambda header: {"payload": sent, "body": piece_of(header.offset, content).sums}


def found(at: int, is_found: int) -> Callable[[Header], dict[str, object]]:
    return lambda header: {"body": struct.pack("<QQ", at, is_found)}


def fails(status: Status) -> Callable[[Header], dict[str, object]]:
    return lambda header: {"status": int(status)}


def done(header: Header) -> dict[str, object]:
    return {}


async def read(*answers: Callable[[Header], dict[str, object]], length: int = 8192) -> bytes:
    fake = FakeObject(*answers)
    async with calling(fake) as caller:
        caller.take_payloads(8192)
        piece = await BlockCaller(caller, 3, 7, 256, timeout_s=5).read(4096, length)
    assert piece == piece_of(4096, CONTENT) and fake.answers == []
    assert [one.flags for one in fake.asked] == [FLAG_MUST_EXIST | FLAG_RAW, FLAG_MUST_EXIST][
        : len(fake.asked)
    ]
    return piece.payload


async def test_bytes_that_have_their_sums() -> None:
    assert await read(bytes_of(CONTENT)) == CONTENT
    assert await read(bytes_of(CONTENT, damaged=True), bytes_of(CONTENT)) == CONTENT


async def test_bytes_that_have_other_sums() -> None:
    with pytest.raises(FsError) as raised:
        await read(bytes_of(CONTENT, damaged=True), bytes_of(CONTENT, damaged=True))
    assert raised.value.status is Status.CHECKSUM
    with pytest.raises(FsError) as raised:
        await read(bytes_of(CONTENT, damaged=True), fails(Status.CORRUPT))
    assert raised.value.status is Status.CORRUPT
    with pytest.raises(ProtocolError):
        await read(bytes_of(CONTENT), length=4096)


async def test_a_payload_that_nobody_asked_for_ends_the_connection() -> None:
    async with calling(FakeObject(bytes_of(CONTENT))) as caller:
        with pytest.raises(TransportError, match="no payload"):
            await BlockCaller(caller, 3, 7, 256, timeout_s=5).read(0, 8192)


async def test_a_seek_goes_on_until_something_is_found() -> None:
    fake = FakeObject(found(1 << 20, 0), found(2 << 20, 0), found(9 << 20, 1), found(2**64 - 1, 1))
    async with calling(fake) as caller:
        blocks = BlockCaller(caller, 3, 7, 256, timeout_s=5)
        assert await blocks.seek(0, hole=False, epoch=2) == 9 << 20
        assert await blocks.seek(9 << 20, hole=True, epoch=2) is None
    assert [(one.offset, one.length, one.epoch) for one in fake.asked] == [
        (0, 0, 2),
        (1 << 20, 0, 2),
        (2 << 20, 0, 2),
        (9 << 20, 1, 2),
    ]
    async with calling(FakeObject(found(4096, 0))) as caller:
        with pytest.raises(ProtocolError, match="does not go on"):
            await BlockCaller(caller, 3, 7, 256, timeout_s=5).seek(4096, hole=False, epoch=2)


async def test_an_object_that_is_not_there() -> None:
    async with calling(FakeObject(fails(Status.NO_OBJECT), fails(Status.DROPPED))) as caller:
        blocks = BlockCaller(caller, 3, 7, 256, timeout_s=5)
        assert await blocks.stat() is None
        with pytest.raises(FsError):
            await blocks.stat()


async def test_a_target_that_lost_power_is_noticed() -> None:
    fake = FakeObject(found(4096, 1), lambda header: {**found(8192, 1)(header), "offset": 2})
    async with calling(fake) as caller:
        blocks = BlockCaller(caller, 3, 7, 256, timeout_s=5)
        assert await blocks.seek(0, hole=False, epoch=4) == 4096
        with pytest.raises(FsError) as raised:
            await blocks.seek(4096, hole=True, epoch=4)
    assert raised.value.status is Status.STALE_INCARNATION
