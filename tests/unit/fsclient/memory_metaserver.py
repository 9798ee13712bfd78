"""A metaserver in memory, as the session protocol needs it: sessions, stored replies, transactions
that become durable later, and crashes that lose what was not durable.

Mutations are appended to `applied`; an UNLINK named b"missing" fails; the rest of the namespace is
not simulated. It is not the real metaserver, which tests/unit/metaserver tests.
"""

from dataclasses import dataclass, field

from fscommon.errors import Status
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame, FrameParser, encode_frame
from fscommon.wire.header import FLAG_ONEWAY, FLAG_REPLAY, FLAG_REPLY, Header
from fscommon.wire.leases import LeaseRestored
from fscommon.wire.messages import (
    BODIES,
    ClusterMap,
    Empty,
    Entry,
    Failure,
    MkDir,
    Removed,
    Replay,
    SessionOpen,
    SessionOpened,
    SessionRenewed,
    Unlink,
)
from fscommon.wire.ops import SPECS, Op

_EMPTY = encode(Empty())


@dataclass
class Session:
    # They map an id to transaction and body.
    replies: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    answered: int = 0
    opens: tuple[int, ...] = ()


@dataclass
class Store:
    """What a crash keeps, once it is durable."""

    sessions: dict[int, Session] = field(default_factory=dict)
    applied: list[bytes] = field(default_factory=list)
    txn: int = 0


