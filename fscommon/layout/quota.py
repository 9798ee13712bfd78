"""Limits of an account: of a directory tree, a user or a group. Pure values.

A tree is named by the inode number of its topmost directory. Bytes are the sizes of regular files
and of xattrs.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from fscommon.ranges import U32, U64

GRACE_S: Final = 7 * 86400
GRACE_S_MAX: Final = 10 * 366 * 86400


class QuotaKind(IntEnum):
    TREE = 1
    USER = 2
    GROUP = 3


AccountId = tuple[int, int]  # QuotaKind, number


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits; 0: no limit. grace_s: how long, in seconds, a soft limit may be exceeded before it
    refuses."""

    bytes_soft: U64 = 0
    bytes_hard: U64 = 0
    inodes_soft: U64 = 0
    inodes_hard: U64 = 0
    grace_s: U32 = GRACE_S


NO_LIMITS: Final = Limits()
