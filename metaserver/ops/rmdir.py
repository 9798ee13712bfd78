"""RMDIR: removes an empty directory."""

from typing import Final

from fscommon.errors import FsError, Status
from fscommon.wire.messages import Removed, RmDir
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.namespace.entries import get_dentry, is_empty
from metaserver.namespace.inode import load, load_directory, touch_directory
from metaserver.namespace.links import drop_name
from metaserver.namespace.protection import check_may_remove
from metaserver.namespace.trash import Place
from metaserver.ops import footprints, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def rmdir(tx: Transaction, request: RmDir, context: Context) -> Removed:
    parent = load_directory(tx, request.parent)
    dentry = get_dentry(tx, request.parent, request.name)
    inode = load(tx, dentry.ino)
    if not inode.is_directory:
        raise FsError(Status.ENOTDIR)
    check_may_remove(parent, inode)
    if not is_empty(tx, inode.ino):
        raise FsError(Status.ENOTEMPTY)
    tx.delete(dentry.key)
    touch_directory(tx, parent, context.now_ns, subdirectories=-1)
    return Removed(drop_name(tx, inode, Place(request.parent, request.name), context))


ROWS: Final = (
    OpRow(
        op=Op.RMDIR,
        run=rmdir,
        footprint=footprints.removed_name,
        names=names.its_parent,
        squash=squash.remove,
    ),
)
