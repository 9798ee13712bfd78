"""Cuts files to their committed size when their writer is gone: more may have been written."""

from dataclasses import replace

from fscommon.types import Ino, SessionId
from metaserver.context import Context
from metaserver.namespace.inode import Inode, find, save
from metaserver.records import Intent, intent_key, writer_key
from metaserver.sessions import Session
from metaserver.transaction import Transaction


def cut_lost(tx: Transaction, context: Context, session: Session, inos: tuple[int, ...]) -> None:
    """Cuts these files: the session's process was killed, and lost what it had not written out."""
    for ino in map(Ino, inos):
        if session.opens.get(ino, False):
            give_up_written(tx, context, session.id, ino)


def give_up_written(tx: Transaction, context: Context, session: SessionId, ino: Ino) -> None:
    """Hides what the session wrote and never committed. Files that others have open for writing
    get a new version, so that no cache keeps them; the rest is cut to its committed size."""
    inode = None if ino in context.services.intents else find(tx, ino)
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
    cut = replace(layout, truncate_epoch=layout.truncate_epoch + 1)
    save(tx, Inode(inode.resized(inode.attributes.size).attributes, cut.pack()))
    objects = replace(cut, inline=b"").pack()  # inline bytes stay in the record
    intent = Intent(inode.attributes.size, cut.truncate_epoch, objects)
    tx.put(intent_key(inode.ino), intent.pack())
    context.services.intents.add(inode.ino)
