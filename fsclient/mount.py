"""The composition root of the client: from a source and options to a served mount, and back.

Start: session with the metaserver, the mounted directory, native datapath, mount(2), pyfuse3, event
reaper; then READY is reported. Stop (UNMOUNTED, or a signal that unmounts): pyfuse3 ends, native
drains dirty bytes while the reaper still serves its commits, and the session is closed once
everything is durable. Only this module knows all parts. Everything runs in the trio thread.
"""

import errno
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

import trio

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import Credential, load_credential
from fscommon.errors import ConfigError
from fscommon.layout.attributes import LEASE_READER
from fscommon.native import Datapath, make_datapath
from fscommon.net.rails import Rails
from fscommon.net.stream import FrameStream, connect
from fscommon.net.tls import transport_of
from fscommon.observe.log import Log
from fscommon.supervisor import feed_watchdog, notify_supervisor
from fscommon.tasks import open_tasks
from fscommon.wire.codec import encode
from fscommon.wire.leases import RecallItem
from fscommon.wire.messages import ClusterMap
from fscommon.wire.ops import Op

from . import fd_store, handover, kernel
from .daemon import Reporter
from .data_connections import DataConnections
from .fs.filesystem import FileSystem
from .fuse.calls import Calls
from .fuse.fusermount import mount_as_user
from .fuse.operations import Operations
from .fuse.session import FuseSession
from .grant import Grant
from .handover import Handed
from .leases.connection import RecallConnection
from .leases.holder import Leases
from .local_cache import open_cache
from .meta.client import Events, MetaClient
from .meta.restoring import Held
from .metrics import ClientMetrics, Run, run_without_metrics, traffic_of
from .plan import Plan, prefetches, rest_memory, set_prefetch, written_bytes_max
from .reaper import Handlers, Reaper
from .starting import Starting
from .survival import Survival, Told

LANES_DEFAULT_MAX = 8
MAX_WRITE = 1 << 20
BELIEVED_S = 1.0  # how long attributes and names are cached without a lease
CONNECT_TIMEOUT_S = 10.0
RECALLS_WAIT_S = 2.0
DRAIN_TIMEOUT_S = 60.0
UNMOUNT_TIMEOUT_S = 30.0
KERNEL_ROOT = 1
RESTART = signal.SIGUSR1  # the mount goes on in the program that is on the disk now
ABORT = signal.SIGUSR2  # requests that wait for a server fail now
LEAVE = signal.SIGHUP  # from a supervisor that holds the mount and starts the next process
LEAVE_TIMEOUT_S = 90.0  # less than a unit's TimeoutStopSec
LEAVE_AGAIN_S = 1.0
SIGNALS = (signal.SIGTERM, signal.SIGINT, RESTART, ABORT)


