"""Entries of the trash: what a removed name leaves behind, and how an entry is taken out.

An entry keeps an inode without a name (nlink 0, but no orphan). It has two records: one by
directory and name (`B`), and one by age within the tree whose rules apply (`E`). Only the removal
of a last name makes an entry, so an inode is in the trash at most once. Nothing here fails: ops
check first.
"""

from dataclasses import dataclass

from fscommon.errors import FsError, Status
from fscommon.types import Ino
from metaserver.context import Context
from metaserver.namespace.inode import Inode, find
from metaserver.records import (
    KeptRecord,
    aged_key,
    kept_key,
    kept_place,
    name_hash,
    pack_aged,
    pack_kept,
    unpack_kept,
)
from metaserver.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Place:
    """The directory and the name where an inode is, or was."""

    directory: int
    name: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    directory: Ino
    hashed: int
    ino: Ino
    record: KeptRecord

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> "Entry":
        return cls(*kept_place(key), unpack_kept(value))


def tree_of(tx: Transaction, directory: int, context: Context) -> int:
    """Returns the tree whose trash takes what is removed in this directory; 0: nothing takes it."""
    trash = context.services.trash
    climbed: list[int] = []
    while (tree := trash.known(directory)) is None:
        climbed.append(directory)
        inode = find(tx, directory)
        above = inode.attributes.parent if inode is not None else directory
        if above == directory:
            tree = 0
            break
        directory = above
    if climbed:
        trash.learn(climbed, tree)
    return tree


def keep(tx: Transaction, inode: Inode, place: Place, context: Context) -> bool:
    """Puts the inode, which has just lost its last name, into the trash. Returns False if there is
    no trash for it."""
    tree = tree_of(tx, place.directory, context)
    if not tree:
        return False
    hashed = name_hash(place.name)
    removed_ns = context.services.trash.stamp(context.now_ns)
    record = KeptRecord(tree, removed_ns, place.name)
    tx.put(kept_key(place.directory, hashed, inode.ino), pack_kept(record))
    tx.put(aged_key(tree, record.removed_ns, inode.ino), pack_aged(place.directory, hashed))
    context.trash.append((tree, "kept"))
    return True


def find_entry(tx: Transaction, directory: int, name: bytes, ino: int) -> Entry | None:
    key = kept_key(directory, name_hash(name), ino)
    value = tx.get(key)
    entry = Entry.parse(key, value) if value is not None else None
    return entry if entry is not None and entry.record.name == name else None


def check_kept(inode: Inode) -> None:
    """Raises EIO for an inode that has a name: a record of the trash is wrong then."""
    if inode.attributes.nlink:
        raise FsError(
            Status.EIO, f"a record of the trash is about inode {inode.ino}, which has a name"
        )


def take(tx: Transaction, entry: Entry, how: str, context: Context) -> None:
    """Deletes the entry. The caller takes care of its inode."""
    tx.delete(kept_key(entry.directory, entry.hashed, entry.ino))
    tx.delete(aged_key(entry.record.tree, entry.record.removed_ns, entry.ino))
    context.trash.append((entry.record.tree, how))
