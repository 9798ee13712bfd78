"""A metaserver engine without sockets, for unit and model tests: requests in, replies out."""

from dataclasses import dataclass, field
from typing import Any

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import Attributes, unpack_attributes
from fscommon.limits import SOLE_LEASE_S
from fscommon.types import Ino, SessionId
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame, FrameParser, encode_frame
from fscommon.wire.header import FLAG_ONEWAY, FLAG_REPLAY
from fscommon.wire.messages import (
    BODIES,
    Caller,
    Create,
    Failure,
    Lookup,
    MkDir,
    SessionOpen,
    SessionOpened,
)
from fscommon.wire.ops import Op
from fscommon.wire.servers import Register, Registered, TargetReport
from metaserver.boot import Settings, boot
from metaserver.connection import Connection
from metaserver.engine import Engine, Time
from metaserver.fsck import check
from metaserver.records import intent_key
from metaserver.store.memory import MemoryStore
from metaserver.store.waist import Store

SETTINGS = Settings(
    cluster_key=b"k" * 32, session_timeout_s=30.0, chunk_size=1 << 20, stripe_width_max=4
)
ROOT = 1
NO_SESSION = SessionId(0)
USER = Caller(uid=1000, gid=1000, umask=0o022)


def parse(outgoing: bytes) -> list[Frame]:
    parser = FrameParser()
    parser.feed(outgoing)
    return parser.frames()


class Bench:
    """One engine over a store; the test advances the time."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        targets: int = 2,
        settings: Settings = SETTINGS,
        engine: Engine | None = None,
    ) -> None:
        self.store = store or MemoryStore()
        self.now_ns = 1_000_000_000_000
        self.now_s = 1000.0
        self.engine: Engine = engine or boot(self.store, settings, self.time())
        self.engine.gate.is_auditing = True  # every footprint is compared with what was written
        if targets:
            self.register(targets)

    def time(self) -> Time:
        self.now_ns += 1000
        return Time(self.now_ns, self.now_s)

    def connect(self, purpose: str = "meta") -> Connection:
        return Connection(purpose, lambda: None, lambda: None)

    def register(self, targets: int, **of_node: Any) -> Registered:
        client = self.ask_to_register(targets, **of_node)
        self.commit()
        reply: Registered = client.take()
        return reply

    def ask_to_register(
        self,
        targets: int,
        *,
        free: int = 1 << 39,
        node: int = 1,
        features: int = 0,
        domain: str = "",
    ) -> "Client":
        reports = tuple(
            TargetReport(0, bytes([node, i]) * 8, 1, 1 << 40, free, 0, 0) for i in range(targets)
        )
        address = f"127.0.0.1:{node}"
        request = Register(0, bytes([node]) * 16, "n", address, b"", reports, features, domain)
        client = Client(self, self.connect("server"))
        client.send(Op.REGISTER, request)
        return client

    def commit(self) -> None:
        batch = self.engine.freeze()
        self.store.commit(batch)
        self.engine.committed(self.store.room())

    def settle(self) -> None:
        """Commits until nothing waits; the work of the truncation task is done at once."""
        while self.engine.dirty or self.engine.urgent:
            self.commit()

    def finish_truncates(self) -> None:
        self.settle()
        for ino in self.engine.services.intents.take_fresh():
            self._finish_truncate(ino)

    def _finish_truncate(self, ino: Ino) -> None:
        self.engine.system(lambda tx, context: tx.delete(intent_key(ino)))
        self.settle()
        self.engine.truncated(ino, self.time())

    def client(self, features: int = 0) -> "Client":
        if len(self.engine.sessions) and not self.engine.sessions.end_sole(self.now_s):
            # The former client no longer assumes that it is the only one.
            self.now_s += 2 * SOLE_LEASE_S
        client = Client(self, self.connect())
        client.send(Op.SESSION_OPEN, SessionOpen(0, "c", (), 0, features=features))
        self.settle()
        opened: SessionOpened = client.take()
        client.session = SessionId(opened.session)
        return client

    def faults(self) -> list[str]:
        self.settle()
        return check(self.store.snapshot())


@dataclass
class Client:
    bench: Bench
    connection: Connection
    session: SessionId = NO_SESSION
    request_id: int = 0
    answered: int = 0
    replies: list[Frame] = field(default_factory=list)

    def send(self, op: Op, message: Any, *, flags: int = 0, request_id: int = 0) -> int:
        if not request_id:
            self.request_id += 1
            request_id = self.request_id
        frame = encode_frame(
            op, flags=flags, request_id=request_id, offset=self.answered, body=encode(message)
        )
        for parsed in parse(frame):
            self.bench.engine.handle(self.connection, parsed, self.bench.time())
        return request_id

    def received(self) -> list[Frame]:
        self.replies += parse(b"".join(self.connection.outbox))
        self.connection.outbox.clear()
        return self.replies

    def take_frame(self) -> Frame:
        replies = self.received()
        assert replies, "no reply has come"
        return replies.pop(0)

    def take(self) -> Any:
        frame = self.take_frame()
        if frame.header.status:
            message = decode(Failure, frame.body).message
            raise FsError(Status(frame.header.status), message)
        return decode(BODIES[Op(frame.header.op)][1], frame.body)

    def call(self, op: Op, message: Any, **options: int) -> Any:
        """Sends, commits what the reply waits for, and returns the reply message."""
        self.send(op, message, **options)
        if not self.received():
            self.bench.settle()
        if not self.received():
            self.bench.finish_truncates()
        return self.take()

    def tell(self, op: Op, message: Any) -> None:
        self.send(op, message, flags=FLAG_ONEWAY)

    def replay(self, op: Op, message: Any, request_id: int) -> Frame:
        self.send(op, message, flags=FLAG_REPLAY, request_id=request_id)
        return self.take_frame()

    # ---- ops that every test needs ------------------------------------------------------------

    def mkdir(self, parent: int, name: bytes, mode: int = 0o755, caller: Caller = USER) -> int:
        entry = self.call(Op.MKDIR, MkDir(parent, name, mode, caller))
        return unpack_attributes(entry.attributes).ino

    def create(
        self, parent: int, name: bytes, mode: int = 0o644, caller: Caller = USER
    ) -> Attributes:
        opened = self.call(Op.CREATE, Create(parent, name, mode, True, True, caller))
        return unpack_attributes(opened.attributes)

    def lookup(self, parent: int, name: bytes) -> Attributes:
        return unpack_attributes(self.call(Op.LOOKUP, Lookup(parent, name)).attributes)
