"""LEASE_TAKE, LEASE_RETURN, LEASE_RESTORE, LEASES: what clients and
administrators ask of the table of leases.

Taking is the footprint and the grant of the op (metaserver.leases); here is only the inode.
"""

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_ALL, LEASE_CHILDREN, LEASE_DATA, LEASE_ENTRIES
from fscommon.types import Ino, SessionId
from fscommon.wire.leases import (
    LeaseQuery,
    LeaseReport,
    LeaseRestore,
    LeaseRestored,
    LeaseReturn,
    LeaseTake,
    SessionLeases,
)
from fscommon.wire.messages import Empty, Entry
from metaserver.context import Context
from metaserver.namespace.inode import find, load
from metaserver.records import inode_key
from metaserver.sessions import Session
from metaserver.transaction import Transaction

_FLAGS_ALL = LEASE_ALL | LEASE_CHILDREN
_COUNT_MAX = 10_000


def lease_take(tx: Transaction, request: LeaseTake, context: Context) -> Entry:
    if not 0 < request.flags <= LEASE_ALL:
        raise FsError(Status.BAD_REQUEST, f"unknown leases {request.flags:#x}")
    return Entry(load(tx, request.ino).attributes.pack())


def lease_return(tx: Transaction, request: LeaseReturn, context: Context) -> Empty:
    services = context.services
    for item in request.items:
        if item.flags & ~_FLAGS_ALL:
            raise FsError(Status.BAD_REQUEST, f"unknown leases {item.flags:#x}")
    for item in request.items:
        is_there = item.is_open and find(tx, item.ino) is not None
        if is_there and services.sessions.has_room(context.session):
            services.sessions.open(context.session, Ino(item.ino), writable=False)
    services.leases.returned(context.session, request.items, context.now_s)
    return Empty()


def lease_restore(tx: Transaction, request: LeaseRestore, context: Context) -> LeaseRestored:
    """Bytes and names that clients hold go on over a restart: nobody was granted anything since,
    and whoever is to change them asks first. Else each file in use would be opened once more."""
    session = context.services.sessions.get(context.session)
    if session is None or not session.replaying:
        raise FsError(Status.BAD_REQUEST, "nothing is to be restored")
    for lease in request.leases:
        if not lease.flags or lease.flags & ~(LEASE_DATA | LEASE_ENTRIES):
            raise FsError(Status.BAD_REQUEST, f"leases {lease.flags:#x} cannot be restored")
    table = context.services.leases
    refused = [
        lease.ino
        for lease in request.leases
        if tx.get(inode_key(Ino(lease.ino))) is None
        or not table.reassert(session.id, Ino(lease.ino), lease.flags)
    ]
    return LeaseRestored(tuple(refused))


def leases(tx: Transaction, request: LeaseQuery, context: Context) -> LeaseReport:
    sessions = context.services.sessions
    if request.session == 0:
        rows = tuple(_row(session, context) for session in sessions.all())
        return LeaseReport(rows, (), end=True)
    session = sessions.get(SessionId(request.session))
    if session is None:
        raise FsError(Status.UNKNOWN_SESSION, "no such session")
    held = context.services.leases.of(session.id)
    behind = [lease for lease in held if lease.ino > request.after]
    count = max(1, min(request.count, _COUNT_MAX))
    return LeaseReport((_row(session, context),), tuple(behind[:count]), end=len(behind) <= count)


def _row(session: Session, context: Context) -> SessionLeases:
    inodes, exclusive, recalls, is_cached = context.services.leases.sums(session.id)
    return SessionLeases(session.id, session.node, inodes, exclusive, recalls, is_cached)
