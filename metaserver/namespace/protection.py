"""What immutable and append-only inodes refuse (chattr +i, +a): EPERM for everybody.

The kernel checks who may set the flags (CAP_LINUX_IMMUTABLE). The bytes of a file are protected
when it is opened: nobody gets the right to write an immutable file, unless the session has it
already (files that were opened before stay writable). Per open, the client checks whether it is for
writing and with O_APPEND (fsclient.fs.files), because the metaserver knows only sessions. Pure
functions over one inode.
"""

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import INODE_APPEND, INODE_IMMUTABLE
from fscommon.wire.messages import (
    SET_FLAGS,
    SET_GID,
    SET_GROW,
    SET_MODE,
    SET_SIZE,
    SET_TIMES_GIVEN,
    SET_UID,
)
from metaserver.namespace.inode import Inode

_PROTECTED = INODE_IMMUTABLE | INODE_APPEND
_NOT_OF_APPEND_ONLY = SET_MODE | SET_UID | SET_GID | SET_SIZE | SET_TIMES_GIVEN


def check_may_add(directory: Inode) -> None:
    """Raises EPERM if no name may be added to the directory."""
    if directory.attributes.flags & INODE_IMMUTABLE:
        raise FsError(Status.EPERM, "the directory is immutable")


def check_may_remove(directory: Inode, inode: Inode) -> None:
    """Raises EPERM if the inode may not lose its name in the directory."""
    if (directory.attributes.flags | inode.attributes.flags) & _PROTECTED:
        raise FsError(Status.EPERM, "the inode or its directory is immutable or append-only")


def check_may_link(inode: Inode) -> None:
    if inode.attributes.flags & _PROTECTED:
        raise FsError(Status.EPERM, "the inode is immutable or append-only")


def check_may_change(inode: Inode, valid: int) -> None:
    """Raises EPERM if the attributes of the SET_* bits may not change. The flags themselves may
    always be set."""
    flags = inode.attributes.flags
    if flags & INODE_IMMUTABLE and valid & ~SET_FLAGS:
        raise FsError(Status.EPERM, "the inode is immutable")
    if flags & INODE_APPEND and valid & _NOT_OF_APPEND_ONLY and not valid & SET_GROW:
        raise FsError(Status.EPERM, "the inode is append-only")


def check_may_open(inode: Inode, *, writable: bool) -> None:
    if writable and inode.attributes.flags & INODE_IMMUTABLE:
        raise FsError(Status.EPERM, "the file is immutable")


check_may_set_xattr = check_may_link
