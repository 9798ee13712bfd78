"""What immutable and append-only inodes refuse (chattr +i, +a): EPERM, whoever asks.

Who may set the flags is the kernel's affair (CAP_LINUX_IMMUTABLE). Bytes of files are guarded
where they are opened: no write right for an immutable file, unless the session has one already
(what was opened before goes on); what a session cannot be told by, whether this open is for writing
and with O_APPEND, its client checks (fsclient.fs.files). Pure functions over one inode.
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
    """A name comes into the directory."""
    if directory.attributes.flags & INODE_IMMUTABLE:
        raise FsError(Status.EPERM, "the directory is immutable")


def check_may_remove(directory: Inode, inode: Inode) -> None:
    """The inode loses a name in the directory, or is moved away from it."""
    if (directory.attributes.flags | inode.attributes.flags) & _PROTECTED:
        raise FsError(Status.EPERM, "the inode or its directory is immutable or append-only")


def check_may_link(inode: Inode) -> None:
    if inode.attributes.flags & _PROTECTED:
        raise FsError(Status.EPERM, "the inode is immutable or append-only")


def check_may_change(inode: Inode, valid: int) -> None:
    """SETATTR of what the SET_* bits say. Setting the flags themselves is always possible."""
    flags = inode.attributes.flags
    if flags & INODE_IMMUTABLE and valid & ~SET_FLAGS:
        raise FsError(Status.EPERM, "the inode is immutable")
    if flags & INODE_APPEND and valid & _NOT_OF_APPEND_ONLY and not valid & SET_GROW:
        raise FsError(Status.EPERM, "the inode is append-only")


def check_may_open(inode: Inode, *, writable: bool) -> None:
    if writable and inode.attributes.flags & INODE_IMMUTABLE:
        raise FsError(Status.EPERM, "the file is immutable")


check_may_set_xattr = check_may_link
