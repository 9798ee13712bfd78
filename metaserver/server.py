"""One active metaserver: connections and tasks around the engine.

Each connection has two tasks. One receives batches of frames, runs them, and sends their replies
together; the other sends replies that are released later. Requests wait here only for a slow peer
of their own connection, and while too many records are uncommitted. All other waiting is in the
engine.
"""

import functools
from collections.abc import Callable
from typing import Final

import trio

from fscommon.auth.handshake import HelloFields, KeyRing
from fscommon.auth.key import client_secret
from fscommon.errors import ProtocolError, RangeError, TransportError
from fscommon.limits import UNREAD_BYTES_MAX
from fscommon.net.address import parse_address
from fscommon.net.serve import AcceptLimits, Peer, serve
from fscommon.net.stream import FrameStream
from fscommon.net.tls import certificate_ends_s, watch_certificate
from fscommon.net.transport import Transport
from fscommon.observe.log import Log, RateLimit
from fscommon.observe.metrics import Metrics
from fscommon.rpc.caller import open_caller
from fscommon.rpc.silences import TRIED_S, reasons_of_silence
from fscommon.tasks import open_tasks
from fscommon.types import SessionId
from fscommon.wire.hello import KeyedHello
from fscommon.wire.ops import Op
from metaserver.audit import Audit
from metaserver.background import Background
from metaserver.boot import Settings, boot
from metaserver.committer import Committer
from metaserver.config import MetaserverConfig
from metaserver.connection import Connection
from metaserver.dropping import Dropping
from metaserver.engine import Engine
from metaserver.eviction import Eviction
from metaserver.job_metrics import show_jobs
from metaserver.page.endpoint import PageEndpoint
from metaserver.page.history import SAMPLE_S
from metaserver.page.source import PageSource
from metaserver.peers import Peers
from metaserver.reaper import Reaper
from metaserver.repair import Repair
from metaserver.scrub import Scrub
from metaserver.sessions import SYSTEM_SESSION
from metaserver.storage import StorageCalls
from metaserver.store.waist import Store
from metaserver.times import Clock
from metaserver.trash_expiry import TrashExpiry
from metaserver.truncation import Truncation
from metaserver.unsynced import Unsynced

_GAUGES_S: Final = 1.0
_MAY_ANSWER_S: Final = 0.02
_SILENCES_S: Final = 5.0
_REFUSALS_S: Final = 60.0  # at least so long between two log lines that a peer can cause
_STATES: Final = ("up", "down", "full", "draining", "joining", "lost")


def settings_of(config: MetaserverConfig, key: bytes) -> Settings:
    return Settings(
        cluster_key=key,
        session_timeout_s=config.timeout_s,
        chunk_size=config.chunk_size,
        stripe_width_max=config.stripe_width_max,
        replicas=config.layout,
        lease_duration_s=config.lease_duration_s or config.timeout_s,
        leases_max=config.leases_per_session_max,
    )


