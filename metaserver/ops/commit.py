"""COMMIT: a writer reports what it did to a file: size, mtime, and which objects are durable.

A commit of an older file id, from before a truncate to zero, is answered but changes nothing. A
growth waits for a truncate of the file that has not ended (rule 19). A commit of a replicated file
is refused if a target has lost power since it acknowledged the bytes. What was written is accepted
whatever the quotas say; the reply says how far the file may grow from now on.
"""

from dataclasses import replace
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.layout import Layout
from fscommon.limits import FILE_SIZE_MAX
from fscommon.wire.messages import (
    COMMIT_KILL_SUIDGID,
    COMMIT_MTIME,
    COMMIT_SIZE,
    COMMIT_SYNCED,
    Commit,
    Committed,
)
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.namespace.charges import charge_change, size_limit
from metaserver.namespace.inode import Inode, load, save
from metaserver.namespace.privileges import after_write
from metaserver.namespace.written import ctime_of, merge_written
from metaserver.ops import footprints, grants, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def commit(tx: Transaction, request: Commit, context: Context) -> Committed:
    context.wait_durable |= request.durable
    inode = load(tx, request.ino)
    if not inode.is_file:
        raise FsError(Status.EINVAL, "not a regular file")
    if request.size > FILE_SIZE_MAX:
        raise FsError(Status.EFBIG)
    if request.flags & COMMIT_SIZE:
        context.check_not_truncating(inode.ino)
    layout = inode.layout()
    if layout.file_id != request.file_id:
        return _reply(inode.attributes.pack(), inode, context)
    if request.targets and context.replayed is None:
        _check_incarnations(layout, request, context)
    if layout.inline and request.flags & COMMIT_SIZE and request.size > inode.attributes.size:
        raise FsError(Status.EINVAL, "nobody has what lies in its record open for writing")
    written = _written(tx, inode, request, context)
    changed = _synced(written, request)
    if changed is inode:
        return _reply(inode.attributes.pack(), inode, context)
    charge_change(tx, context, inode.attributes, changed.attributes)
    return _reply(save(tx, changed), inode, context)


def _check_incarnations(layout: Layout, request: Commit, context: Context) -> None:
    """Raises STALE_INCARNATION if a target of the layout has lost what it has acknowledged. Its
    client still has that."""
    known = {one.target for one in layout.replicas()}
    for number, incarnation in zip(request.targets, request.incarnations, strict=False):
        target = context.services.membership.target(number)
        if number in known and target is not None and target.incarnation > incarnation:
            raise FsError(Status.STALE_INCARNATION, f"target {number} has lost what was written")


def _reply(packed: bytes, before: Inode, context: Context) -> Committed:
    """Makes the reply. before: the attributes that the accounts know until this op is merged."""
    return Committed(packed, size_limit(context, before.attributes))


def _written(tx: Transaction, inode: Inode, request: Commit, context: Context) -> Inode:
    size = request.size if request.flags & COMMIT_SIZE else 0
    mtime_ns = request.mtime_ns if request.flags & COMMIT_MTIME else 0
    changed = merge_written(inode, size, mtime_ns)
    attributes = changed.attributes
    if request.flags & (COMMIT_KILL_SUIDGID | COMMIT_MTIME):
        attributes = after_write(tx, attributes, request.flags, context)
    if attributes is inode.attributes:
        return inode
    ctime_ns = ctime_of(inode, mtime_ns, context.now_ns)
    return Inode(attributes, inode.tail).changed(ctime_ns)


def _synced(inode: Inode, request: Commit) -> Inode:
    if not request.flags & COMMIT_SYNCED:
        return inode
    layout = inode.layout()
    bits = request.stripe_bits & ((1 << layout.stripe_width) - 1)
    if layout.durable_stripes | bits == layout.durable_stripes:
        return inode
    marked = replace(layout, durable_stripes=layout.durable_stripes | bits)
    return Inode(inode.attributes, marked.pack())


ROWS: Final = (
    OpRow(
        op=Op.COMMIT,
        run=commit,
        footprint=footprints.changed_attributes,
        grants=grants.only_held,
        names=names.its_ino,
        squash=squash.write_inode,
        hurries_recall=True,
    ),
)
