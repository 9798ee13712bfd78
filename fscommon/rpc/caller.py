"""Caller: pipelined requests and their replies over one stream of frames.

Any number of tasks may call at once, up to a bound. A receiver task (run) hands each reply to the
task that waits for it. When the connection ends, every waiting call and every later one raises
TransportError: a Caller does not reconnect, its owner does. It is used between servers and by the
command line; a mounted client's session, with replay, is fsclient.meta.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import FsError, ProtocolError, Status, TransportError
from fscommon.limits import REQUESTS_IN_FLIGHT_MAX
from fscommon.net.address import Address
from fscommon.net.stream import FrameStream, connect
from fscommon.net.transport import Transport
from fscommon.tasks import open_tasks
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.messages import BODIES, Failure
from fscommon.wire.ops import Op

EXCHANGES_MAX: Final = 256  # frames of one exchange_all()


class _Countdown:
    """An event that is set when set() was called so many times."""

    __slots__ = ("_left", "done")

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = trio.Event()

    def set(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.done.set()


class _Waiting:
    """One request without a reply."""

    __slots__ = ("arrived", "frame", "op")

    def __init__(self, op: Op, arrived: trio.Event | _Countdown) -> None:
        self.op = op
        self.arrived = arrived
        self.frame: Frame | None = None


class Caller:
    """Calls over a stream, which it owns. run() must be running for calls to end."""

    def __init__(self, stream: FrameStream) -> None:
        self._stream = stream
        self._waiting: dict[int, _Waiting] = {}
        self._free = trio.CapacityLimiter(REQUESTS_IN_FLIGHT_MAX)
        self._last_request_id = 0
        self._ended: str | None = None
        self._end_event = trio.Event()

    @property
    def peer_address(self) -> str:
        return self._stream.peer_address

    @property
    def certificate_ends_s(self) -> int | None:
        """The Unix time when the certificate that the peer showed ends; None without TLS."""
        tls = self._stream.tls
        return None if tls is None else tls.peer_certificate()[2]

    @property
    def is_open(self) -> bool:
        return self._ended is None

    def take_payloads(self, length_max: int) -> None:
        """From now on replies may have payloads of so many bytes."""
        self._stream.take_payloads(length_max)

    async def wait_ended(self) -> None:
        """Returns when the connection has ended, on either side."""
        await self._end_event.wait()

    async def run(self) -> None:
        """Receives replies until the connection ends; then returns. Never raises for a bad peer."""
        why = f"connection to {self.peer_address} was closed"
        try:
            while batch := await self._stream.receive_batch():
                for frame in batch:
                    self._deliver(frame)
        except (TransportError, ProtocolError) as error:
            why = str(error)
        finally:
            self._end(why)
            await self._stream.aclose()

    async def call(self, op: Op, message: Any, timeout_s: float) -> Any:
        """The reply message. Raises FsError for a status, TransportError without an answer."""
        frame = await self.exchange(op, timeout_s=timeout_s, body=encode(message))
        return decode(BODIES[op][1], frame.body)

    async def exchange(
        self, op: Op, *, timeout_s: float, body: bytes = b"", payload: bytes = b"", **fields: int
    ) -> Frame:
        """Sends one frame with these header fields, and returns the frame that answers it. Raises
        FsError, TransportError."""
        async with self._free:
            if self._ended is not None:
                raise TransportError(self._ended)
            self._last_request_id = request_id = self._last_request_id + 1
            arrived = trio.Event()
            waiting = self._waiting[request_id] = _Waiting(op, arrived)
            try:
                with trio.fail_after(timeout_s):
                    await self._stream.send(
                        encode_frame(
                            op, request_id=request_id, body=body, payload=payload, **fields
                        )
                    )
                    await arrived.wait()
            except trio.TooSlowError:
                message = f"{self.peer_address} did not answer {op.name} within {timeout_s:g} s"
                raise TransportError(message) from None
            finally:
                del self._waiting[request_id]
        return self._answer(waiting)

    async def exchange_all(
        self, op: Op, frames: Sequence[Mapping[str, int]], *, timeout_s: float
    ) -> list[Status | None]:
        """As answers_of(). Returns the status of each answer, None where none came in time."""
        answers = await self.answers_of(op, frames, timeout_s=timeout_s)
        return [_status(one) if one else None for one in answers]

    async def answers_of(
        self, op: Op, frames: Sequence[Mapping[str, int]], *, timeout_s: float
    ) -> list[Frame | None]:
        """Sends frames with these header fields in one go, at most EXCHANGES_MAX. Returns each
        answer, whatever its status, and None where none came in time. Raises TransportError when
        nothing was sent."""
        assert 0 < len(frames) <= EXCHANGES_MAX
        async with self._free:
            if self._ended is not None:
                raise TransportError(self._ended)
            countdown = _Countdown(len(frames))
            waiting: dict[int, _Waiting] = {}
            octets = []
            for fields in frames:
                self._last_request_id += 1
                waiting[self._last_request_id] = _Waiting(op, countdown)
                request_id = self._last_request_id
                octets.append(
                    encode_frame(op, request_id=request_id, body=b"", payload=b"", **fields)
                )
            self._waiting.update(waiting)
            try:
                with trio.move_on_after(timeout_s):
                    await self._stream.send(b"".join(octets))
                    await countdown.done.wait()
            finally:
                for request_id in waiting:
                    del self._waiting[request_id]
        return [one.frame for one in waiting.values()]

    async def aclose(self) -> None:
        self._end(f"connection to {self.peer_address} was closed here")
        await self._stream.aclose()

    def _answer(self, waiting: _Waiting) -> Frame:
        frame = waiting.frame
        if frame is None:
            raise TransportError(self._ended or "the connection ended")
        if frame.header.status == Status.OK:
            return frame
        raise _failure(frame)

    def _deliver(self, frame: Frame) -> None:
        header = frame.header
        if not header.is_reply or not 0 < header.request_id <= self._last_request_id:
            raise ProtocolError("a frame that answers nothing")
        waiting = self._waiting.get(header.request_id)
        if waiting is None:
            return  # the caller has given up on it
        if header.op != waiting.op or waiting.frame is not None:
            raise ProtocolError(f"op {header.op} answers {waiting.op.name}")
        waiting.frame = frame
        waiting.arrived.set()

    def _end(self, why: str) -> None:
        if self._ended is None:
            self._ended = why
            self._end_event.set()
        for waiting in self._waiting.values():
            waiting.arrived.set()


def _status(frame: Frame) -> Status:
    """The status of a reply. An unknown status is a breach of the protocol. Raises
    ProtocolError."""
    try:
        return Status(frame.header.status)
    except ValueError:
        raise ProtocolError(f"unknown status {frame.header.status}") from None


def _failure(frame: Frame) -> FsError:
    """The error that a reply carries."""
    status = _status(frame)
    return FsError(status, decode(Failure, frame.body).message if frame.body else "")


@asynccontextmanager
async def open_caller(
    address: Address | str,
    *,
    key: bytes,
    hello: HelloFields,
    timeout_s: float,
    transport: Transport | None = None,
) -> AsyncIterator[Caller]:
    """Connects, runs a Caller for the body of the `async with`, and closes it at the end."""
    stream = await connect(address, key=key, hello=hello, timeout_s=timeout_s, transport=transport)
    caller = Caller(stream)
    async with open_tasks() as tasks:
        tasks.start_soon(caller.run)
        try:
            yield caller
        finally:
            with trio.CancelScope(shield=True):
                await caller.aclose()
            tasks.cancel_scope.cancel()
