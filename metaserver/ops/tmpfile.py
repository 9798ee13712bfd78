"""TMPFILE: make a regular file without a name and open it (O_TMPFILE).

It is an orphan until LINK names it: it goes when its session closes it, or ends.
"""

import stat

from fscommon.wire.messages import Opened, TmpFile
from metaserver.context import Context
from metaserver.namespace.birth import Wanted, give_birth_nameless
from metaserver.ops.open import open_inode
from metaserver.transaction import Transaction


def tmpfile(tx: Transaction, request: TmpFile, context: Context) -> Opened:
    mode = stat.S_IFREG | stat.S_IMODE(request.mode)
    wanted = Wanted(request.parent, b"", mode, request.caller)
    inode = give_birth_nameless(tx, wanted, context, linkable=request.linkable)
    return open_inode(tx, inode, context, writable=True)
