"""Merging what a writer knows of a file and the metaserver not yet: size by maximum; mtime is when
it was written last, also where it had been set to a later time. By leases and the order of requests
this is news.
"""

from dataclasses import replace

from fscommon.layout.attributes import sectors
from metaserver.namespace.inode import Inode


def ctime_of(before: Inode, mtime_ns: int, now_ns: int) -> int:
    """When a file changed that was written at mtime_ns (0: who knows): then, as its writer is shown
    it, so that all clients see the same; unless another change came later, or it is yet to come."""
    return mtime_ns if before.attributes.ctime_ns <= mtime_ns <= now_ns else now_ns


def merge_written(inode: Inode, size: int, mtime_ns: int) -> Inode:
    """0 means nothing is known. The caller sets ctime. data_version rises with either."""
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
