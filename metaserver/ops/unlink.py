"""UNLINK: removes a name of an inode that is no directory."""

from typing import Final

from fscommon.errors import FsError, Status
from fscommon.wire.messages import Removed, Unlink
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.namespace.entries import get_dentry
from metaserver.namespace.inode import load, load_directory, touch_directory
from metaserver.namespace.links import drop_name
from metaserver.namespace.protection import check_may_remove
from metaserver.namespace.trash import Place
from metaserver.ops import footprints, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def unlink(tx: Transaction, request: Unlink, context: Context) -> Removed:
    parent = load_directory(tx, request.parent)
    dentry = get_dentry(tx, request.parent, request.name)
    inode = load(tx, dentry.ino)
    if inode.is_directory:
        raise FsError(Status.EISDIR)
    check_may_remove(parent, inode)
    tx.delete(dentry.key)
    touch_directory(tx, parent, context.now_ns, subdirectories=0)
    return Removed(drop_name(tx, inode, Place(request.parent, request.name), context))


ROWS: Final = (
    OpRow(
        op=Op.UNLINK,
        run=unlink,
        footprint=footprints.removed_name,
        names=names.its_parent,
        squash=squash.remove,
    ),
)
