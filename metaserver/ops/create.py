"""CREATE: makes a regular file and opens it, or opens the file that has the name.

If the name belongs to something else than a file, another client has changed it since the kernel
looked it up: ESTALE makes the kernel look again.
"""

import stat
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_ENTRIES
from fscommon.types import Ino
from fscommon.wire.messages import Create, Opened
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.identity import Who
from metaserver.leases.holders import Need
from metaserver.namespace.birth import Wanted, give_birth
from metaserver.namespace.entries import find_dentry
from metaserver.namespace.inode import load, load_directory
from metaserver.ops import footprints, grants, names
from metaserver.ops.open import open_inode
from metaserver.ops.row import OpRow
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
    return open_inode(tx, inode, context, writable=request.writable, is_new=True)


def _footprint(tx: Transaction, request: Create) -> list[Need]:
    ino = footprints.ino_named(tx, request.parent, request.name)
    if ino is None:
        return footprints.added_name(tx, request)
    looked = [Need(Ino(request.parent), LEASE_ENTRIES)]
    if request.exclusive:
        return looked
    return looked + footprints.opened_inode(tx, ino, writable=request.writable)


def _squash(tx: Transaction, request: Create, who: Who) -> Create:
    dentry = None if request.exclusive else find_dentry(tx, request.parent, request.name)
    if dentry is None:
        made: Create = squash.make(tx, request, who)
        return made
    squash.check_may(tx, request.parent, squash.SEARCH, who)
    wanted = squash.READ | squash.WRITE if request.writable else squash.READ
    squash.check_may(tx, dentry.ino, wanted, who)
    return request


ROWS: Final = (
    OpRow(
        op=Op.CREATE,
        run=create,
        footprint=_footprint,
        grants=grants.opened,
        names=names.its_parent,
        squash=_squash,
    ),
)
