"""Membership in the cluster: registers with a metaserver, then sends heartbeats without end.

One task. After a lost connection, and after a refusal that may be temporary, it registers again
after a backoff. A metaserver of before a restore is left for the next one (storageserver.epochs). A
foreign cluster or key ends the program, because waiting cannot help.

Between REGISTER and the lease it asks for the names that layouts have dropped (TARGET_DROPPED). A
lease that has run out, by the clock of the metaserver or by this server's, is not renewed: names
may have been dropped since, and it registers again.

Heartbeats are sent every HEARTBEAT_S, and at once (but at least HEARTBEAT_GAP_S apart) when a
connection names a session that is not in the table yet, or when the connection to the metaserver
ended: so a metaserver that was restarted hears of its storage servers at once. Targets that were
opened later are reported by registering again.

Not here: what the replies change (storageserver.tables).
"""

import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from typing import Final

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.errors import (
    AuthenticationError,
    ConfigError,
    FsError,
    ProtocolError,
    Status,
    TransportError,
)
from fscommon.net.address import Address
from fscommon.net.backoff import Backoff
from fscommon.net.transport import Transport
from fscommon.observe.log import Log, RateLimit
from fscommon.observe.metrics import Metrics
from fscommon.rpc.caller import Caller, open_caller
from fscommon.tasks import open_tasks
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.ops import Op
from fscommon.wire.servers import (
    DamagedObject,
    DroppedNames,
    FormerHeartbeat,
    FormerRegister,
    Heartbeat,
    HeartbeatReply,
    Register,
    Registered,
    TargetDropped,
    TargetReport,
)
from storageserver.damage import Damage
from storageserver.epochs import Epochs
from storageserver.state import NodeState, StateFile
from storageserver.tables import Tables
from storageserver.targets import Targets

HEARTBEAT_S: Final = 1.0
HEARTBEAT_GAP_S: Final = 0.05
CONNECT_S_MAX: Final = 5.0
CALL_TIMEOUT_S: Final = 3.0  # leaves time to reconnect within this server's lease
BACKOFF_S_MAX: Final = 1.0
KEY_REFUSALS_MAX: Final = 3  # one may come from a metaserver that was killed during the handshake

_PASSING: Final = (TransportError, ProtocolError, AuthenticationError, FsError)


@dataclass(frozen=True, slots=True)
class Metaservers:
    """The metaservers of the cluster, and how to reach them. name, domain: of this node."""

    addresses: tuple[Address, ...]
    key: bytes
    name: str
    domain: str = ""
    transport: Transport | None = None  # None: TCP


