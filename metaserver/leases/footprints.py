"""Footprints: what each op reads and changes, inode by inode, before it runs.

A shared bit stands for a read that must see what an exclusive holder knows, an exclusive bit for a
change that no other session may go on caching. Pure functions of the request and of what the
transaction shows; an op that will fail has the footprint of what it looks at. Attributes that a
reply shows in passing (of the inodes in a LOOKUP or READDIR) are no read: without a lease on them
the client believes them for nothing but the name.
Every op of a session has a row, and so have ops of administrators that look at names: what a client
made a moment ago is there for them too. `uncovered` compares a row with what the op then wrote.
"""

import stat
from collections.abc import Callable, Iterable
from typing import Any, Final

from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_ENTRIES_EXCLUSIVE,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    LEASE_READER,
    unpack_attributes,
)
from fscommon.types import Ino
from fscommon.wire.admin import INSPECT_NAMES_MAX, Inspect, TreeSum
from fscommon.wire.births import ChangeBatch, Delegate
from fscommon.wire.leases import LeaseTake
from fscommon.wire.messages import SET_SIZE, Create, Link, Open, Rename, SetAttr, WriteInline
from fscommon.wire.ops import Op
from fscommon.wire.quota import TELL_INODES_MAX, QuotaTell
from fscommon.wire.trash import TRASH_ITEMS_MAX, TrashByAge, TrashList, TrashRestore
from metaserver.leases.holders import Need
from metaserver.records import dentry_key, inode_key, number_of, unpack_dentry
from metaserver.transaction import Transaction

Footprint = list[Need]
_CHANGED_NAMES: Final = LEASE_ENTRIES_EXCLUSIVE | LEASE_META_EXCLUSIVE
_WRITE_FILE: Final = LEASE_META_EXCLUSIVE | LEASE_DATA_EXCLUSIVE
# Of a directory: whoever knows names of it that nobody else does tells them, and goes on as before.
_ASKED: Final = LEASE_META


def _nothing(tx: Transaction, request: Any) -> Footprint:
    return []


def _names_of_parent(tx: Transaction, request: Any) -> Footprint:
    return [Need(Ino(request.parent), LEASE_ENTRIES)]


def _names(tx: Transaction, request: Any) -> Footprint:
    return [Need(Ino(request.ino), LEASE_ENTRIES)]


def _read(tx: Transaction, request: Any) -> Footprint:
    return [Need(Ino(request.ino), LEASE_META)]


def _change(tx: Transaction, request: Any) -> Footprint:
    return [Need(Ino(request.ino), LEASE_META_EXCLUSIVE)]


def _add_name(tx: Transaction, request: Any) -> Footprint:
    return [Need(Ino(request.parent), _CHANGED_NAMES)]


def _remove_name(tx: Transaction, request: Any) -> Footprint:
    ino = _find(tx, request.parent, request.name)
    if ino is None:
        return _names_of_parent(tx, request)
    return [Need(Ino(request.parent), _CHANGED_NAMES), Need(ino, LEASE_META_EXCLUSIVE)]


def _rename(tx: Transaction, request: Rename) -> Footprint:
    needs = [Need(Ino(request.parent), _CHANGED_NAMES)]
    if request.new_parent != request.parent:
        needs.append(Need(Ino(request.new_parent), _CHANGED_NAMES))
    inos = {
        _find(tx, request.parent, request.name),
        _find(tx, request.new_parent, request.new_name),
    }
    return needs + [Need(ino, LEASE_META_EXCLUSIVE) for ino in inos if ino is not None]


def _link(tx: Transaction, request: Link) -> Footprint:
    return [
        Need(Ino(request.new_parent), _CHANGED_NAMES),
        Need(Ino(request.ino), LEASE_META_EXCLUSIVE),
    ]


def _create(tx: Transaction, request: Create) -> Footprint:
    ino = _find(tx, request.parent, request.name)
    if ino is None:
        return [Need(Ino(request.parent), _CHANGED_NAMES)]
    looked = [Need(Ino(request.parent), LEASE_ENTRIES)]
    if request.exclusive:
        return looked
    return looked + _opening(tx, ino, writable=request.writable)


def _open(tx: Transaction, request: Open) -> Footprint:
    return _opening(tx, Ino(request.ino), writable=request.writable)


def _opening(tx: Transaction, ino: Ino, *, writable: bool) -> Footprint:
    if not _is_file(tx, ino):
        return [Need(ino, LEASE_META)]
    return [Need(ino, _WRITE_FILE if writable else LEASE_READER)]


def _setattr(tx: Transaction, request: SetAttr) -> Footprint:
    resizes = request.valid & SET_SIZE
    return [Need(Ino(request.ino), _WRITE_FILE if resizes else LEASE_META_EXCLUSIVE)]


def _write_inline(tx: Transaction, request: WriteInline) -> Footprint:
    return [Need(Ino(request.ino), _WRITE_FILE)]


def _take(tx: Transaction, request: LeaseTake) -> Footprint:
    return [Need(Ino(request.ino), taken_with(request.flags))]


def _delegate(tx: Transaction, request: Delegate) -> Footprint:
    return [Need(Ino(request.ino), _CHANGED_NAMES)] if request.ino else []


def _change_batch(tx: Transaction, request: ChangeBatch) -> Footprint:
    """Of the directories alone: a batch waits for nobody, as all else of its client comes behind it
    (docs/decisions/0014-removals.md)."""
    parents = {birth.parent for birth in request.births}
    parents.update(removal.parent for removal in request.removals)
    parents.update(move.parent for move in request.moves)
    return [Need(Ino(ino), _CHANGED_NAMES) for ino in parents]


