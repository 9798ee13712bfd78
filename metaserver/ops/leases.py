"""LEASE_TAKE, LEASE_RETURN, LEASE_RESTORE, LEASES: requests about leases, of clients and
administrators.

The footprint and the grant in its row are what makes LEASE_TAKE take leases; the op itself only
loads the inode.
"""

import stat
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_ALL,
    LEASE_CHILDREN,
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_EXCLUSIVE_ALL,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    LEASE_READER,
    LEASE_WRITER,
)
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
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.identity import Who
from metaserver.keys import ClientKey
from metaserver.leases.grants import Grant
from metaserver.leases.holders import Need
from metaserver.namespace.inode import find, load
from metaserver.namespace.trees import is_inside
from metaserver.ops import names
from metaserver.ops.footprints import WRITTEN_FILE
from metaserver.ops.row import Access, OpRow
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
    """Restores leases on bytes and names after a restart. Nobody was granted anything since, and a
    change of these recalls them first. Without this, each file in use would be opened again."""
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


# ---- LEASE_TAKE ----------------------------------------------------------------------------------

_MODE: Final = struct.Struct("<I")
_MODE_AT: Final = 56


def _taken(tx: Transaction, request: LeaseTake) -> list[Need]:
    return [Need(Ino(request.ino), _taken_with(request.flags))]


def _taken_with(flags: int) -> int:
    """Returns what LEASE_TAKE of these bits takes: bytes come with the size, exclusive bits with
    the shared ones."""
    if flags & (LEASE_DATA_EXCLUSIVE | LEASE_META_EXCLUSIVE):
        return WRITTEN_FILE | LEASE_READER
    if flags & LEASE_DATA:
        return LEASE_READER | flags & LEASE_ENTRIES
    return flags & (LEASE_META | LEASE_ENTRIES)


def _granted(request: LeaseTake, reply: Entry) -> Iterator[Grant]:
    mode = _MODE.unpack_from(reply.attributes, _MODE_AT)[0]
    facets = LEASE_META
    facets |= LEASE_ENTRIES if stat.S_ISDIR(mode) else 0
    facets |= LEASE_WRITER if stat.S_ISREG(mode) else 0
    yield reply.attributes, _taken_with(request.flags) & facets


def _squash_take(tx: Transaction, request: LeaseTake, who: Who) -> LeaseTake:
    if request.flags & LEASE_EXCLUSIVE_ALL:
        squash.check_may(tx, request.ino, squash.READ | squash.WRITE, who)
    elif request.flags & LEASE_DATA:
        squash.check_may(tx, request.ino, squash.READ, who)
    return request


def _takes_exclusively(request: LeaseTake) -> bool:
    return bool(request.flags & LEASE_EXCLUSIVE_ALL)


# ---- keys ----------------------------------------------------------------------------------------


def _own_returns(tx: Transaction, request: LeaseReturn, key: ClientKey) -> LeaseReturn:
    """Drops `open` for inodes outside of the key's tree. The return itself counts in any case, as
    others may wait for it."""
    return LeaseReturn(
        tuple(
            replace(item, is_open=False)
            if item.is_open and not is_inside(tx, item.ino, key)
            else item
            for item in request.items
        )
    )


def _restored(request: LeaseRestore) -> Iterable[int]:
    return [lease.ino for lease in request.leases]


ROWS: Final = (
    OpRow(
        op=Op.LEASE_TAKE,
        run=lease_take,
        footprint=_taken,
        grants=_granted,
        names=names.its_ino,
        changes=_takes_exclusively,
        squash=_squash_take,
    ),
    OpRow(
        op=Op.LEASE_RETURN,
        run=lease_return,
        access=Access.CONTROL,
        names=names.no_inodes,
        rewrite=_own_returns,
    ),
    # It needs no `squash`: it restores only leases on what the client may read.
    OpRow(op=Op.LEASE_RESTORE, run=lease_restore, access=Access.CONTROL, names=_restored),
    OpRow(op=Op.LEASES, run=leases, access=Access.ANY),
)
