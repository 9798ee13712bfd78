"""BARRIER: answered when everything before it is durable (fsync of a directory, syncfs)."""

from fscommon.wire.messages import Empty
from metaserver.context import Context
from metaserver.transaction import Transaction


def barrier(tx: Transaction, request: Empty, context: Context) -> Empty:
    context.wait_durable = True
    return Empty()


def ping(tx: Transaction, request: Empty, context: Context) -> Empty:
    return Empty()
