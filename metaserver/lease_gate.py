"""The gate between the engine and the table of leases.

Before an op of a session runs, `pass_or_wait` compares its footprint with what others hold: it
passes, or its request is kept here, outside of everything else, until `resume` runs it again.
After it ran, `granted` writes into its reply what the session now holds. Recalls leave on the
recall connection of their session; while it has none they wait in the table.
Only the event loop's thread calls; no clock is read here.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_ENTRIES,
    LEASE_ENTRIES_EXCLUSIVE,
    LEASE_META_EXCLUSIVE,
    OPEN_ELSEWHERE,
    inos_of,
)
from fscommon.types import Ino, SessionId
from fscommon.wire.codec import encode
from fscommon.wire.frame import Frame, encode_frame
from fscommon.wire.header import FLAG_ONEWAY
from fscommon.wire.leases import MAP_NOTICE, Recall
from fscommon.wire.messages import Failure
from fscommon.wire.ops import Op
from metaserver.connection import Connection
from metaserver.leases.grants import NAMES, Grant, write_grants
from metaserver.leases.holders import Claim, Need
from metaserver.leases.table import Leases
from metaserver.ops.row import OpRow
from metaserver.records import inode_key, number_of
from metaserver.sessions import Sessions
from metaserver.transaction import Transaction

ITEMS_MAX: Final = 1024  # of one RECALL
Rerun = Callable[[Connection, Frame, Claim], None]


@dataclass(slots=True)
class Asking:
    """One request at the gate. request_hash tells it from others that have its id. needs is its
    footprint, once that is known. withheld: leases that its reply does not grant."""

    row: OpRow
    request: Any
    request_id: int
    request_hash: int
    now_s: float
    claim: Claim | None = None
    needs: list[Need] = field(default_factory=list)
    withheld: int = 0


class LeaseGate:
    def __init__(self, leases: Leases, sessions: Sessions) -> None:
        self.leases = leases
        self._sessions = sessions
        self._duration_ns = int(leases.duration_s * 1_000_000_000)
        self._waiting: dict[Claim, tuple[Connection, Frame]] = {}
        self._connections: dict[SessionId, Connection] = {}
        self._request_ids = itertools.count(1)
        self._map_told = 0  # its epoch
        self.is_auditing = False  # check every footprint against what was written (tests)

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    # ---- before ----------------------------------------------------------------------------

    def pass_or_wait(
        self, tx: Transaction, asking: Asking, tells: Iterable[SessionId] = ()
    ) -> Claim | None:
        """None: run it. Else `wait` with the claim. tells: who is asked what it knows of the inode
        of the request."""
        if tells:
            inos = [(Ino(asking.request.ino), other) for other in tells]
            return self.leases.admit(tx.session, (), asking.now_s, asking.claim, inos)
        if asking.claim is None and self.leases.is_alone(tx.session) and not self.is_auditing:
            return None
        footprint = asking.row.footprint
        asking.needs = footprint(tx, asking.request) if footprint else []
        return self.leases.admit(tx.session, asking.needs, asking.now_s, asking.claim)

    def wait(self, claim: Claim, connection: Connection, frame: Frame) -> None:
        connection.holds(frame)
        self._waiting[claim] = (connection, frame)

    def resume(self, rerun: Rerun) -> None:
        """Run what waits no longer, in order; what that frees too."""
        while self.leases.is_anyone_ready:
            for claim in self.leases.take_ready():
                waiting = self._waiting.pop(claim, None)
                if waiting is None:
                    continue
                connection, frame = waiting
                connection.lets_go(frame)
                rerun(connection, frame, claim)
                if claim not in self._waiting:
                    self.leases.cancel(claim)
                connection.wake()

    # ---- after -----------------------------------------------------------------------------

    def granted(self, tx: Transaction, asking: Asking, reply: Any, body: bytes) -> bytes:
        """The body of a reply as it is sent: what is held stands in its records."""
        if not self.leases.is_holder(tx.session):
            return body
        row, request = asking.row, asking.request
        if row.already_held is not None:
            for ino, flags in row.already_held(request, reply):
                self.leases.born(tx.session, ino, flags, asking.request_id, asking.now_s)
        if row.grants_by_directory and reply.names:
            inos = inos_of(reply.attributes)
            self.leases.grant_children(tx.session, request.ino, inos, asking.request_id)
        grants = row.grants(request, reply) if row.grants is not None else iter(())
        return self._write(tx, asking, body, grants, getattr(reply, "parents", b""))

    def _write(
        self, tx: Transaction, asking: Asking, body: bytes, grants: Iterator[Grant], parents: bytes
    ) -> bytes:
        """The body with what is granted; the records of parents lie behind all others."""

        def grant(ino: Ino, wanted: int) -> int:
            held = self._grant(tx, asking, ino, wanted & ~asking.withheld)
            if held and self._may_be_open_elsewhere(tx.session, ino):
                held |= OPEN_ELSEWHERE
            return held

        records = itertools.chain(grants, ((parents, NAMES),))
        return write_grants(body, records, grant, self._duration_ns)

    def shown_parent(self, tx: Transaction, asking: Asking) -> bytes:
        """The record of the directory that a LOOKUP or READDIR looked into, if its names are
        granted; without lease fields."""
        looks_into = asking.row.looks_into
        if looks_into is None or not self.leases.is_holder(tx.session):
            return b""
        ino = Ino(looks_into(asking.request))
        record = tx.get(inode_key(ino))
        if record is None or not self._grant(tx, asking, ino, NAMES) & LEASE_ENTRIES:
            return b""
        return record[:ATTRIBUTES_SIZE]

    def failure(self, tx: Transaction, asking: Asking, error: FsError) -> bytes:
        """Body of a failed reply; that a name is absent is worth a lease."""
        absent = asking.row.grants_absence and error.status is Status.ENOENT
        parents = self.shown_parent(tx, asking) if absent else b""
        body = encode(Failure(error.message, parents))
        return self._write(tx, asking, body, iter(()), parents) if parents else body

    def _may_be_open_elsewhere(self, session: SessionId, ino: Ino) -> bool:
        is_covered = self.leases.children.is_covered_elsewhere(session, ino)
        return is_covered or self._sessions.is_open_elsewhere(session, ino)

    def _grant(self, tx: Transaction, asking: Asking, ino: Ino, wanted: int) -> int:
        if asking.row.grants_by_directory and self.leases.children.covers(tx.session, ino):
            return wanted
        return self.leases.grant(
            tx.session,
            ino,
            wanted,
            asking.request_id,
            asking.now_s,
            asking.claim,
            is_look=asking.row.is_look,
        )

    def audit(self, tx: Transaction, asking: Asking) -> None:
        """Raises AssertionError when the op wrote what its footprint does not announce."""
        needs = list(asking.needs)
        if asking.row.changes_afterwards is not None:
            needs += asking.row.changes_afterwards(asking.request)
        missing = _uncovered(needs, [key for key in tx.writes if not _is_new(tx, key)])
        assert not missing, f"{asking.row.op.name} {asking.request} changed {missing} unannounced"

    # ---- connections -----------------------------------------------------------------------

    def attach(self, connection: Connection, session: SessionId) -> None:
        """The connection carries the session's recalls from now on."""
        former = self._connections.get(session)
        self._connections[session] = connection
        if former is not None:
            former.is_open = False
            former.end()
        connection.put(self._frame(Recall(())))
        self.leases.connected(session)
        self.send()
        connection.wake()

    def closed(self, connection: Connection) -> None:
        """The connection ended: what it waited for is dropped, recalls wait for the next one."""
        for session, mine in list(self._connections.items()):
            if mine is connection:
                del self._connections[session]
                self.leases.disconnected(session)
        for claim, (owner, _) in list(self._waiting.items()):
            if owner is connection:
                del self._waiting[claim]
                self.leases.cancel(claim)

    def ended(self, session: SessionId) -> None:
        """The session is no more."""
        connection = self._connections.pop(session, None)
        if connection is not None:
            connection.is_open = False
            connection.end()

    def send(self) -> None:
        """Give recalls to the connections that carry them."""
        unsent = self.leases.unsent
        while unsent:
            session, items = unsent.popitem()
            connection = self._connections.get(session)
            if connection is None:
                continue  # the table tells them again when there is one
            for start in range(0, len(items), ITEMS_MAX):
                recall = Recall(tuple(items[start : start + ITEMS_MAX]))
                connection.put(self._frame(recall))
            connection.wake()

    def tell(self, map_epoch: int) -> None:
        """Recalls, and that the cluster map is another: every client that hears it asks for it."""
        if self.leases.unsent:
            self.send()
        if map_epoch == self._map_told:
            return
        self._map_told = map_epoch
        for connection in self._connections.values():
            connection.put(self._frame(Recall((MAP_NOTICE,))))
            connection.wake()

    def _frame(self, recall: Recall) -> bytes:
        return encode_frame(
            Op.RECALL, flags=FLAG_ONEWAY, request_id=next(self._request_ids), body=encode(recall)
        )


_CHANGE_OF: Final = {
    b"I": LEASE_META_EXCLUSIVE,
    b"X": LEASE_META_EXCLUSIVE,
    b"D": LEASE_ENTRIES_EXCLUSIVE,
}


def _uncovered(needs: Iterable[Need], written: Iterable[bytes]) -> set[Need]:
    """Changes, as keys of the store, that the footprint does not announce. Keys of inodes that the
    op made are the caller's to leave out."""
    announced: dict[int, int] = {}
    for need in needs:
        announced[need.ino] = announced.get(need.ino, 0) | need.flags
    missing = set()
    for key in written:
        bit = _CHANGE_OF.get(key[:1], 0)
        if bit and not announced.get(number_of(key), 0) & bit:
            missing.add(Need(Ino(number_of(key)), bit))
    return missing


def _is_new(tx: Transaction, key: bytes) -> bool:
    return key[:1] in (b"I", b"X", b"D") and not tx.existed(inode_key(number_of(key)))
