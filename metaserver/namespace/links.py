"""What happens to an inode that loses a name.

A file whose last name goes is removed at once when nobody holds it open; otherwise, and always
while sessions are still coming back after a restart, it becomes an orphan (`O`), which the reaper
removes later. A file whose name another one took lingers as an orphan for a moment: whoever has
just looked the name up opens it, and sees one of the two, never an error. Removing an inode leaves
a `Z` record per file: the reaper deletes its objects once that is durable. xattrs go with the
inode. In a tree with a trash the last name leaves an entry there instead, open or not
(metaserver.namespace.trash): the inode stays until that is purged.
"""

import stat
from typing import Final

from fscommon.layout.attributes import ATTRIBUTES_SIZE, FileFacts, file_facts
from fscommon.layout.layout import packed_file_id, without_inline
from fscommon.types import Ino
from metaserver.context import Context
from metaserver.namespace.charges import charge_removed, xattr_bytes
from metaserver.namespace.inode import Inode, find, save
from metaserver.namespace.trash import Entry, Place, keep, take
from metaserver.records import doomed_key, inode_key, orphan_key, pack_number, xattrs_of
from metaserver.transaction import Transaction

LINGER_S: Final = 1.0  # much longer than it takes from a lookup to the open


def drop_name(
    tx: Transaction, inode: Inode, place: Place, context: Context, *, replaced: bool = False
) -> bytes:
    """One name less. replaced: of a file, and another one has it. Returns the packed attributes
    afterwards, nlink 0 when it was the last."""
    links = 0 if inode.is_directory else inode.attributes.nlink - 1
    left = inode.changed(context.now_ns, nlink=links)
    if links or _is_kept(tx, left, place, context):
        return save(tx, left)
    is_asked = context.services.leases.ask_remover(context.session, left.ino, context.now_s)
    if is_asked or replaced or _may_be_open(left.ino, context):
        return _orphan(tx, left, context, replaced=replaced)
    remove_inode(tx, left, context)
    return left.attributes.pack()


def drop_name_unasked(
    tx: Transaction,
    inode: Inode,
    place: Place,
    time_ns: int,
    context: Context,
    *,
    replaced: bool = False,
) -> None:
    """One name less of what is no directory, since then; sessions that hold leases on the inode
    were not asked, but are told now. Until they have answered it is kept, as if it were open: they
    may say that it is."""
    left = inode.changed(time_ns, nlink=inode.attributes.nlink - 1)
    is_held = context.services.leases.dismiss(context.session, inode.ino, context.now_s)
    if left.attributes.nlink or _is_kept(tx, left, place, context):
        save(tx, left)
    else:
        _let_go(tx, left, context, is_held=is_held, replaced=replaced)


def discard(tx: Transaction, entry: Entry, how: str, context: Context) -> None:
    """An entry of the trash goes for good, and its inode, once nobody has that open."""
    take(tx, entry, how, context)
    inode = find(tx, entry.ino)
    if inode is not None:
        is_held = context.services.leases.dismiss(context.session, inode.ino, context.now_s)
        _let_go(tx, inode, context, is_held=is_held)


def _is_kept(tx: Transaction, inode: Inode, place: Place, context: Context) -> bool:
    return context.services.trash.is_on and keep(tx, inode, place, context)


def _let_go(
    tx: Transaction, inode: Inode, context: Context, *, is_held: bool, replaced: bool = False
) -> None:
    if is_held or replaced or _may_be_open(inode.ino, context):
        _orphan(tx, inode, context, replaced=replaced)
    else:
        remove_inode(tx, inode, context)


def remove_inode(tx: Transaction, inode: Inode, context: Context) -> None:
    """Delete the record, its xattrs, and queue its objects."""
    tx.delete(inode_key(inode.ino))
    xattrs = xattr_bytes(tx, inode.attributes)
    if inode.attributes.xattr_count:
        for key, _ in list(tx.range(*xattrs_of(inode.ino))):
            tx.delete(key)
    if inode.is_file:
        tx.put(doomed_key(inode.layout().file_id), without_inline(inode.tail))
    context.inodes_added -= 1
    context.removed.append(inode.ino)
    charge_removed(context, inode.attributes, xattrs)


def remove_plain(tx: Transaction, ino: Ino, record: bytes, context: Context) -> FileFacts | None:
    """drop_name_unasked() and remove_inode() of what most files are: a regular one of one name
    without anything special about it, which nobody else holds leases on or may have open. Nothing
    is made of its record but a few numbers; what it counted for is the caller's to charge. None:
    it is another one, and the long way is to be gone."""
    facts = file_facts(record)
    is_plain = facts.nlink == 1 and not facts.flags and not facts.xattr_count
    if not is_plain or not stat.S_ISREG(facts.mode) or context.services.trash.is_on:
        return None
    if _may_be_open(ino, context):
        return None
    if context.services.leases.dismiss(context.session, ino, context.now_s):
        return None
    tx.delete(inode_key(ino))
    tail = record[ATTRIBUTES_SIZE:]
    tx.put(doomed_key(packed_file_id(tail)), without_inline(tail))
    context.inodes_added -= 1
    context.removed.append(ino)
    return facts


def _may_be_open(ino: Ino, context: Context) -> bool:
    services = context.services
    return services.progress.recovering or services.sessions.is_open(ino) or ino in services.intents


def _orphan(tx: Transaction, inode: Inode, context: Context, *, replaced: bool) -> bytes:
    tx.put(orphan_key(inode.ino), pack_number(context.now_ns))
    packed = save(tx, inode)
    until_s = context.now_s + LINGER_S if replaced else 0.0
    context.services.sessions.orphaned(inode.ino, until_s)
    return packed
