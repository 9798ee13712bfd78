"""TMPFILE: make a regular file without a name and open it (O_TMPFILE).

It is an orphan until LINK names it: it goes when its session closes it, or ends.
"""

import stat
from collections.abc import Iterator
from typing import Final

from fscommon.wire.messages import Opened, TmpFile
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.leases.grants import Grant
from metaserver.namespace.birth import Wanted, give_birth_nameless
from metaserver.ops import footprints, grants, names
from metaserver.ops.open import open_inode
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def tmpfile(tx: Transaction, request: TmpFile, context: Context) -> Opened:
    mode = stat.S_IFREG | stat.S_IMODE(request.mode)
    wanted = Wanted(request.parent, b"", mode, request.caller)
    inode = give_birth_nameless(tx, wanted, context, linkable=request.linkable)
    return open_inode(tx, inode, context, writable=True)


def _granted(request: TmpFile, reply: Opened) -> Iterator[Grant]:
    return grants.opened_for(reply, writable=True)


ROWS: Final = (
    OpRow(
        op=Op.TMPFILE,
        run=tmpfile,
        footprint=footprints.nothing,  # the directory gives it group and ACL, nothing more
        grants=_granted,
        names=names.its_parent,
        squash=squash.make,
    ),
)