class MountedClient:
    """The parts of one mount. Attributes that run() sets exist from then on."""

    def __init__(self, plan: Plan, credential: Credential, handed: Handed | None = None) -> None:
        """handed: the mount of another process that this one takes over."""
        self._plan = plan
        self._handed = handed
        self._generation = handed.generation if handed else 0
        self._survival: Survival | None = None
        self._starting = Starting(ignored=(RESTART, ABORT))
        self._leaving: Callable[[], Handed] | None = None
        self.successor: Handed | None = None  # the next process, when run() has ended
        self.is_left = False  # the supervisor starts the next process
        self._credential = credential
        self._grant = Grant(credential)
        self._transport = transport_of(
            plan.config.tls_settings(), is_local=plan.config.transport != "tcp"
        )
        self._is_refused = False
        self._is_read_only = False
        self._node = f"{socket.gethostname()}:{plan.mountpoint}"[:255]
        self._log = Log("mount")
        self._ended = trio.Event()
        self._map: ClusterMap | None = None
        self._files: FileSystem | None = None
        self._recalls: RecallConnection | None = None
        self._datapath: Datapath | None = None
        self._data: DataConnections | None = None
        self._nursery: trio.Nursery | None = None

    async def run(self, reporter: Reporter) -> None:
        more = (LEAVE,) if fd_store.is_there() else ()
        with trio.open_signal_receiver(*SIGNALS, *more) as signals:
            async with open_tasks() as tasks:
                self._nursery = tasks
                tasks.start_soon(feed_watchdog)
                if self._handed is None:
                    tasks.start_soon(self._starting.watch, signals)
                meta = self._make_meta()
                await tasks.start(meta.run)
                try:
                    await self._serve(meta, signals, tasks, reporter)
                finally:
                    if self._leaving is None:
                        with trio.CancelScope(shield=True):
                            await meta.close()  # a session that stays open would delay a recovery
                tasks.cancel_scope.cancel()
            if self._leaving is not None:
                self._hand_over(self._leaving())
                return
        self._log.info("unmounted", mountpoint=self._plan.mountpoint)

    def _hand_over(self, handed: Handed) -> None:
        signal.signal(RESTART, signal.SIG_IGN)  # until the next program handles it
        self.successor = replace(handed, mountpoint=self._plan.mountpoint)
        self._log.info("handed over", files=len(handed.files.handles))

    # ---- up -----------------------------------------------------------------------------------

    def _make_meta(self) -> MetaClient:
        options = self._plan.options
        log = Log("session")
        events = Events(
            self._opens,
            self._map_changed,
            self._evicted,
            self._orphaned,
            log.warning,
            held=Held(self._locks_held, self._shared_leases, self._leases_lost),
            reconnected=self._reconnected,
            exclusive=self._exclusive,
            opened=self._session_opened,
            replied=self._replied,
            renewed=self._renewed,
            recalled=self._recalled,
            asking=self._asking,
            refused=self._refused,
            losing=self._losing,
        )
        meta = MetaClient(
            self._plan.source.addresses,
            self._connect_meta,
            events,
            node=self._node,
            timeout_s=float("inf") if options.hard else options.timeout,
        )
        if self._handed is not None:
            last = self._handed.session
            meta.core.resume(
                last.session,
                last.incarnation,
                last.next_request,
                last.durable,
                self._handed.unclean,
            )
        return meta

    async def _connect_meta(self, address: str, session: int) -> FrameStream:
        return await self._connect(address, HelloFields("meta", self._node, session=session))

    async def _connect(self, address: str, hello: HelloFields) -> FrameStream:
        """Connects to a metaserver."""
        if self._is_refused:
            self._read_key_again()
        own = replace(hello, key=self._credential.id)
        secret = self._credential.secret
        return await connect(
            address, key=secret, hello=own, timeout_s=CONNECT_TIMEOUT_S, transport=self._transport
        )

    def _read_key_again(self) -> None:
        """Reads the key file again: an administrator may have replaced a refused key."""
        try:
            credential = load_credential(self._plan.options.key_file)
        except ConfigError:
            return
        if credential != self._credential:
            self._log.info("there is a new key", id=f"{credential.id:016x}")
            self._credential = credential
            self._grant.renew(credential)

    async def _connect_data(self, address: str, hello: HelloFields) -> FrameStream:
        """Connects to a storage server."""
        own = replace(hello, key=self._credential.id)
        secret = await self._grant.data_key(hello.session)
        return await connect(
            address, key=secret, hello=own, timeout_s=CONNECT_TIMEOUT_S, transport=self._transport
        )

    async def _serve(
        self, meta: MetaClient, signals: AsyncIterator[int], tasks: trio.Nursery, reporter: Reporter
    ) -> None:
        self._grant.meta = meta
        root_ino = await self._find_root()
        self._is_read_only = self._plan.options.ro or self._grant.is_read_only
        datapath = await self._make_datapath(meta)
        tasks.start_soon(rest_memory, datapath.io, self._plan.options)
        files = self._files = self._make_files(meta, datapath)
        files.delegated_changes.proves_slots = self._grant.is_own
        data = self._data = DataConnections(
            datapath.cluster,
            self._connect_data,
            self._node,
            lambda: meta.core.session,
            self._make_rails(datapath),
        )
        if self._map is not None:
            data.map_changed(self._map)
        await data.check(is_new=self._handed is None)
        options = self._plan.options
        operations = Operations(files, datapath.io, root_ino, BELIEVED_S, sealed=options.sealed)
        await self._start_recalls(meta, tasks)
        taken = self._handed
        if taken is None:
            await self._mount(datapath)
        else:
            await self._take_over(taken, datapath, files, meta)
        meta.traffic = lambda: traffic_of(datapath)
        meta.paths, data.path_changed = data.paths, meta.renew_soon
        try:
            fuse = FuseSession(operations, self._start(datapath, root_ino))
            self._outlive(root_ino, meta, datapath, taken)
            calls = Calls(operations, files, datapath.io, tasks)
            tasks.start_soon(
                Reaper(datapath.io, self._handlers(operations, calls, files, data)).run
            )
            tasks.start_soon(files.run, prefetches(options))
            tasks.start_soon(files.recalls.watch_end, trio.current_time)
            tasks.start_soon(self._run_fuse, fuse)
            tasks.start_soon(self._watch_signals, signals, meta, operations)
            tasks.start_soon(data.watch_rails)
            with self._metrics(operations, datapath) as run:
                tasks.start_soon(run, meta, data)
                await self._announce(reporter, meta)
                await self._ended.wait()
        except BaseException:
            with trio.CancelScope(shield=True), trio.move_on_after(UNMOUNT_TIMEOUT_S):
                await kernel.unmount(self._plan.mountpoint)
            raise
        await self._close(fuse, datapath, files)

    async def _find_root(self) -> int:
        if self._handed is None:
            sealed = self._plan.options.sealed
            return (await self._grant.find_root(self._plan.source.path, sealed=sealed)).ino
        await self._grant.know()  # the directory may have been renamed
        return self._handed.root_ino

    async def _take_over(
        self, handed: Handed, datapath: Datapath, files: FileSystem, meta: MetaClient
    ) -> None:
        lost = await handover.restore(handed, datapath, files, meta.core.taken_locks)
        if lost:
            self._log.error("open files are lost", inodes=", ".join(map(str, lost)))
        handover.take_over(datapath, handed)
        files.recalls.former.follow(files.leases.lease_s)
        self._handed = None
        if handed.is_killed:
            self._log.warning("the process before was killed", unclean=len(handed.unclean))
        self._log.info("taken over", generation=handed.generation, files=len(handed.files.handles))

    def _outlive(
        self, root_ino: int, meta: MetaClient, datapath: Datapath, taken: Handed | None
    ) -> None:
        """Prepares for the case that this process is killed. If it follows a killed one, has the
        kernel drop what it caches of files that were open."""
        if taken is not None and taken.is_killed:
            datapath.names.lease_drop(0, (*taken.files.opens(), *taken.unclean), LEASE_READER)
        if self._survival is not None:
            told = Told(handover.VERSION, self._generation, self._plan.mountpoint, root_ino)
            self._survival.tell(told, meta.core.session)

    async def _start_recalls(self, meta: MetaClient, tasks: trio.Nursery) -> None:
        """Waits a little for leases: files that are opened before are not cached."""
        log = Log("recalls").warning
        recalls = self._recalls = RecallConnection(meta, self._connect_recall, self._recalled, log)
        tasks.start_soon(recalls.run)
        if meta.wants_recalls:
            with trio.move_on_after(RECALLS_WAIT_S):
                await recalls.is_up.wait()

    async def _make_datapath(self, meta: MetaClient) -> Datapath:
        options, dirty = self._plan.options, written_bytes_max(self._plan.options.dirty_mib)
        datapath = self._datapath = make_datapath(
            lane_count=options.lanes or min(os.cpu_count() or 1, LANES_DEFAULT_MAX),
            max_write=MAX_WRITE,
            dirty_bytes_max=dirty,
            dirty_bytes_per_inode_max=max(dirty // 2, min(dirty, 16 << 20)),
            held_bytes_max=dirty,
            timeout_ms=0 if options.hard else int(options.timeout * 1000),
            busy_poll_us=options.busy_poll_us,
            session=meta.core.session,
        )
        if options.sealed:
            datapath.mounting.seal()
        datapath.changes.inline_creations(options.inline)
        set_prefetch(datapath, options)
        await open_cache(options, datapath.io, meta, lambda: self._map, needed=not self._handed)
        self._survival = Survival(datapath)
        return datapath

    def _make_files(self, meta: MetaClient, datapath: Datapath) -> FileSystem:
        leases = Leases(datapath, trio.current_time)
        files = FileSystem(
            meta,
            datapath,
            leases,
            Log("files").warning,
            believe_s=BELIEVED_S,
            believe_names_s=BELIEVED_S,
            first_handle=self._handed.files.first_handle() if self._handed else 1,
        )
        files.directories.opened = datapath.mounting.directory_opened
        files.directories.closed = datapath.mounting.directory_closed
        leases.session_opened(meta.lease_s)
        leases.renewed(meta.renewed_at, 0)
        return files

    def _make_rails(self, datapath: Datapath) -> Rails:
        rails = Rails(datapath.cluster, self._plan.config.rdma(), Log("rdma"))
        rails.refresh()
        return rails

    async def _mount(self, datapath: Datapath) -> None:
        await self._starting.end()
        plan = self._plan
        checked_there = self._grant.is_checked_there
        if checked_there:
            datapath.mounting.leave_permissions()
        if plan.options.idmap:
            if self._grant.knows_users:
                raise ConfigError(
                    "the mount option 'idmap' is not for a key that squashes or maps users"
                )
            datapath.mounting.allow_idmap()
        if os.geteuid() != 0:
            fd = await trio.to_thread.run_sync(
                lambda: mount_as_user(
                    plan.mountpoint,
                    plan.source_text,
                    read_only=self._is_read_only,
                    checks_elsewhere=checked_there,
                )
            )
            datapath.mounting.attach(fd)
            return
        words = plan.options.kernel_words
        try:
            datapath.mounting.mount(plan.mountpoint, plan.source_text, words, self._is_read_only)
        except OSError as error:
            raise ConfigError(f"mount on {plan.mountpoint} failed: {error.strerror}") from error

    def _start(self, datapath: Datapath, root_ino: int) -> int:
        try:
            return datapath.mounting.start(root_ino)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP and self._plan.options.idmap:
                what = "the mount option 'idmap' needs Linux 6.12"
                raise ConfigError(f"{what}: this kernel's FUSE cannot be idmapped") from error
            raise

    async def _announce(self, reporter: Reporter, meta: MetaClient) -> None:
        """Proves by a request through the mount that it serves, then reports READY."""
        plan = self._plan
        try:
            await trio.to_thread.run_sync(
                kernel.raise_read_ahead,
                plan.mountpoint,
                plan.options.readahead_kib,
                abandon_on_cancel=True,
            )
        except OSError as error:
            self._log.warning("read-ahead of the kernel stays as it is", error=error)
        reporter.ready()
        self._log.info(
            "mounted",
            source=plan.source_text,
            mountpoint=plan.mountpoint,
            session=f"{meta.core.session:x}",
            pid=os.getpid(),
        )
        if self._survival is not None:
            await self._survival.watch()

    # ---- running ------------------------------------------------------------------------------

    def _handlers(
        self, operations: Operations, calls: Calls, files: FileSystem, data: DataConnections
    ) -> Handlers:
        nursery = self._nursery
        assert nursery is not None
        return Handlers(
            connect=lambda node, lane: data.wanted(node, lane, nursery),
            commit=files.files.commit,
            interrupt=operations.interrupt,
            release=files.released,
            done=files.drains.done,
            unmounted=self._ended.set,
            call=calls.called,
            reopen=lambda *event: nursery.start_soon(files.files.reopen, *event),
            ask=lambda ino, end: nursery.start_soon(files.files.ask, ino, end),
            write_inline=lambda *event: nursery.start_soon(files.files.inline_writes.write, *event),
            changes_wait=files.delegated_changes.wait,
            cut=files.files.cuts.tell,
            drop_replicas=lambda *event: nursery.start_soon(files.files.replicas.drop, *event),
            synced=files.files.replicas.synced,
            listener=files.recalls,
        )

    async def _run_fuse(self, fuse: FuseSession) -> None:
        """Runs pyfuse3. If it ends by itself, the mount ends."""
        try:
            await fuse.run()
        except OSError as error:
            self._log.error("the connection to the kernel failed", error=error)
        finally:
            fuse.close()
        self._ended.set()

    async def _watch_signals(
        self, signals: AsyncIterator[int], meta: MetaClient, operations: Operations
    ) -> None:
        async for number in signals:
            if number == RESTART:
                with suppress(handover.NoSuccessorError):
                    await self._restart(meta, operations)
                continue
            if number == ABORT:
                self._abort(meta)
                continue
            if number == LEAVE and await self._leave(meta, operations):
                continue
            self._log.info("unmounting", signal=signal.Signals(number).name)
            notify_supervisor("STOPPING=1")
            with trio.move_on_after(UNMOUNT_TIMEOUT_S):
                await kernel.unmount(self._plan.mountpoint)
                await self._ended.wait()
            self._ended.set()

    async def _restart(self, meta: MetaClient, operations: Operations) -> bool:
        """Prepares a restart. True: another process takes over; False: this one goes on."""
        datapath, files = self._datapath, self._files
        assert datapath is not None and files is not None
        self._log.info("restart: handing over")
        try:
            leaving = await handover.leave(datapath, files, meta, lambda: operations.running_count)
        except handover.NotHandedError as error:
            self._log.warning("restart: this process goes on", because=error)
            if isinstance(error, handover.NoSuccessorError):
                raise
            return False
        self._leaving = lambda: replace(leaving(), root_ino=operations.ino_of(KERNEL_ROOT))
        self._ended.set()
        return True

    async def _leave(self, meta: MetaClient, operations: Operations) -> bool:
        """Leaves the mount to a supervisor that waits for this process to end. If the handover
        takes too long, SIGKILL ends the process, and the mount goes on as after any other. False:
        the mount shall end."""
        if self._survival is None or not self._survival.is_service:
            return False
        with trio.move_on_after(LEAVE_TIMEOUT_S):
            try:
                while not await self._restart(meta, operations):  # noqa: ASYNC110 - others tell not
                    await trio.sleep(LEAVE_AGAIN_S)
                self.is_left = True
            except handover.NoSuccessorError:
                return False
        return True

    def _abort(self, meta: MetaClient) -> None:
        count = meta.abort() + (self._datapath.mounting.abort() if self._datapath else 0)
        self._log.warning("an administrator gave up on waiting requests", count=count)

    def _opens(self) -> tuple[int, ...]:
        if self._handed is not None:
            return self._handed.files.opens()
        return self._files.inodes.single_open() if self._files else ()

    def _locks_held(self) -> list[bytes]:
        if self._handed is not None:
            return [encode(batch) for batch in self._handed.files.lock_bodies()]
        return [encode(batch) for batch in self._files.locks.restore()] if self._files else []

    def _reconnected(self) -> None:
        if self._files is not None:
            self._files.locks.reconnected()

    def _map_changed(self, cluster_map: ClusterMap) -> None:
        before, self._map = self._map, cluster_map
        are_others = before is not None and before.open_targets() != cluster_map.open_targets()
        if are_others and self._files is not None:
            self._files.delegated_changes.renew_slots()
        if self._data is not None:
            self._data.map_changed(cluster_map)

    def _refused(self, why: str) -> None:
        """The key is no longer valid: while that is so nothing is cached, and nothing waits."""
        if not self._is_refused:
            self._is_refused = True
            what = "this mount is refused: unmount it, or put a new key into its key file"
            self._log.error(what, because=why)
            if self._files is not None:
                self._files.lost_session()
                self._files.locks.lost()
        if self._datapath is not None:
            self._datapath.mounting.abort()

    def _losing(self) -> None:
        if self._files is not None:
            self._files.losing_session()

    def _evicted(self, session: int) -> None:
        self._is_refused = False
        self._log.error("the session was lost; a new one is open", session=f"{session:x}")
        if self._datapath is not None and self._files is not None and self._nursery is not None:
            self._files.lost_session()
            self._datapath.cluster.session_put(session)
            if self._survival is not None:
                self._survival.session_changed(session)
            self._files.locks.lost()
            self._nursery.start_soon(self._files.reopen_all)

    # ---- leases -------------------------------------------------------------------------------

    async def _connect_recall(self, address: str, session: int) -> FrameStream:
        return await self._connect(address, HelloFields("recall", self._node, session=session))

    def _exclusive(self) -> tuple[int, ...]:
        return self._files.exclusive() if self._files else ()

    def _shared_leases(self) -> list[bytes]:
        return [encode(batch) for batch in self._files.restorable()] if self._files else []

    def _leases_lost(self, inos: tuple[int, ...] | None) -> None:
        if self._files is not None:
            self._files.recalls.lost(inos)

    def _session_opened(self, lease_s: float, restarted: bool) -> None:
        if self._files is not None:
            if restarted:
                self._files.restarted()
            self._files.leases.session_opened(lease_s)
            self._files.inodes.resume()
        if self._recalls is not None:
            self._recalls.again()

    def _asking(self, op: Op) -> None:
        if self._files is not None:
            self._files.delegated_changes.before(op)

    def _replied(self, op: Op, message: object, request_id: int) -> None:
        if self._files is not None:
            self._files.leases.replied(op, message, request_id)

    def _renewed(self, sent_at: float, answered: int) -> None:
        if self._files is not None:
            self._files.leases.renewed(sent_at, answered)
        if self._datapath is not None and self._nursery is not None:
            self._nursery.start_soon(rest_memory, self._datapath.io, self._plan.options)

    def _recalled(self, items: tuple[RecallItem, ...]) -> None:
        if self._files is not None and self._nursery is not None:
            self._files.recalls.start(items, self._nursery)

    def _orphaned(self, op: Op, body: bytes) -> None:
        if self._files is not None:
            self._files.files.orphaned(op, body)

    # ---- down ---------------------------------------------------------------------------------

    async def _close(self, fuse: FuseSession, datapath: Datapath, files: FileSystem) -> None:
        """The kernel can send no more requests: drains dirty bytes."""
        fuse.stop()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(datapath.mounting.stop, int(DRAIN_TIMEOUT_S * 1000))
            files.closer.flush()

    def _metrics(self, operations: Operations, datapath: Datapath) -> AbstractContextManager[Run]:
        """The metrics endpoint while the mount serves, if one is configured."""
        config, is_patient = self._plan.config, self._generation > 0
        if not config.metrics_listen:
            return nullcontext(run_without_metrics)
        certificate = config.http_certificate()
        metrics = ClientMetrics(config.metrics_listen, certificate, is_patient=is_patient)
        return metrics.watching(operations, datapath)
