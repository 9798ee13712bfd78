"""CLOSE: this session holds these inodes open no more; orphans among them go to the reaper.

Everything it wrote is committed: exclusive leases become shared ones, so that the next reader
elsewhere need not ask.
"""

from fscommon.types import Ino
from fscommon.wire.messages import Close, Empty
from metaserver.context import Context
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
