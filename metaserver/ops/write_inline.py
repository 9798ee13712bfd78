"""WRITE_INLINE: writes bytes of a file whose bytes lie in its inode's record, and stay there.

It is one transaction, like a change of attributes, and needs no storage server
(docs/decisions/0037-inline-data.md). It fails with ESTALE if the file has objects, or would become
too long for a record. The writer then gets objects by an OPEN with `moves`. The op does not check
whether the session has the file open for writing, because the file may be closed when this is
replayed.
"""

from typing import Final

from fscommon.errors import FsError, Status
from fscommon.limits import INLINE_LENGTH_MAX
from fscommon.wire.messages import COMMIT_KILL_SGID, COMMIT_KILL_SUIDGID, Opened, WriteInline
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.namespace.charges import charge_change, check_growth, size_limit
from metaserver.namespace.inline import has_inline, with_bytes
from metaserver.namespace.inode import Inode, load, save
from metaserver.namespace.privileges import after_write
from metaserver.namespace.written import ctime_of, merge_written
from metaserver.ops import footprints, grants, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction

_FLAGS = COMMIT_KILL_SGID | COMMIT_KILL_SUIDGID


def write_inline(tx: Transaction, request: WriteInline, context: Context) -> Opened:
    context.wait_durable |= request.durable
    if request.flags & ~_FLAGS or not request.content:
        raise FsError(Status.BAD_REQUEST, "no bytes, or unknown flags")
    inode = load(tx, request.ino)
    _check_writable(inode, request, context)
    end = request.offset + len(request.content)
    if end > inode.attributes.size:
        check_growth(context, inode.attributes, end)
    written = merge_written(
        with_bytes(inode, request.offset, request.content), end, request.mtime_ns
    )
    attributes = after_write(tx, written.attributes, request.flags, context)
    ctime_ns = ctime_of(inode, request.mtime_ns, context.now_ns)
    changed = Inode(attributes, written.tail).changed(ctime_ns)
    charge_change(tx, context, inode.attributes, changed.attributes)
    packed = save(tx, changed)
    capability = context.services.capability(context, changed.tail, inode.ino, writable=True)
    return Opened(packed, changed.tail, capability, size_limit(context, inode.attributes))


def _check_writable(inode: Inode, request: WriteInline, context: Context) -> None:
    if not inode.is_file:
        raise FsError(Status.EINVAL, "not a regular file")
    context.check_not_truncating(inode.ino)
    if not has_inline(inode) or inode.layout().file_id != request.file_id:
        raise FsError(Status.ESTALE, "its bytes do not lie in its record")
    if request.offset + len(request.content) > INLINE_LENGTH_MAX:
        raise FsError(Status.ESTALE, "too long to lie in a record")


ROWS: Final = (
    OpRow(
        op=Op.WRITE_INLINE,
        run=write_inline,
        footprint=footprints.written_file,
        grants=grants.only_held,
        names=names.its_ino,
        squash=squash.write_inode,
    ),
)
