"""Sends what `requests` makes to a running metaserver, as every kind of peer.

Many frames are sent together, followed by a PING: its answer shows that the server has processed
all of them and lives. A connection that the server ends is made again. Requests that wait for
something (a lock, a lease) are left waiting. Between two rounds an honest client makes a directory
of its own.
"""

import itertools
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import client_secret
from fscommon.errors import BraidError, FsError, ProtocolError, Status, TransportError
from fscommon.layout.attributes import unpack_attributes
from fscommon.layout.layout import unpack_layout
from fscommon.limits import GENERATION_SHIFT
from fscommon.net.stream import FrameStream, connect
from fscommon.rpc.caller import Caller, open_caller
from fscommon.types import ROOT_INO
from fscommon.wire import messages
from fscommon.wire.admin import Place
from fscommon.wire.codec import decode, encode
from fscommon.wire.features import FEATURE_POOLS, FEATURE_REPLICAS
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.header import FLAG_ONEWAY, FLAG_REPLAY
from fscommon.wire.keys import KEY_READ_ONLY, KEY_SQUASH_ROOT, KeyCreate
from fscommon.wire.messages import (
    BODIES,
    Empty,
    Lookup,
    MkDir,
    Open,
    RmDir,
    SessionOpen,
    SessionOpened,
    SetXattr,
)
from fscommon.wire.ops import Op
from fscommon.wire.quota import QuotaAssign
from metaserver.ops.row import Access
from metaserver.ops.table import ROWS
from tests.hostile.requests import Maker

Tell = Callable[[str], None]
ROUND: Final = 64  # this is the number of frames before a PING
PATIENCE_S: Final = 60.0
LOOK_S: Final = 0.2
USER: Final = messages.Caller(0, 0, 0o22)
KINDS: Final = ("client", "key", "read-only", "squashed", "tree", "server", "admin")
_KEYS: Final = {"key": 0, "read-only": KEY_READ_ONLY, "squashed": KEY_SQUASH_ROOT, "tree": 0}
_PURPOSES: Final = {"server": "server", "admin": "admin"}
_FEW: Final = 8  # this is for ops that are not meant for this kind of peer
_FLAGS: Final = (*((0,) * 20), FLAG_ONEWAY, FLAG_REPLAY)
# Who may have an answer. All others from 200 on are of administrators, those before of clients.
_OF_ANY: Final = (Op.PING, Op.CLUSTER_MAP, Op.STATUS, Op.LEASES)
_OF_STORAGE: Final = (Op.OBJECT_LIST, Op.OBJECT_COPY, Op.OBJECT_SUM, Op.OBJECT_MEND)
_OF_SERVERS: Final = (Op.REGISTER, Op.HEARTBEAT, Op.TARGET_DROPPED)
_OF_WRITERS: Final = (Op.DROP_REPLICAS, Op.UNLINK, Op.MKDIR, Op.SETXATTR)
_FEATURES: Final = FEATURE_REPLICAS | FEATURE_POOLS
# Numbers by which a request about replicas names what there is: targets, epochs, serial numbers.
_NEAR: Final = (0, 1, 1, 2, 2, 1 << GENERATION_SHIFT)
# These end the attacker's own session, not the server: it would only attack less.
_SPARED: Final = frozenset((Op.SESSION_CLOSE,))


class ServerEndedError(Exception):
    """The server did not answer. `kind` and `op` are those of the last frames that it received."""

    def __init__(self, kind: str, op: str, why: object) -> None:
        super().__init__(f"after {op} as '{kind}': {why}")
        self.kind = kind
        self.op = op


