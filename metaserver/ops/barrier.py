"""BARRIER: answered when everything before it is durable (fsync of a directory, syncfs)."""

from typing import Final

from fscommon.wire.messages import Empty
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.ops import footprints, names
from metaserver.ops.row import Access, OpRow
from metaserver.transaction import Transaction


def barrier(tx: Transaction, request: Empty, context: Context) -> Empty:
    context.wait_durable = True
    return Empty()


def ping(tx: Transaction, request: Empty, context: Context) -> Empty:
    return Empty()


ROWS: Final = (
    OpRow(op=Op.BARRIER, run=barrier, footprint=footprints.nothing, names=names.no_inodes),
    OpRow(op=Op.PING, run=ping, access=Access.ANY, names=names.no_inodes, keeps_order=False),
)
