"""READDIR: a page of a directory behind a cookie, with attributes.

The order is that of name hashes, which never changes, so a page needs no state: an entry that is
there all the time is seen exactly once.
"""

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import ATTRIBUTES_SIZE
from fscommon.limits import READDIR_ENTRIES_MAX
from fscommon.wire.messages import DirectoryEntry, ReadDir, ReadDirReply
from metaserver.context import Context
from metaserver.namespace.inode import load
from metaserver.records import (
    dentries_after,
    dentry_cookie,
    dentry_name,
    inode_key,
    unpack_dentry,
)
from metaserver.transaction import Transaction


def readdir(tx: Transaction, request: ReadDir, context: Context) -> ReadDirReply:
    if not load(tx, request.ino).is_directory:
        raise FsError(Status.ENOTDIR)
    if request.count < 1:
        raise FsError(Status.EINVAL, "a page has at least one entry")
    count = min(request.count, READDIR_ENTRIES_MAX)
    entries: list[DirectoryEntry] = []
    for key, value in tx.range(*dentries_after(request.ino, request.cookie)):
        if len(entries) == count:
            return ReadDirReply(tuple(entries), end=False)
        entry = _entry(tx, key, value)
        if entry is not None:
            entries.append(entry)
    return ReadDirReply(tuple(entries), end=True)


def _entry(tx: Transaction, key: bytes, value: bytes) -> DirectoryEntry | None:
    record = tx.get(inode_key(unpack_dentry(value)[0]))
    if record is None:
        return None
    return DirectoryEntry(dentry_name(key), dentry_cookie(key), record[:ATTRIBUTES_SIZE])
