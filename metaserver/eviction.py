"""Evicts clients that were silent for too long, and takes silent storage servers off the map.

An expired session loses its record and its stored replies in one transaction. Each file that it
alone had open for writing gets an intent that cuts the objects to the committed size, so that bytes
that were written but never committed do not show up later. `W` records in the store name these
files, too, for a client that died while the metaserver was down and so never reported its opens.

When this is durable, every storage server is told to fence the session. This is repeated until each
has done so, or is down itself, which means that its own lease has run out: a storage server that
comes back gets the table of sessions before it serves (rule 15). An `F` record stays until then: a
metaserver that restarts in between goes on fencing, and gives nobody what the session was writing.

A replicated file that the session held exclusively may have been written to some replicas only. So
of each stripe one replica is kept, on a target that has acknowledged the fence; the others are
dropped before anybody gets the file (docs/decisions/0063-mirrors.md).

A session that keeps an exclusive lease for longer than a recall may take is evicted, too.
"""

from typing import Final

import trio

from fscommon.layout.attributes import LEASE_DATA_EXCLUSIVE
from fscommon.layout.layout import is_replicated
from fscommon.observe.log import Log
from fscommon.types import Ino, NodeId, SessionId
from metaserver.background import Background
from metaserver.context import Context
from metaserver.dropping import Dropping
from metaserver.faults import Faults
from metaserver.lost_writes import give_up_written
from metaserver.namespace.inode import find_readable
from metaserver.namespace.replicas import dropped_names, end_writes, keep_one
from metaserver.ops.cluster import bump_map_epoch, let_join
from metaserver.ops.session import delete_range
from metaserver.records import (
    ObjectName,
    fence_key,
    replies_of,
    session_key,
    written_ino,
    written_of,
)
from metaserver.sessions import Session
from metaserver.storage import STORAGE_ERRORS
from metaserver.transaction import Transaction
from metaserver.truncation import BACKOFF_S_MAX, BACKOFF_S_MIN

CHECK_S: Final = 0.5


