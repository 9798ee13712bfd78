"""READLINK: where a symbolic link points."""

import stat

from fscommon.errors import FsError, Status
from fscommon.wire.messages import ReadLink, ReadLinkReply
from metaserver.context import Context
from metaserver.namespace.inode import load
from metaserver.transaction import Transaction


def readlink(tx: Transaction, request: ReadLink, context: Context) -> ReadLinkReply:
    inode = load(tx, request.ino)
    if not stat.S_ISLNK(inode.attributes.mode):
        raise FsError(Status.EINVAL, "not a symbolic link")
    return ReadLinkReply(inode.tail)
