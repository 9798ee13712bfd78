"""Sends what `data_requests` makes to a running storage server, as every kind of peer, by TCP and
local sockets, while an honest client writes and reads.

A PING follows each frame: its answer, or the end of the connection, shows that the server has
processed the frame and lives. A frame with wrong lengths is the last one: then this end is shut
down, and the server must close its own.
"""

import contextlib
import itertools
import os
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from fscommon.auth.handshake import PURPOSES, HelloFields
from fscommon.auth.key import client_secret, session_secret
from fscommon.checksum import block_sums, xxh3_64
from fscommon.errors import BraidError, FsError, Status
from fscommon.layout.capability import RIGHT_READ, RIGHT_WRITE, capability_key, make_capability
from fscommon.layout.layout import Layout, unpack_layout
from fscommon.net.stream import connect
from fscommon.net.tcp import TcpTransport
from fscommon.rpc.caller import Caller, open_caller
from fscommon.tasks import open_tasks
from fscommon.types import ROOT_INO
from fscommon.wire.frame import encode_frame
from fscommon.wire.header import FLAG_CAPABILITY, FLAG_SUMS, HEADER_SIZE, Header, decode_header
from fscommon.wire.keys import KEY_READ_ONLY, KeyCreate
from fscommon.wire.messages import ClusterMap, Create, Empty, Opened
from fscommon.wire.ops import Op
from tests.hostile.attack import (
    PATIENCE_S,
    USER,
    ServerEndedError,
    Tell,
    World,
    attack_without_key,
    open_session,
)
from tests.hostile.data_requests import Case, File, Holder, Maker, may_succeed

KINDS: Final = ("stranger", "client", "key", "read-only", "server")
_KEYS: Final = {"key": 0, "read-only": KEY_READ_ONLY}
_PING: Final = 0x50494E47
_GOOD_BYTES: Final = 1 << 20
_WAIT_S: Final = 20.0  # it is for each answer, to any peer
ROUNDS_MIN: Final = 3


