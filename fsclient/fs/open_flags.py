"""Flags of open(2): what they mean, how a file is protected, the result of an open. Pure."""

import os
from dataclasses import dataclass

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import INODE_APPEND, INODE_IMMUTABLE, Attributes


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """An opened file. keep_pages: the kernel's pages of this inode are still right. direct: this
    handle must not use pages: no lease was granted on the bytes, as others have the file open and
    one of them writes; or it appends (rule 13); or it cannot read (docs/decisions/0029)."""

    fh: int
    attributes: Attributes
    keep_pages: bool
    direct: bool


def check_unprotected(attributes: Attributes, flags: int) -> None:
    """Raises EPERM if the file is protected against an open with these flags."""
    if not is_writable(flags):
        return
    if attributes.flags & INODE_IMMUTABLE:
        raise FsError(Status.EPERM, "the file is immutable")
    if attributes.flags & INODE_APPEND and (flags & os.O_TRUNC or not flags & os.O_APPEND):
        raise FsError(Status.EPERM, "the file is append-only")


def is_writable(flags: int) -> bool:
    return flags & os.O_ACCMODE != os.O_RDONLY
