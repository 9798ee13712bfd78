"""The gate between the engine and the table of leases.

Before an op runs, `pass_or_wait` compares its footprint with the leases of other sessions. The op
passes, or its request waits here, outside of everything else, until `resume` runs it again. After
the op has run, `granted` writes into its reply what the session now holds. Recalls leave on the
recall connection of their session; while the session has none, they wait in the table.
Only the event loop's thread calls; no clock is read here.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from fscommon.errors import BraidError, FsError, Status
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
class OpCall:
    """One request at the gate. request_hash tells it from other requests with the same id. needs is
    its footprint, once that is known. withheld: leases that its reply does not grant."""

    row: OpRow
    request: Any
    request_id: int
    request_hash: int
    now_s: float
    claim: Claim | None = None
    needs: list[Need] = field(default_factory=list)
    withheld: int = 0


class WaitError(BraidError):
    """The request conflicts with leases of other sessions: it waits with this claim."""

    def __init__(self, claim: Claim) -> None:
        super().__init__("waits for a lease")
        self.claim = claim


class LeaseGate:
    def __init__(self, leases: Leases, sessions: Sessions) -> None:
        self.leases = leases
        self._sessions = sessions
        self._duration_ns = int(leases.duration_s * 1_000_000_000)
        self._waiting: dict[Claim, tuple[Connection, Frame]] = {}
        self._connections: dict[SessionId, Connection] = {}
        self._request_ids = itertools.count(1)
        self._map_epoch = 0  # of the newest map that clients have a notice of
        self.is_auditing = False  # for tests: compares every footprint with what its op has written

    def __len__(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    # ---- before ----------------------------------------------------------------------------

    def pass_or_wait(
        self, tx: Transaction, call: OpCall, reporters: Iterable[SessionId] = ()
    ) -> Claim | None:
        """Returns None if the op may run now, else the claim to `wait` with. reporters: sessions
        that must report what they know of the inode of the request."""
        if reporters:
            inos = [(Ino(call.request.ino), other) for other in reporters]
            return self.leases.admit(tx.session, (), call.now_s, call.claim, inos)
        if call.claim is None and self.leases.is_alone(tx.session) and not self.is_auditing:
            return None
        footprint = call.row.footprint
        call.needs = footprint(tx, call.request) if footprint else []
        return self.leases.admit(tx.session, call.needs, call.now_s, call.claim)

    def wait(self, claim: Claim, connection: Connection, frame: Frame) -> None:
        connection.holds(frame)
        self._waiting[claim] = (connection, frame)

    def resume(self, rerun: Rerun) -> None:
        """Runs the requests that wait no longer, in order, and those that they free."""
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

    def granted(self, tx: Transaction, call: OpCall, reply: Any, body: bytes) -> bytes:
        """Returns the body of a reply as it is sent: with leases in its records."""
        if not self.leases.is_holder(tx.session):
            return body
        row, request = call.row, call.request
        if row.already_held is not None:
            for ino, flags in row.already_held(request, reply):
                self.leases.born(tx.session, ino, flags, call.request_id, call.now_s)
        if row.grants_by_directory and reply.names:
            inos = inos_of(reply.attributes)
            self.leases.grant_children(tx.session, request.ino, inos, call.request_id)
        grants = row.grants(request, reply) if row.grants is not None else iter(())
        return self._write(tx, call, body, grants, getattr(reply, "parents", b""))

    def _write(
        self, tx: Transaction, call: OpCall, body: bytes, grants: Iterator[Grant], parents: bytes
    ) -> bytes:
        """Writes the grants into the body. The records of parents lie behind all others."""

        def grant(ino: Ino, wanted: int) -> int:
            held = self._grant(tx, call, ino, wanted & ~call.withheld)
            if held and self._may_be_open_elsewhere(tx.session, ino):
                held |= OPEN_ELSEWHERE
            return held

        records = itertools.chain(grants, ((parents, NAMES),))
        return write_grants(body, records, grant, self._duration_ns)

    def shown_parent(self, tx: Transaction, call: OpCall) -> bytes:
        """Returns the record, without lease fields, of the directory that the op looked into; ""
        if the session is not granted the directory's names."""
        looks_into = call.row.looks_into
        if looks_into is None or not self.leases.is_holder(tx.session):
            return b""
        ino = Ino(looks_into(call.request))
        record = tx.get(inode_key(ino))
        if record is None or not self._grant(tx, call, ino, NAMES) & LEASE_ENTRIES:
            return b""
        return record[:ATTRIBUTES_SIZE]

    def failure(self, tx: Transaction, call: OpCall, error: FsError) -> bytes:
        """Returns the body of a failed reply. It may grant that a name is absent."""
        absent = call.row.grants_absence and error.status is Status.ENOENT
        parents = self.shown_parent(tx, call) if absent else b""
        body = encode(Failure(error.message, parents))
        return self._write(tx, call, body, iter(()), parents) if parents else body

    def _may_be_open_elsewhere(self, session: SessionId, ino: Ino) -> bool:
        is_covered = self.leases.children.is_covered_elsewhere(session, ino)
        return is_covered or self._sessions.is_open_elsewhere(session, ino)

    def _grant(self, tx: Transaction, call: OpCall, ino: Ino, wanted: int) -> int:
        if call.row.grants_by_directory and self.leases.children.covers(tx.session, ino):
            return wanted
        return self.leases.grant(
            tx.session,
            ino,
            wanted,
            call.request_id,
            call.now_s,
            call.claim,
            is_look=call.row.is_look,
        )

    def audit(self, tx: Transaction, call: OpCall) -> None:
        """Raises AssertionError if the op wrote what its footprint does not announce."""
        needs = list(call.needs)
        if call.row.changes_afterwards is not None:
            needs += call.row.changes_afterwards(call.request)
        missing = _uncovered(needs, [key for key in tx.writes if not _is_new(tx, key)])
        assert not missing, f"{call.row.op.name} {call.request} changed {missing} unannounced"

    # ---- connections -----------------------------------------------------------------------

    def attach(self, connection: Connection, session: SessionId) -> None:
        """The session's recalls leave on this connection from now on."""
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
        """The connection has ended: drops its waiting requests; its recalls wait for the next
        connection."""
        for session, mine in list(self._connections.items()):
            if mine is connection:
                del self._connections[session]
                self.leases.disconnected(session)
        for claim, (owner, _) in list(self._waiting.items()):
            if owner is connection:
                del self._waiting[claim]
                self.leases.cancel(claim)

    def ended(self, session: SessionId) -> None:
        """The session has ended: closes its recall connection."""
        connection = self._connections.pop(session, None)
        if connection is not None:
            connection.is_open = False
            connection.end()

    def send(self) -> None:
        """Gives recalls to the connections on which they leave."""
        unsent = self.leases.unsent
        while unsent:
            session, items = unsent.popitem()
            connection = self._connections.get(session)
            if connection is None:
                continue  # the table sends them again when there is a connection
            for start in range(0, len(items), ITEMS_MAX):
                recall = Recall(tuple(items[start : start + ITEMS_MAX]))
                connection.put(self._frame(recall))
            connection.wake()

    def tell(self, map_epoch: int) -> None:
        """Sends recalls, and a notice if the cluster map has changed: clients then ask for it."""
        if self.leases.unsent:
            self.send()
        if map_epoch == self._map_epoch:
            return
        self._map_epoch = map_epoch
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
    """Returns the written keys that the footprint does not announce, as needs. The caller leaves
    out the keys of inodes that the op made."""
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
