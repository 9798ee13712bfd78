"""Merges what a writer knows of a file, and the metaserver does not know yet.

The size is the maximum of both. The mtime is that of the last write, even if a later time had been
set before. Leases and the order of requests make sure that this report is newer than the record.
"""

from dataclasses import replace

from fscommon.layout.attributes import sectors
from metaserver.namespace.inode import Inode


def ctime_of(before: Inode, mtime_ns: int, now_ns: int) -> int:
    """Returns the ctime of a file that was written at mtime_ns (0: unknown). It is mtime_ns, which
    its writer shows too, so that all clients see the same; but not if another change came later, or
    if mtime_ns is in the future."""
    return mtime_ns if before.attributes.ctime_ns <= mtime_ns <= now_ns else now_ns


def merge_written(inode: Inode, size: int, mtime_ns: int) -> Inode:
    """Returns the merged inode. 0 means unknown. Either raises data_version; the caller sets
    ctime."""
    attributes = inode.attributes
    if size <= attributes.size and not mtime_ns:
        return inode
    merged = replace(
        attributes,
        size=max(size, attributes.size),
        blocks=sectors(max(size, attributes.size)),
        mtime_ns=mtime_ns or attributes.mtime_ns,
        data_version=attributes.data_version + 1,
    )
    return Inode(merged, inode.tail)
