"""LINK: one more name for anything but a directory."""

from fscommon.errors import FsError, Status
from fscommon.limits import LINK_COUNT_MAX
from fscommon.wire.messages import Entry, Link
from metaserver.context import Context
from metaserver.namespace.entries import new_key, put_dentry
from metaserver.namespace.inode import load, load_directory, save, touch_directory
from metaserver.transaction import Transaction


def link(tx: Transaction, request: Link, context: Context) -> Entry:
    parent = load_directory(tx, request.new_parent)
    inode = load(tx, request.ino)
    if inode.is_directory:
        raise FsError(Status.EPERM, "a directory has one name")
    key = new_key(tx, request.new_parent, request.new_name)
    if inode.attributes.nlink == 0:
        raise FsError(Status.ENOENT, "the last name is gone")
    if inode.attributes.nlink >= LINK_COUNT_MAX:
        raise FsError(Status.EMLINK)
    put_dentry(tx, key, inode.ino, inode.attributes.mode)
    touch_directory(tx, parent, context.now_ns, subdirectories=0)
    linked = inode.changed(context.now_ns, nlink=inode.attributes.nlink + 1)
    return Entry(save(tx, linked))
