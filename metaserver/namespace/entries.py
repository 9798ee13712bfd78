"""Names in directories: what a name may be, and finding, adding and removing one.

Adding and removing a dentry touches nothing but its record; link counts and times of inodes are
metaserver.namespace.links and the ops.
"""

import stat
from dataclasses import dataclass

from fscommon.errors import FsError, Status
from fscommon.limits import NAME_LENGTH_MAX
from fscommon.types import Ino
from metaserver.records import dentries_after, dentry_key, pack_dentry, unpack_dentry
from metaserver.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Dentry:
    key: bytes
    ino: Ino


def check_name(name: bytes) -> None:
    """Any bytes but / and NUL, at most 255, and neither . nor .., which are the kernel's."""
    if len(name) > NAME_LENGTH_MAX:
        raise FsError(Status.ENAMETOOLONG)
    if not name or b"/" in name or b"\0" in name or name in (b".", b".."):
        raise FsError(Status.EINVAL, "not a name")


def find_dentry(tx: Transaction, parent: int, name: bytes) -> Dentry | None:
    check_name(name)
    key = dentry_key(parent, name)
    value = tx.get(key)
    return None if value is None else Dentry(key, unpack_dentry(value)[0])


def get_dentry(tx: Transaction, parent: int, name: bytes) -> Dentry:
    dentry = find_dentry(tx, parent, name)
    if dentry is None:
        raise FsError(Status.ENOENT)
    return dentry


def new_key(tx: Transaction, parent: int, name: bytes) -> bytes:
    """The key for a name that is not taken. Raises EEXIST."""
    check_name(name)
    key = dentry_key(parent, name)
    if tx.get(key) is not None:
        raise FsError(Status.EEXIST)
    return key


def put_dentry(tx: Transaction, key: bytes, ino: int, mode: int) -> None:
    tx.put(key, pack_dentry(ino, stat.S_IFMT(mode) >> 12))


def is_empty(tx: Transaction, directory: int) -> bool:
    for _ in tx.range(*dentries_after(directory, 0)):
        return False
    return True
