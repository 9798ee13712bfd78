"""What the flags of open(2) ask for, and what protects a file against it: pure functions."""

import os

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import INODE_APPEND, INODE_IMMUTABLE, Attributes


def check_unprotected(attributes: Attributes, flags: int) -> None:
    """Raises EPERM."""
    if not is_writable(flags):
        return
    if attributes.flags & INODE_IMMUTABLE:
        raise FsError(Status.EPERM, "the file is immutable")
    if attributes.flags & INODE_APPEND and (flags & os.O_TRUNC or not flags & os.O_APPEND):
        raise FsError(Status.EPERM, "the file is append-only")


def is_writable(flags: int) -> bool:
    return flags & os.O_ACCMODE != os.O_RDONLY
