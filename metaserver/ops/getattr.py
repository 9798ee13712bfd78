"""GETATTR: the attributes of an inode."""

from fscommon.wire.messages import Entry, GetAttr
from metaserver.context import Context
from metaserver.namespace.inode import load
from metaserver.transaction import Transaction


def getattr_(tx: Transaction, request: GetAttr, context: Context) -> Entry:
    return Entry(load(tx, request.ino).attributes.pack())
