"""The path of a directory, found upwards; each step looks through one directory. For reports."""

from fscommon.wire.admin import INSPECT_NAMES_MAX
from metaserver.namespace.inode import find
from metaserver.records import dentries_after, dentry_name, unpack_dentry
from metaserver.transaction import Transaction


def path_of(tx: Transaction, ino: int) -> tuple[bytes, ...]:
    """Its names from the root; () for the root, for what has no name, and what lies too deep."""
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
