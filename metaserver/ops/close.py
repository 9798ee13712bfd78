"""CLOSE: this session holds these inodes open no more; orphans among them go to the reaper."""

from fscommon.types import Ino
from fscommon.wire.messages import Close, Empty
from metaserver.context import Context
from metaserver.transaction import Transaction


def close(tx: Transaction, request: Close, context: Context) -> Empty:
    context.services.sessions.close(context.session, map(Ino, request.inos))
    return Empty()
