"""LOOKUP: returns the attributes of the inode that has a name."""

from typing import Final

from fscommon.wire.messages import Entry, Lookup
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.namespace.entries import get_dentry
from metaserver.namespace.inode import load, load_directory
from metaserver.ops import footprints, grants, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def lookup(tx: Transaction, request: Lookup, context: Context) -> Entry:
    load_directory(tx, request.parent)
    dentry = get_dentry(tx, request.parent, request.name)
    return Entry(load(tx, dentry.ino).attributes.pack())


def _looks_into(request: Lookup) -> int:
    return request.parent


ROWS: Final = (
    OpRow(
        op=Op.LOOKUP,
        run=lookup,
        footprint=footprints.names_of_parent,
        grants=grants.found,
        looks_into=_looks_into,
        is_look=True,
        grants_absence=True,
        names=names.its_parent,
        squash=squash.look_into,
    ),
)
