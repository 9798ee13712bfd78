"""RENAME: moves a name, and replaces or exchanges what has the new name. It is atomic.

All checks come before the first change, after which nothing can fail. The kernel checks sticky bits
and permissions (default_permissions).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_META_EXCLUSIVE
from fscommon.types import Ino
from fscommon.wire.messages import RENAME_EXCHANGE, RENAME_NOREPLACE, Rename, Renamed
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.identity import Who
from metaserver.leases.holders import Need
from metaserver.namespace.charges import charge_change, check_tree
from metaserver.namespace.entries import Dentry, find_dentry, get_dentry, is_empty, put_dentry
from metaserver.namespace.inode import Inode, find, load, load_directory, save, touch_directory
from metaserver.namespace.links import drop_name
from metaserver.namespace.protection import check_may_add, check_may_remove
from metaserver.namespace.trash import Place
from metaserver.ops import grants
from metaserver.ops.footprints import CHANGED_NAMES, ino_named
from metaserver.ops.row import OpRow
from metaserver.records import dentry_key
from metaserver.transaction import Transaction


@dataclass(frozen=True, slots=True)
class _Move:
    old_parent: Inode
    new_parent: Inode
    dentry: Dentry
    source: Inode
    other: Inode | None  # the inode that has the new name

    @property
    def across(self) -> bool:
        return self.old_parent.ino != self.new_parent.ino


def rename(tx: Transaction, request: Rename, context: Context) -> Renamed:
    if request.flags not in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
        raise FsError(Status.EINVAL, "unknown flags of rename")
    move = _find(tx, request)
    _check_unprotected(move)
    if request.flags == RENAME_EXCHANGE:
        return _exchange(tx, request, move, context)
    return _move(tx, request, move, context)


def _find(tx: Transaction, request: Rename) -> _Move:
    old_parent = load_directory(tx, request.parent)
    new_parent = load_directory(tx, request.new_parent)
    dentry = get_dentry(tx, request.parent, request.name)
    taken = find_dentry(tx, request.new_parent, request.new_name)
    other = load(tx, taken.ino) if taken else None
    return _Move(old_parent, new_parent, dentry, load(tx, dentry.ino), other)


def _check_unprotected(move: _Move) -> None:
    check_may_remove(move.old_parent, move.source)
    check_may_add(move.new_parent)
    if move.other is not None:
        check_may_remove(move.new_parent, move.other)


def _move(tx: Transaction, request: Rename, move: _Move, context: Context) -> Renamed:
    if move.other is not None and request.flags & RENAME_NOREPLACE:
        raise FsError(Status.EEXIST)
    if move.other is not None and move.other.ino == move.source.ino:
        return Renamed(move.source.attributes.pack(), b"")
    _check_replaceable(tx, move)
    if move.source.is_directory and move.across:
        _check_not_below(tx, move.new_parent, move.source)
    tx.delete(move.dentry.key)
    key = dentry_key(request.new_parent, request.new_name)
    put_dentry(tx, key, move.source.ino, move.source.attributes.mode)
    _touch_parents(tx, move, context)
    moved = _move_inode(tx, move.source, move.old_parent, move.new_parent, context)
    place = Place(request.new_parent, request.new_name)
    if move.other is None:
        return Renamed(moved, b"")
    is_file = not move.other.is_directory
    return Renamed(moved, drop_name(tx, move.other, place, context, replaced=is_file))


def _exchange(tx: Transaction, request: Rename, move: _Move, context: Context) -> Renamed:
    if move.other is None:
        raise FsError(Status.ENOENT)
    if move.other.ino == move.source.ino:
        packed = move.source.attributes.pack()
        return Renamed(packed, packed)
    if move.across:
        for inode, parent in ((move.source, move.new_parent), (move.other, move.old_parent)):
            if inode.is_directory:
                _check_not_below(tx, parent, inode)
    key = dentry_key(request.new_parent, request.new_name)
    put_dentry(tx, key, move.source.ino, move.source.attributes.mode)
    put_dentry(tx, move.dentry.key, move.other.ino, move.other.attributes.mode)
    _touch_parents(tx, move, context, exchange=True)
    moved = _move_inode(tx, move.source, move.old_parent, move.new_parent, context)
    other = _move_inode(tx, move.other, move.new_parent, move.old_parent, context)
    return Renamed(moved, other)


def _check_replaceable(tx: Transaction, move: _Move) -> None:
    other = move.other
    if other is None:
        return
    if move.source.is_directory and not other.is_directory:
        raise FsError(Status.ENOTDIR)
    if other.is_directory and not move.source.is_directory:
        raise FsError(Status.EISDIR)
    if other.is_directory and not is_empty(tx, other.ino):
        raise FsError(Status.ENOTEMPTY)


def _check_not_below(tx: Transaction, directory: Inode, root: Inode) -> None:
    """Raises EINVAL if directory is root or below root."""
    while directory.ino != directory.attributes.parent:
        if directory.ino == root.ino:
            raise FsError(Status.EINVAL, "a directory cannot move below itself")
        directory = load(tx, directory.attributes.parent)


def _touch_parents(
    tx: Transaction, move: _Move, context: Context, *, exchange: bool = False
) -> None:
    moved = int(move.source.is_directory)
    other = int(move.other is not None and move.other.is_directory)
    if not move.across:
        lost = 0 if exchange else -other
        touch_directory(tx, move.old_parent, context.now_ns, subdirectories=lost)
        return
    back = other if exchange else 0
    touch_directory(tx, move.old_parent, context.now_ns, subdirectories=back - moved)
    touch_directory(tx, move.new_parent, context.now_ns, subdirectories=moved - other)


def _move_inode(
    tx: Transaction, inode: Inode, old_parent: Inode, parent: Inode, context: Context
) -> bytes:
    fields = {"parent": parent.ino} if inode.is_directory else {}
    tree = _tree_after(tx, inode, old_parent, parent, context)
    changed = inode.changed(context.now_ns, tree=tree, **fields)
    if inode.attributes.parent != changed.attributes.parent:
        context.services.trash.moved()
    charge_change(tx, context, inode.attributes, changed.attributes)
    return save(tx, changed)


def _tree_after(
    tx: Transaction, inode: Inode, old_parent: Inode, parent: Inode, context: Context
) -> int:
    """Returns the quota tree of the inode after the move. A file changes into another tree. A
    directory would have to take everything below along: EXDEV, so that mv(1) copies. The top of a
    tree may move anywhere."""
    attributes = inode.attributes
    tree = parent.attributes.tree
    if tree in (attributes.tree, old_parent.attributes.tree) or attributes.tree == attributes.ino:
        return attributes.tree
    if context.replayed is None:
        if inode.is_directory or attributes.nlink > 1:
            raise FsError(Status.EXDEV, "the target is in another quota tree")
        check_tree(tx, context, attributes, tree)
    return tree


# ---- row ---------------------------------------------------------------------------------------


def _footprint(tx: Transaction, request: Rename) -> list[Need]:
    needs = [Need(Ino(request.parent), CHANGED_NAMES)]
    if request.new_parent != request.parent:
        needs.append(Need(Ino(request.new_parent), CHANGED_NAMES))
    inos = {
        ino_named(tx, request.parent, request.name),
        ino_named(tx, request.new_parent, request.new_name),
    }
    return needs + [Need(ino, LEASE_META_EXCLUSIVE) for ino in inos if ino is not None]


def _names(request: Rename) -> Iterable[int]:
    return (request.parent, request.new_parent)


def _squash(tx: Transaction, request: Rename, who: Who) -> Rename:
    for parent, name in ((request.parent, request.name), (request.new_parent, request.new_name)):
        squash.check_may(tx, parent, squash.WRITE | squash.SEARCH, who)
        squash.check_sticky(tx, parent, name, who)
        dentry = find_dentry(tx, parent, name)
        moved = find(tx, dentry.ino) if dentry is not None else None
        if moved is not None and moved.is_directory and request.parent != request.new_parent:
            squash.check_may(tx, moved.ino, squash.WRITE, who)  # its `..` changes
    return request


ROWS: Final = (
    OpRow(
        op=Op.RENAME,
        run=rename,
        footprint=_footprint,
        grants=grants.found,
        names=_names,
        squash=_squash,
    ),
)
