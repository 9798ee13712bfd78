"""LOOKUP: the inode behind a name."""

from fscommon.wire.messages import Entry, Lookup
from metaserver.context import Context
from metaserver.namespace.entries import get_dentry
from metaserver.namespace.inode import load, load_directory
from metaserver.transaction import Transaction


def lookup(tx: Transaction, request: Lookup, context: Context) -> Entry:
    load_directory(tx, request.parent)
    dentry = get_dentry(tx, request.parent, request.name)
    return Entry(load(tx, dentry.ino).attributes.pack())
