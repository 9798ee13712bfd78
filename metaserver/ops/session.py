"""SESSION_OPEN, SESSION_RENEW, SESSION_CLOSE, REPLAY_DONE.

A new session is durable before its client gets the id. A session from before a restart goes on with
its client, which replays and sends REPLAY_DONE. New clients wait until all have done so (rule 18).
"""

from dataclasses import replace
from itertools import islice
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_NAMER, LEASE_WRITER
from fscommon.limits import SESSIONS_MAX, SESSIONS_PER_KEY_MAX
from fscommon.types import Ino, SessionId, Txn
from fscommon.wire.admin import BytesPath
from fscommon.wire.codec import encode
from fscommon.wire.locks import HeldLock
from fscommon.wire.messages import Empty, SessionOpen, SessionOpened, SessionRenew, SessionRenewed
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.keys import ClientKey
from metaserver.lost_writes import cut_lost
from metaserver.namespace.inode import find
from metaserver.namespace.replicas import end_writes
from metaserver.namespace.trees import is_inside
from metaserver.ops import names
from metaserver.ops.row import Access, OpRow
from metaserver.records import SessionRecord, replies_of, session_key
from metaserver.sessions import IDS_OF_A_LIFE, LIVES_MAX, Session
from metaserver.transaction import Transaction

_NODE_NAME_LENGTH_MAX = 255
_PATHS_MAX = 1024
_LOCKS_TOLD_MAX = 1 << 16
_PATH_TEXT_LENGTH_MAX = 200


def session_open(tx: Transaction, request: SessionOpen, context: Context) -> SessionOpened:
    services = context.services
    if request.session == 0:
        session = _new(tx, request, context)
    else:
        known = services.sessions.get(SessionId(request.session))
        if known is None or known.key is not context.key:
            raise FsError(Status.UNKNOWN_SESSION, "no such session: it expired or was closed")
        session = known
        if request.is_another:
            _begin_life(tx, session, context)
    session.renewed_s = context.now_s
    session.features = request.features
    services.sessions.reassert(session.id, [Ino(ino) for ino in request.opens])
    if session.replaying:
        for ino in request.exclusive:
            flags = LEASE_NAMER if _is_directory(tx, ino) else LEASE_WRITER
            services.leases.reassert(session.id, Ino(ino), flags)
    locks: tuple[HeldLock, ...] = ()
    if request.is_another:
        session.slots.clear()
        session.former_slots_end = services.numbers.next
        session.slots_outdated = 0
        locks = _locks_of(session.id, context)
        cut_lost(tx, context, session, request.lost)
    context.opened = session.id
    return SessionOpened(
        session=session.id,
        incarnation=services.progress.incarnation,
        durable=durable_for(session, context),
        timeout_s=services.session_timeout_s,
        lease_s=services.leases.duration_s,
        heard=session.lives * IDS_OF_A_LIFE if request.is_another else 0,
        locks=locks,
    )


def _begin_life(tx: Transaction, session: Session, context: Context) -> None:
    """Another process of the client goes on with the session. Its request ids differ from those of
    all processes before."""
    if session.lives >= LIVES_MAX:
        raise FsError(Status.UNKNOWN_SESSION, "too many processes have gone on with the session")
    session.lives += 1
    _put_record(tx, session)
    context.wait_durable = True


def _put_record(tx: Transaction, session: Session) -> None:
    key = session.key.id if session.key is not None else 0
    record = SessionRecord(session.node, session.opened_ns, key, session.lives)
    tx.put(session_key(session.id), encode(record))


def _locks_of(session: SessionId, context: Context) -> tuple[HeldLock, ...]:
    """Returns the locks that the session holds; requests that wait for locks are dropped."""
    table = context.services.locks
    table.stop_waiting(session)
    return tuple(
        HeldLock(ino, owner.is_flock, owner.id, held.start, held.end, held.type, held.pid)
        for ino, owner, held in islice(table.held_by(session), _LOCKS_TOLD_MAX)
    )


def _is_directory(tx: Transaction, ino: int) -> bool:
    inode = find(tx, ino)
    return inode is not None and inode.is_directory


def durable_for(session: Session, context: Context) -> Txn:
    """Returns the transaction up to which the client may believe everything durable. Until it has
    replayed, that is what the store held when the recovery began, because its own transaction
    numbers are of a former incarnation."""
    progress = context.services.progress
    return progress.recovery_txn if session.replaying else progress.durable