class MemoryMetaserver:
    def __init__(self) -> None:
        self.incarnation = 1
        self.now = Store()
        self.kept = Store()
        self.busy_count = 0  # so many requests are answered BUSY first
        self.recovering = False
        self.refused_leases: tuple[int, ...] = ()
        self.fails_replays = False
        self.is_refusing = False  # the key is no longer valid
        self.heard = 0  # the next process of a session receives it
        # These are names; replies to changes of them belong to another op.
        self.lies_about: set[bytes] = set()
        self.lied: set[int] = set()  # these are request ids
        self.is_lying = False  # this includes replies to SESSION_OPEN
        self.seen: list[tuple[Op, int, int]] = []  # each entry has op, request id and flags
        self.next_session = 100
        self.is_open: int = 0
        self.parser = FrameParser()

    # ---- faults -------------------------------------------------------------------------------

    def make_durable(self) -> None:
        self.kept = _copy(self.now)

    def crash(self) -> None:
        """Loses what is not durable; sessions are durable before use."""
        kept = _copy(self.kept)
        for number in self.now.sessions:
            kept.sessions.setdefault(number, Session())
        self.now = kept
        self.incarnation += 1
        self.recovering = True
        self.disconnect()

    def disconnect(self) -> None:
        self.parser = FrameParser()
        self.is_open = 0

    def evict(self, session: int) -> None:
        self.now.sessions.pop(session, None)
        self.kept.sessions.pop(session, None)

    # ---- the wire -----------------------------------------------------------------------------

    def receive(self, octets: bytes) -> list[Frame]:
        """Takes bytes, returns the replies."""
        self.parser.feed(octets)
        replies = [self.serve(frame) for frame in self.parser.frames()]
        return [reply for reply in replies if reply is not None]

    def serve(self, frame: Frame) -> Frame | None:
        header = frame.header
        op = Op(header.op)
        self.seen.append((op, header.request_id, header.flags))
        if op in (Op.SESSION_OPEN, Op.PING):
            return self._open(frame) if op is not Op.PING else self._reply(header, _EMPTY, 0)
        session = self.now.sessions.get(self.is_open)
        if session is None:
            return self._fail(header, Status.UNKNOWN_SESSION)
        session.answered = max(session.answered, header.offset)
        self._drop_replies(session)
        if header.flags & FLAG_ONEWAY:
            return None
        if self.recovering and op is not Op.REPLAY_DONE:
            return self._recover(session, frame, op)
        self.recovering = False
        if self.busy_count and op is not Op.REPLAY_DONE:
            self.busy_count -= 1
            return self._fail(header, Status.BUSY)
        return self._execute(session, frame, op)

    def _recover(self, session: Session, frame: Frame, op: Op) -> Frame:
        header = frame.header
        if op is Op.LEASE_RESTORE:
            return self._reply(header, encode(LeaseRestored(self.refused_leases)), 0)
        if not header.flags & FLAG_REPLAY:
            return self._fail(header, Status.NOT_READY)
        if self.fails_replays:
            return self._fail(header, Status.ENOENT)
        return self._execute(session, frame, op)

    def _open(self, frame: Frame) -> Frame:
        if self.is_refusing:
            return self._fail(frame.header, Status.EACCES)
        request = decode(SessionOpen, frame.body)
        number = request.session
        if number and number not in self.now.sessions:
            return self._fail(frame.header, Status.UNKNOWN_SESSION)
        if not number:
            self.next_session += 1
            number = self.next_session
            self.now.sessions[number] = Session()
            self.kept.sessions[number] = Session()
        self.now.sessions[number].opens = request.opens
        self.is_open = number
        reply = SessionOpened(number, self.incarnation, self.kept.txn, 30.0, heard=self.heard)
        return self._reply(frame.header, b"?" if self.is_lying else encode(reply), 0)

    def _execute(self, session: Session, frame: Frame, op: Op) -> Frame:
        header, body = frame.header, frame.body
        if not SPECS[op].mutation:
            if op is Op.BARRIER:
                self.make_durable()
            return self._reply(header, self._read(op), 0)
        stored = session.replies.get(header.request_id)
        if stored is not None:
            if header.request_id in self.lied:
                header = header._replace(op=Op.SETXATTR)
            return self._reply(header, stored[1], stored[0])
        if header.request_id <= session.answered:
            raise AssertionError(f"request {header.request_id} was answered and is sent again")
        if header.flags & FLAG_REPLAY:
            body = decode(Replay, body).request
        return self._mutate(session, header, op, body)

    def _mutate(self, session: Session, header: Header, op: Op, body: bytes) -> Frame:
        message: object = decode(BODIES[op][0], body)
        name = message.name if isinstance(message, MkDir | Unlink) else repr(message).encode()
        if name == b"missing":
            return self._fail(header, Status.ENOENT)
        self.now.txn += 1
        self.now.applied.append(name)
        reply = encode(Removed(name) if op is Op.UNLINK else Entry(name))
        session.replies[header.request_id] = (self.now.txn, reply)
        if name in self.lies_about:
            self.lied.add(header.request_id)
            header = header._replace(op=Op.SETXATTR)
        return self._reply(header, reply, self.now.txn)

    def _read(self, op: Op) -> bytes:
        if op is Op.SESSION_RENEW:
            return encode(SessionRenewed(ClusterMap(1, b"\0" * 16, ())))
        reply = BODIES[op][1]
        return encode(Empty()) if reply is Empty else encode(Entry(b"read"))

    def _drop_replies(self, session: Session) -> None:
        for request_id in [i for i in session.replies if i <= session.answered]:
            del session.replies[request_id]

    def _fail(self, header: Header, status: Status) -> Frame:
        return self._reply(header, encode(Failure("no")), 0, status=int(status))

    def _reply(self, header: Header, body: bytes, txn: int, *, status: int = 0) -> Frame:
        raw = encode_frame(
            header.op,
            flags=FLAG_REPLY,
            request_id=header.request_id,
            file_id=self.kept.txn,
            offset=txn,
            status=status,
            body=body,
        )
        parser = FrameParser()
        parser.feed(raw)
        frame = parser.next_frame()
        assert frame is not None
        return frame


def _copy(store: Store) -> Store:
    sessions = {
        number: Session(dict(s.replies), s.answered, s.opens)
        for number, s in store.sessions.items()
    }
    return Store(sessions, list(store.applied), store.txn)
