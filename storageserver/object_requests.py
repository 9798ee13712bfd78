"""Requests about whole objects, on connections of purpose "admin": OBJECT_LIST, OBJECT_COPY,
OBJECT_SUM and OBJECT_MEND.

Several requests of a connection are served at once, and end with it.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fscommon.errors import FsError, ProtocolError, Status, TransportError
from fscommon.net.stream import FrameStream
from fscommon.tasks import open_tasks
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.header import FLAG_REPLY
from fscommon.wire.messages import Failure
from fscommon.wire.objects import OBJECT_BODIES
from fscommon.wire.ops import Op
from storageserver.copying import Copying
from storageserver.listing import Listing
from storageserver.scrubbing import Scrubbing

REQUESTS_MAX: Final = 64  # of one connection at once
_BUSY: Final = FsError(Status.BUSY, f"at most {REQUESTS_MAX} requests of a connection at once")
_REQUESTS: Final[dict[int, type]] = {int(op): bodies[0] for op, bodies in OBJECT_BODIES.items()}


class ObjectRequests:
    def __init__(self, listing: Listing, copying: Copying, scrubbing: Scrubbing) -> None:
        self._answers: dict[int, Callable[[Any], Awaitable[Any]]] = {
            Op.OBJECT_LIST: listing.list,
            Op.OBJECT_COPY: copying.copy,
            Op.OBJECT_SUM: scrubbing.sum,
            Op.OBJECT_MEND: scrubbing.mend,
        }

    async def serve(self, stream: FrameStream) -> None:
        """Answers until the connection ends. Raises ProtocolError, TransportError."""
        async with open_tasks() as tasks:
            while batch := await stream.receive_batch():
                for frame in batch:
                    request = _request(frame)
                    if len(tasks.child_tasks) < REQUESTS_MAX:
                        tasks.start_soon(self._answer, stream, frame, request)
                    else:
                        await stream.send(_refusal(frame, _BUSY))
            tasks.cancel_scope.cancel()

    async def _answer(self, stream: FrameStream, frame: Frame, request: Any) -> None:
        try:
            said = _reply(frame, encode(await self._answers[frame.header.op](request)))
        except FsError as error:
            said = _refusal(frame, error)
        with contextlib.suppress(TransportError):  # serve() learns of it, too
            await stream.send(said)


def _refusal(frame: Frame, error: FsError) -> bytes:
    return _reply(frame, encode(Failure(error.message)), int(error.status))


def _reply(frame: Frame, body: bytes, status: int = 0) -> bytes:
    header = frame.header
    return encode_frame(
        header.op, flags=FLAG_REPLY, request_id=header.request_id, status=status, body=body
    )


def _request(frame: Frame) -> Any:
    """Raises ProtocolError."""
    kind = _REQUESTS.get(frame.header.op)
    if kind is None:
        raise ProtocolError(f"operation {frame.header.op} is not for a connection of this purpose")
    return decode(kind, frame.body)
