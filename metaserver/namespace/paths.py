"""Finds the path of a directory, upwards; each step searches one directory. For reports."""

from fscommon.wire.admin import INSPECT_NAMES_MAX
from metaserver.namespace.inode import find
from metaserver.records import dentries_after, dentry_name, unpack_dentry
from metaserver.transaction import Transaction


def path_of(tx: Transaction, ino: int) -> tuple[bytes, ...]:
    """Returns the names from the root; () for the root, for a directory without a name, and for one
    that is nested too deep."""
    names: list[bytes] = []
    directory = find(tx, ino)
    while directory is not None and directory.ino != directory.attributes.parent:
        name = _name_in(tx, directory.attributes.parent, directory.ino)
        if name is None or len(names) >= INSPECT_NAMES_MAX:
            return ()
        names.append(name)
        directory = find(tx, directory.attributes.parent)
    return tuple(reversed(names))


def _name_in(tx: Transaction, parent: int, ino: int) -> bytes | None:
    for key, value in tx.range(*dentries_after(parent, 0)):
        if unpack_dentry(value)[0] == ino:
            return dentry_name(key)
    return None
