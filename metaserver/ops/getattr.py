"""GETATTR: returns the attributes of an inode."""

from typing import Final

from fscommon.wire.messages import Entry, GetAttr
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.namespace.inode import load
from metaserver.ops import footprints, grants, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def getattr_(tx: Transaction, request: GetAttr, context: Context) -> Entry:
    return Entry(load(tx, request.ino).attributes.pack())


ROWS: Final = (
    OpRow(
        op=Op.GETATTR,
        run=getattr_,
        footprint=footprints.attributes,
        grants=grants.found,
        is_look=True,
        names=names.its_ino,
    ),
)
