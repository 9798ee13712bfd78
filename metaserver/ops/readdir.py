"""READDIR: a page of a directory behind a cookie, with attributes.

The order is that of name hashes, which never changes, so a page needs no state: an entry that is
there all the time is seen exactly once.
"""

from fscommon.layout.attributes import ATTRIBUTES_SIZE
from fscommon.wire.messages import DirectoryEntry, ReadDir, ReadDirReply
from metaserver.context import Context
from metaserver.namespace.listing import list_page
from metaserver.records import dentry_cookie, dentry_name
from metaserver.transaction import Transaction


def readdir(tx: Transaction, request: ReadDir, context: Context) -> ReadDirReply:
    entries, end = list_page(tx, request.ino, request.cookie, request.count, _entry)
    return ReadDirReply(entries, end=end)


def _entry(key: bytes, record: bytes) -> DirectoryEntry:
    return DirectoryEntry(dentry_name(key), dentry_cookie(key), record[:ATTRIBUTES_SIZE])
