"""LINK: adds a name to an inode that is no directory; a file of O_TMPFILE gets its first name."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import INODE_LINKABLE, LEASE_META_EXCLUSIVE
from fscommon.limits import LINK_COUNT_MAX
from fscommon.types import Ino
from fscommon.wire.messages import Entry, Link
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.identity import Who
from metaserver.leases.holders import Need
from metaserver.namespace.charges import charge_change, check_tree
from metaserver.namespace.entries import new_key, put_dentry
from metaserver.namespace.inode import Inode, load, load_directory, save, touch_directory
from metaserver.namespace.protection import check_may_add, check_may_link
from metaserver.ops import grants
from metaserver.ops.footprints import CHANGED_NAMES
from metaserver.ops.row import OpRow
from metaserver.records import orphan_key
from metaserver.transaction import Transaction


def link(tx: Transaction, request: Link, context: Context) -> Entry:
    parent = load_directory(tx, request.new_parent)
    inode = load(tx, request.ino)
    if inode.is_directory:
        raise FsError(Status.EPERM, "a directory has one name")
    key = new_key(tx, request.new_parent, request.new_name)
    check_may_add(parent)
    check_may_link(inode)
    context.check_room()
    if inode.attributes.nlink == 0:
        inode = _first_name(tx, inode, context)
        inode = _into_tree(tx, inode, parent.attributes.tree, context)
    elif inode.attributes.tree != parent.attributes.tree and context.replayed is None:
        raise FsError(Status.EXDEV, "the names of a file are in one quota tree")
    if inode.attributes.nlink >= LINK_COUNT_MAX:
        raise FsError(Status.EMLINK)
    put_dentry(tx, key, inode.ino, inode.attributes.mode)
    touch_directory(tx, parent, context.now_ns, subdirectories=0)
    linked = inode.changed(context.now_ns, nlink=inode.attributes.nlink + 1)
    return Entry(save(tx, linked))


def _into_tree(tx: Transaction, inode: Inode, tree: int, context: Context) -> Inode:
    """Moves a file without a name into the quota tree of its first name. Raises EDQUOT."""
    if inode.attributes.tree == tree:
        return inode
    check_tree(tx, context, inode.attributes, tree)
    moved = Inode(replace(inode.attributes, tree=tree), inode.tail)
    charge_change(tx, context, inode.attributes, moved.attributes)
    return moved


def _first_name(tx: Transaction, inode: Inode, context: Context) -> Inode:
    """Makes a file of O_TMPFILE no orphan any more. A file that lost its last name stays one."""
    flags = inode.attributes.flags
    if not flags & INODE_LINKABLE:
        raise FsError(Status.ENOENT, "the last name is gone")
    tx.delete(orphan_key(inode.ino))
    context.services.sessions.reaped(inode.ino)
    return Inode(replace(inode.attributes, flags=flags & ~INODE_LINKABLE), inode.tail)


def _footprint(tx: Transaction, request: Link) -> list[Need]:
    return [
        Need(Ino(request.new_parent), CHANGED_NAMES),
        Need(Ino(request.ino), LEASE_META_EXCLUSIVE),
    ]


def _names(request: Link) -> Iterable[int]:
    return (request.ino, request.new_parent)


def _squash(tx: Transaction, request: Link, who: Who) -> Link:
    squash.check_may(tx, request.new_parent, squash.WRITE | squash.SEARCH, who)
    squash.check_may(tx, request.ino, squash.READ | squash.WRITE, who)
    return request


ROWS: Final = (
    OpRow(
        op=Op.LINK,
        run=link,
        footprint=_footprint,
        grants=grants.found,
        names=_names,
        squash=_squash,
    ),
)
