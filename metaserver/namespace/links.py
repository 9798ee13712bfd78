"""What happens to an inode that loses a name.

A file that loses its last name is removed at once if nobody has it open. Otherwise, and always
during a recovery, it becomes an orphan (an `O` record), which the reaper removes later. A file
whose name another file took stays an orphan for a moment: a client that has just looked the name up
can open it, so it sees one of the two files, never an error.

Removing a file leaves a `Z` record: the reaper deletes the objects once that is durable. xattrs go
with the inode. In a tree with a trash, the last name leaves an entry there instead, whether the
file is open or not (metaserver.namespace.trash); the inode stays until the entry is purged.
"""

import stat
from typing import Final

from fscommon.layout.attributes import ATTRIBUTES_SIZE, FileFacts, file_facts
from fscommon.layout.layout import packed_file_id, without_inline
from fscommon.types import Ino
from metaserver.context import Context
from metaserver.namespace.charges import charge_removed, xattr_bytes
from metaserver.namespace.inode import Inode, find, save
from metaserver.namespace.replicas import forget_replicas
from metaserver.namespace.trash import Entry, Place, check_kept, keep, take
from metaserver.records import doomed_key, inode_key, orphan_key, pack_number, xattrs_of
from metaserver.transaction import Transaction

LINGER_S: Final = 1.0  # much longer than it takes from a lookup to the open


def drop_name(
    tx: Transaction, inode: Inode, place: Place, context: Context, *, replaced: bool = False
) -> bytes:
    """The inode loses a name. replaced: another file has the name now. Returns the packed
    attributes afterwards; nlink is 0 if it was the last name."""
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
    """An inode that is no directory lost a name at that time, without a recall before. Recalls the
    leases on it now. Until their holders have answered, the inode stays as if it were open: they
    may report that it is."""
    left = inode.changed(time_ns, nlink=inode.attributes.nlink - 1)
    is_held = context.services.leases.dismiss(context.session, inode.ino, context.now_s)
    if left.attributes.nlink or _is_kept(tx, left, place, context):
        save(tx, left)
    else:
        _let_go(tx, left, context, is_held=is_held, replaced=replaced)


def discard(tx: Transaction, entry: Entry, how: str, context: Context) -> None:
    """Removes an entry of the trash for good, and its inode once nobody has it open. Raises EIO,
    and changes nothing, if the inode cannot be read or has a name."""
    inode = find(tx, entry.ino)
    if inode is not None:
        check_kept(inode)
    take(tx, entry, how, context)
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
    """Deletes the record and its xattrs, and queues its objects for the reaper."""
    tx.delete(inode_key(inode.ino))
    xattrs = xattr_bytes(tx, inode.attributes)
    if inode.attributes.xattr_count:
        for key in list(tx.keys(*xattrs_of(inode.ino))):
            tx.delete(key)
    if inode.is_file:
        tx.put(doomed_key(inode.layout().file_id), without_inline(inode.tail))
        forget_replicas(tx, inode.ino, inode.tail)
    context.inodes_added -= 1
    context.removed.append(inode.ino)
    charge_removed(context, inode.attributes, xattrs)


def remove_plain(tx: Transaction, ino: Ino, record: bytes, context: Context) -> FileFacts | None:
    """A fast path for drop_name_unasked() and remove_inode(): for a regular file with one name and
    nothing special about it, on which nobody else holds a lease, and which nobody else may have
    open. It unpacks only a few numbers of the record, and leaves it to the caller to charge what
    the file counted for. Returns None for any other file, which must take the slow path."""
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
    forget_replicas(tx, ino, tail)
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
