"""CLOSE: this session holds these inodes open no more; orphans among them go to the reaper."""

from fscommon.types import Ino
from fscommon.wire.messages import Close, Empty
from metaserver.context import Context
from metaserver.records import writer_key
from metaserver.transaction import Transaction


def close(tx: Transaction, request: Close, context: Context) -> Empty:
    sessions = context.services.sessions
    session = sessions.get(context.session)
    opens = session.opens if session is not None else {}
    for ino in map(Ino, request.inos):
        if opens.get(ino):
            tx.delete(writer_key(context.session, ino))
    sessions.close(context.session, map(Ino, request.inos))
    return Empty()
