"""A chunk server without native code and a metaserver without a store, for the tests here."""

import functools
import itertools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import trio

from fscommon.auth.key import create_key, load_key
from fscommon.errors import FsError, ProtocolError
from fscommon.native import RawEvent
from fscommon.native_ports import CopyProgressRow, ExaminedRow, NativeTls, RemoteCopy
from fscommon.net.address import Address
from fscommon.net.memory import MemoryTransport
from fscommon.net.serve import Peer, serve
from fscommon.net.stream import FrameStream
from fscommon.net.tcp import TcpTransport
from fscommon.net.transport import Transport
from fscommon.observe.metrics import Metrics
from fscommon.service import Service, ServiceSettings
from fscommon.wire.codec import decode, encode
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.header import FLAG_REPLY
from fscommon.wire.messages import Failure
from fscommon.wire.ops import Op
from fscommon.wire.servers import (
    DroppedNames,
    FormerRegister,
    Heartbeat,
    HeartbeatReply,
    Register,
    Registered,
    TargetDropped,
    TargetReport,
)
from storageserver.config import StorageServerConfig, TargetConfig
from storageserver.server import StorageServer

CLUSTER = b"c" * 16
OTHER_CLUSTER = b"o" * 16


@dataclass
class FakeTarget:
    path: str
    uuid: bytes
    target: int = 0


class FakeChunkServer:
    """Records its calls; a superblock is what makes a directory a target."""

    def __init__(self) -> None:
        self.targets: list[FakeTarget] = []
        self.calls: list[tuple[object, ...]] = []
        self.live: list[int] | None = None
        self.until_ns = 0
        self.dropped: list[tuple[int, int, int]] = []
        self.adopted: list[tuple[str, int, int, int]] = []
        self.connections = 0
        self.rdma_tokens: list[int] = []
        self.adoption = trio.Event()
        self.events: list[RawEvent] = []
        self._events_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def io_engine(self) -> str:
        return "fake"

    def target_open(
        self, path: str, *, cluster: bytes, uuid: bytes, capacity_bytes: int, create: bool
    ) -> int:
        superblock = Path(path) / "superblock"
        if create:
            superblock.write_bytes(b"BRAIDTGT" + bytes(8) + cluster + uuid)
        elif superblock.read_bytes()[16:32] != cluster:
            raise ValueError("the target belongs to another cluster")
        self.targets.append(FakeTarget(path, uuid))
        return len(self.targets) - 1

    def target_assign(self, index: int, target: int) -> None:
        self.targets[index].target = target

    def target_info(self, index: int) -> TargetReport:
        target = self.targets[index]
        return TargetReport(target.target, target.uuid, 1, 1000, 900, 5, 0, 800, 700)

    def has_clients(self, target: int) -> bool:
        return False

    def examine(
        self, target: int, file_id: int, object: int, group: int, *, reads: bool
    ) -> ExaminedRow:
        raise NotImplementedError

    def mend(
        self, target: int, file_id: int, object: int, block: int, bytes: bytes
    ) -> tuple[int, int, int]:
        raise NotImplementedError

    def copy_step(self, copy: RemoteCopy, bytes: int) -> CopyProgressRow:
        raise NotImplementedError

    def start(self) -> None:
        self.calls.append(("start",))

    def stop(self, deadline_ms: int) -> None:
        self.calls.append(("stop",))

    def capability_key(self, key: bytes) -> None:
        self.calls.append(("capability_key", key))

    def sessions(self, live: Sequence[int]) -> None:
        self.live = list(live)

    def serve_until(self, deadline_ns: int) -> None:
        self.until_ns = deadline_ns
        assert self.live is not None, "the lease comes after the table of sessions"

    def drop_names(self, target: int, file_ids: Sequence[int], objects: Sequence[int]) -> None:
        if len(file_ids) != len(objects):
            raise ValueError("the columns differ in length")
        names = zip(itertools.repeat(target), file_ids, objects, strict=False)
        self.dropped += names
        self.calls.append(("drop_names", target, self.live is None))

    def target_retire(self, target: int) -> bool:
        self.calls.append(("target_retire", target, self.live is None))
        return True

    def announce(self, session: int, connection: int, previous: int) -> None:
        self.calls.append(("announce", session, connection, previous))

    def fence(self, session: int) -> None:
        self.calls.append(("fence", session))

    def connection_count(self) -> int:
        return self.connections

    def close_idle(self, count_max: int, idle_ms: int) -> None:
        self.calls.append(("close_idle", count_max, idle_ms))

    def rdma_open(self, device: str, port: int, gid_index: int, memory_mib: int) -> int:
        self.calls.append(("rdma_open", device, port, gid_index))
        return 0

    def rdma_offer(self, rail: int, session: int, previous: int) -> tuple[int, bytes]:
        self.calls.append(("rdma_offer", rail, session, previous))
        return 5, b"s" * 40

    def rdma_connect(self, token: int, peer: bytes) -> None:
        if peer.startswith(b"bad"):
            raise ValueError("this describes no queue pair that fits")
        self.calls.append(("rdma_connect", token, peer))

    def rdma_close(self, rail: int) -> None:
        self.calls.append(("rdma_close", rail))

    def rdma_check(self) -> list[int]:
        return []

    def rdma_drop(self, token: int) -> None:
        self.calls.append(("rdma_drop", token))

    def adopt(
        self,
        fd: int,
        *,
        purpose: str,
        session: int,
        connection: int,
        previous: int,
        rdma: int = 0,
        tls: NativeTls | None = None,
    ) -> None:
        os.close(fd)
        self.rdma_tokens.append(rdma)
        self.adopted.append((purpose, session, connection, previous))
        self.adoption.set()

    def events_fd(self) -> int:
        return self._events_fd

    def reap(self, count_max: int) -> list[RawEvent]:
        taken, self.events = self.events[:count_max], self.events[count_max:]
        if not self.events:
            os.eventfd_write(self._events_fd, 1)
            os.eventfd_read(self._events_fd)
        return taken

    def report(self, *events: RawEvent) -> None:
        self.events += events
        os.eventfd_write(self._events_fd, 1)

    def counters(self) -> dict[str, int]:
        return {}


