"""The engine runs requests, makes replies and gathers batches; it has no I/O, no clock, no task.

A request runs at once, as one transaction over the overlay. Its reply leaves at once, unless
- the op met uncommitted keys of another session (commit on share, rule 17), or an earlier reply of
  its session is held: then the reply is held until that transaction is durable. So replies of a
  session that depend on each other become durable in order;
- the op asked for durability, or for the end of a truncate;
- the op cannot run while its inode is being truncated, or another session holds a lease on what it
  reads or changes (metaserver.lease_gate): then the request itself waits, and runs later.
A mutation stores its reply in its own transaction; a repeat is answered from there. After a restart
sessions replay first; no new request is served until all have replayed or expired (rule 18).
`freeze` returns the batch for the committer's thread, `committed` releases what waited for it.
Only the event loop's thread calls. Connections are in metaserver.server, the task that commits in
metaserver.committer.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Final

from fscommon.errors import FsError, ProtocolError, RangeError, Status
from fscommon.layout.quota import NO_LIMITS, QuotaKind
from fscommon.limits import REQUESTS_IN_FLIGHT_MAX
from fscommon.types import Ino, RequestId, SessionId, Txn
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.header import FLAG_ONEWAY, FLAG_REPLAY, FLAG_REPLY, FLAG_SOLE, Header
from fscommon.wire.messages import Failure, Replay
from fscommon.wire.ops import Op
from metaserver.confine import check_key, confine
from metaserver.connection import Connection
from metaserver.context import BYTES_MAX, Context, ParkedError, Services
from metaserver.dispatch import row_of
from metaserver.durable import DurableWaiters
from metaserver.lease_gate import LeaseGate, OpCall, WaitError
from metaserver.leases.holders import Claim
from metaserver.ops.locks import lock_events_key
from metaserver.ops.row import PURPOSES, Access, OpRow
from metaserver.overlay import Overlay
from metaserver.records import (
    INO_END_KEY,
    INODES_KEY,
    RECOVERY_KEY,
    TXN_KEY,
    pack_number,
    pack_reply,
    reply_key,
    unpack_reply,
)
from metaserver.replies import former_outcome, ino_of_reply, request_hash
from metaserver.sessions import SYSTEM_SESSION, Session
from metaserver.shown import shown
from metaserver.store.waist import Batch, StoreRoom
from metaserver.transaction import Transaction

_Claimed = Claim | None
SystemOp = Callable[[Transaction, Context], None]


@dataclass(frozen=True, slots=True)
class Time:
    """now_ns counts from 1970, for times of files; now_s is monotonic, for deadlines."""

    now_ns: int
    now_s: float


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a request ended. When its reply may leave is decided later."""

    status: int
    body: bytes
    txn: Txn
    hold: Txn  # the reply leaves when this transaction is durable
    truncate: Ino | None = None