@dataclass
class World:
    """The objects at the metaserver, made by an honest client."""

    address: str
    key: bytes
    cluster: bytes = b""
    inos: dict[str, int] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    own: int = 0  # it is a directory that no attacker knows, and its file has two replicas
    own_file: int = 0
    made: Iterator[int] = field(default_factory=itertools.count)

    async def prepare(self) -> None:
        async with open_caller(
            self.address, key=self.key, hello=HelloFields("meta", "good"), timeout_s=PATIENCE_S
        ) as client:
            await open_session(client)
            for name in ("a", "d", "tree", "own"):
                self.inos[name] = await _mkdir(client, ROOT_INO, name.encode())
            for parent in ("d", "own"):
                layout = SetXattr(self.inos[parent], b"braidfs.layout", b"replicas=2", 0)
                await client.call(Op.SETXATTR, layout, PATIENCE_S)
            for parent in ("d", "tree", "own"):
                name = f"in-{parent}"
                self.inos[name] = await _create(client, self.inos[parent], b"f")
            # A writer that only ends its connection leaves files that lose replicas for a while.
            await client.call(Op.SESSION_CLOSE, Empty(), PATIENCE_S)
        self.own = self.inos.pop("own")
        self.own_file = self.inos.pop("in-own")
        async with open_caller(
            self.address, key=self.key, hello=HelloFields("admin", "good"), timeout_s=PATIENCE_S
        ) as admin:
            top = self.inos["tree"]
            stack: tuple[Place, ...] = (Place(top, 0),)
            while stack:
                told = await admin.call(Op.QUOTA_ASSIGN, QuotaAssign(top, top, stack), PATIENCE_S)
                stack = told.stack
            for kind, flags in _KEYS.items():
                root = top if kind == "tree" else ROOT_INO
                wanted = KeyCreate(kind, root, ":/", flags, 0)
                made = await admin.call(Op.KEY_CREATE, wanted, PATIENCE_S)
                self.keys[kind], self.cluster = made.id, made.cluster

    async def check(self, kind: str) -> None:
        """Checks that an honest client is served, and that its file has all replicas, unless who
        attacked may take targets away. Raises BraidError."""
        name = b"round-%d" % next(self.made)
        async with open_caller(
            self.address, key=self.key, hello=HelloFields("meta", "good"), timeout_s=PATIENCE_S
        ) as client:
            await open_session(client)
            await _mkdir(client, self.own, name)
            await client.call(Op.LOOKUP, Lookup(self.own, name), PATIENCE_S)
            await client.call(Op.RMDIR, RmDir(self.own, name), PATIENCE_S)
            opened = await client.call(Op.OPEN, Open(self.own_file, False), PATIENCE_S)
            layout = unpack_layout(opened.layout)
            count = len(list(layout.replicas()))
            if count != 2 * layout.stripe_width and kind not in _PURPOSES:
                raise ProtocolError(f"the file of a good client has {count} replicas")
            await client.call(Op.SESSION_CLOSE, Empty(), PATIENCE_S)

    async def wait_for_evictions(self) -> None:
        """Waits until all inodes that the attackers' sessions named have been processed."""
        async with open_caller(
            self.address, key=self.key, hello=HelloFields("admin", "good"), timeout_s=PATIENCE_S
        ) as admin:
            for _ in range(int(PATIENCE_S / LOOK_S)):
                if not (await admin.call(Op.STATUS, Empty(), PATIENCE_S)).clients:
                    return
                await trio.sleep(LOOK_S)
        raise ServerEndedError("client", "all ops", "their sessions do not end")

    def hello(self, kind: str) -> tuple[bytes, HelloFields]:
        key_id = self.keys.get(kind, 0)
        secret = client_secret(self.key, self.cluster, key_id) if key_id else self.key
        purpose = _PURPOSES.get(kind, "meta")
        return secret, HelloFields(purpose, "hostile", key=key_id)


