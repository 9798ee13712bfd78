"""READLINK: returns the target of a symbolic link."""

import stat
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.wire.messages import ReadLink, ReadLinkReply
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.namespace.inode import load
from metaserver.ops import footprints, names
from metaserver.ops.row import OpRow
from metaserver.transaction import Transaction


def readlink(tx: Transaction, request: ReadLink, context: Context) -> ReadLinkReply:
    inode = load(tx, request.ino)
    if not stat.S_ISLNK(inode.attributes.mode):
        raise FsError(Status.EINVAL, "not a symbolic link")
    return ReadLinkReply(inode.tail)


ROWS: Final = (
    # The target of a symbolic link never changes.
    OpRow(op=Op.READLINK, run=readlink, footprint=footprints.nothing, names=names.its_ino),
)
