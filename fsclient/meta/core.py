"""The session with the metaserver as a state machine: no I/O, no clock, no task of its own.

    OFFLINE --connected()--> OPENING --SESSION_OPENED--> [REPLAYING -->] READY --lost()--> OFFLINE

Requests wait in the backlog without an id; when sent they get the next request id and move to the
window, where they stay until answered, across reconnects, and are sent again with the same id.
Successful mutations move to the journal until they are durable. When the metaserver comes back
with another incarnation the journal is replayed in order before anything else is sent.

Invariants: ids in the window and the journal rise in the order of sending; `answered` never passes
a mutation in the journal, so the metaserver still has (or never durably had) the reply of each
mutation that could be replayed; nothing but SESSION_OPEN and replays is sent before READY.
Touched by the client's trio thread only. Sockets and timers are in fsclient.meta.client.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum

from fscommon.errors import FsError, ProtocolError, Status
from fscommon.limits import REPLAY_MUTATIONS_MAX, REQUESTS_IN_FLIGHT_MAX, SOLE_LEASE_S
from fscommon.wire.codec import decode, encode
from fscommon.wire.features import FEATURE_POOLS, FEATURE_REPLICAS
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.header import FLAG_ONEWAY, FLAG_REPLAY, FLAG_SOLE, Header
from fscommon.wire.locks import HeldLock
from fscommon.wire.messages import Empty, Replay, SessionOpen, SessionOpened
from fscommon.wire.ops import OPENING, Op

from .failures import error_in, error_of, evicted, failure_in
from .hooks import Hooks, SessionRefusedError
from .journal import Journal, Mutation
from .pending import NEVER, Deliver, Pending
from .restoring import RESTORES, Restoring

REPLAYS_IN_FLIGHT_MAX = 256
RETRY_DELAY_S_MIN = 0.01
RETRY_DELAY_S_MAX = 0.5
_EMPTY = encode(Empty())
_RETRY_LATER = (Status.NOT_READY, Status.BUSY)
_EVICTED = (Status.UNKNOWN_SESSION, Status.FENCED)


class Phase(Enum):
    OFFLINE = "offline"
    OPENING = "opening"
    REPLAYING = "replaying"
    READY = "ready"


class SessionCore:
    def __init__(self, node: str, hooks: Hooks) -> None:
        self._node = node
        self._hooks = hooks
        self._restoring = Restoring(hooks.held, hooks.log)
        self.phase = Phase.OFFLINE
        self.session = 0
        self.incarnation = 0
        self.timeout_s = 30.0
        self.durable = 0
        self.journal = Journal()
        self.journal_count_max = REPLAY_MUTATIONS_MAX
        self.window_count_max = REQUESTS_IN_FLIGHT_MAX
        self.must_reconnect = False
        self._has_closed = False  # SESSION_CLOSE was answered
        self.sole_until = 0.0  # no other session exists until then
        self.replayed_count = 0
        self.resent_count = 0
        self._next_id = 1
        self._opened_once = False
        self._is_another = False
        self._lost: tuple[int, ...] = ()
        self.taken_locks: tuple[HeldLock, ...] = ()  # of the former process
        self._replay_due = False
        self._was_evicted = False
        self._mutations_in_flight = 0
        self._barrier: Pending | None = None
        self._reopen_at = NEVER
        self._backlog: deque[Pending] = deque()
        self._urgent: deque[Pending] = deque()
        self._answer_waiters: dict[int, list[Callable[[], None]]] = {}
        self._delayed: list[Pending] = []
        self._window: OrderedDict[int, Pending] = OrderedDict()
        self._resend: deque[Pending] = deque()  # of the window, not sent here yet
        self._batches_again: deque[Pending] = deque()  # refused for now, oldest first
        self._batches_out: set[int] = set()  # CHANGE_BATCHes sent on this connection, unanswered
        self._is_served = False  # this connection has had an answer other than "not now"
        self._replay_queue: deque[Mutation] = deque()
        self._replaying: dict[int, Mutation] = {}
        self._replay_failed = False
        self._output: list[bytes] = []

    def resume(
        self, session: int, incarnation: int, next_id: int, durable: int, lost: tuple[int, ...] = ()
    ) -> None:
        """Called before the first connection: takes over the session of another process. That has
        left nothing unanswered or not durable; or it was killed (incarnation 0), and what it had
        written to the files `lost` is lost."""
        self._lost = lost
        self._is_another = session != 0
        self.session = session
        self.incarnation = incarnation
        self.durable = durable
        self._next_id = next_id
        self._opened_once = True

    @property
    def next_id(self) -> int:
        """The id of the request that is sent next."""
        return self._next_id

    # ---- requests -----------------------------------------------------------------------------

    def submit(
        self,
        op: Op,
        body: bytes,
        deliver: Deliver | None,
        deadline: float,
        *,
        oneway: bool = False,
        urgent: bool = False,
    ) -> Pending:
        """Queues a request; the next take_output() sends it if the session is ready. urgent: before
        all that wait, also when the window is full of requests that wait for it."""
        pending = Pending(op, body, deliver, deadline, oneway=oneway)
        (self._urgent if urgent else self._backlog).append(pending)
        return pending

    def when_answered(self, request_id: int, told: Callable[[], None]) -> bool:
        """True: told() will be called once that request is answered. False: no need to wait."""
        if request_id not in self._window:
            return False
        self._answer_waiters.setdefault(request_id, []).append(told)
        return True

    def _tell_answered(self, request_id: int) -> None:
        for told in self._answer_waiters.pop(request_id, ()):
            told()

    def abandon(self, pending: Pending) -> None:
        """The caller stopped waiting. A request that was not sent is dropped; the outcome of one
        that was sent is still followed."""
        pending.abandoned = True
        pending.deliver = None

    def abort(self) -> int:
        """Fails everything that somebody waits for; returns how many."""
        return self.deny(Status.ABORTED, "the administrator gave up on it")

    def deny(self, status: Status, message: str) -> int:
        """Fails everything that waits, as there will be no session for it. Returns how many."""
        waiting = [p for p in self._all() if p.deliver is not None]
        for pending in waiting:
            self._give_up(pending, status, message)
        return len(waiting)

    def distrust(self, message: str) -> int:
        """The metaserver's answers are invalid, several times in a row: fails everything that
        waits, and sends nothing again that was sent. Returns how many requests were failed."""
        count = self.deny(Status.EIO, message)
        self._forget_sent()
        return count

    def take_output(self, now: float) -> bytes:
        """The bytes to send now; b"" if nothing may be sent."""
        if self.phase is Phase.READY:
            self._pump(now)
        output, self._output = self._output, []
        return b"".join(output)

    def answered(self) -> int:
        """Every request up to this id is answered and no longer needed for a replay."""
        # LOCK_EVENTS may stay unanswered for hours, and has no stored reply.
        counted = (i for i, p in self._window.items() if p.op is not Op.LOCK_EVENTS)
        first = next(counted, self._next_id)
        oldest = self.journal.first_request_id
        return (first if oldest is None else min(first, oldest)) - 1

    def next_retry_at(self) -> float:
        times = [p.not_before for p in self._delayed]
        times += [p.not_before for p in self._batches_again if not self._batches_out][:1]
        return min([*times, self._reopen_at])

    @property
    def in_flight_count(self) -> int:
        return len(self._window)

    @property
    def waiting_count(self) -> int:
        again = len(self._delayed) + len(self._batches_again)
        return len(self._window) + len(self._backlog) + again

    def uncertain_count(self) -> int:
        """How many requests change something and are not known to be durable, answered or not."""
        return len(self.journal) + sum(1 for pending in self._all() if pending.is_mutation)

    def oldest_sent_at(self) -> float:
        """When the oldest unanswered request was last sent; NEVER: there is none."""
        return next(iter(self._window.values())).sent_at if self._window else NEVER

    # ---- connection ---------------------------------------------------------------------------

    def connected(self) -> None:
        """There is a new authenticated connection: requests the session on it."""
        self.phase = Phase.OPENING
        self.must_reconnect = False
        self._output.clear()
        self._send_session_open()

    def lost(self) -> None:
        """The connection ended: unanswered requests wait for the next one."""
        self.phase = Phase.OFFLINE
        self.must_reconnect = False
        self._output.clear()
        self._restoring.disconnected()
        self._replay_queue.clear()
        self._replaying.clear()
        self._resend.clear()
        self._batches_out.clear()
        self._is_served = False
        self._reopen_at = NEVER

    def received(self, frame: Frame, now: float) -> None:
        """Takes one reply. After a ProtocolError or SessionRefusedError close the connection."""
        header = frame.header
        if not header.is_reply:
            raise ProtocolError(f"the metaserver sent a request (op {header.op})")
        if header.op == Op.SESSION_OPEN and self.phase is Phase.OPENING:
            self._session_answered(frame, now)
        elif self.phase is Phase.REPLAYING:
            self._replay_answered(frame, now)
        elif self.phase is Phase.READY:
            self._request_answered(frame, now)
        else:
            raise ProtocolError(f"unexpected reply to op {header.op}")

    def excuse(self, late_s: float) -> None:
        """Nothing could be received for this long: the time does not count against deadlines."""
        for pending in self._all():
            pending.deadline += late_s

    def tick(self, now: float) -> float:
        """Ends requests at their deadlines and sends delayed retries; returns the next time."""
        if self._reopen_at <= now and self.phase is Phase.OPENING:
            self._send_session_open()
        for pending in [p for p in self._all() if p.deadline <= now and p.deliver is not None]:
            self._give_up(pending, Status.ETIMEDOUT, "the metaserver did not answer in time")
        if any(p.abandoned for p in self._backlog):
            self._backlog = deque(p for p in self._backlog if not p.abandoned)
        due = [p for p in self._delayed if p.not_before <= now]
        if due:
            self._delayed = [p for p in self._delayed if p.not_before > now]
            self._backlog.extend(due)
        return self.next_retry_at()

    # ---- session ------------------------------------------------------------------------------

    def _send_session_open(self) -> None:
        self._reopen_at = NEVER
        hooks = self._hooks
        request = SessionOpen(
            self.session,
            self._node,
            hooks.opens(),
            self.answered(),
            hooks.exclusive(),
            self._is_another,
            self._lost if self._is_another else (),
            FEATURE_REPLICAS | FEATURE_POOLS,
        )
        self._output.append(
            encode_frame(Op.SESSION_OPEN, offset=request.answered, body=encode(request))
        )

    def _session_answered(self, frame: Frame, now: float) -> None:
        status = frame.header.status
        if status in _RETRY_LATER:
            self._reopen_at = now + 0.1
        elif status in _EVICTED and self.session:
            self._forget_session()
            self._send_session_open()
        elif status == Status.EACCES:
            if self.session:
                self._forget_session()
            raise SessionRefusedError(failure_in(frame).message or "EACCES", is_final=True)
        elif status:
            raise SessionRefusedError(f"the metaserver refused the session: {error_in(frame)}")
        else:
            self._session_opened(decode(SessionOpened, frame.body), now)

    def _session_opened(self, reply: SessionOpened, now: float) -> None:
        restarted = self._opened_once and self.incarnation != reply.incarnation
        if restarted:
            self._replay_due = not self._was_evicted
        self._opened_once = True
        if self._is_another:
            self._is_another = False
            self.taken_locks = reply.locks
            self._next_id = max(self._next_id, reply.heard + REQUESTS_IN_FLIGHT_MAX)
        self.session = reply.session
        self.incarnation = reply.incarnation
        self.timeout_s = reply.timeout_s
        self.durable = reply.durable
        self._hooks.opened(reply.lease_s, restarted)
        if self._replay_due:
            self._start_replay()
        else:
            self._become_ready(now)

    def _forget_session(self) -> None:
        """The session was evicted: requests that had been sent have no stored reply any more and
        cannot be replayed."""
        self._hooks.losing()
        self.session = 0
        self._is_another = False
        self._was_evicted = True
        self._replay_due = False
        lost = self.journal.clear()
        if lost:
            self._hooks.log(f"the session was evicted; {lost} mutations may not be durable")
        sent = self._forget_sent()
        urgent = [*self._batches_again, *self._urgent]  # about leases of the evicted session
        self._batches_again.clear()
        self._urgent.clear()
        for pending in reversed(sent):
            if pending.op is Op.SESSION_CLOSE:
                pending.finish(None, _EMPTY)  # it has ended; the next one must stay
            elif pending.may_repeat and not pending.oneway:
                self._backlog.appendleft(pending)
            else:
                pending.finish(evicted(), b"")
        for pending in urgent:
            pending.finish(evicted(), b"")

    def _forget_sent(self) -> list[Pending]:
        """Drops all requests that were sent, and returns them."""
        sent = list(self._window.values())
        self._window.clear()
        self._resend.clear()
        self._batches_out.clear()
        self._mutations_in_flight = 0
        self._barrier = None
        for request_id in list(self._answer_waiters):
            self._tell_answered(request_id)
        return sent

    def _become_ready(self, now: float) -> None:
        self.phase = Phase.READY
        self._resend.extend(self._window.values())
        self._hooks.ready()
        if self._was_evicted:
            self._was_evicted = False
            self._hooks.evicted(self.session)

    # ---- replay -------------------------------------------------------------------------------

    def _start_replay(self) -> None:
        """Starts the replay of everything that this incarnation has not answered yet."""
        self.phase = Phase.REPLAYING
        self._replay_failed = False
        self._replay_queue.extend(
            m for m in self.journal.in_order() if m.incarnation != self.incarnation
        )
        self._replay_more()

    def _replay_more(self) -> None:
        while self._replay_queue and len(self._replaying) < REPLAYS_IN_FLIGHT_MAX:
            mutation = self._replay_queue.popleft()
            self._replaying[mutation.request_id] = mutation
            self._output.append(self._replay_frame(mutation))
        if not self._replaying:
            self._output += self._restoring.frames(leases=not self._replay_failed)
            self._output.append(encode_frame(Op.REPLAY_DONE, offset=self.answered(), body=_EMPTY))

    def _replay_frame(self, mutation: Mutation) -> bytes:
        body = Replay(mutation.txn, mutation.status, mutation.body, mutation.reply)
        return encode_frame(
            mutation.op,
            flags=FLAG_REPLAY,
            request_id=mutation.request_id,
            offset=self.answered(),
            body=encode(body),
        )

    def _replay_answered(self, frame: Frame, now: float) -> None:
        header = frame.header
        if header.op == Op.REPLAY_DONE:
            self._replay_ended(frame, now)
            return
        if header.op in RESTORES:
            self._restoring.answered(frame)
            return
        mutation = self._replaying.pop(header.request_id, None)
        if mutation is None:
            raise ProtocolError(f"reply to a replay of {header.request_id} that was not sent")
        self.replayed_count += 1
        if header.status:
            self._replay_failed = True
            self._hooks.log(f"replay of request {header.request_id} failed: {error_in(frame)}")
        mutation.incarnation = self.incarnation
        mutation.txn = header.offset
        if mutation.op in OPENING:
            self._hooks.orphaned(mutation.op, mutation.reply)  # it opened the file again
        elif mutation.op is Op.CHANGE_BATCH:
            self._hooks.orphaned(mutation.op, mutation.body)  # its request says so
        self._durable_is(header.file_id)
        if not self._replaying or self._replay_queue:
            self._replay_more()

    def _replay_ended(self, frame: Frame, now: float) -> None:
        if frame.header.status:
            raise SessionRefusedError(
                f"the metaserver refused the end of the replay: {error_in(frame)}"
            )
        self._replay_due = False
        self._become_ready(now)

    # ---- requests and replies -----------------------------------------------------------------

    def _pump(self, now: float) -> None:
        """Sends the window again, then moves the backlog into it as far as the bounds allow."""
        self._pump_refused_batch(now)
        while self._resend and not self._is_held_back():
            self.resent_count += 1
            self._put(self._resend.popleft(), now)
        if self._is_held_back():
            return self._pump_renewals(now)
        while self._urgent and not self._is_held_back():
            urgent = self._urgent.popleft()
            if not urgent.abandoned:
                self._send_first(urgent, now)
        if self._is_held_back():
            return self._pump_renewals(now)
        while self._backlog and len(self._window) < self.window_count_max:
            pending = self._backlog[0]
            if pending.abandoned:
                self._backlog.popleft()
                continue
            if pending.is_mutation and self._journal_is_full():
                self._ask_barrier(now)
                return
            self._backlog.popleft()
            self._send_first(pending, now)

    def _pump_refused_batch(self, now: float) -> None:
        """Sends refused batches once more, one at a time, before all else."""
        again = self._batches_again
        while again and again[0].abandoned:
            again.popleft()
        if again and not self._batches_out and again[0].not_before <= now:
            self._send_first(again.popleft(), now)

    def _is_held_back(self) -> bool:
        """Whether new requests must wait. Batches of changes were refused for now, or may be, while
        other clients are still coming back: other requests may use the same names and must not
        overtake them."""
        return bool(self._batches_again or (self._batches_out and not self._is_served))

    def _pump_renewals(self, now: float) -> None:
        renewals = [p for p in self._urgent if p.op is Op.SESSION_RENEW]
        self._urgent = deque(p for p in self._urgent if p.op is not Op.SESSION_RENEW)
        for pending in renewals:
            self._send_first(pending, now)

    def _send_first(self, pending: Pending, now: float) -> None:
        pending.request_id = self._next_id
        self._next_id += 1
        if not pending.oneway:
            self._window[pending.request_id] = pending
            self._mutations_in_flight += pending.is_mutation
        self._put(pending, now)

    def _put(self, pending: Pending, now: float) -> None:
        pending.sent_at = now
        if pending.op is Op.CHANGE_BATCH:
            self._batches_out.add(pending.request_id)
        self._output.append(
            encode_frame(
                pending.op,
                flags=FLAG_ONEWAY if pending.oneway else 0,
                request_id=pending.request_id,
                offset=self.answered(),
                body=pending.body,
            )
        )

    def _journal_is_full(self) -> bool:
        return len(self.journal) + self._mutations_in_flight >= self.journal_count_max

    def _ask_barrier(self, now: float) -> None:
        """The journal is full: has it made durable. The reply has the new `durable`."""
        if self._barrier is None and len(self.journal):
            self._barrier = Pending(Op.BARRIER, _EMPTY, self._barrier_answered, NEVER)
            self._send_first(self._barrier, now)

    def _barrier_answered(self, error: FsError | None, body: bytes) -> None:
        self._barrier = None

    def _request_answered(self, frame: Frame, now: float) -> None:
        header = frame.header
        if header.status in _EVICTED:
            # SESSION_OPEN will say more, unless this came after SESSION_CLOSE, answered or not.
            self.must_reconnect = not (self._has_closed or self._is_closing())
            return
        pending = self._window.get(header.request_id)
        if pending is None:
            raise ProtocolError(f"reply to request {header.request_id} that was not sent")
        if pending.op != header.op:
            raise ProtocolError(f"reply of op {header.op} to op {pending.op.name}")
        del self._window[header.request_id]
        self._mutations_in_flight -= pending.is_mutation
        self._batches_out.discard(header.request_id)
        if pending.is_mutation:
            self._is_served = header.status not in _RETRY_LATER
        if header.flags & FLAG_SOLE:  # counted from when the request was sent (rule 11)
            self.sole_until = max(self.sole_until, pending.sent_at + SOLE_LEASE_S)
        if header.status in _RETRY_LATER:
            self._delay(pending, frame, now)
        elif header.status:
            self._failed(pending, frame)
        else:
            self._succeeded(pending, header, frame.body)
        self._tell_answered(header.request_id)
        self._durable_is(header.file_id)

    def _is_closing(self) -> bool:
        return any(pending.op is Op.SESSION_CLOSE for pending in self._window.values())

    def _failed(self, pending: Pending, frame: Frame) -> None:
        failure = failure_in(frame)
        if failure.parents and not pending.abandoned:
            self._hooks.failed(failure, pending.request_id)
        pending.finish(error_of(frame.header.status, failure), b"")

    def _succeeded(self, pending: Pending, header: Header, body: bytes) -> None:
        self._has_closed |= pending.op is Op.SESSION_CLOSE
        if pending.is_mutation:
            self.journal.add(
                Mutation(
                    pending.request_id,
                    pending.op,
                    pending.body,
                    body,
                    txn=header.offset,
                    incarnation=self.incarnation,
                )
            )
        if pending.abandoned and pending.op is not Op.CHANGE_BATCH:
            self._hooks.orphaned(pending.op, body)
        pending.finish(None, body)

    def _delay(self, pending: Pending, frame: Frame, now: float) -> None:
        if pending.abandoned or pending.deadline <= now:
            pending.finish(error_in(frame), b"")
            return
        delay_s = min(RETRY_DELAY_S_MIN * 2**pending.attempt_count, RETRY_DELAY_S_MAX)
        pending.attempt_count += 1
        pending.not_before = now + delay_s
        if pending.op is not Op.CHANGE_BATCH:
            self._delayed.append(pending)
        elif pending.attempt_count > 1:  # it was sent alone, before the others
            self._batches_again.appendleft(pending)
        else:
            self._batches_again.append(pending)

    def _durable_is(self, durable: int) -> None:
        self.durable = max(self.durable, durable)
        self.journal.prune(self.durable, self.incarnation)

    def _all(self) -> list[Pending]:
        waiting = (self._delayed, self._batches_again, self._urgent, self._backlog)
        return [*self._window.values(), *itertools.chain(*waiting)]

    def _give_up(self, pending: Pending, status: Status, message: str) -> None:
        pending.finish(FsError(status, message), b"")
        pending.abandoned = True
        if pending in self._delayed:
            self._delayed.remove(pending)
