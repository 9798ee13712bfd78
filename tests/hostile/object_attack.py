"""Attacks on what a storage server does for an administrator: OBJECT_LIST, OBJECT_COPY, OBJECT_SUM
and OBJECT_MEND.

Sources are servers that exist, strangers who say nothing, noise, or what they hear, and texts that
are no addresses. Every request must be answered, or its connection ended, and none of it is a bug
to the server; who has no cluster key must not come so far.
"""

import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import session_secret
from fscommon.errors import AuthenticationError, BraidError, ProtocolError, TransportError
from fscommon.limits import BLOCK_SIZE
from fscommon.net.stream import FrameStream, connect
from fscommon.net.tcp import TcpTransport
from fscommon.tasks import open_tasks
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import encode_frame
from fscommon.wire.hello import HelloReply
from fscommon.wire.objects import DIRECTORIES, OBJECT_BODIES
from fscommon.wire.ops import Op
from tests.hostile.attack import PATIENCE_S, ServerEndedError, Tell
from tests.hostile.data_attack import StorageWorld
from tests.hostile.requests import Maker

KIND: Final = "admin"
OPS: Final = tuple(OBJECT_BODIES)
ROUND: Final = 32  # requests without an answer
_NOBODY: Final = 0xDEAD_BEEF_0000  # no file has this id
_NO_ADDRESSES: Final = ("", "n", "no.such.host.invalid:1", "127.0.0.1:1", "[::1]:0", "a\0b:7", "::")


class Strangers:
    """Listeners that have no key. They keep what they hear."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.heard = bytearray()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        async with open_tasks() as tasks:
            for said in (None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", self._hello()):
                listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
                self.addresses.append(f"127.0.0.1:{listener.socket.getsockname()[1]}")
                serve = partial(trio.serve_listeners, partial(self._answer, said), [listener])
                tasks.start_soon(serve)
            yield
            tasks.cancel_scope.cancel()

    def _hello(self) -> bytes:
        """As a server begins that cannot prove itself then."""
        body = encode(HelloReply(bytes(32)))
        return encode_frame(Op.HELLO, flags=1, request_id=1, body=body)

    async def _answer(self, said: bytes | None, stream: trio.SocketStream) -> None:
        """None: the stranger says nothing, and keeps the connection."""
        try:
            while heard := await stream.receive_some():
                self.heard += heard
                if said is not None:
                    await stream.send_all(said or heard)
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)


async def attack(
    world: StorageWorld, seed: int, ops: tuple[int, ...], count: int, tell: Tell
) -> None:
    """Raises ServerEndedError."""
    await _refuse_clients(world)
    strangers = Strangers()
    async with strangers.listening():
        attacker = _Attacker(world, strangers)
        for op in OPS:
            if op in ops:
                rng = random.Random(f"{seed} {KIND} {op.name}")
                for bodies in _rounds(world, strangers, rng, op, count):
                    await attacker.send(op, bodies)
        await attacker.close()
    if world.key in strangers.heard:
        raise ServerEndedError(KIND, "objects", "a stranger was told the key")
    tell(f"{KIND}: {attacker.closed} connections ended; statuses {dict(attacker.statuses)}")


async def _refuse_clients(world: StorageWorld) -> None:
    """Only who has the cluster key is served: a client's key does not do."""
    for kind, key_id in world.keys.items():
        secret = session_secret(world.capability_key, world.sessions[kind])
        for purpose in ("admin", "server"):
            hello = HelloFields(purpose, "hostile", session=world.sessions[kind], key=key_id)
            try:
                stream = await connect(world.address, key=secret, hello=hello, timeout_s=PATIENCE_S)
            except (AuthenticationError, TransportError):
                continue
            await stream.aclose()
            raise ServerEndedError(kind, "objects", f"it may connect for '{purpose}'")


def _rounds(
    world: StorageWorld, strangers: Strangers, rng: random.Random, op: Op, count: int
) -> Iterator[list[bytes]]:
    victim = world.layouts["victim"]
    numbers = (victim.file_id, *victim.targets, victim.targets[0] ^ 3, _NOBODY)
    own = world.address
    texts = (own, own, *strangers.addresses, *_NO_ADDRESSES)
    near = (*victim.targets, *victim.targets, victim.file_id, _NOBODY, 0, 256, BLOCK_SIZE)
    maker = Maker(rng, numbers, texts=texts, near=near)
    cls = OBJECT_BODIES[op][0]
    bodies = list(itertools.islice(maker.of(cls), max(count * 8, 2048)))
    good = [body for body in bodies if _is_request(op, body)]
    bad = [body for body in (*bodies, *maker.broken_of(cls)) if not _is_request(op, body)]
    chosen = rng.sample(good, min(count * 4, len(good)))
    for start in range(0, len(chosen), ROUND):
        yield chosen[start : start + ROUND]
    yield from ([body] for body in rng.sample(bad, min(count, len(bad))))


class _Attacker:
    def __init__(self, world: StorageWorld, strangers: Strangers) -> None:
        self._world = world
        self._targets = {one for layout in world.layouts.values() for one in layout.targets}
        self._stream: FrameStream | None = None
        self._ids = itertools.count(1)
        self.closed = 0
        self.statuses: Counter[int] = Counter()

    async def send(self, op: Op, bodies: list[bytes]) -> None:
        try:
            with trio.fail_after(PATIENCE_S):
                stream = self._stream or await self._connect()
                self._stream = None
                if await self._are_answered(stream, op, bodies):
                    self._stream = stream
                else:
                    self.closed += 1
                    await stream.aclose()
        except (BraidError, trio.TooSlowError) as error:
            raise ServerEndedError(KIND, str(int(op)), error or "no answer") from error

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()

    async def _connect(self) -> FrameStream:
        return await connect(
            self._world.address,
            key=self._world.key,
            hello=HelloFields("admin", "hostile"),
            timeout_s=PATIENCE_S,
            transport=TcpTransport(is_local=True),
        )

    async def _are_answered(self, stream: FrameStream, op: Op, bodies: list[bytes]) -> bool:
        """False: the server has ended the connection, as it may for a body that is none."""
        waiting = {next(self._ids): body for body in bodies}
        frames = [encode_frame(op, request_id=one, body=body) for one, body in waiting.items()]
        try:
            await stream.send(b"".join(frames))
            while waiting and (batch := await stream.receive_batch()):
                for frame in batch:
                    body = waiting.pop(frame.header.request_id)
                    self.statuses[frame.header.status] += 1
                    if frame.header.status == 0:
                        self._check_may_succeed(op, body)
        except TransportError:
            pass
        if waiting and all(map(partial(_is_request, op), bodies)):
            raise TransportError(f"{len(waiting)} requests were not answered")
        return not waiting

    def _check_may_succeed(self, op: Op, body: bytes) -> None:
        asked: Any = decode(OBJECT_BODIES[op][0], body)
        may = asked.target in self._targets
        if op == Op.OBJECT_LIST:
            may = may and asked.directory < DIRECTORIES
        elif op in (Op.OBJECT_COPY, Op.OBJECT_MEND):
            source = asked.source_target, asked.source_object
            may = may and asked.source_target in self._targets
            may = may and source != (asked.target, asked.object)
            may = may and (asked.object ^ asked.source_object) & 0xFF == 0
        if not may:
            raise TransportError(f"this was answered OK: {asked}")


def _is_request(op: Op, body: bytes) -> bool:
    try:
        decode(OBJECT_BODIES[op][0], body)
    except ProtocolError:
        return False
    return True
