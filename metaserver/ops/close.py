"""CLOSE: the session has closed these inodes; the reaper takes orphans among them.

Everything that the session wrote to them is committed. So exclusive leases become shared ones, and
the next reader elsewhere needs no recall. A replicated file of which not all replicas have the
bytes durably gets a `U` record in place of its `W` record, until SYNCED says that they have.
"""

from typing import Final

from fscommon.types import Ino
from fscommon.wire.messages import Close, Empty
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.namespace.replicas import note_unsynced
from metaserver.ops import names
from metaserver.ops.row import Access, OpRow
from metaserver.records import unsynced_key, writer_key
from metaserver.transaction import Transaction


def close(tx: Transaction, request: Close, context: Context) -> Empty:
    sessions = context.services.sessions
    session = sessions.get(context.session)
    opens = session.opens if session is not None else {}
    inos = [Ino(ino) for ino in request.inos]
    unsynced = set(request.unsynced)
    for ino in inos:
        was_written = bool(opens.get(ino))
        if was_written:
            tx.delete(writer_key(context.session, ino))
        # SYNCED names the last CLOSE, also if the file was only read since it was written.
        if ino in unsynced and (was_written or tx.get(unsynced_key(ino, context.session))):
            note_unsynced(tx, context.session, ino, request.serial)
    sessions.close(context.session, inos)
    context.services.leases.downgrade(context.session, inos, context.now_s)
    return Empty()


ROWS: Final = (
    # It closes nothing but what the session has open.
    OpRow(op=Op.CLOSE, run=close, access=Access.CONTROL, names=names.no_inodes),
)
