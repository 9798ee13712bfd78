"""LOCK_GET, LOCK_SET, LOCK_EVENTS, LOCK_CANCEL, LOCK_RESTORE, LOCK_LIST: requests to the table of
locks (metaserver.locks.table).

Locks are in memory only: clients restore them at a restarted metaserver (LOCK_RESTORE) before it
serves anything. These ops read and change no records, so they wait for no leases and no commits.
"""

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.lock_ranges import LOCK_END, LockedRange, LockType
from fscommon.types import Ino, SessionId
from fscommon.wire.locks import (
    HeldLock,
    LockCancel,
    LockDone,
    LockEvents,
    LockFound,
    LockGet,
    LockGranted,
    LockQuery,
    LockReport,
    LockRestore,
    LockRestored,
    LockRow,
    LockSet,
)
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context, ParkedError
from metaserver.identity import Who
from metaserver.locks.table import Owner, Wanted
from metaserver.ops import footprints, names
from metaserver.ops.row import Access, OpRow
from metaserver.transaction import Transaction

_LIST_COUNT_MAX: Final = 4096
_EVENTS_COUNT_MAX: Final = 1 << 15


def lock_get(tx: Transaction, request: LockGet, context: Context) -> LockFound:
    holder = context.services.locks.find_conflict(_wanted(request, 0, context))
    if holder is None:
        return LockFound(LockType.NONE)
    held = holder.range
    return LockFound(held.type, held.start, held.end, held.pid, holder.owner.session)


def lock_set(tx: Transaction, request: LockSet, context: Context) -> LockDone:
    wanted = _wanted(request, request.pid, context)._replace(is_loose=request.is_loose)
    return LockDone(context.services.locks.ask(wanted, request.ticket))


def lock_events(tx: Transaction, request: LockEvents, context: Context) -> LockGranted:
    if len(request.acknowledged) > _EVENTS_COUNT_MAX:
        raise FsError(Status.BAD_REQUEST, "more tickets than there can be")
    tickets = context.services.locks.take_events(context.session, request.acknowledged)
    if not tickets:
        raise ParkedError(lock_events_key(context.session))
    return LockGranted(tickets)


def lock_events_key(session: SessionId) -> tuple[str, int]:
    """The key under which a LOCK_EVENTS of this session is parked."""
    return "locks", session


def lock_cancel(tx: Transaction, request: LockCancel, context: Context) -> LockDone:
    return LockDone(context.services.locks.cancel(context.session, request.ticket))


def lock_restore(tx: Transaction, request: LockRestore, context: Context) -> LockRestored:
    session = context.services.sessions.get(context.session)
    if session is None or not session.replaying:
        raise FsError(Status.BAD_REQUEST, "nothing is to be restored")
    table = context.services.locks
    wanted = [_wanted(lock, lock.pid, context) for lock in request.locks]
    held = [table.restore(one._replace(is_loose=not one.owner.is_flock)) for one in wanted]
    return LockRestored(held.count(False))


def lock_list(tx: Transaction, request: LockQuery, context: Context) -> LockReport:
    count = min(max(request.count, 1), _LIST_COUNT_MAX)
    last = request.skip + count + 1
    found = list(islice(context.services.locks.listing(), request.skip, last))
    rows = tuple(_row(context, *one) for one in found[:count])
    return LockReport(rows, end=len(found) <= count)


def _row(context: Context, ino: Ino, owner: Owner, held: LockedRange, is_waiting: bool) -> LockRow:
    lock = HeldLock(ino, owner.is_flock, owner.id, held.start, held.end, held.type, held.pid)
    session = context.services.sessions.get(owner.session)
    return LockRow(lock, owner.session, session.node if session else "", is_waiting)


def _loose_holders(request: LockGet | LockSet, context: Context) -> Collection[SessionId]:
    """Sessions that may have dropped a lock that is in the way, without having said so yet."""
    return context.services.locks.loose_holders(_wanted(request, 0, context))


def _loose_holders_unless_waiting(request: LockSet, context: Context) -> Collection[SessionId]:
    """No session has to report for a request that may wait: one that has a ticket."""
    return () if request.ticket else _loose_holders(request, context)


def _wanted(request: LockGet | LockSet | HeldLock, pid: int, context: Context) -> Wanted:
    if not request.start < request.end <= LOCK_END:
        raise FsError(Status.EINVAL, "not a range of a file")
    try:
        kind = LockType(request.type)
    except ValueError:
        raise FsError(Status.EINVAL, "no such type of lock") from None
    owner = Owner(context.session, request.is_flock, request.owner)
    return Wanted(Ino(request.ino), owner, request.start, request.end, kind, pid)


def _squash(tx: Transaction, request: LockSet, who: Who) -> LockSet:
    squash.check_may(tx, request.ino, squash.READ, who)
    return request


def _restored(request: LockRestore) -> Iterable[int]:
    return {lock.ino for lock in request.locks}


def _squash_restore(tx: Transaction, request: LockRestore, who: Who) -> LockRestore:
    for ino in _restored(request):
        squash.check_may(tx, ino, squash.READ, who)
    return request


ROWS: Final = (
    OpRow(
        op=Op.LOCK_GET,
        run=lock_get,
        footprint=footprints.nothing,
        reporters=_loose_holders,
        names=names.its_ino,
    ),
    OpRow(
        op=Op.LOCK_SET,
        run=lock_set,
        footprint=footprints.nothing,
        reporters=_loose_holders_unless_waiting,
        names=names.its_ino,
        squash=_squash,
    ),
    OpRow(op=Op.LOCK_EVENTS, run=lock_events, footprint=footprints.nothing, names=names.no_inodes),
    OpRow(op=Op.LOCK_CANCEL, run=lock_cancel, footprint=footprints.nothing, names=names.no_inodes),
    OpRow(
        op=Op.LOCK_RESTORE,
        run=lock_restore,
        access=Access.CONTROL,
        names=_restored,
        squash=_squash_restore,
    ),
    OpRow(op=Op.LOCK_LIST, run=lock_list, access=Access.ADMIN),
)
