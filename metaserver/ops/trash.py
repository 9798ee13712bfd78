"""TRASH_*: which trees have a trash, and what is done with its entries, on connections of purpose
"admin".

A restore recalls leases on the directory and the inodes, as a rename does (its footprint). A purge
waits for nobody: a client that has the file open keeps it until it closes the file. Both are
durable when they are answered, so neither has to be replayed.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_META_EXCLUSIVE
from fscommon.types import Ino
from fscommon.wire.ops import Op
from fscommon.wire.trash import (
    EXPIRY_S_MAX,
    TRASH_ENTRIES_MAX,
    TRASH_ITEMS_MAX,
    TRASH_PATHS_MAX,
    TRASH_TREES_MAX,
    TrashByAge,
    TrashDone,
    TrashEntry,
    TrashItem,
    TrashList,
    TrashListed,
    TrashPurge,
    TrashReport,
    TrashRestore,
    TrashRestored,
    TrashSet,
    TrashTree,
    TrashTrees,
)
from metaserver.context import Context
from metaserver.leases.holders import Need
from metaserver.namespace.charges import charge_change, check_tree
from metaserver.namespace.entries import new_key, put_dentry
from metaserver.namespace.inode import (
    Inode,
    find_readable,
    load,
    load_directory,
    save,
    touch_directory,
)
from metaserver.namespace.links import discard
from metaserver.namespace.paths import path_of
from metaserver.namespace.protection import check_may_add
from metaserver.namespace.trash import Entry, check_kept, find_entry, take, tree_of
from metaserver.ops.footprints import CHANGED_NAMES, SENT_NAMES
from metaserver.ops.row import Access, OpRow, always
from metaserver.records import (
    aged_after,
    kept_after,
    kept_of_aged,
    name_hash,
    pack_trash_tree,
    trash_tree_key,
)
from metaserver.store.waist import RecordError
from metaserver.transaction import Transaction
from metaserver.trash import Tree, TreeState


def trash_set(tx: Transaction, request: TrashSet, context: Context) -> TrashDone:
    context.check_serving()
    directory = load_directory(tx, request.ino)
    trash = context.services.trash
    known = trash.trees.get(directory.ino)
    if known is None and len(trash.trees) >= TRASH_TREES_MAX:
        raise FsError(Status.ENOSPC, f"there are {TRASH_TREES_MAX} trees of which it was said")
    if request.on and not 0 < request.expiry_s <= EXPIRY_S_MAX:
        raise FsError(Status.EINVAL, "the expiry is out of range")
    state = TreeState.ON if request.on else _state_off(tx, directory, context)
    expiry_s = request.expiry_s if request.on or known is None else known.expiry_s
    tree = Tree(state, max(expiry_s, 0), known.inodes if known else 0)
    trash.put(directory.ino, tree)
    tx.put(trash_tree_key(directory.ino), pack_trash_tree(tree.record()))
    context.wait_durable = True
    return TrashDone()


def _state_off(tx: Transaction, directory: Inode, context: Context) -> TreeState:
    """Returns the state of a tree whose trash is turned off. It is remembered only if a directory
    above has a trash."""
    above = directory.attributes.parent
    if above != directory.ino and tree_of(tx, above, context):
        return TreeState.OFF
    if directory.ino not in context.services.trash.trees:
        raise FsError(Status.ENOENT, "it has no trash")
    return TreeState.ENDING


# ---- listing -----------------------------------------------------------------------------------


def trash_trees(tx: Transaction, request: TrashTrees, context: Context) -> TrashReport:
    context.check_serving()
    if request.count < 1:
        raise FsError(Status.EINVAL, "a page has at least one tree")
    count = min(request.count, TRASH_PATHS_MAX)
    found = [
        (ino, tree)
        for ino, tree in sorted(context.services.trash.trees.items())
        if ino > request.after and (tree.state is not TreeState.ENDING or tree.inodes)
    ]
    rows = [
        TrashTree(ino, tree.state is TreeState.ON, tree.expiry_s, tree.inodes, path_of(tx, ino))
        for ino, tree in found[:count]
    ]
    return TrashReport(tuple(rows), end=len(found) <= count)


def trash_list(tx: Transaction, request: TrashList, context: Context) -> TrashListed:
    context.check_serving()
    hashed, ino = request.after_hash, request.after_ino
    if request.name and not hashed:
        hashed = name_hash(request.name)
    found = (Entry.parse(*row) for row in tx.readable(*kept_after(request.directory, hashed, ino)))
    page, end = _page(found, request.count)
    last = page[-1] if page else None
    if request.name:
        end = end or (last is not None and last.hashed != hashed)
        page = [entry for entry in page if entry.record.name == request.name]
    after = (last.hashed, last.ino) if last is not None else (0, 0)
    return TrashListed(tuple(_shown(tx, page)), *after, end=end)


def trash_by_age(tx: Transaction, request: TrashByAge, context: Context) -> TrashListed:
    context.check_serving()
    keys = aged_after(request.tree, request.after_ns, request.after_ino)
    entries = (_of_aged(tx, key, value) for key, value in tx.readable(*keys))
    found = (entry for entry in entries if entry is not None)
    page, end = _page(found, request.count)
    last = page[-1] if page else None
    after = (last.record.removed_ns, last.ino) if last is not None else (0, 0)
    return TrashListed(tuple(_shown(tx, page)), *after, end=end)


def _of_aged(tx: Transaction, key: bytes, value: bytes) -> Entry | None:
    """None: there is no such entry, or it cannot be read."""
    with suppress(RecordError):
        kept = kept_of_aged(key, value)
        raw = tx.get(kept)
        return None if raw is None else Entry.parse(kept, raw)
    return None


def _page(found: Iterator[Entry], count: int) -> tuple[list[Entry], bool]:
    if count < 1:
        raise FsError(Status.EINVAL, "a page has at least one entry")
    count = min(count, TRASH_ENTRIES_MAX)
    page = list(islice(found, count + 1))
    return page[:count], len(page) <= count


def _shown(tx: Transaction, page: Iterable[Entry]) -> Iterator[TrashEntry]:
    for entry in page:
        inode = find_readable(tx, entry.ino)
        record = entry.record
        yield TrashEntry(
            entry.directory,
            record.name,
            entry.ino,
            record.removed_ns,
            record.tree,
            inode.attributes.pack() if inode is not None else b"",
        )


# ---- back, or gone for good ----------------------------------------------------------------------


def trash_restore(tx: Transaction, request: TrashRestore, context: Context) -> TrashRestored:
    context.check_serving()
    _check_count(len(request.items))
    try:
        directory = load_directory(tx, request.new_directory)
    except FsError as error:
        if error.status is Status.ENOTDIR:
            raise
        message = "the directory is gone, or in the trash itself: restore it first"
        raise FsError(Status.ENOENT, message) from None
    check_may_add(directory)
    errors: list[int] = []
    messages: list[str] = []
    subdirectories = 0
    for item in request.items:
        try:
            subdirectories += _restore(tx, request.directory, item, directory, context)
            errors.append(0)
            messages.append("")
        except FsError as error:
            errors.append(int(error.status))
            messages.append(error.message)
    if not all(errors):
        names = errors.count(0)
        touch_directory(tx, directory, context.now_ns, names=names, subdirectories=subdirectories)
    context.wait_durable = True
    return TrashRestored(tuple(errors), tuple(messages))


def _restore(tx: Transaction, old: int, item: TrashItem, directory: Inode, context: Context) -> int:
    """Restores one entry. Returns 1 for a directory, else 0. Raises before it changes anything."""
    entry = find_entry(tx, old, item.name, item.ino)
    if entry is None:
        raise FsError(Status.ENOENT, "it is not in the trash")
    key = new_key(tx, directory.ino, item.new_name)
    inode = load(tx, entry.ino)
    check_kept(inode)
    tree = _quota_tree(tx, inode, directory, context)
    take(tx, entry, "restored", context)
    links = 2 if inode.is_directory else 1
    parent = directory.ino if inode.is_directory else 0
    back = inode.changed(context.now_ns, nlink=links, parent=parent, tree=tree)
    charge_change(tx, context, inode.attributes, back.attributes)
    save(tx, back)
    put_dentry(tx, key, inode.ino, inode.attributes.mode)
    if inode.is_directory:
        context.services.trash.moved()
    return int(inode.is_directory)


def _quota_tree(tx: Transaction, inode: Inode, directory: Inode, context: Context) -> int:
    """Returns the quota tree of the restored inode, as for a rename. Raises EXDEV, EDQUOT."""
    mine, there = inode.attributes.tree, directory.attributes.tree
    if mine in (there, inode.ino):
        return mine
    if inode.is_directory:
        raise FsError(Status.EXDEV, "a directory does not go into another quota tree")
    check_tree(tx, context, inode.attributes, there)
    return there


def trash_purge(tx: Transaction, request: TrashPurge, context: Context) -> TrashDone:
    context.check_serving()
    _check_count(len(request.marks))
    count = 0
    for mark in request.marks:
        entry = find_entry(tx, mark.directory, mark.name, mark.ino)
        if entry is not None:
            discard(tx, entry, "purged", context)
            count += 1
    context.wait_durable = count > 0
    return TrashDone(count)


def _check_count(count: int) -> None:
    if not 0 < count <= TRASH_ITEMS_MAX:
        raise FsError(Status.EINVAL, f"1 to {TRASH_ITEMS_MAX} entries at a time")


# ---- rows --------------------------------------------------------------------------------------


def _listed(tx: Transaction, request: TrashList) -> list[Need]:
    return [Need(Ino(request.directory), SENT_NAMES)]


def _listed_by_age(tx: Transaction, request: TrashByAge) -> list[Need]:
    """Only the tree's own directory: names that were removed further down a moment ago may be
    missing."""
    return [Need(Ino(request.tree), SENT_NAMES)]


def _restored(tx: Transaction, request: TrashRestore) -> list[Need]:
    inodes = [Need(Ino(item.ino), LEASE_META_EXCLUSIVE) for item in request.items[:TRASH_ITEMS_MAX]]
    return [Need(Ino(request.new_directory), CHANGED_NAMES), *inodes]


ROWS: Final = (
    OpRow(op=Op.TRASH_SET, run=trash_set, access=Access.ADMIN, audited=always),
    OpRow(op=Op.TRASH_TREES, run=trash_trees, access=Access.ADMIN),
    OpRow(op=Op.TRASH_LIST, run=trash_list, access=Access.ADMIN, footprint=_listed),
    OpRow(op=Op.TRASH_BY_AGE, run=trash_by_age, access=Access.ADMIN, footprint=_listed_by_age),
    OpRow(
        op=Op.TRASH_RESTORE,
        run=trash_restore,
        access=Access.ADMIN,
        footprint=_restored,
        audited=always,
    ),
    OpRow(op=Op.TRASH_PURGE, run=trash_purge, access=Access.ADMIN, audited=always),
)
