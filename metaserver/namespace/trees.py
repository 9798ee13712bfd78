"""Which inodes are in the tree of a client's key. The record of an inode says in which quota tree
it is (docs/decisions/0015-quotas-by-size.md); its names do not matter."""

from typing import Final

from fscommon.types import ROOT_INO
from metaserver.keys import ClientKey
from metaserver.namespace.inode import find
from metaserver.transaction import Transaction

TREES_NESTED_MAX: Final = 64  # quota trees within one another


def is_inside(tx: Transaction, ino: int, key: ClientKey) -> bool:
    """Whether the inode exists, in the key's tree or in a tree within it."""
    if key.root == ROOT_INO:
        return True
    for _ in range(TREES_NESTED_MAX):
        inode = find(tx, ino)
        tree = inode.attributes.tree if inode is not None else 0
        if tree in (0, key.root):
            return tree != 0
        top = find(tx, tree)
        if top is None or not top.is_directory or top.attributes.nlink == 0:
            return False
        ino = top.attributes.parent
    return False