async def open_session(client: Caller) -> int:
    """Opens a session. It is requested again while the only client so far is being told that it is
    no longer alone."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                asked = SessionOpen(0, "n", (), 0, features=_FEATURES)
                opened = await client.call(Op.SESSION_OPEN, asked, PATIENCE_S)
                return int(opened.session)
            except FsError as error:
                if error.status is not Status.NOT_READY:
                    raise
            await trio.sleep(0.02)


async def _mkdir(client: Caller, parent: int, name: bytes) -> int:
    entry = await client.call(Op.MKDIR, MkDir(parent, name, 0o777, USER), PATIENCE_S)
    return unpack_attributes(entry.attributes).ino


async def _create(client: Caller, parent: int, name: bytes) -> int:
    wanted = messages.Create(parent, name, 0o666, True, True, USER)
    opened = await client.call(Op.CREATE, wanted, PATIENCE_S)
    return unpack_attributes(opened.attributes).ino


class Attacker:
    """One kind of peer, with a connection that is made again whenever the server has ended it."""

    def __init__(self, world: World, kind: str) -> None:
        self._world = world
        self._kind = kind
        self._stream: FrameStream | None = None
        self._ids = itertools.count(1)
        self.closed = 0  # it counts connections that the server ended
        self.statuses: Counter[int] = Counter()

    async def send(self, op: Op, bodies: list[bytes], rng: random.Random) -> None:
        """Sends requests. Raises ServerEndedError."""
        try:
            with trio.fail_after(PATIENCE_S):
                stream = self._stream or await self._connect()
                self._stream = None
                if await self._served(stream, op, bodies, rng):
                    self._stream = stream
                else:
                    self.closed += 1
                    await stream.aclose()
        except (BraidError, trio.TooSlowError) as error:
            raise ServerEndedError(self._kind, op.name, error or "no answer") from error

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()

    async def _connect(self) -> FrameStream:
        secret, hello = self._world.hello(self._kind)
        stream = await connect(self._world.address, key=secret, hello=hello, timeout_s=PATIENCE_S)
        if hello.purpose == "meta":
            await self._open_session(stream)
        return stream

    async def _open_session(self, stream: FrameStream) -> None:
        body = encode(SessionOpen(0, "hostile", (), 0, features=_FEATURES))
        for _ in range(1000):
            request_id = next(self._ids)
            await stream.send(encode_frame(Op.SESSION_OPEN, request_id=request_id, body=body))
            for frame in await stream.receive_batch():
                if frame.header.op == Op.SESSION_OPEN and frame.header.status == 0:
                    decode(SessionOpened, frame.body)
                    return
            await trio.sleep(0.02)
        raise TransportError("no session was opened")

    async def _served(
        self, stream: FrameStream, op: Op, bodies: list[bytes], rng: random.Random
    ) -> bool:
        """False if the server ended the connection."""
        frames = [
            encode_frame(op, flags=rng.choice(_FLAGS), request_id=next(self._ids), body=body)
            for body in bodies
        ]
        ping = next(self._ids)
        frames.append(encode_frame(Op.PING, request_id=ping, body=encode(Empty())))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_all, stream, b"".join(frames))
            is_served = await self._answered(stream, ping)
            nursery.cancel_scope.cancel()
        return is_served

    async def _answered(self, stream: FrameStream, request_id: int) -> bool:
        try:
            while batch := await stream.receive_batch():
                self.statuses.update(frame.header.status for frame in batch)
                self._check_privileges(batch)
                if any(frame.header.request_id == request_id for frame in batch):
                    return True
        except TransportError:
            pass
        return False

    def _check_privileges(self, batch: list[Frame]) -> None:
        """Raises ServerEndedError for an answer that this kind of peer must not get."""
        for frame in batch:
            if not frame.header.status and not _may_succeed(self._kind, frame.header.op):
                why = "it was answered OK, and may not"
                raise ServerEndedError(self._kind, Op(frame.header.op).name, why)


def _may_succeed(kind: str, op: int) -> bool:
    """By docs/INTERFACES.md, not by the table with which the metaserver decides."""
    if op in _OF_ANY:
        return True
    if op in _OF_STORAGE:
        return False
    if op in _OF_SERVERS:
        return kind == "server"
    if op >= 200:
        return kind == "admin"
    return kind not in _PURPOSES and (kind != "read-only" or op not in _OF_WRITERS)


async def _send_all(stream: FrameStream, outgoing: bytes) -> None:
    try:
        await stream.send(outgoing)
    except TransportError:
        return  # the receiver notices the end, too


def rounds(
    seed: int, kind: str, op: Op, inos: tuple[int, ...], count: int
) -> Iterator[list[bytes]]:
    """What one kind of peer sends of one op, in rounds: the same for the same seed. If there are
    more bounds than `count`, some of them are used."""
    rng = random.Random(f"{seed} {kind} {op.name}")
    maker = Maker(rng, inos, near=(*inos, *inos[-2:] * 3, *_NEAR))
    bodies = list(itertools.islice(maker.bodies(op), max(count * 4, 256)))
    chosen = rng.sample(bodies, min(count, len(bodies)))
    for start in range(0, len(chosen), ROUND):
        yield chosen[start : start + ROUND]
    broken = list(maker.broken(op))
    for body in rng.sample(broken, min(max(count // 16, 1), len(broken))):
        yield [body]


async def attack(
    world: World, seed: int, kinds: tuple[str, ...], ops: tuple[Op, ...], count: int, tell: Tell
) -> int:
    """Runs all kinds in turn; returns how many frames were sent. Raises ServerEndedError."""
    inos = (ROOT_INO, *world.inos.values())
    sent = 0
    for kind in kinds:
        attacker = Attacker(world, kind)
        for op in ops:
            rng = random.Random(f"{seed} {kind} {op.name} flags")
            wanted = count if _is_for(kind, op) else min(count, _FEW)
            for bodies in rounds(seed, kind, op, inos, wanted):
                await attacker.send(op, bodies, rng)
                sent += len(bodies)
        await attacker.close()
        tell(f"{kind}: {attacker.closed} connections ended; statuses {dict(attacker.statuses)}")
        try:
            await world.check(kind)
        except (BraidError, trio.TooSlowError) as error:
            raise ServerEndedError(
                kind, "all ops", f"a good client is not served: {error}"
            ) from error
    return sent


def _is_for(kind: str, op: Op) -> bool:
    """Whether the metaserver checks more than the kind of the caller."""
    row = ROWS.get(op)
    if row is None or row.access is Access.ANY:
        return row is not None
    if kind in _PURPOSES:
        return row.access is Access[kind.upper()]
    return row.access not in (Access.SERVER, Access.ADMIN)


ALL_OPS: Final = tuple(op for op in BODIES if op not in _SPARED)


async def attack_without_key(world: World, seed: int, count: int) -> None:
    """Sends bytes before authentication: frames of the handshake with wrong bodies, and noise."""
    rng = random.Random(f"{seed} stranger")
    maker = Maker(rng, (1,))
    host, port = world.address.rsplit(":", 1)
    hellos = list(itertools.islice(maker.bodies(Op.HELLO), count))
    for body in [*hellos, *maker.broken(Op.HELLO)]:
        stream = await trio.open_tcp_stream(host, int(port))
        frame = encode_frame(Op.HELLO, request_id=1, body=body[:4000])
        junk = struct.pack("<Q", rng.getrandbits(64)) * rng.randrange(1, 40)
        try:
            await stream.send_all(frame + junk if rng.random() < 0.5 else frame)
        except trio.BrokenResourceError:
            continue
        finally:
            await stream.aclose()