@dataclass
class FakeMetaserver:
    """Answers REGISTER and HEARTBEAT. `refuse` is raised once, for the next request."""

    key: bytes
    cluster: bytes = CLUSTER
    sessions: list[int] = field(default_factory=list)
    version: int = 1
    map_epoch: int = 8
    registrations: list[FormerRegister] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    refuse: FsError | None = None
    hang_up: bool = False
    ids: dict[bytes, int] = field(default_factory=dict)
    dropped: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # by target
    asked: list[TargetDropped] = field(default_factory=list)
    page: int = 3  # names in a reply to TARGET_DROPPED
    is_former: bool = False  # it is of a release that knows nothing of replicas
    removed: tuple[int, ...] = ()
    on_page: Callable[[], None] = lambda: None  # called with each TARGET_DROPPED
    heard: trio.Event = field(default_factory=trio.Event)

    async def on_connection(self, peer: Peer, stream: FrameStream) -> None:
        assert peer.purpose == "server"
        while batch := await stream.receive_batch():
            for frame in batch:
                if self.hang_up:
                    self.hang_up = False
                    return
                await stream.send(self._answer(frame))

    def open_session(self, session: int) -> None:
        self.sessions.append(session)
        self.version += 1

    async def wait_heartbeats(self, count: int) -> None:
        while len(self.heartbeats) < count:
            await self.heard.wait()
            self.heard = trio.Event()

    def _answer(self, frame: Frame) -> bytes:
        header = frame.header
        reply_to = functools.partial(
            encode_frame, header.op, flags=FLAG_REPLY, request_id=header.request_id
        )
        if self.refuse is not None:
            error, self.refuse = self.refuse, None
            body = encode(Failure(str(error)))
            return reply_to(status=error.status, body=body)
        reply = self._reply(frame)
        self.heard.set()
        return reply_to(body=encode(reply))

    def _reply(self, frame: Frame) -> object:
        if frame.header.op == Op.REGISTER:
            return self._register(frame)
        if frame.header.op == Op.TARGET_DROPPED and not self.is_former:
            return self._dropped(frame)
        assert frame.header.op == Op.HEARTBEAT
        return self._heartbeat(frame)

    def _dropped(self, frame: Frame) -> DroppedNames:
        request = decode(TargetDropped, frame.body)
        self.asked.append(request)
        self.on_page()
        names = sorted(self.dropped.get(request.target, []))
        left = [name for name in names if name > (request.after_file_id, request.after_object)]
        some = left[: self.page]
        return DroppedNames(
            file_ids=tuple(file_id for file_id, _ in some),
            objects=tuple(number for _, number in some),
            end=len(left) <= self.page,
        )

    def _register(self, frame: Frame) -> Registered:
        if self.is_former and len(msgpack.unpackb(frame.body)) > len(fields(FormerRegister)):
            raise ProtocolError("fields of Register have wrong types")
        request = decode(FormerRegister if self.is_former else Register, frame.body)
        self.registrations.append(request)
        for report in request.targets:
            self.ids.setdefault(report.uuid, len(self.ids) + 1)
        return Registered(
            node=4,
            cluster=self.cluster,
            targets=tuple(self.ids[report.uuid] for report in request.targets),
            capability_key=b"K" * 32,
            map_epoch=self.map_epoch,
            sessions=tuple(self.sessions),
            timeout_s=10.0,
            features=0 if self.is_former else FEATURE_REPLICAS,
            removed=self.removed,
        )

    def _heartbeat(self, frame: Frame) -> HeartbeatReply:
        request = decode(Heartbeat, frame.body)
        self.heartbeats.append(request)
        current = request.session_version == self.version
        return HeartbeatReply(
            self.map_epoch + 1, self.version, None if current else tuple(self.sessions)
        )


