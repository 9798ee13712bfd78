"""CLOSE: this session holds these inodes open no more; orphans among them go to the reaper.

Everything it wrote is committed: exclusive leases become shared ones, so that the next reader
elsewhere need not ask.
"""

from typing import Final

from fscommon.types import Ino
from fscommon.wire.messages import Close, Empty
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.ops import names
from metaserver.ops.row import Access, OpRow
from metaserver.records import writer_key
from metaserver.transaction import Transaction


def close(tx: Transaction, request: Close, context: Context) -> Empty:
    sessions = context.services.sessions
    session = sessions.get(context.session)
    opens = session.opens if session is not None else {}
    inos = [Ino(ino) for ino in request.inos]
    for ino in inos:
        if opens.get(ino):
            tx.delete(writer_key(context.session, ino))
    sessions.close(context.session, inos)
    context.services.leases.downgrade(context.session, inos, context.now_s)
    return Empty()


ROWS: Final = (
    # It closes nothing but what the session has open.
    OpRow(op=Op.CLOSE, run=close, access=Access.CONTROL, names=names.no_inodes),
)