def _check_room(context: Context) -> None:
    """Raises if there may be no more sessions: of this connection, of the key, or at all. A session
    costs memory and a record."""
    sessions, key = context.services.sessions, context.key
    if sessions.get(context.session) is not None:
        raise FsError(Status.BAD_REQUEST, "this connection has a session")
    if len(sessions) >= SESSIONS_MAX:
        raise FsError(Status.EDQUOT, f"{SESSIONS_MAX} clients are mounted, and no more may be")
    if key is not None and len(sessions.with_key(key)) >= SESSIONS_PER_KEY_MAX:
        said = f"{SESSIONS_PER_KEY_MAX} clients are mounted with the key '{key.name}'"
        raise FsError(Status.EDQUOT, f"{said}, and no more may be: give others a key of their own")


def _new(tx: Transaction, request: SessionOpen, context: Context) -> Session:
    services = context.services
    if services.progress.recovering:
        raise FsError(Status.NOT_READY, "waiting for clients of before the restart")
    _check_room(context)
    if len(services.sessions) and not services.sessions.end_sole(context.now_s):
        raise FsError(Status.NOT_READY, "the only client of before is being told")
    if len(request.node) > _NODE_NAME_LENGTH_MAX:
        raise FsError(Status.BAD_REQUEST, "the name of the node is too long")
    session = Session(
        id=services.sessions.new_id(),
        node=request.node,
        opened_ns=context.now_ns,
        renewed_s=context.now_s,
        key=context.key,
        lives=request.answered // IDS_OF_A_LIFE,  # a client that was evicted goes on counting
    )
    if not 0 <= session.lives <= LIVES_MAX:
        raise FsError(Status.BAD_REQUEST, "no client has answered so many requests")
    _put_record(tx, session)
    services.sessions.add(session)
    context.wait_durable = True
    return session


def session_renew(tx: Transaction, request: SessionRenew, context: Context) -> SessionRenewed:
    services = context.services
    session = services.sessions.get(context.session)
    if session is not None:
        session.traffic, session.reported_s = request.traffic, context.now_s
        session.map_epoch = services.membership.epoch
        session.paths = tuple(
            BytesPath(
                path.node,
                path.transport[:_PATH_TEXT_LENGTH_MAX],
                path.because[:_PATH_TEXT_LENGTH_MAX],
            )
            for path in request.paths[:_PATHS_MAX]
        )
    return SessionRenewed(services.membership.map(), services.leases.pending(context.session))


def session_close(tx: Transaction, request: Empty, context: Context) -> Empty:
    forget_session(tx, context.session)
    context.services.leases.closed(context.session)
    context.services.sessions.remove(context.session)
    context.services.locks.drop_session(context.session)
    context.wait_durable = True
    return Empty()


def forget_session(tx: Transaction, session: SessionId) -> None:
    """Deletes its record, its stored replies, and the records of what it had open for writing."""
    tx.delete(session_key(session))
    delete_range(tx, *replies_of(session))
    end_writes(tx, session)


def delete_range(tx: Transaction, start: bytes, end: bytes) -> None:
    for key in list(tx.keys(start, end)):
        tx.delete(key)


def replay_done(tx: Transaction, request: Empty, context: Context) -> Empty:
    session = context.services.sessions.get(context.session)
    if session is not None:
        session.replaying = False
    context.ends_replay = True
    return Empty()


def _own_opens(tx: Transaction, request: SessionOpen, key: ClientKey) -> SessionOpen:
    opens = tuple(ino for ino in request.opens if is_inside(tx, ino, key))
    held = () if key.is_read_only else request.exclusive
    exclusive = tuple(ino for ino in held if is_inside(tx, ino, key))
    return replace(request, opens=opens, exclusive=exclusive)


ROWS: Final = (
    OpRow(
        op=Op.SESSION_OPEN,
        run=session_open,
        access=Access.CLIENT,
        names=names.no_inodes,
        rewrite=_own_opens,
    ),
    OpRow(op=Op.SESSION_RENEW, run=session_renew, access=Access.CONTROL, names=names.no_inodes),
    OpRow(op=Op.SESSION_CLOSE, run=session_close, access=Access.CONTROL, names=names.no_inodes),
    OpRow(op=Op.REPLAY_DONE, run=replay_done, access=Access.CONTROL, names=names.no_inodes),
)