@dataclass
class World:
    """One storage server and its metaserver, in a directory."""

    path: Path
    metaserver: FakeMetaserver
    transport: Transport
    address: Address  # the address of the metaserver
    native: FakeChunkServer = field(default_factory=FakeChunkServer)
    service: Service = field(
        default_factory=lambda: Service(ServiceSettings("test"), Metrics("test"))
    )

    def config(self, **changes: object) -> StorageServerConfig:
        fields: dict[str, object] = {
            "name": "ss-1",
            "key_file": self.path / "key",
            "state_directory": self.path / "state",
            "targets": tuple(TargetConfig(self.path / name) for name in ("t1", "t2")),
            "listen": "127.0.0.1:0" if isinstance(self.transport, TcpTransport) else "ss:7411",
            "metaservers": (str(self.address),),
        }
        return StorageServerConfig(**(fields | changes))  # type: ignore[arg-type]

    def server(self, **changes: object) -> StorageServer:
        return StorageServer(self.config(**changes), self.native, self.service, self.transport)

    @asynccontextmanager
    async def running(self, **changes: object) -> AsyncIterator[None]:
        """The server runs in the body; it is stopped as a signal would stop it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.server(**changes).run)
            with trio.fail_after(20):
                await self.metaserver.wait_heartbeats(1)
                yield
                self.service.stopping.set()


@asynccontextmanager
async def make_world(path: Path, *, tcp: bool = False) -> AsyncIterator[World]:
    create_key(path / "key")
    for name in ("t1", "t2"):
        (path / name).mkdir()
    key = load_key(path / "key")
    metaserver = FakeMetaserver(key)
    transport: Transport = TcpTransport() if tcp else MemoryTransport()
    listen = Address("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        task = functools.partial(
            serve, listen, key=key, on_connection=metaserver.on_connection, transport=transport
        )
        address: Address = await nursery.start(task)
        yield World(path, metaserver, transport, address)
        nursery.cancel_scope.cancel()
