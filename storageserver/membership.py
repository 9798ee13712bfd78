"""Membership in the cluster: registers with a metaserver, then sends heartbeats without end.

One task. After a lost connection, after a refusal that may be temporary, and after a metaserver
forgot this node, it registers again after a backoff. A metaserver of before a restore is left for
the next one (storageserver.epochs). A foreign cluster or key ends the program,
because waiting cannot help.

Heartbeats are sent every HEARTBEAT_S, and at once (but at least HEARTBEAT_GAP_S apart) when a
connection names a session that is not in the table yet, or when the connection to the metaserver
ended: so a metaserver that was restarted hears of its storage servers at once. Targets that were
opened later are reported by registering again.

Not here: what the replies change (storageserver.tables).
"""

import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
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
from fscommon.wire.ops import Op
from fscommon.wire.servers import Heartbeat, HeartbeatReply, Register, Registered, TargetReport
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
    """The metaservers of the cluster, and how to reach them."""

    addresses: tuple[Address, ...]
    key: bytes
    name: str  # of this node
    transport: Transport | None = None  # None: TCP


class Membership:
    """Keeps this node registered: join() before targets can be opened for the first time; run()
    afterwards."""

    def __init__(
        self,
        metaservers: Metaservers,
        file: StateFile,
        epochs: Epochs,
        *,
        log: Log,
        metrics: Metrics,
    ) -> None:
        self._epochs = epochs
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

    async def join(self, state: NodeState, address: str) -> NodeState:
        """Asks for a node id and the cluster's uuid, without targets. The state is stored when it
        returns. Raises ConfigError, AuthenticationError when waiting cannot help."""
        while True:
            try:
                async with self._caller() as caller:
                    reply = await _register(caller, self._registration(state, address, ()))
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
                    reply = await _register(caller, request)
                    self._epochs.heard(reply.map_epoch)
                    tables.registered(reply, state.cluster, asked_ns)
                    self._log.info("registered", metaserver=caller.peer_address, node=tables.node)
                    self._registered.set()
                    self._backoff.reset()
                    async with open_tasks() as tasks:
                        tasks.start_soon(self._hurry_at_the_end_of, caller)
                        await self._heartbeats(caller, targets, tables)
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

    async def _heartbeats(self, caller: Caller, targets: Targets, tables: Tables) -> None:
        """Sends heartbeats until there is something to register."""
        while not self._register_again:
            request = Heartbeat(
                tables.node, targets.reports(), tables.session_version, targets.traffic()
            )
            asked_ns = _boot_time_ns()
            try:
                reply: HeartbeatReply = await caller.call(Op.HEARTBEAT, request, CALL_TIMEOUT_S)
            except BaseException:
                self._metrics.counter("braidfs_heartbeats_total", outcome="failed").inc()
                raise
            self._metrics.counter("braidfs_heartbeats_total", outcome="answered").inc()
            self._epochs.heard(reply.map_epoch)
            tables.heard(reply, asked_ns)
            await trio.sleep(HEARTBEAT_GAP_S)
            with trio.move_on_after(HEARTBEAT_S - HEARTBEAT_GAP_S):
                await self._hurry.wait()
            self._hurry = trio.Event()

    def _caller(self) -> AbstractAsyncContextManager[Caller]:
        """A connection to the metaserver whose turn it is."""
        addresses = self._metaservers.addresses
        return open_caller(
            addresses[self._turn % len(addresses)],
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
        )


def _boot_time_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


async def _register(caller: Caller, request: Register) -> Registered:
    reply: Registered = await caller.call(Op.REGISTER, request, CALL_TIMEOUT_S)
    return reply