class Engine:
    def __init__(self, overlay: Overlay, services: Services) -> None:
        self.services = services
        self.gate = LeaseGate(services.leases, services.sessions)
        self.progress = services.progress
        self.sessions = services.sessions
        self._overlay = overlay
        self.stored, self.stored_keys = overlay.stored, overlay.stored_keys
        self.stored_record = overlay.stored_record
        self._frozen_txn = Txn(0)
        self._frozen_ino_end: int | None = None
        self._durable_waiters = DurableWaiters()
        self._holds: dict[SessionId, Txn] = {}  # the newest transaction that its replies wait for
        self._truncate_waiters: dict[Ino, list[Callable[[], None]]] = {}
        self._parked: dict[Hashable, list[tuple[Connection, Frame]]] = {}
        self._owners: dict[SessionId, Connection] = {}
        self.urgent = False  # a request waits for the next commit
        self.doomed = False  # a committed batch had objects to delete
        self.counts: Counter[tuple[Op, int]] = Counter()  # answered requests by op and status
        self.replays: Counter[str] = Counter()
        self.log: Callable[..., None] = lambda event, **fields: None
        # Called with the op and the arrival time (Time.now_s) when the reply is in the outbox.
        self.answered: Callable[[Op, float], None] = lambda op, arrived_s: None
        self.audited: Callable[[Connection, Frame, int], None] = lambda peer, frame, status: None
        self.refused: Callable[[Connection, Op, RangeError], None] = lambda peer, op, error: None
        # Called while the exception of a faulty op is handled. Only its request fails.
        self.failed: Callable[[Connection, Op], None] = _raise_again

    # ---- requests ------------------------------------------------------------------------

    def handle(self, connection: Connection, frame: Frame, time: Time) -> None:
        """Runs one request; its reply comes into the outbox now or later.

        Raises ProtocolError if the peer must be cut off."""
        self._handle(connection, frame, time, None)
        self.leases_changed(time)

    def leases_changed(self, time: Time) -> None:
        """Runs requests that wait for leases no longer; sends recalls and notices of a new map."""
        leases = self.services.leases
        if leases.is_anyone_ready:
            self.gate.resume(
                lambda peer, frame, claim: self._handle_again(peer, frame, time, claim)
            )
        self.gate.tell(self.services.membership.epoch)

    def _handle_again(self, peer: Connection, frame: Frame, time: Time, claim: _Claimed) -> None:
        """Runs a request that has waited. A breach of the protocol ends the request's own
        connection, not the one that is served now."""
        try:
            self._handle(peer, frame, time, claim)
        except ProtocolError as error:
            self.log("a request that waited was refused", error=error)
            self.closed(peer)
            peer.end()

    def _handle(self, connection: Connection, frame: Frame, time: Time, claim: _Claimed) -> None:
        row = row_of(frame.header)
        if not connection.is_open:
            return
        try:
            outcome = self._outcome(connection, row, frame, time, claim)
            self._answer(connection, row, frame, outcome, time.now_s)
        except FsError as error:
            self._refuse(connection, row, frame, error, time.now_s)
        except ParkedError as parked:
            connection.holds(frame)
            self._parked.setdefault(parked.key, []).append((connection, frame))
        except WaitError as waiting:
            self.gate.wait(waiting.claim, connection, frame)
        except RangeError as error:
            self.refused(connection, row.op, error)
            refusal = FsError(Status.BAD_REQUEST, str(error))
            self._refuse(connection, row, frame, refusal, time.now_s)
        except ProtocolError:
            raise
        except Exception:
            self.failed(connection, row.op)
            fault = FsError(Status.EIO, "a fault of the metaserver, which its log tells of")
            self._refuse(connection, row, frame, fault, time.now_s)
        if self.services.locks.fresh:
            self.locks_changed(time)

    def _outcome(
        self, connection: Connection, row: OpRow, frame: Frame, time: Time, claim: Claim | None
    ) -> _Outcome:
        session = self._admit(connection, row, frame.header, time)
        if row.mutation and session is not None and frame.header.request_id in session.stored:
            return self._repeat(session, row, frame)
        if frame.header.flags & FLAG_REPLAY:
            return self._replay(session, row, frame, time)
        self._check_served(row, session, connection)
        if row.mutation and self._overlay.filling.size > 2 * BYTES_MAX:  # many have waited
            raise ParkedError(_ROOM)
        return self._run(connection, row, frame, time, claim)

    def _admit(
        self, connection: Connection, row: OpRow, header: Header, time: Time
    ) -> Session | None:
        if connection.key is not None:
            check_key(connection.key, row, time.now_ns)
        access = row.access
        if access is Access.SESSION or access is Access.CONTROL:
            session = self.sessions.get(connection.session)
            if session is None or connection.session == SYSTEM_SESSION:
                raise FsError(Status.UNKNOWN_SESSION, "open a session first")
            session.renewed_s = time.now_s
            session.requests += 1
            session.heard = max(session.heard, header.request_id)
            if session.stored and not self.progress.recovering:
                self._prune(session, RequestId(header.offset))
            return session
        if access is not Access.ANY and connection.purpose != PURPOSES[access]:
            raise FsError(Status.EPERM, f"{row.op.name} is not for a {connection.purpose} peer")
        return None

    def _check_served(self, row: OpRow, session: Session | None, connection: Connection) -> None:
        if row.access is Access.SESSION and self.progress.recovering:
            raise FsError(Status.NOT_READY, "waiting for clients of before the restart")
        bound = REQUESTS_IN_FLIGHT_MAX * (2 if row.access is Access.CONTROL else 1)
        if connection.in_flight >= bound or connection.share.is_used_up:
            raise FsError(Status.BUSY, "too many requests of this connection, or its key, wait")

    def _run(
        self, connection: Connection, row: OpRow, frame: Frame, time: Time, claim: Claim | None
    ) -> _Outcome:
        request: Any = decode(row.request, frame.body)
        context = Context(
            connection.session, time.now_ns, time.now_s, self.services, connection.key
        )
        context.peer = connection
        header = frame.header
        call = OpCall(row, request, header.request_id, header.body_checksum, time.now_s, claim)
        outcome = self._execute(call, context)
        if context.opened is not None and outcome.status == 0:
            self._bind(connection, context.opened)
        if context.ends_replay:
            self.end_recovery_if_done()
        return outcome

    def _execute(self, call: OpCall, context: Context) -> _Outcome:
        row = call.row
        tx = Transaction(self._overlay, context.session)
        has_leases = row.footprint is not None and not self.progress.recovering
        try:
            if context.key is not None:
                call.request = confine(tx, row, call.request, context)
            reporters = row.reporters(call.request, context) if row.reporters is not None else ()
            if has_leases and (wait := self.gate.pass_or_wait(tx, call, reporters)) is not None:
                raise WaitError(wait)
            reply = row.run(tx, call.request, context)
            if has_leases and self.gate.is_auditing:
                self.gate.audit(tx, call)
            parents = b"".join(tx.touched) or (
                self.gate.shown_parent(tx, call) if has_leases else b""
            )
            if parents:
                reply = replace(reply, parents=parents)
            body = encode(reply)
        except FsError as error:
            return self._failed(tx, call, error, has_leases=has_leases)
        except ProtocolError as error:
            raise RuntimeError(f"what is stored, or was answered, is wrong: {error}") from error
        txn, late, foreign = self._merge(tx, call, body, context)
        hold = self.progress.txn if context.wait_durable or late else foreign
        if has_leases:
            call.withheld = context.withheld
            body = self.gate.granted(tx, call, reply, body)
        return _Outcome(0, body, txn, hold, context.wait_truncate)

    def _account(self, context: Context) -> None:
        """Merges what the op has counted; freeze() puts it into the batch with the op's records."""
        self.progress.inodes = max(1, self.progress.inodes + context.inodes_added)
        if context.charges:
            self.services.quotas.merge(context.charges, context.now_ns)
        if context.trash:
            self.services.trash.merge(context.trash)
        for tree in context.trees_gone:
            self.services.quotas.set_limits((QuotaKind.TREE, tree), NO_LIMITS, context.now_ns)
        for ino in context.removed:
            self.services.leases.forget(ino, context.now_s)

    def _note(self, tx: Transaction, context: Context) -> None:
        """Writes the op's notes. Notes alone are no mutation: nobody replays them."""
        if tx.writes:
            tx.writes.update(context.notes)
        else:
            self._overlay.merge(context.notes, context.session, self._next_txn())

    def _merge(
        self, tx: Transaction, call: OpCall, body: bytes, context: Context
    ) -> tuple[Txn, bool, Txn]:
        """Merges the writes of an op that succeeded. Returns its transaction, whether it is late
        (see _remember), and the transaction that its reply waits for."""
        row = call.row
        if context.notes:
            self._note(tx, context)
        if not tx.writes:
            return Txn(0), False, tx.foreign
        txn = self._next_txn()
        late = False
        if row.mutation:
            stored = pack_reply(txn, row.op, body, call.request_hash)
            tx.put(reply_key(context.session, call.request_id), stored)
            late = self._remember(row, context.session, RequestId(call.request_id), body)
        foreign = max(tx.foreign, self._overlay.merge(tx.writes, context.session, txn))
        if row.hurries_recall and self.services.leases.is_claimed(call.request.ino):
            self.urgent = True  # the request that recalled the lease will wait for this commit
        self._account(context)
        return txn, late, foreign

    def _failed(
        self, tx: Transaction, call: OpCall, error: FsError, *, has_leases: bool
    ) -> _Outcome:
        if not has_leases:
            return _failure(error, tx.foreign)
        body = self.gate.failure(tx, call, error)
        return _Outcome(int(error.status), body, Txn(0), tx.foreign)

    def _next_txn(self) -> Txn:
        self.progress.txn = Txn(self.progress.txn + 1)
        return self.progress.txn

    def _remember(self, row: OpRow, session: SessionId, request_id: RequestId, body: bytes) -> bool:
        """Remembers that the reply is stored. Returns True if a later request of the session ran
        before this one, which was parked, or failed and was sent again. Replays go by request id,
        so the reply must not leave before both are durable."""
        known = self.sessions.get(session)
        if known is None:
            return False
        known.stored[request_id] = None
        if row.opens:
            known.created[request_id] = ino_of_reply(row.op, body)
        late = request_id < known.newest
        known.newest = max(request_id, known.newest)
        return late

    # ---- repeats and replays -------------------------------------------------------------

    def _repeat(self, session: Session, row: OpRow, frame: Frame) -> _Outcome:
        """Answers a repeat with the stored reply. It leaves when it is durable, as it may depend on
        changes of other sessions."""
        tx = Transaction(self._overlay, session.id)
        raw = tx.get(reply_key(session.id, frame.header.request_id))
        assert raw is not None, "session.stored names replies that exist"
        stored = unpack_reply(raw)
        if not stored.answers(row.op, request_hash(frame)):
            self.replays["refused"] += 1
            self.log("a request has the id of another one", op=row.op.name, session=session.id)
            raise FsError(Status.EIO, "another request had this id and was answered")
        if frame.header.flags & FLAG_REPLAY:
            self.replays["stored"] += 1
            return _Outcome(0, stored.body, stored.txn, Txn(0))
        truncate = None
        if row.opens:
            self.sessions.open(session.id, ino_of_reply(row.op, stored.body), writable=True)
        elif row.repeat_waits_for_truncate:
            ino = ino_of_reply(row.op, stored.body)
            truncate = ino if ino in self.services.intents else None
        return _Outcome(0, stored.body, stored.txn, stored.txn, truncate)

    def _replay(self, session: Session | None, row: OpRow, frame: Frame, time: Time) -> _Outcome:
        if session is None or not row.mutation or not session.replaying:
            raise FsError(Status.BAD_REQUEST, "nothing is to be replayed")
        replay = decode(Replay, frame.body)
        if replay.txn == 0:  # the request changed nothing, so there is nothing to do again
            self.replays["empty"] += 1
            return _Outcome(0, replay.reply, Txn(0), Txn(0))
        if session.key is not None and session.key.is_confined:
            raise FsError(Status.EPERM, "what this client was answered is durable")
        replayed, now_ns = former_outcome(row.op, replay.reply)
        when_ns = now_ns or time.now_ns
        context = Context(session.id, when_ns, time.now_s, self.services, session.key, replayed)
        request: Any = decode(row.request, replay.request)
        call = OpCall(row, request, frame.header.request_id, request_hash(frame), time.now_s)
        outcome = self._execute(call, context)
        self.replays["failed" if outcome.status else "applied"] += 1
        if outcome.status:
            self.log("a replay failed", op=row.op.name, session=session.id, status=outcome.status)
        return _Outcome(outcome.status, outcome.body, outcome.txn, Txn(0))

    def _prune(self, session: Session, answered: RequestId) -> None:
        """Drops stored replies that the client will not ask for again."""
        stored = session.stored
        txn = self.progress.txn
        while stored and (first := next(iter(stored))) <= answered:
            self.sessions.pruned(session, first)
            self._overlay.filling.put(reply_key(session.id, first), (None, session.id, txn))

    def end_recovery_if_done(self) -> None:
        if not self.progress.recovering or self.sessions.replaying():
            return
        self.progress.recovering = False
        self.system(lambda tx, context: tx.delete(RECOVERY_KEY))
        self.sessions.reapable.update(
            ino for ino in self.sessions.orphans if not self.sessions.is_open(ino)
        )
        self.doomed = True
        self.urgent = True

    # ---- replies -------------------------------------------------------------------------

    def _answer(
        self, connection: Connection, row: OpRow, frame: Frame, outcome: _Outcome, now_s: float
    ) -> None:
        self._count(connection, row, frame, outcome.status)
        if frame.header.flags & FLAG_ONEWAY:
            return
        if connection.who is not None:
            body = shown(row.op, frame, outcome.status, outcome.body, connection.who)
            outcome = replace(outcome, body=body)
        session = connection.session
        hold = max(outcome.hold, self._holds.get(session, 0)) if row.keeps_order else 0
        if hold <= self.progress.durable and outcome.truncate is None:
            is_sole = row.access is Access.SESSION and self.sessions.sole(now_s)
            self._send(connection, frame.header, outcome, FLAG_SOLE if is_sole else 0)
            self.answered(row.op, now_s)
            return
        connection.holds(frame)
        connection.waits(len(outcome.body))

        def release() -> None:
            connection.lets_go(frame)
            connection.waits(-len(outcome.body))
            if connection.is_open:
                self._send(connection, frame.header, outcome)
                self.answered(row.op, now_s)
                connection.wake()

        if outcome.truncate is not None:
            self._truncate_waiters.setdefault(outcome.truncate, []).append(release)
            self._holds[session] = self.progress.txn
            self.urgent = True
            return
        if session != SYSTEM_SESSION:
            self._holds[session] = Txn(hold)
        self.when_durable(Txn(hold), release)

    def _refuse(
        self, connection: Connection, row: OpRow, frame: Frame, error: FsError, now_s: float
    ) -> None:
        self._count(connection, row, frame, int(error.status))
        if not frame.header.flags & FLAG_ONEWAY:
            # There is no hold, as it shows nothing.
            self._send(connection, frame.header, _failure(error, Txn(0)))
            self.answered(row.op, now_s)

    def _count(self, connection: Connection, row: OpRow, frame: Frame, status: int) -> None:
        self.counts[row.op, status] += 1
        if row.audited is not None:
            self.audited(connection, frame, status)

    def _send(
        self, connection: Connection, request: Header, outcome: _Outcome, flags: int = 0
    ) -> None:
        session = self.sessions.get(connection.session)
        durable = self.progress.durable
        if session is not None and session.replaying:
            durable = self.progress.recovery_txn
        connection.put(
            encode_frame(
                request.op,
                flags=FLAG_REPLY | flags,
                request_id=request.request_id,
                file_id=durable,
                offset=outcome.txn,
                status=outcome.status,
                map_epoch=self.services.membership.epoch,
                body=outcome.body,
            )
        )

    def when_durable(self, txn: Txn, release: Callable[[], None]) -> None:
        """Calls release once everything up to txn is durable. Makes the committer hurry."""
        if txn <= self.progress.durable:
            release()
            return
        self.urgent |= txn > self._frozen_txn
        self._durable_waiters.add(txn, release)

    # ---- connections ---------------------------------------------------------------------

    def attach(self, connection: Connection, session: SessionId) -> None:
        """Takes a connection for the recalls of a session. Raises ProtocolError if there is no
        such session."""
        known = self.sessions.get(session)
        if session == SYSTEM_SESSION or known is None or known.key is not connection.key:
            raise ProtocolError("a recall connection names a session")
        self.gate.attach(connection, session)

    def _bind(self, connection: Connection, session: SessionId) -> None:
        """Makes this the connection of the session, and closes the one that it had."""
        former = self._owners.get(session)
        if former is not None and former is not connection:
            self.closed(former)
            former.end()
        connection.session = session
        self._owners[session] = connection

    def closed(self, connection: Connection) -> None:
        """The connection has ended. Its parked requests have not run and never will."""
        connection.is_open = False
        if self._owners.get(connection.session) is connection:
            del self._owners[connection.session]
        self.gate.closed(connection)
        for key, waiting in list(self._parked.items()):
            kept = [item for item in waiting if item[0] is not connection]
            if kept:
                self._parked[key] = kept
            else:
                del self._parked[key]

    def evicted(self, session: SessionId) -> None:
        """The session is gone from the tables: closes its connections."""
        self.gate.ended(session)
        self._holds.pop(session, None)
        connection = self._owners.pop(session, None)
        if connection is not None:
            self.closed(connection)
            connection.end()

    # ---- the metaserver's own transactions -------------------------------------------------

    def system(self, operation: SystemOp, time: Time | None = None) -> Txn:
        """Runs an op of the metaserver itself. Returns its transaction, or the last transaction if
        the op wrote nothing."""
        now = time or Time(0, 0.0)
        tx = Transaction(self._overlay, SYSTEM_SESSION)
        context = Context(SYSTEM_SESSION, now.now_ns, now.now_s, self.services)
        operation(tx, context)
        if tx.writes:
            self._overlay.merge(tx.writes, SYSTEM_SESSION, self._next_txn())
            self._account(context)
        return self.progress.txn

    def truncated(self, ino: Ino, time: Time) -> None:
        """Runs what has waited until all targets have cut, and the intent's removal is durable."""
        self.services.intents.done(ino)
        for release in self._truncate_waiters.pop(ino, ()):
            release()
        self.resume(ino, time)

    def resume_after_commit(self, time: Time) -> bool:
        """Runs the requests that waited because the batch was too large. False: none did."""
        return self.resume(_ROOM, time)

    def resume(self, key: Hashable, time: Time) -> bool:
        """Runs the requests again that were parked under this key. False: there were none."""
        for connection, frame in (parked := self._parked.pop(key, ())):
            connection.lets_go(frame)
            if connection.is_open:
                self._handle_again(connection, frame, time, None)
                self.leases_changed(time)
                connection.wake()
        return bool(parked)

    def locks_changed(self, time: Time) -> None:
        """Answers LOCK_EVENTS of the sessions whose locks were granted."""
        fresh = self.services.locks.fresh
        while fresh:
            self.resume(lock_events_key(fresh.pop()), time)

    def fenced(self, session: SessionId, time: Time) -> None:
        """The session is fenced: nothing of it can reach a target any more. Frees its locks."""
        self.services.locks.drop_session(session)
        self.services.keys.fenced(session)
        self.locks_changed(time)

    # ---- commits -------------------------------------------------------------------------

    @property
    def dirty(self) -> bool:
        return bool(self._overlay.filling.cells)

    @property
    def overfull(self) -> bool:
        filling = self._overlay.filling
        return len(filling.cells) > self.progress.cells_max or filling.size > BYTES_MAX

    def freeze(self) -> Batch:
        """Returns the next batch for the store. `committed` must follow before the next freeze."""
        self.urgent = False
        self._frozen_txn = self.progress.txn
        self._frozen_ino_end = self.services.numbers.wanted()
        batch = list(self._overlay.freeze())
        batch.append((TXN_KEY, pack_number(self._frozen_txn)))
        batch.append((INODES_KEY, pack_number(self.progress.inodes)))
        batch += self.services.quotas.take_dirty()
        batch += self.services.trash.take_dirty()
        if self._frozen_ino_end is not None:
            batch.append((INO_END_KEY, pack_number(self._frozen_ino_end)))
        return batch

    def committed(self, room: StoreRoom) -> int:
        """The frozen batch is durable. Returns how many transactions it had."""
        count = self._frozen_txn - self.progress.durable
        self.doomed |= any(key[0] in _DOOMED for key in self._overlay.committing.cells)
        self._overlay.committed()
        self.progress.durable = self._frozen_txn
        self.progress.has_room(room)
        if self._frozen_ino_end is not None:
            self.services.numbers.reserved(self._frozen_ino_end)
        self._durable_waiters.release(self._frozen_txn)
        self._holds = {s: txn for s, txn in self._holds.items() if txn > self._frozen_txn}
        return count


_DOOMED: Final = b"ZL"
_ROOM: Final = "room"  # no key of others is a text


def _raise_again(connection: Connection, op: Op) -> None:
    """For an engine without a log, as in tests: its caller gets the exception."""
    raise  # noqa: PLE0704 - it is called while one is handled


def _failure(error: FsError, hold: Txn) -> _Outcome:
    return _Outcome(int(error.status), encode(Failure(error.message)), Txn(0), hold)
