"""Cuts files to their committed size when their writer is gone: more may have been written."""

from collections.abc import Callable
from dataclasses import replace

from fscommon.layout.attributes import LEASE_DATA_EXCLUSIVE
from fscommon.layout.layout import is_replicated
from fscommon.types import Ino, SessionId, TargetId
from metaserver.context import Context
from metaserver.membership import Membership
from metaserver.namespace.inode import Inode, find_readable, load, save
from metaserver.namespace.replicas import keep_one, next_epoch
from metaserver.records import Intent, intent_key, writer_key
from metaserver.sessions import Session
from metaserver.transaction import Transaction


def cut_lost(tx: Transaction, context: Context, session: Session, inos: tuple[int, ...]) -> None:
    """Cuts these files: the session's process was killed, and lost what it had not written out."""
    for ino in map(Ino, inos):
        if session.opens.get(ino, False) and not _made_whole(tx, context, session.id, ino):
            give_up_written(tx, context, session.id, ino)


def _made_whole(tx: Transaction, context: Context, session: SessionId, ino: Ino) -> bool:
    """Keeps one replica of each stripe of a replicated file that the session alone was writing, and
    cuts it: the process may have written to some replicas only. The end of the cut waits until the
    others answer nobody. Returns False for any other file."""
    services = context.services
    inode = find_readable(tx, ino)
    if inode is None or not inode.is_file or not is_replicated(inode.tail):
        return False
    is_held = services.leases.held(session, ino) & LEASE_DATA_EXCLUSIVE
    if not is_held and _is_written(tx, context, ino, session):
        return False
    membership, now_s = services.membership, context.now_s
    choices: tuple[Callable[[int], bool], ...] = (
        lambda one: membership.is_answering(one, now_s),
        lambda one: _may_come_back(membership, one),
        lambda one: True,
    )
    for may_stay in choices:
        if keep_one(tx, ino, may_stay):
            break
    inode = load(tx, ino)
    if ino not in services.intents:
        _cut_to_committed(tx, context, inode)
    return True


def _may_come_back(membership: Membership, number: int) -> bool:
    target = membership.target(TargetId(number))
    return target is not None and not target.is_lost


def give_up_written(tx: Transaction, context: Context, session: SessionId, ino: Ino) -> None:
    """Hides what the session wrote and never committed. Files that others have open for writing
    get a new version, so that no cache keeps them; the rest is cut to its committed size."""
    inode = None if ino in context.services.intents else find_readable(tx, ino)
    if inode is None or not inode.is_file:
        return
    if _is_written(tx, context, ino, session):
        save(tx, inode.resized(inode.attributes.size))
    else:
        _cut_to_committed(tx, context, inode)


def _is_written(tx: Transaction, context: Context, ino: Ino, but: SessionId) -> bool:
    """Whether another session has the file open for writing, or may still report that it has."""
    sessions = context.services.sessions
    if any(session != but for session in sessions.written_by(ino)):
        return True
    coming = (session.id for session in sessions.replaying() if session.id != but)
    return any(tx.get(writer_key(session, ino)) is not None for session in coming)


def _cut_to_committed(tx: Transaction, context: Context, inode: Inode) -> None:
    layout = inode.layout()
    cut = replace(layout, truncate_epoch=next_epoch(tx, inode.ino, layout))
    save(tx, Inode(inode.resized(inode.attributes.size).attributes, cut.pack()))
    objects = replace(cut, inline=b"").pack()  # inline bytes stay in the record
    intent = Intent(inode.attributes.size, cut.truncate_epoch, objects)
    tx.put(intent_key(inode.ino), intent.pack())
    context.services.intents.add(inode.ino)