class Membership:
    """Keeps this node registered: join() before targets can be opened for the first time; run()
    afterwards."""

    def __init__(
        self,
        metaservers: Metaservers,
        file: StateFile,
        epochs: Epochs,
        damage: Damage,
        *,
        log: Log,
        metrics: Metrics,
    ) -> None:
        self._epochs = epochs
        self._damage = damage
        self._metaservers = metaservers
        self._file = file
        self._log = log
        self._metrics = metrics
        self._failures = RateLimit(10.0)
        self._backoff = Backoff(delay_s_max=BACKOFF_S_MAX, connect_s_max=CONNECT_S_MAX)
        self._turn = 0
        self._key_refusals = 0
        self._hurry = trio.Event()
        self._registered = trio.Event()
        self._register_again = False
        self._former: set[Address] = set()  # metaservers that take a FormerRegister

    async def join(self, state: NodeState, address: str) -> NodeState:
        """Asks for a node id and the cluster's uuid, without targets. The state is stored when it
        returns. Raises ConfigError, AuthenticationError when waiting cannot help."""
        while True:
            try:
                async with self._caller() as caller:
                    reply = await self._register(caller, self._registration(state, address, ()))
                state = state.joined(reply.node, reply.cluster)
                self._file.store(state)
                self._log.info("joined cluster", cluster=reply.cluster, node=reply.node)
                return state
            except _PASSING as error:
                await self._pause(error)

    async def run(self, state: NodeState, address: str, targets: Targets, tables: Tables) -> None:
        """Stays registered until cancelled. Raises as join()."""
        while True:
            try:
                async with self._caller() as caller:
                    self._register_again = False
                    targets.publish()
                    request = self._registration(state, address, targets.reports())
                    asked_ns = _boot_time_ns()
                    reply = await self._register(caller, request)
                    self._epochs.heard(reply.map_epoch)
                    tables.assigned(reply, state.cluster)
                    for refusal in filter(None, reply.refusals):
                        self._log.error("a target is in use no more", because=refusal)
                    targets.retire(reply.removed)
                    if reply.features & FEATURE_REPLICAS:
                        asked_ns = await self._learn_dropped(caller, reply, targets, asked_ns)
                    tables.registered(reply, asked_ns)
                    self._log.info("registered", metaserver=caller.peer_address, node=tables.node)
                    self._registered.set()
                    self._backoff.reset()
                    async with open_tasks() as tasks:
                        tasks.start_soon(self._hurry_at_the_end_of, caller)
                        await self._heartbeats(caller, reply, targets, tables)
                        tasks.cancel_scope.cancel()
            except _PASSING as error:
                await self._pause(error)

    async def wait_registered(self) -> None:
        await self._registered.wait()

    def hurry(self) -> None:
        """Sends the next heartbeat now."""
        self._hurry.set()

    def register_again(self) -> None:
        self._register_again = True
        self.hurry()

    async def _hurry_at_the_end_of(self, caller: Caller) -> None:
        await caller.wait_ended()
        self.hurry()

    async def _register(self, caller: Caller, request: Register) -> Registered:
        """Registers. Metaservers of earlier releases close the connection when they are told of
        features: with the next connection to this one, it is not told."""
        try:
            if self._address in self._former:
                words = (getattr(request, one.name) for one in fields(FormerRegister))
                reply = await self._send_registration(caller, FormerRegister(*words))
                if not reply.features:
                    return reply
                self._former.discard(self._address)
            return await self._send_registration(caller, request)
        except TransportError:
            if not caller.is_open:
                self._former ^= {self._address}
            raise

    async def _send_registration(self, caller: Caller, request: FormerRegister) -> Registered:
        reply: Registered = await caller.call(Op.REGISTER, request, CALL_TIMEOUT_S)
        return reply

    async def _learn_dropped(
        self, caller: Caller, reply: Registered, targets: Targets, asked_ns: int
    ) -> int:
        """Takes over the names that were dropped, with heartbeats in between, so that it may last.
        Returns when the last request was sent from which the lease counts."""
        count = 0
        for target in reply.targets:
            after, ended = (0, 0), False
            while not ended:
                if _boot_time_ns() - asked_ns > HEARTBEAT_S * 1e9:
                    asked_ns = _boot_time_ns()
                    beat = FormerHeartbeat(reply.node, targets.reports(), 0, targets.traffic())
                    await self._beat(caller, beat)
                request = TargetDropped(target, *after)
                page: DroppedNames = await caller.call(Op.TARGET_DROPPED, request, CALL_TIMEOUT_S)
                targets.drop_names(target, page)
                ended = page.end
                if not ended and (not page.file_ids or page.last() <= after):
                    raise ProtocolError("the list of dropped names does not go on")
                after = page.last() if page.file_ids else after
                count += len(page.file_ids)
        if count:
            self._log.info("names of objects were dropped", count=count)
        return asked_ns

    async def _beat(self, caller: Caller, request: FormerHeartbeat) -> HeartbeatReply:
        try:
            reply: HeartbeatReply = await caller.call(Op.HEARTBEAT, request, CALL_TIMEOUT_S)
        except BaseException:
            self._metrics.counter("braidfs_heartbeats_total", outcome="failed").inc()
            raise
        self._metrics.counter("braidfs_heartbeats_total", outcome="answered").inc()
        self._epochs.heard(reply.map_epoch)
        return reply

    async def _heartbeats(
        self, caller: Caller, registered: Registered, targets: Targets, tables: Tables
    ) -> None:
        """Sends heartbeats until there is something to register, or the lease has run out."""
        while not self._register_again:
            beat = FormerHeartbeat(
                tables.node, targets.reports(), tables.session_version, targets.traffic()
            )
            damaged = self._damage.news() if registered.features else ()
            request = _with_damage(beat, damaged) if damaged else beat
            asked_ns = _boot_time_ns()
            try:
                reply = await self._beat(caller, request)
            except FsError as error:
                if error.status is not Status.NO_TARGET:
                    raise
                self._log.warning("the metaserver had given this server up", error=error)
                self._register_again = True
            else:
                self._damage.told(damaged)
                if tables.has_lease(_boot_time_ns()):
                    tables.heard(reply, asked_ns)
                else:
                    self._log.warning("no metaserver had answered in time: the lease has run out")
                    self._register_again = True
            await trio.sleep(HEARTBEAT_GAP_S)
            if self._register_again:
                return
            with trio.move_on_after(HEARTBEAT_S - HEARTBEAT_GAP_S):
                await self._hurry.wait()
            self._hurry = trio.Event()

    @property
    def _address(self) -> Address:
        """Of the metaserver whose turn it is."""
        addresses = self._metaservers.addresses
        return addresses[self._turn % len(addresses)]

    def _caller(self) -> AbstractAsyncContextManager[Caller]:
        """A connection to the metaserver whose turn it is."""
        return open_caller(
            self._address,
            key=self._metaservers.key,
            hello=HelloFields("server", self._metaservers.name),
            timeout_s=self._backoff.connect_s,
            transport=self._metaservers.transport,
        )

    async def _pause(self, error: Exception) -> None:
        """Logs the error now and then, waits, and goes on with the next metaserver.

        Raises the error when waiting cannot help.
        """
        if isinstance(error, FsError) and error.status is Status.EINVAL:
            raise ConfigError(f"the metaserver refuses this storage server: {error}") from error
        self._key_refusals += isinstance(error, AuthenticationError)
        if self._key_refusals >= KEY_REFUSALS_MAX and not self._registered.is_set():
            raise error
        suppressed = self._failures.permit()
        if suppressed is not None:
            self._log.warning("no metaserver", error=error, suppressed=suppressed)
        self._turn += 1
        await trio.sleep(self._backoff.failed())

    def _registration(
        self, state: NodeState, address: str, reports: tuple[TargetReport, ...]
    ) -> Register:
        return Register(
            node=state.node,
            uuid=state.uuid,
            name=self._metaservers.name,
            address=address,
            cluster=state.cluster,
            targets=reports,
            features=FEATURE_REPLICAS,
            domain=self._metaservers.domain,
        )


def _with_damage(beat: FormerHeartbeat, damaged: tuple[DamagedObject, ...]) -> Heartbeat:
    return Heartbeat(beat.node, beat.targets, beat.session_version, beat.traffic, damaged)


def _boot_time_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
