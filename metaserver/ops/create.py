"""CREATE: make a regular file and open it, or open the one that is there.

A name that belongs to something else than a file is a race of the kernel's lookup with another
client: ESTALE makes the kernel look again.
"""

import stat

from fscommon.errors import FsError, Status
from fscommon.wire.messages import Create, Opened
from metaserver.context import Context
from metaserver.namespace.birth import Wanted, give_birth
from metaserver.namespace.entries import find_dentry
from metaserver.namespace.inode import load, load_directory
from metaserver.ops.open import open_inode
from metaserver.transaction import Transaction


def create(tx: Transaction, request: Create, context: Context) -> Opened:
    if not request.exclusive:
        load_directory(tx, request.parent)
        dentry = find_dentry(tx, request.parent, request.name)
        if dentry is not None:
            inode = load(tx, dentry.ino)
            if inode.is_directory:
                raise FsError(Status.EISDIR)
            if not inode.is_file:
                raise FsError(Status.ESTALE, "not a regular file")
            return open_inode(tx, inode, context, writable=request.writable)
    mode = stat.S_IFREG | stat.S_IMODE(request.mode)
    inode = give_birth(tx, Wanted(request.parent, request.name, mode, request.caller), context)
    return open_inode(tx, inode, context, writable=request.writable)
