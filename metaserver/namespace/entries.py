"""Names in directories: which names are valid, and how one is found, added and removed.

Adding or removing a dentry changes only its record. metaserver.namespace.links and the ops change
link counts and times of inodes.
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
    """Raises unless the name has 1 to 255 bytes, no / and no NUL, and is not . or .., which the
    kernel handles."""
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
    """Returns the key for a new name. Raises EEXIST if the name is taken."""
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