class Metaserver:
    """One running metaserver over a store. `run` serves until `stopping` is set."""

    def __init__(
        self,
        config: MetaserverConfig,
        store: Store,
        metrics: Metrics,
        *,
        key: bytes,
        transport: Transport | None = None,
        engine: Engine | None = None,
        may_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        """engine: made of the store; None: it is made here. may_answer: whether replies may leave
        now; those that may not wait."""
        self._now = Clock(may_answer=may_answer)
        self.engine: Engine = engine or boot(store, settings_of(config, key), self._now())
        self._may_answer = may_answer
        self._config = config
        self._metrics = metrics
        self._key = key
        self._transport = transport
        self._log = Log("metaserver")
        self.engine.log = self._log.warning
        self.engine.answered = self._answered
        self.engine.audited = Audit().ended
        self.engine.refused = self._refused
        self.engine.failed = self._failed
        self._refusals = RateLimit(_REFUSALS_S)
        self._peers = Peers(self._log, self._now)
        # The lookup of a label costs more than an observation.
        self._observers: dict[Op, Callable[[float], None]] = {}
        self._committer = Committer(self.engine, store, metrics, config.commit_interval_ms / 1000)
        self._truncation: Truncation | None = None
        self._answers = 0

    async def run(
        self, stopping: trio.Event, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with open_tasks() as tasks:
            self._start(tasks)
            address = await tasks.start(self._listen)
            task_status.started(str(address))
            await stopping.wait()
            tasks.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await self._committer.drain()

    def _start(self, tasks: trio.Nursery) -> None:
        engine, committer, metrics = self.engine, self._committer, self._metrics
        storage = StorageCalls(
            engine.services.membership, key=self._key, tasks=tasks, transport=self._transport
        )
        dropping = Dropping(engine, committer, storage, tasks, self._now)
        self._truncation = Truncation(engine, committer, storage, tasks, self._now, dropping)
        tasks.start_soon(self._now.run)
        tasks.start_soon(committer.run)
        tasks.start_soon(self._run_after_commits)
        background = Background(engine, committer, storage, metrics, self._now)
        tasks.start_soon(Reaper(background).run)
        tasks.start_soon(TrashExpiry(background).run)
        tasks.start_soon(dropping.run)
        tasks.start_soon(Unsynced(background).run)
        tasks.start_soon(Repair(background, dropping, self._config.repair).run)
        tasks.start_soon(Scrub(background, dropping, self._config.repair).run)
        tasks.start_soon(Eviction(background, dropping).run, tasks)
        tasks.start_soon(self._show_gauges)
        tasks.start_soon(watch_certificate, self._transport, metrics)
        if self._config.page_listen:
            tasks.start_soon(self._serve_page)
        self._after_requests()

    async def _listen(self, task_status: trio.TaskStatus[object]) -> None:
        await serve(
            self._config.listen,
            key=KeyRing(self._key, self._client_key),
            on_connection=self._serve,
            log=self._log,
            limits=AcceptLimits(why_not=lambda hello: self._why_not()),
            transport=self._transport,
            task_status=task_status,
        )

    def _why_not(self) -> str:
        """Why nobody may connect now. Who connected would get no answer, and would look no further
        for the metaserver that has taken over, perhaps."""
        if self._may_answer():
            return ""
        return "this metaserver does not reach the journal, so another one may be active by now"

    def _client_key(self, hello: KeyedHello) -> bytes | None:
        """Returns the key also if it is not valid any more: replies to its client say so."""
        services = self.engine.services
        if services.keys.get(hello.key) is None:
            return None
        return client_secret(self._key, services.cluster, hello.key)

    # ---- connections ---------------------------------------------------------------------

    async def _serve(self, peer: Peer, stream: FrameStream) -> None:
        key = self.engine.services.keys.get(peer.key)
        if peer.key and key is None:
            raise ProtocolError("the key was forgotten meanwhile")
        gauge = self._metrics.gauge("braidfs_connections", purpose=_known_purpose(peer.purpose))
        released = _Signal()
        gauge.inc()
        connection: Connection | None = None
        try:
            async with open_tasks() as tasks:
                connection = Connection(
                    peer.purpose,
                    released.set,
                    tasks.cancel_scope.cancel,
                    key=key,
                    node=peer.node,
                    peer=peer.address,
                    share=self._peers.share_of(key),
                )
                tasks.start_soon(self._send_released, connection, stream, released)
                if peer.purpose == "recall":
                    self.engine.attach(connection, SessionId(peer.session))
                self._peers.began(connection)
                await self._receive(connection, stream)
                tasks.cancel_scope.cancel()
        except* TransportError:
            # A client that has closed its session leaves, whatever is still on its way to it.
            session = SessionId(peer.session)
            if connection is not None and connection.session != SYSTEM_SESSION:
                session = connection.session
            if session == SYSTEM_SESSION or session in self.engine.sessions:
                raise
        finally:
            gauge.dec()
            if connection is not None:
                self._peers.ended(connection)
                self.engine.services.backups.closed(connection)
                self.engine.closed(connection)

    async def _receive(self, connection: Connection, stream: FrameStream) -> None:
        while batch := await stream.receive_batch():
            time = self._now()
            self._peers.heard(connection)
            for frame in batch:
                if self.engine.overfull:
                    await self._make_room(connection, stream)
                    time = self._now()
                self.engine.handle(connection, frame, time)
                if connection.unread_bytes > UNREAD_BYTES_MAX and connection.outbox:
                    await self._flush(connection, stream)
            self._after_requests()
            await self._flush(connection, stream)
            await self._committer.room()

    async def _send_released(
        self, connection: Connection, stream: FrameStream, released: "_Signal"
    ) -> None:
        while True:
            await released.wait()
            await self._flush(connection, stream)

    async def _flush(self, connection: Connection, stream: FrameStream) -> None:
        while connection.outbox:
            while not self._may_answer():  # noqa: ASYNC110 - a lease that is proven has no event
                await trio.sleep(_MAY_ANSWER_S)
            outgoing = connection.take()
            token = self._peers.sends(connection)
            try:
                await stream.send(outgoing)
            finally:
                self._peers.has_sent(token)
            connection.waits(-len(outgoing))

    async def _make_room(self, connection: Connection, stream: FrameStream) -> None:
        """Waits while more is uncommitted than the store has room for."""
        self._after_requests()
        await self._flush(connection, stream)
        await self._committer.room()

    async def _run_after_commits(self) -> None:
        """Runs what had no room in the batch that was committed."""
        while True:
            await self._committer.committed.wait()
            if self.engine.resume_after_commit(self._now()):
                self._after_requests()

    def _after_requests(self) -> None:
        self._committer.changed()
        if self._truncation is not None:
            self._truncation.start_fresh()

    # ---- what is seen from outside -------------------------------------------------------

    def _answered(self, op: Op, arrived_s: float) -> None:
        self._answers += 1
        observe = self._observers.get(op)
        if observe is None:
            observe = self._metrics.histogram("braidfs_request_seconds", op=op.name).observe
            self._observers[op] = observe
        observe(self._now().now_s - arrived_s)

    def _refused(self, connection: Connection, op: Op, error: RangeError) -> None:
        suppressed = self._refusals.permit()
        if suppressed is not None:
            self._log.warning(
                "a request was refused",
                op=op.name,
                peer=connection.peer,
                node=connection.node,
                error=error,
                suppressed=suppressed or None,
            )

    def _failed(self, connection: Connection, op: Op) -> None:
        self._log.exception(
            "a request failed: this is a bug",
            op=op.name,
            peer=connection.peer,
            node=connection.node,
        )

    async def _show_gauges(self) -> None:
        while True:
            self._show()
            self._peers.end_late()
            self._end_backups()
            self._after_requests()  # evictions make intents
            await trio.sleep(_GAUGES_S)

    def _end_backups(self) -> None:
        room = self.engine.progress.room
        count = self.engine.services.backups.expire(self._now().now_s, is_full=room.is_full)
        if count:
            self._log.warning("backups were given up", count=count, store_is_full=room.is_full)

    async def _serve_page(self) -> None:
        own = functools.partial(certificate_ends_s, self._transport)
        source = PageSource(self.engine, self._now, certificate_ends_s=own)
        certificate = self._config.http_certificate()
        endpoint = PageEndpoint(parse_address(self._config.page_listen), source.json, certificate)
        self._log.info("page", port=endpoint.port)
        try:
            async with open_tasks() as tasks:
                tasks.start_soon(self._ask_silent_standbys, source)
                while True:
                    source.sample(self._answers)
                    await trio.sleep(SAMPLE_S)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(endpoint.stop)

    async def _ask_silent_standbys(self, source: PageSource) -> None:
        open_to = functools.partial(
            open_caller,
            key=self._key,
            hello=HelloFields("admin", "the metaserver's page"),
            timeout_s=TRIED_S,
            transport=self._transport,
        )
        while True:
            if source.seen is not None:
                source.silences = await reasons_of_silence(source.seen, open_to)
            await trio.sleep(_SILENCES_S)

    def _show(self) -> None:
        engine, metrics = self.engine, self._metrics
        metrics.gauge("braidfs_transaction").set(engine.progress.txn)
        metrics.gauge("braidfs_transaction_durable").set(engine.progress.durable)
        metrics.gauge("braidfs_sessions").set(len(engine.sessions))
        metrics.gauge("braidfs_inodes").set(engine.progress.inodes)
        metrics.gauge("braidfs_store_bytes_used").set(engine.progress.room.used)
        metrics.gauge("braidfs_store_bytes").set(engine.progress.room.total)
        states = [row.state for row in engine.services.membership.map().targets]
        for state in _STATES:
            metrics.gauge("braidfs_targets", state=state).set(states.count(state))
        for (op, status), count in engine.counts.items():
            metrics.counter("braidfs_requests_total", op=op.name, status=status).inc(count)
        for outcome, count in engine.replays.items():
            metrics.counter("braidfs_replays_total", outcome=outcome).inc(count)
        engine.counts.clear()
        engine.replays.clear()
        self._show_leases()
        self._show_trash()
        show_jobs(metrics, engine.services.jobs, self._now().now_s)

    def _show_leases(self) -> None:
        leases, metrics = self.engine.services.leases, self._metrics
        metrics.gauge("braidfs_leases").set(leases.count)
        metrics.gauge("braidfs_files_by_directory").set(len(leases.children))
        metrics.gauge("braidfs_leases_recalled").set(leases.recalls_open)
        metrics.gauge("braidfs_requests_waiting").set(len(self.engine.gate))
        for outcome, count in leases.counts.items():
            metrics.counter("braidfs_lease_recalls_total", outcome=outcome).inc(count)
        leases.counts.clear()
        for seconds in leases.take_recall_seconds():
            metrics.histogram("braidfs_lease_recall_seconds").observe(seconds)

    def _show_trash(self) -> None:
        trash, metrics = self.engine.services.trash, self._metrics
        metrics.gauge("braidfs_trash_inodes").set(trash.inodes)
        for outcome, count in trash.counts.items():
            metrics.counter("braidfs_trash_total", outcome=outcome).inc(count)
        trash.counts.clear()


class _Signal:
    """Wakes one task, as often as needed."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = trio.Event()


def _known_purpose(purpose: str) -> str:
    """Returns a label for metrics: not one that a peer has invented."""
    return purpose if purpose in ("meta", "recall", "server", "admin", "data") else "other"