def told_afterwards(request: Any) -> Footprint:
    """Changes that are not waited for: whoever holds a lease that they void is told afterwards."""
    if not isinstance(request, ChangeBatch):
        return []
    inos = [change.ino for change in request.removals]
    inos += [change.ino for change in request.settings]
    inos += [ino for move in request.moves for ino in (move.ino, move.replaced) if ino]
    return [Need(Ino(ino), LEASE_META_EXCLUSIVE) for ino in inos]


def _quota_tell(tx: Transaction, request: QuotaTell) -> Footprint:
    shared = LEASE_META | (LEASE_ENTRIES if request.names else LEASE_DATA)
    return [Need(Ino(ino), shared) for ino in request.inos[:TELL_INODES_MAX]]


def _trash_restore(tx: Transaction, request: TrashRestore) -> Footprint:
    inodes = [Need(Ino(item.ino), LEASE_META_EXCLUSIVE) for item in request.items[:TRASH_ITEMS_MAX]]
    return [Need(Ino(request.new_directory), _CHANGED_NAMES), *inodes]


def _inspect(tx: Transaction, request: Inspect) -> Footprint:
    """The directories on the way, as far as their names are known yet."""
    ino: Ino | None = Ino(request.ino)
    needs = []
    for name in request.names[:INSPECT_NAMES_MAX]:
        if ino is None:
            break
        needs.append(Need(ino, _ASKED))
        ino = _find(tx, ino, name)
    return needs


def _tree_sum(tx: Transaction, request: TreeSum) -> Footprint:
    """Where it goes on; it ends before the next directory that somebody holds exclusively."""
    return [Need(Ino(place.ino), _ASKED) for place in request.stack[-1:]]


def _trash_list(tx: Transaction, request: TrashList) -> Footprint:
    return [Need(Ino(request.directory), _ASKED)]


def _trash_by_age(tx: Transaction, request: TrashByAge) -> Footprint:
    """Of the tree's own directory: what was removed a moment ago further down may be missing."""
    return [Need(Ino(request.tree), _ASKED)]


def taken_with(flags: int) -> int:
    """What LEASE_TAKE of these bits takes: bytes always with size, exclusive with shared."""
    if flags & (LEASE_DATA_EXCLUSIVE | LEASE_META_EXCLUSIVE):
        return _WRITE_FILE | LEASE_READER
    if flags & LEASE_DATA:
        return LEASE_READER | flags & LEASE_ENTRIES
    return flags & (LEASE_META | LEASE_ENTRIES)


def _find(tx: Transaction, parent: int, name: bytes) -> Ino | None:
    value = tx.get(dentry_key(parent, name))
    return None if value is None else unpack_dentry(value)[0]


def _is_file(tx: Transaction, ino: Ino) -> bool:
    raw = tx.get(inode_key(ino))
    return raw is not None and stat.S_ISREG(unpack_attributes(raw[:ATTRIBUTES_SIZE]).mode)


FOOTPRINTS: Final[dict[Op, Callable[[Transaction, Any], Footprint]]] = {
    Op.LOOKUP: _names_of_parent,
    Op.GETATTR: _read,
    Op.SETATTR: _setattr,
    Op.MKNOD: _add_name,
    Op.MKDIR: _add_name,
    Op.SYMLINK: _add_name,
    Op.READLINK: _nothing,  # the target of a symbolic link never changes
    Op.UNLINK: _remove_name,
    Op.RMDIR: _remove_name,
    Op.RENAME: _rename,
    Op.LINK: _link,
    Op.CREATE: _create,
    Op.OPEN: _open,
    Op.READDIR: _names,
    Op.COMMIT: _change,
    Op.WRITE_INLINE: _write_inline,
    Op.GETXATTR: _read,
    Op.SETXATTR: _change,
    Op.LISTXATTR: _read,
    Op.REMOVEXATTR: _change,
    Op.STATFS: _nothing,
    Op.MOUNT_ROOT: _nothing,  # the client takes its leases when it looks
    Op.BARRIER: _nothing,
    Op.TMPFILE: _nothing,  # the directory gives it group and ACL, nothing more
    Op.LOCK_GET: _nothing,
    Op.LOCK_SET: _nothing,
    Op.LOCK_EVENTS: _nothing,
    Op.LOCK_CANCEL: _nothing,
    Op.DELEGATE: _delegate,
    Op.CHANGE_BATCH: _change_batch,
    Op.OPEN_AHEAD: _nothing,  # it takes what is free
    Op.LEASE_TAKE: _take,
    Op.INSPECT: _inspect,  # of no session, as all that follow
    Op.INSPECT_LIST: _read,
    Op.TREE_SUM: _tree_sum,
    Op.TRASH_LIST: _trash_list,
    Op.TRASH_BY_AGE: _trash_by_age,
    Op.QUOTA_TELL: _quota_tell,
    Op.TRASH_RESTORE: _trash_restore,
}


def uncovered(needs: Iterable[Need], written: Iterable[bytes]) -> set[Need]:
    """Changes, as keys of the store, that the footprint does not announce. Keys of inodes that the
    op made are the caller's to leave out."""
    announced: dict[int, int] = {}
    for need in needs:
        announced[need.ino] = announced.get(need.ino, 0) | need.flags
    missing = set()
    for key in written:
        bit = _CHANGE_OF.get(key[:1], 0)
        if bit and not announced.get(number_of(key), 0) & bit:
            missing.add(Need(Ino(number_of(key)), bit))
    return missing


_CHANGE_OF: Final = {
    b"I": LEASE_META_EXCLUSIVE,
    b"X": LEASE_META_EXCLUSIVE,
    b"D": LEASE_ENTRIES_EXCLUSIVE,
}