class Wire:
    """An authenticated data connection, as bytes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = bytearray()

    async def send(self, raw: bytes) -> None:
        await self._stream.send_all(raw)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def receive(self) -> tuple[Header, bytes, bytes] | None:
        """A whole frame: header, body, payload. None if the server ended the connection."""
        raw = await self._exactly(HEADER_SIZE)
        if raw is None:
            return None
        header = decode_header(raw)
        rest = await self._exactly(header.body_length + header.payload_length)
        if rest is None:
            return None
        return header, rest[: header.body_length], rest[header.body_length :]

    async def _exactly(self, count: int) -> bytes | None:
        while len(self._received) < count:
            try:
                more = await self._stream.receive_some(1 << 18)
            except trio.BrokenResourceError:
                return None
            if not more:
                return None
            self._received += more
        taken = bytes(self._received[:count])
        del self._received[:count]
        return taken

    async def aclose(self) -> None:
        await self._stream.aclose()


async def dial(address: str, key: bytes, hello: HelloFields, *, is_local: bool) -> Wire:
    transport = TcpTransport(is_local=is_local)
    stream = await connect(address, key=key, hello=hello, timeout_s=PATIENCE_S, transport=transport)
    fd, early = stream.detach()
    assert not early
    return Wire(trio.SocketStream(trio.socket.from_stdlib_socket(socket.socket(fileno=fd))))


@dataclass
class StorageWorld:
    """The objects at the servers, made by an honest client."""

    metaserver: str
    key: bytes
    address: str = ""
    capability_key: bytes = b""
    layouts: dict[str, Layout] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        """Sessions last as long as this does."""
        async with contextlib.AsyncExitStack() as stack:
            client = await self._session(stack, "good", self.key, 0)
            cluster = await client.call(Op.CLUSTER_MAP, Empty(), PATIENCE_S)
            await self._make_files(client, cluster)
            admin = await stack.enter_async_context(
                open_caller(
                    self.metaserver,
                    key=self.key,
                    hello=HelloFields("admin", "good"),
                    timeout_s=PATIENCE_S,
                )
            )
            await self._session(stack, "client", self.key, 0)
            for kind, flags in _KEYS.items():
                wanted = KeyCreate(kind, ROOT_INO, ":/", flags, 0)
                made = await admin.call(Op.KEY_CREATE, wanted, PATIENCE_S)
                self.keys[kind] = made.id
                secret = client_secret(self.key, made.cluster, made.id)
                await self._session(stack, kind, secret, made.id)
            yield

    async def _session(
        self, stack: contextlib.AsyncExitStack, name: str, key: bytes, key_id: int
    ) -> Caller:
        hello = HelloFields("meta", name, key=key_id)
        client = await stack.enter_async_context(
            open_caller(self.metaserver, key=key, hello=hello, timeout_s=PATIENCE_S)
        )
        self.sessions[name] = await open_session(client)
        return client

    async def _make_files(self, client: Caller, cluster: ClusterMap) -> None:
        self.address = cluster.targets[0].address
        self.capability_key = capability_key(self.key, cluster.cluster)
        for name in ("victim", "read", "good", "secret"):
            wanted = Create(ROOT_INO, name.encode(), 0o666, True, True, USER)
            opened: Opened = await client.call(Op.CREATE, wanted, PATIENCE_S)
            self.layouts[name] = unpack_layout(opened.layout)

    def holder(self, kind: str) -> Holder:
        """Only the honest client may write to `read`, and only it may use `good` and `secret`."""
        victim, read = self.layouts["victim"], self.layouts["read"]
        others = (self.layouts["good"], self.layouts["secret"])
        if kind == "server":
            spared = frozenset(one.file_id for one in (read, *others))
            one = (File(victim, RIGHT_READ | RIGHT_WRITE),)
            return Holder(0, self.capability_key, one, spared=spared, is_server=True)
        rights = RIGHT_READ if kind == "read-only" else RIGHT_READ | RIGHT_WRITE
        files = (File(victim, rights), File(read, RIGHT_READ))
        return Holder(self.sessions[kind], self.capability_key, files, others)

    async def wire(self, kind: str, *, is_local: bool) -> Wire:
        if kind == "server":
            return await dial(
                self.address, self.key, HelloFields("server", "hostile"), is_local=is_local
            )
        session = self.sessions[kind]
        key_id = self.keys.get(kind, 0)
        key = session_secret(self.capability_key, session) if key_id else self.key
        hello = HelloFields("data", "hostile", session=session, key=key_id)
        return await dial(self.address, key, hello, is_local=is_local)


class GoodClient:
    """Writes and reads its files all the time; it must get the right bytes, and promptly."""

    def __init__(self, world: StorageWorld, seed: int) -> None:
        self._world = world
        self._rng = random.Random(f"{seed} good")
        self._ids = itertools.count(1)
        self._images = {
            (name, stripe): bytearray()
            for name in ("good", "read", "secret")
            for stripe in range(world.layouts[name].stripe_width)
        }
        self._wires: list[Wire] = []
        self._is_ending = False

    async def begin(self) -> None:
        for is_local in (False, True):
            self._wires.append(await self._world.wire("good", is_local=is_local))
        for name, stripe in self._images:
            await self._write(name, stripe, 0, self._rng.randbytes(100_000))

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """It works as long as this lasts, and a few rounds more."""
        self._is_ending = False
        async with open_tasks() as tasks:
            tasks.start_soon(self._run)
            yield
            self._is_ending = True

    async def _run(self) -> None:
        while not self._is_ending:
            await self.round()
            await trio.sleep(0.02)
        for _ in range(ROUNDS_MIN):
            await self.round()

    async def round(self) -> None:
        """Performs one round. Raises ServerEndedError."""
        stripe = self._rng.randrange(self._world.layouts["good"].stripe_width)
        try:
            with trio.fail_after(_WAIT_S):
                length = self._rng.choice((1, 4096, 5000, 200_000))
                offset = self._rng.randrange(_GOOD_BYTES - length)
                await self._write("good", stripe, offset, self._rng.randbytes(length))
                await self._ask("good", stripe, Op.SYNC)
                for key in self._images:
                    await self._compare(*key)
        except (BraidError, trio.TooSlowError, trio.BrokenResourceError, AssertionError) as error:
            why = f"a good client is not served: {error!r}"
            raise ServerEndedError("good", "its own", why) from error

    async def _write(self, name: str, stripe: int, offset: int, content: bytes) -> None:
        sums = b"".join(one.to_bytes(8, "little") for one in block_sums(offset, content))
        await self._ask(name, stripe, Op.WRITE, offset=offset, payload=content, sums=sums)
        image = self._images[name, stripe]
        image.extend(bytes(max(0, offset + len(content) - len(image))))
        image[offset : offset + len(content)] = content

    async def _compare(self, name: str, stripe: int) -> None:
        image = self._images[name, stripe]
        length = min(len(image), 50_000)
        offset = self._rng.randrange(len(image) - length + 1)
        payload = await self._ask(name, stripe, Op.READ, offset=offset, length=length)
        assert payload == image[offset : offset + length], f"wrong bytes of {name}.{stripe}"

    async def _ask(
        self,
        name: str,
        stripe: int,
        op: Op,
        *,
        offset: int = 0,
        length: int = 0,
        payload: bytes = b"",
        sums: bytes = b"",
    ) -> bytes:
        layout = self._world.layouts[name]
        capability = make_capability(
            self._world.capability_key,
            layout=layout.pack(),
            session=self._world.sessions["good"],
            rights=RIGHT_READ | RIGHT_WRITE,
            map_epoch=1,
            ino=layout.file_id,
        )
        body = capability + sums
        header = Header(
            op,
            flags=FLAG_CAPABILITY | (FLAG_SUMS if sums else 0),
            request_id=next(self._ids),
            file_id=layout.file_id,
            stripe_index=stripe,
            target=layout.targets[stripe],
            offset=offset,
            length=len(payload) or length,
            payload_length=len(payload),
            body_length=len(body),
            body_checksum=xxh3_64(body),
        )
        wire = self._rng.choice(self._wires)
        await wire.send(header.encode() + body + payload)
        answer = await wire.receive()
        assert answer is not None, "the connection of a good client ended"
        assert answer[0].request_id == header.request_id
        if answer[0].status != Status.OK:
            raise FsError(Status(answer[0].status), f"{op.name} of {name}")
        return answer[2]


class Attacker:
    """One kind of peer, with a connection that is made again whenever the server has ended it."""

    def __init__(self, world: StorageWorld, kind: str, rng: random.Random) -> None:
        self._world = world
        self._kind = kind
        self._rng = rng
        self._holder = world.holder(kind)
        self._refused: set[int] = set()  # they are ids of requests that must not succeed
        self._wire: Wire | None = None
        self.closed = 0
        self.statuses: Counter[int] = Counter()

    async def send(self, case: Case) -> None:
        """Sends one case. Raises ServerEndedError."""
        try:
            with trio.fail_after(_WAIT_S):
                await self._send(case)
        except (BraidError, trio.TooSlowError) as error:
            raise ServerEndedError(self._kind, str(case.op), f"no answer: {error!r}") from error

    async def _send(self, case: Case) -> None:
        if self._wire is None:
            is_local = self._rng.random() < 0.5
            self._wire = await self._world.wire(self._kind, is_local=is_local)
        wire = self._wire
        self._refused.discard(_request_id(case.raw))
        if not may_succeed(self._holder, case.raw):
            self._refused.add(_request_id(case.raw))
        try:
            if case.is_last:
                await wire.send(case.raw)
                await wire.send_eof()
            else:
                await wire.send(case.raw + encode_frame(Op.PING, request_id=_PING))
        except trio.BrokenResourceError:
            pass  # the receiver notices the end, too
        while (answer := await wire.receive()) is not None:
            header = answer[0]
            if header.op == Op.PING and header.request_id == _PING and not case.is_last:
                return
            self.statuses[header.status] += 1
            self._check(case, header)
        self.closed += 1
        await self.close()

    def _check(self, case: Case, answer: Header) -> None:
        """Checks an answer. A worker may be slower than the PING after it, so the answer may belong
        to an earlier case."""
        if answer.status == Status.OK and answer.request_id in self._refused:
            why = f"op {answer.op} was answered OK, and may not"
            raise ServerEndedError(self._kind, str(case.op), why)

    async def close(self) -> None:
        if self._wire is not None:
            await self._wire.aclose()
            self._wire = None

    async def leave(self, raw: bytes) -> None:
        """Sends the bytes and closes the connection without reading the answer."""
        wire = await self._world.wire(self._kind, is_local=self._rng.random() < 0.5)
        with contextlib.suppress(trio.BrokenResourceError), trio.move_on_after(1):
            await wire.send(raw)
        await wire.aclose()


def _request_id(raw: bytes) -> int:
    return int.from_bytes(raw[8:16], "little")


async def attack_as_stranger(world: StorageWorld, seed: int, count: int) -> None:
    """Sends bytes before authentication: noise, frames of every kind, and connections that are left
    half open."""
    rng = random.Random(f"{seed} stranger")
    maker = Maker(rng, world.holder("client"))
    frames: list[Callable[[], bytes]] = [
        lambda: rng.randbytes(rng.randrange(1, 300)),
        lambda: maker.cases(rng.choice((Op.READ, Op.WRITE, Op.FENCE, Op.PING)), 1)[0].raw,
        lambda: encode_frame(rng.choice((Op.HELLO, Op.AUTH, Op.RDMA)), body=rng.randbytes(90)),
        lambda: Header(Op.HELLO, body_length=(1 << 32) - 1).encode(),
        lambda: Header(Op.HELLO, payload_length=(1 << 32) - 1).encode() + bytes(1000),
        lambda: b"\x16\x03\x01" + rng.randbytes(100),  # TLS begins so
    ]
    host, port = world.address.rsplit(":", 1)
    left: list[trio.SocketStream] = []
    for number in range(count):
        stream = await trio.open_tcp_stream(host, int(port))
        with contextlib.suppress(trio.BrokenResourceError):
            raw = b"".join(rng.choice(frames)() for _ in range(rng.randrange(1, 4)))
            await stream.send_all(raw[: rng.randrange(len(raw) + 1)])
            if number % 2:
                await stream.send_eof()
        left.append(stream)
        for old in left[:-16]:
            await old.aclose()
        left = left[-16:]
    for stream in left:
        await stream.aclose()


async def attack_by_hellos(world: StorageWorld, seed: int, count: int) -> None:
    """Authenticates with the cluster's key, and then claims impossible things about itself, or
    sends nothing more."""
    rng = random.Random(f"{seed} hellos")
    own = world.sessions["client"]
    made = [
        HelloFields(purpose, "x" * 300, session, connection, previous)
        for purpose in (*PURPOSES, "", "no such purpose")
        for session in (own, 0)
        for connection in (0, 1, (1 << 63) + 5, (1 << 64) - 1)
        for previous in (0, 1, connection)
    ]
    made += [HelloFields("data", "n", unknown) for unknown in (1, (1 << 64) - 1)]
    for hello in rng.sample(made, min(count, len(made))):
        with contextlib.suppress(BraidError):
            wire = await dial(world.address, world.key, hello, is_local=rng.random() < 0.5)
            with contextlib.suppress(trio.BrokenResourceError), trio.move_on_after(1):
                await wire.send(rng.choice((b"", rng.randbytes(50), Header(Op.PING).encode())))
                if rng.random() < 0.5:
                    await wire.send_eof()
            await wire.aclose()


async def attack_as(
    world: StorageWorld, seed: int, kind: str, ops: tuple[int, ...], count: int, tell: Tell
) -> None:
    if kind == "stranger":
        await attack_without_key(World(world.address, world.key), seed, count * 4)
        await attack_as_stranger(world, seed, count * 4)
        return await attack_by_hellos(world, seed, count)
    rng = random.Random(f"{seed} {kind} connections")
    attacker = Attacker(world, kind, rng)
    holder = world.holder(kind)
    for op in ops:
        maker = Maker(random.Random(f"{seed} {kind} {op}"), holder)
        for case in maker.cases(op, count):
            await attacker.send(case)
            if rng.random() < 0.05:
                await attacker.leave(case.raw * 3 + os.urandom(20))
    await attacker.close()
    tell(f"{kind}: {attacker.closed} connections ended; statuses {dict(attacker.statuses)}")