class Eviction:
    def __init__(self, background: Background, dropping: Dropping | None = None) -> None:
        """dropping: settles the names of replicas that are dropped. None: a test has no such."""
        self._dropping = dropping
        self._engine = background.engine
        self._now = background.clock
        self._committer = background.committer
        self._storage = background.storage
        self._metrics = background.metrics
        self._log = Log("eviction")
        self._faults = Faults(self._log)

    async def run(self, tasks: trio.Nursery) -> None:
        for ghost in self._engine.services.leases.ghosts():  # evicted before a restart
            tasks.start_soon(self._fence_everywhere, ghost, 0)
        while True:
            await trio.sleep(CHECK_S)
            self._check_nodes()
            self._engine.sessions.condemn_refused(self._now().now_ns)
            timeout_s = self._engine.services.session_timeout_s
            for session in self._engine.sessions.expired(self._now().now_s, timeout_s):
                with self._faults.contained("an eviction", session=session.id):
                    self._evict(session, tasks)
            with self._faults.contained("the expiry of leases"):
                self._expire_leases(tasks)
            self._committer.changed()

    def _expire_leases(self, tasks: trio.Nursery) -> None:
        for late in self._engine.services.leases.expire(self._now().now_s):
            session = self._engine.sessions.get(late)
            if session is not None:
                self._log.warning("client did not give up a lease in time", session=late)
                self._evict(session, tasks)
        self._engine.leases_changed(self._now())

    def _check_nodes(self) -> None:
        services = self._engine.services
        silent = services.membership.expire(self._now().now_s)
        for node in silent:
            self._log.warning("storage server is down", node=node.id, name=node.name)
        ended = services.membership.note_ended(self._now().now_s)
        for node in ended:
            self._log.info("the connection of a storage server ended", node=node.id, name=node.name)
        joined = let_join(services)
        for target in joined:
            self._log.info("new files go to a target that came", target=target.id)
        if silent or ended or joined:
            self._engine.system(lambda tx, context: bump_map_epoch(tx, services))

    def _evict(self, session: Session, tasks: trio.Nursery) -> None:
        key = session.key
        why = key.refusal(self._now().now_ns) if key is not None else ""
        self._log.warning(
            "client is evicted", session=session.id, node=session.node, because=why or None
        )
        if key is not None:
            self._engine.services.keys.evicted(session.id, key)
        self._metrics.counter("braidfs_sessions_evicted_total").inc()
        txn = self._engine.system(lambda tx, context: forget(tx, context, session), self._now())
        self._engine.sessions.remove(session.id)
        self._engine.evicted(session.id)
        self._engine.end_recovery_if_done()
        tasks.start_soon(self._fence_everywhere, session.id, txn)

    async def _fence_everywhere(self, session: SessionId, txn: int) -> None:
        with self._faults.contained("a fence", session=session):
            await self._fence_and_free(session, txn)

    async def _fence_and_free(self, session: SessionId, txn: int) -> None:
        await self._committer.wait_durable(txn)
        fenced: set[NodeId] = set()
        async with trio.open_nursery() as nursery:
            for node in self._engine.services.membership.nodes():
                nursery.start_soon(self._fence, node.id, session, fenced)
        await self._make_whole(session, fenced)
        self._engine.fenced(session, self._now())
        self._engine.system(lambda tx, context: _forget_writes(tx, session))
        self._engine.services.leases.fenced(session, self._now().now_s)
        self._engine.leases_changed(self._now())
        self._committer.changed()

    async def _fence(self, node_id: NodeId, session: SessionId, fenced: set[NodeId]) -> None:
        """Returns when the node has acknowledged the fence, and is added to `fenced`, or is
        down."""
        membership = self._engine.services.membership
        delay_s = BACKOFF_S_MIN
        while (node := membership.node(node_id)) is not None and not membership.is_down(node_id):
            try:
                await self._storage.fence(node, session)
                fenced.add(node_id)
                return
            except STORAGE_ERRORS as error:
                self._log.warning("fence is repeated", node=node_id, error=error)
            await trio.sleep(delay_s)
            delay_s = min(delay_s * 2, BACKOFF_S_MAX)

    async def _make_whole(self, session: SessionId, fenced: set[NodeId]) -> None:
        """Keeps one replica of each stripe that the session alone may have written."""
        inos: list[Ino] = []
        self._engine.system(lambda tx, context: inos.extend(_held_alone(tx, context, session)))
        if inos:
            async with trio.open_nursery() as nursery:
                for ino in inos:
                    nursery.start_soon(self._make_file_whole, session, ino, fenced)

    async def _make_file_whole(self, session: SessionId, ino: Ino, fenced: set[NodeId]) -> None:
        while True:
            is_whole, dropped = self._keep_one(ino, fenced)
            await self._committer.wait_durable(self._engine.progress.txn)
            if self._dropping is not None:
                await self._dropping.settle(dropped)
            if is_whole:
                return
            await trio.sleep(BACKOFF_S_MAX)
            for node in self._engine.services.membership.nodes():
                if node.id not in fenced:  # it is back, and was told who is fenced
                    await self._fence(node.id, session, fenced)

    def _keep_one(self, ino: Ino, fenced: set[NodeId]) -> tuple[bool, list[ObjectName]]:
        """Returns whether each stripe of the file has one replica, and all names that were dropped
        from it."""
        membership = self._engine.services.membership
        done: list[bool] = []
        dropped: list[ObjectName] = []

        def change(tx: Transaction, context: Context) -> None:
            def may_stay(target: int) -> bool:
                known = membership.target(target)
                is_fenced = known is not None and known.node in fenced
                return is_fenced and membership.is_answering(target, context.now_s)

            done.append(keep_one(tx, ino, may_stay))
            inode = find_readable(tx, ino)
            if inode is not None:
                dropped.extend(dropped_names(tx, inode.layout().file_id))

        self._engine.system(change, self._now())
        return done[0], dropped


def _held_alone(tx: Transaction, context: Context, session: SessionId) -> list[Ino]:
    """Returns the replicated files that the evicted session was writing, and nobody else holds."""
    inos = [written_ino(key) for key in tx.keys(*written_of(session))]
    leases = context.services.leases
    return [
        ino
        for ino in inos
        if leases.held(session, ino) & LEASE_DATA_EXCLUSIVE
        and (inode := find_readable(tx, ino)) is not None
        and is_replicated(inode.tail)
    ]


def forget(tx: Transaction, context: Context, session: Session) -> None:
    """Deletes the session's records, and cuts files that it alone was writing to their committed
    size. Other files that it was writing get a new version: bytes that it wrote and never committed
    may be there, and clients keep bytes by version on their disks
    (docs/decisions/0035-local-cache.md). Until the session is fenced, everything that it may have
    been writing stays leased to it."""
    written = {ino for ino, writable in session.opens.items() if writable}
    written.update(written_ino(key) for key in tx.keys(*written_of(session.id)))
    tx.delete(session_key(session.id))
    delete_range(tx, *replies_of(session.id))
    tx.put(fence_key(session.id), b"")  # its W records stay until then, too
    context.services.leases.evict(session.id, sorted(written), context.now_s)
    if session.key is not None and session.key.refusal(context.now_ns):
        context.services.leases.disown(session.id)
    for ino in sorted(written):
        give_up_written(tx, context, session.id, ino)


def _forget_writes(tx: Transaction, session: SessionId) -> None:
    tx.delete(fence_key(session))
    end_writes(tx, session)
