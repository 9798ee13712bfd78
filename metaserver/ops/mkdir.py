"""MKDIR: a directory with a name."""

import stat

from fscommon.wire.messages import Entry, MkDir
from metaserver.context import Context
from metaserver.namespace.birth import Wanted, give_birth
from metaserver.transaction import Transaction


def mkdir(tx: Transaction, request: MkDir, context: Context) -> Entry:
    mode = stat.S_IFDIR | stat.S_IMODE(request.mode)
    inode = give_birth(tx, Wanted(request.parent, request.name, mode, request.caller), context)
    return Entry(inode.attributes.pack())
