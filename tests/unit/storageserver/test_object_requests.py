"""Requests about objects: several at once, as many as there is room for, as long as their
connection lasts.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import trio

from fscommon.errors import ProtocolError, TransportError
from fscommon.net.stream import FrameStream
from fscommon.tasks import open_tasks
from fscommon.wire.codec import encode
from fscommon.wire.frame import Frame
from fscommon.wire.header import Header
from fscommon.wire.objects import ObjectCopied, ObjectCopy, ObjectList
from fscommon.wire.ops import Op
from storageserver.copying import Copying
from storageserver.listing import Listing
from storageserver.object_requests import REQUESTS_MAX, ObjectRequests
from storageserver.scrubbing import Scrubbing

pytestmark = pytest.mark.trio
COPY = ObjectCopy(1, 7, 256, 5, "ss:7411", 2, 0)


class SlowCopying:
    """Copies until it is told to end."""

    def __init__(self) -> None:
        self.count = 0
        self.cancelled = 0
        self.may_end = trio.Event()

    async def copy(self, request: ObjectCopy) -> ObjectCopied:
        self.count += 1
        try:
            await self.may_end.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        return ObjectCopied(1, 2, request.epoch)


class NoScrubbing:
    async def sum(self, request: object) -> object:
        raise NotImplementedError

    mend = sum


class FakeStream:
    """A connection by which a test says what it likes."""

    def __init__(self) -> None:
        self.say, self._heard = trio.open_memory_channel[list[Frame]](100)
        self.said: list[bytes] = []
        self.is_broken = False

    async def receive_batch(self) -> list[Frame]:
        return await self._heard.receive()

    async def send(self, outgoing: bytes) -> None:
        if self.is_broken:
            raise TransportError("broken")
        self.said.append(outgoing)


def frame(op: int, message: object, request_id: int = 1) -> Frame:
    return Frame(Header(op, request_id=request_id), encode(message))


@asynccontextmanager
async def serving(copying: SlowCopying) -> AsyncIterator[FakeStream]:
    stream = FakeStream()
    listing = Listing(lambda target: Path("/nowhere"))
    requests = ObjectRequests(listing, cast(Copying, copying), cast(Scrubbing, NoScrubbing()))
    async with open_tasks() as tasks:
        tasks.start_soon(requests.serve, cast(FrameStream, stream))
        yield stream
        with trio.fail_after(20):
            await stream.say.send([])


async def test_as_many_as_there_is_room_for() -> None:
    copying = SlowCopying()
    async with serving(copying) as stream:
        await stream.say.send([frame(Op.OBJECT_COPY, COPY, n) for n in range(REQUESTS_MAX + 3)])
        await trio.testing.wait_all_tasks_blocked()
        assert copying.count == REQUESTS_MAX and len(stream.said) == 3, "BUSY"
        copying.may_end.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(stream.said) == REQUESTS_MAX + 3
    assert copying.cancelled == 0


@pytest.mark.parametrize("is_broken", [False, True])
async def test_they_end_with_their_connection(is_broken: bool) -> None:
    copying = SlowCopying()
    async with serving(copying) as stream:
        await stream.say.send([frame(Op.OBJECT_COPY, COPY), frame(Op.OBJECT_COPY, COPY)])
        await trio.testing.wait_all_tasks_blocked()
        stream.is_broken = is_broken
        if is_broken:  # as answers are under way
            copying.may_end.set()
            await trio.testing.wait_all_tasks_blocked()
    assert copying.cancelled == (0 if is_broken else 2) and stream.said == []


async def test_what_is_no_request_about_objects_ends_the_connection() -> None:
    for wrong in (
        frame(Op.STATUS, ObjectList(1, 2, "")),
        frame(Op.OBJECT_COPY, ObjectCopied(1, 2, 3)),
    ):
        with pytest.raises(ProtocolError):
            async with serving(SlowCopying()) as stream:
                await stream.say.send([wrong])
                await trio.sleep_forever()
