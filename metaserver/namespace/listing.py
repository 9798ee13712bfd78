"""Reads one page of a directory, behind a cookie."""

from collections.abc import Callable
from typing import TypeVar

from fscommon.errors import FsError, Status
from fscommon.limits import READDIR_ENTRIES_MAX
from metaserver.namespace.inode import load
from metaserver.records import dentries_after, inode_key, unpack_dentry
from metaserver.transaction import Transaction

E = TypeVar("E")


def list_page(
    tx: Transaction, ino: int, cookie: int, count: int, entry: Callable[[bytes, bytes], E]
) -> tuple[tuple[E, ...], bool]:
    """Returns up to count entries, each made from the key of its dentry and the record of its
    inode, and whether the directory ends with them. Raises ESTALE, ENOTDIR; EINVAL if count is
    less than 1."""
    if not load(tx, ino).is_directory:
        raise FsError(Status.ENOTDIR)
    if count < 1:
        raise FsError(Status.EINVAL, "a page has at least one entry")
    count = min(count, READDIR_ENTRIES_MAX)
    entries: list[E] = []
    for key, value in tx.range(*dentries_after(ino, cookie)):
        if len(entries) == count:
            return tuple(entries), False
        record = tx.get(inode_key(unpack_dentry(value)[0]))
        if record is not None:
            entries.append(entry(key, record))
    return tuple(entries), True
