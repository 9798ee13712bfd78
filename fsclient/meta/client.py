"""Connections, tasks and callers of the session, in trio, around SessionCore.

One task connects, with backoff, to one metaserver of the list after the other. While connected, one
task receives batches of frames, and one sends what the core has to send, everything that gathered
since its last wake-up at once. One task drives deadlines and the heartbeat. A caller waits in its
own task (no event, no queue): a reply reschedules it. A cancelled caller stops waiting at once, and
the core follows the request until its answer. All of this runs in the one trio thread of the
client.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, TypeVar

import trio
from outcome import capture

from fscommon.errors import (
    AuthenticationError,
    BraidError,
    FsError,
    NobodyThereError,
    ProtocolError,
    RefusedError,
    Status,
    TransportError,
)
from fscommon.net.backoff import Backoff
from fscommon.tasks import open_tasks
from fscommon.wire.admin import BytesPath, Traffic
from fscommon.wire.codec import decode, encode
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.leases import RecallItem
from fscommon.wire.messages import ClusterMap, Empty, SessionRenew, SessionRenewed
from fscommon.wire.ops import Op

from . import silence
from .core import Phase, SessionCore
from .hooks import Hooks, SessionRefusedError
from .pending import NEVER, Deliver, Pending
from .restoring import Held
from .silence import Silence, Step

T = TypeVar("T")

RECONNECT_DELAY_S_MAX = 1.0
FIRST_S_MAX = 10.0  # at a mount, while all metaservers refuse
FIRST_PAUSE_S = 0.2
REFUSED_DELAY_S_MIN = 2.0
REFUSED_DELAY_S_MAX = 60.0  # for a client whose key is no longer valid
DENY_S = 0.25  # period in which its requests are failed meanwhile
BREACHES_MAX = 5  # protocol errors in a row, after which waiting requests are failed
BREACHES_FORGOTTEN_S = 60.0  # without an error, after which they are counted anew
CLOSE_TIMEOUT_S = 10.0
TICK_S = 0.25
MAP_SPREAD_S = 0.2
LATE_S = 1.0  # a tick that is later than this means that this process did not run
_PING = encode_frame(Op.PING, body=encode(Empty()))
RENEW_SOON_S = 0.2


class Stream(Protocol):
    """An authenticated connection (fscommon.net.FrameStream)."""

    async def send(self, octets: bytes, /) -> None: ...
    async def receive_batch(self) -> list[Frame]: ...
    async def aclose(self) -> None: ...


Connector = Callable[[str, int], Awaitable[Stream]]  # address, session


@dataclass(frozen=True, slots=True)
class Events:
    """What the client learns from the metaserver; called in the trio thread, must not block.

    opens, exclusive: inodes held open, files held exclusively, for SESSION_OPEN. opened(lease_s,
    restarted): the session is open. replied(op, message, request id): a reply arrived; called in
    order, before its caller gets it. renewed(sent_at, answered): the heartbeat that was sent then
    was answered. recalled: recalls that the metaserver still waits for. refused(why): the key is no
    longer valid, and the session is lost; called again as long as that is so. asking(op): the
    operation is about to be submitted; requests that must come before it can be submitted now.
    losing(): the session is lost; callers that wait for replies do not know it yet.
    """

    opens: Callable[[], tuple[int, ...]]
    map_changed: Callable[[ClusterMap], None]
    evicted: Callable[[int], None]
    orphaned: Callable[[Op, bytes], None]
    log: Callable[[str], None]
    held: Held = field(default_factory=Held)  # reported to a restarted metaserver
    reconnected: Callable[[], None] = lambda: None
    exclusive: Callable[[], tuple[int, ...]] = tuple
    opened: Callable[[float, bool], None] = lambda lease_s, restarted: None
    replied: Callable[[Op, object, int], None] = lambda op, message, request_id: None
    renewed: Callable[[float, int], None] = lambda sent_at, answered: None
    recalled: Callable[[tuple[RecallItem, ...]], None] = lambda items: None
    refused: Callable[[str], None] = lambda why: None
    asking: Callable[[Op], None] = lambda op: None
    losing: Callable[[], None] = lambda: None


class MetaClient:
    def __init__(
        self,
        addresses: tuple[str, ...],
        connector: Connector,
        events: Events,
        *,
        node: str,
        timeout_s: float,
    ) -> None:
        """timeout_s: how long a request may take; inf: it waits for ever."""
        self._addresses = addresses
        self._connector = connector
        self._events = events
        self._timeout_s = timeout_s
        hooks = Hooks(
            opens=events.opens,
            exclusive=events.exclusive,
            ready=self._is_ready,
            evicted=events.evicted,
            orphaned=events.orphaned,
            opened=self._opened,
            failed=lambda failure, request_id: events.replied(Op.LOOKUP, failure, request_id),
            log=events.log,
            losing=events.losing,
            held=events.held,
        )
        self.core = SessionCore(node, hooks)
        self.lease_s = 0.0
        self.renewed_at = -inf  # when the last answered heartbeat was sent
        self._wake = trio.Event()
        self._ready = trio.Event()
        self._address_index = 0
        self._map_epoch = -1
        self._backoff = Backoff(delay_s_max=RECONNECT_DELAY_S_MAX)
        self._silence = Silence(-inf)
        self._connected_at = -inf
        self._is_pinging = False
        # Made while the present one is silent: to which address, and the connection.
        self._spare: tuple[int, Stream] | None = None
        self.connection_count = 0
        self.traffic: Callable[[], Traffic] = Traffic  # of the mount, for the heartbeat
        self.paths: Callable[[], tuple[BytesPath, ...]] = tuple  # by which transports
        self._timer = trio.CancelScope()
        self._renew_by = inf  # the time by which a heartbeat is wanted
        self._refusal_count = 0  # in a row
        self._breach_count = 0  # protocol errors in a row
        self._breached_at = -inf

    # ---- callers ------------------------------------------------------------------------------

    async def call(self, op: Op, message: object, reply: type[T], *, urgent: bool = False) -> T:
        """Sends a request and waits for its reply. Raises FsError."""
        task = trio.lowlevel.current_task()
        self._events.asking(op)

        def deliver(error: FsError | None, body: bytes) -> None:
            trio.lowlevel.reschedule(task, capture(self._outcome, pending, reply, error, body))

        pending = self.core.submit(op, encode(message), deliver, self._deadline(), urgent=urgent)
        self._wake.set()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self.core.abandon(pending)
            return trio.lowlevel.Abort.SUCCEEDED

        outcome: T = await trio.lowlevel.wait_task_rescheduled(abort)
        return outcome

    def _outcome(self, pending: Pending, reply: type[T], error: FsError | None, body: bytes) -> T:
        """Decodes a reply for its caller; the leases that came with it are noted first."""
        if error is not None:
            raise error
        try:
            message = decode(reply, body)
        except ProtocolError as wrong:
            self._events.log(f"the metaserver's reply to {pending.op.name} is invalid: {wrong}")
            raise FsError(Status.EIO, "the metaserver's reply is invalid") from wrong
        self._events.replied(pending.op, message, pending.request_id)
        return message

    def post(self, op: Op, message: object, deliver: Deliver, *, urgent: bool = False) -> None:
        """Sends a request whose reply is given to a function instead of a waiting task. urgent: the
        request waits for no other one."""
        self._events.asking(op)
        self.core.submit(op, encode(message), deliver, self._deadline(), urgent=urgent)
        self._wake.set()

    def post_patiently(
        self, op: Op, message: object, deliver: Deliver, *, urgent: bool = False
    ) -> None:
        """Like post(), for a request that the metaserver may leave unanswered for any time."""
        self._events.asking(op)
        self.core.submit(op, encode(message), deliver, NEVER, urgent=urgent)
        self._wake.set()

    def tell(self, op: Op, message: object, *, urgent: bool = False) -> Pending:
        """Sends a one-way request; its id is known once it was sent."""
        self._events.asking(op)
        pending = self.core.submit(op, encode(message), None, NEVER, oneway=True, urgent=urgent)
        self._wake.set()
        return pending

    async def answered(self, request_id: int) -> None:
        """Waits until that request, if it was sent, has been answered."""
        event = trio.Event()
        if self.core.when_answered(request_id, event.set):
            await event.wait()

    def abort(self) -> int:
        """Fails every waiting request now; returns how many."""
        return self.core.abort()

    @property
    def is_ready(self) -> bool:
        return self.core.phase is Phase.READY

    @property
    def number(self) -> int:
        """The number of the session."""
        return self.core.session

    @property
    def address(self) -> str:
        """The address of the metaserver that serves the session."""
        return self._addresses[self._address_index]

    @property
    def wants_recalls(self) -> bool:
        return self.is_ready and self.lease_s > 0

    @property
    def sole_until(self) -> float:
        return self.core.sole_until

    def _deadline(self) -> float:
        return trio.current_time() + self._timeout_s

    # ---- life ---------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the session until cancelled. A failure of the first connection is raised, for the
        user who mounts; later ones are retried for ever."""
        stream: Stream | None = await self._connect_first()
        async with open_tasks() as nursery:
            nursery.start_soon(self._tick)
            nursery.start_soon(self._announce_ready, task_status)
            while True:
                stream = stream or self._take_spare() or await self._connect_again()
                await self._serve(stream)
                stream = None

    async def close(self) -> None:
        """Makes everything durable and ends the session. Gives up after CLOSE_TIMEOUT_S, and then
        logs how many changes are uncertain."""
        why = "the metaserver did not answer in time"
        with trio.move_on_after(CLOSE_TIMEOUT_S):
            try:
                await self.call(Op.BARRIER, Empty(), Empty)
                await self.call(Op.SESSION_CLOSE, Empty(), Empty)
                return
            except FsError as error:
                why = str(error)
        count = self.core.uncertain_count()
        self._events.log(f"the session was not closed: {why}; {count} changes may be lost")

    async def _announce_ready(self, task_status: trio.TaskStatus[None]) -> None:
        await self._ready.wait()
        task_status.started()

    def _opened(self, lease_s: float, restarted: bool) -> None:
        self.lease_s = lease_s
        self._events.opened(lease_s, restarted)

    def _is_ready(self) -> None:
        self._refusal_count = 0
        self._backoff.reset()
        self._ready.set()
        self._wake.set()
        self._renew()
        self._events.reconnected()

    async def _connect_first(self) -> Stream:
        """If all that answer are standbys, one of them is about to become active: waits for it."""
        until = trio.current_time() + FIRST_S_MAX
        while True:
            last: BraidError | None = None
            is_any_there = False
            for _ in self._addresses:
                try:
                    return await self._connect_one()
                except BraidError as error:
                    is_any_there |= isinstance(error, RefusedError)
                    last = last or error
            if not is_any_there or trio.current_time() > until:
                raise last or TransportError("no metaserver address was given")
            await trio.sleep(FIRST_PAUSE_S)

    async def _connect_again(self) -> Stream:
        """Tries all addresses, one after the other, between two waits."""
        while True:
            await trio.sleep(self._backoff.failed())
            for _ in self._addresses:
                try:
                    with trio.fail_after(self._backoff.connect_s):
                        return await self._connect_one()
                except trio.TooSlowError:
                    self._next_address()
                    self._events.log("cannot connect to the metaserver: it is silent")
                except (TransportError, ProtocolError, AuthenticationError) as error:
                    self._events.log(f"cannot connect to the metaserver: {error}")

    def _take_spare(self) -> Stream | None:
        """The connection that was made beside a silent one."""
        if self._spare is None:
            return None
        (self._address_index, spare), self._spare = self._spare, None
        return spare

    async def _connect_one(self) -> Stream:
        """Tries the next address; one that failed is tried again after the others."""
        address = self._addresses[self._address_index]
        try:
            return await self._connector(address, self.core.session)
        except BraidError:
            self._next_address()
            raise

    def _next_address(self) -> None:
        self._address_index = (self._address_index + 1) % len(self._addresses)

    async def _serve(self, stream: Stream) -> None:
        """Serves the session on one connection until that ends. A refusal is raised before the
        session was ever ready (the mount fails); later it is one more reason to connect again."""
        self.core.connected()
        self.connection_count += 1
        self._connected_at = trio.current_time()
        self._silence = Silence(self._connected_at)
        self._is_pinging = False
        self._wake.set()
        refusal: SessionRefusedError | None = None
        breach: ProtocolError | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all, stream)
                nursery.start_soon(self._watch_silence)
                await self._receive_all(stream)
        except* TransportError as group:
            self._events.log(f"connection to the metaserver lost: {group.exceptions[0]}")
        except* ProtocolError as group:
            breach = next(e for e in group.exceptions if isinstance(e, ProtocolError))
        except* SessionRefusedError as group:
            refusal = next(e for e in group.exceptions if isinstance(e, SessionRefusedError))
        finally:
            self.core.lost()
            with trio.CancelScope(shield=True):
                await stream.aclose()
        if refusal is not None:
            await self._refused(refusal)
        elif breach is not None:
            await self._breached(breach)

    async def _refused(self, refusal: SessionRefusedError) -> None:
        if not self._ready.is_set():
            raise refusal
        self._events.log(str(refusal))
        if refusal.is_final:
            await self._deny(str(refusal))
        else:
            await trio.sleep(REFUSED_DELAY_S_MIN)

    async def _breached(self, breach: ProtocolError) -> None:
        """Handles a damaged or invalid answer: the caller connects again, where the request is sent
        again. After several in a row waiting requests are failed, and it connects at growing
        intervals."""
        if trio.current_time() - self._breached_at > BREACHES_FORGOTTEN_S:
            self._breach_count = 0
        self._breach_count = min(self._breach_count + 1, BREACHES_MAX + 16)
        self._events.log(f"the metaserver's answer is invalid: {breach}")
        if self._breach_count >= BREACHES_MAX:
            count = self.core.distrust(f"the metaserver's answers are invalid: {breach}")
            self._events.log(
                f"the metaserver's answers were invalid {self._breach_count} times in a row: "
                f"{count} requests that waited get EIO"
            )
            await self._deny_for(Status.EIO, str(breach), self._breach_count - BREACHES_MAX)
        self._breached_at = trio.current_time()

    async def _deny(self, why: str) -> None:
        """There is no session: fails requests with the reason, and connects ever more rarely."""
        self._refusal_count = min(self._refusal_count + 1, 16)
        await self._deny_for(Status.EACCES, why, self._refusal_count)

    async def _deny_for(self, status: Status, why: str, count: int) -> None:
        """count: how often in a row, this time included."""
        if not count:
            return
        delay_s = min(REFUSED_DELAY_S_MIN * 2 ** (count - 1), REFUSED_DELAY_S_MAX)
        end = trio.current_time() + delay_s
        while trio.current_time() < end:
            if status is Status.EACCES:
                self._events.refused(why)
            self.core.deny(status, why)
            await trio.sleep(DENY_S)

    async def _receive_all(self, stream: Stream) -> None:
        core = self.core
        while True:
            frames = await stream.receive_batch()
            if not frames:
                raise TransportError("the metaserver closed the connection")
            now = trio.current_time()
            self._silence.heard(now)
            for frame in frames:
                if frame.header.op != Op.PING:
                    core.received(frame, now)
            if core.must_reconnect:
                raise TransportError("the session was evicted")
            self._timer.deadline = min(self._timer.deadline, core.next_retry_at())
            self._wake.set()

    async def _send_all(self, stream: Stream) -> None:
        while True:
            octets = self.core.take_output(trio.current_time())
            if self._is_pinging:
                self._is_pinging = False
                octets += _PING
            if octets:
                await stream.send(octets)
                continue
            await self._wake.wait()
            self._wake = trio.Event()

    async def _watch_silence(self) -> None:
        """Ends the connection to a metaserver that owes an answer and gives no sign of life."""
        probing: set[int] = set()
        async with open_tasks() as probes:
            while True:
                await trio.sleep(silence.TICK_S)
                now = trio.current_time()
                owed_since = self.core.oldest_sent_at() if self.is_ready else self._connected_at
                step = self._silence.step(now, owed_since, self.core.timeout_s)
                if step is Step.GIVE_UP:
                    raise TransportError("the metaserver is silent")
                if step is Step.PING:
                    self._is_pinging = True
                    self._wake.set()
                elif step is Step.PROBE and self._spare is not None:
                    raise TransportError("it is silent, and answers on another connection")
                elif step is Step.PROBE:
                    for index in set(range(len(self._addresses))) - probing:
                        probes.start_soon(self._probe, index, probing)
                elif step is Step.WAIT and self._spare is not None:
                    (_, spare), self._spare = self._spare, None
                    await spare.aclose()

    async def _probe(self, index: int, probing: set[int]) -> None:
        """Makes another connection beside a silent one, which replaces it if that stays silent a
        moment longer: to the same metaserver, or to another one that has become active. If nobody
        listens at the silent one's address any more, it is given up at once. `probing`: the
        addresses that are being tried."""
        probing.add(index)
        is_same = index == self._address_index
        try:
            with trio.move_on_after(silence.PROBE_S):
                stream = await self._connector(self._addresses[index], self.core.session)
                if self._spare is None:
                    self._spare = index, stream
                else:
                    await stream.aclose()
        except NobodyThereError as error:
            if is_same:
                raise TransportError(f"the metaserver is silent: {error}") from error
        except BraidError as error:
            if is_same:
                self._events.log(f"the metaserver is silent: {error}")
        finally:
            probing.discard(index)

    # ---- timers -------------------------------------------------------------------------------

    async def _tick(self) -> None:
        renew_at = trio.current_time()
        while True:
            now = trio.current_time()
            due = self.core.tick(now)
            # The first cluster map came with the session.
            renew_at = min(renew_at, now + self._renewal_s(), self._renew_by)
            if now >= renew_at:
                renew_at = now + self._renewal_s()
                if self.is_ready:
                    self._renew_by = inf
                    self._renew()
            self._wake.set()
            self._timer = trio.CancelScope(deadline=min(due, renew_at, now + TICK_S))
            with self._timer:
                await trio.sleep_forever()
            late_s = trio.current_time() - now - TICK_S
            if late_s > LATE_S:
                self.core.excuse(late_s)

    def renew_soon(self) -> None:
        """What the heartbeat reports has changed, and may change again within a moment."""
        self._renew_by = min(self._renew_by, trio.current_time() + RENEW_SOON_S)

    def look_at_map(self) -> None:
        """The cluster map has changed: requests it at a random time, as all clients do."""
        at = trio.current_time() + random.uniform(0.0, MAP_SPREAD_S)
        self._renew_by = min(self._renew_by, at)
        self._timer.deadline = min(self._timer.deadline, at)

    def _renewal_s(self) -> float:
        return min(self.core.timeout_s, self.lease_s or self.core.timeout_s) / 3

    def _renew(self) -> None:
        """Sends the heartbeat. The reply has the cluster map and says what became durable."""
        body = encode(SessionRenew(self.core.answered(), self.traffic(), self.paths()))

        def deliver(error: FsError | None, reply: bytes) -> None:
            self._renewed(pending, error, reply)

        pending = self.core.submit(Op.SESSION_RENEW, body, deliver, NEVER, urgent=True)
        self._wake.set()

    def _renewed(self, pending: Pending, error: FsError | None, body: bytes) -> None:
        if error is not None:
            self._events.log(f"the heartbeat failed: {error}")
            return
        reply = decode(SessionRenewed, body)
        self.renewed_at = pending.sent_at
        self._events.renewed(pending.sent_at, self.core.answered())
        if reply.recalled:
            self._events.recalled(reply.recalled)
        cluster_map = reply.map
        if cluster_map.epoch != self._map_epoch:
            self._map_epoch = cluster_map.epoch
            self._events.map_changed(cluster_map)
