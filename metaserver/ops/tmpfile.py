"""TMPFILE: makes a regular file without a name and opens it (O_TMPFILE).

The file is an orphan until LINK gives it a name: it is removed when its session closes it or ends.
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
    return open_inode(tx, inode, context, writable=True, is_new=True)


def _granted(request: TmpFile, reply: Opened) -> Iterator[Grant]:
    return grants.opened_for(reply, writable=True)


ROWS: Final = (
    OpRow(
        op=Op.TMPFILE,
        run=tmpfile,
        footprint=footprints.nothing,  # of the directory it uses only group and ACL
        grants=_granted,
        names=names.its_parent,
        squash=squash.make,
    ),
)
