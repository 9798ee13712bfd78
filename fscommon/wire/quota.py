"""Bodies of the quota operations, for administrators (connections of purpose "admin").

An account is a directory tree (named by the inode number of its topmost directory), a user or a
group. Kinds are those of fscommon.layout.quota. `fscommon.wire.messages.BODIES` ties the bodies to
their ops.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.layout.quota import Limits
from fscommon.ranges import U32, U64, Many, Names, U64s
from fscommon.wire.admin import Place

QUOTA_ROWS_MAX: Final = 1000
ASSIGN_INODES_MAX: Final = 256  # inodes visited for one QUOTA_ASSIGN
TELL_INODES_MAX: Final = 1024  # inodes in one QUOTA_TELL


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """Sets limits. Reply: Empty, when durable. A directory must be a tree already: QUOTA_ASSIGN."""

    kind: U32
    number: U64
    limits: Limits


@dataclass(frozen=True, slots=True)
class QuotaList:
    """Asks for a page of the accounts behind (kind, number), in this order."""

    kind: U32
    number: U64
    only_limited: bool
    count: U32


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """left_s: how long, in seconds, a soft limit may still be exceeded; -1: it is not exceeded; 0:
    no longer. names: the path of a tree from the root; () for other kinds, and for a tree without a
    name."""

    kind: U32
    number: U64
    used_bytes: U64
    used_inodes: U64
    limits: Limits
    bytes_left_s: float
    inodes_left_s: float
    names: Names


@dataclass(frozen=True, slots=True)
class QuotaReport:
    rows: Annotated[tuple[QuotaRow, ...], Many]
    end: bool


@dataclass(frozen=True, slots=True)
class QuotaAssign:
    """Puts the directories of the stack, and everything below them, into a tree. Its topmost
    directory is the first of the stack, and the walk begins with it, at cookie 0. tree 0: into the
    tree of its parent. A tree within it keeps its own account. Repeating a step changes nothing."""

    top: U64
    tree: U64
    stack: Annotated[tuple[Place, ...], Many]


@dataclass(frozen=True, slots=True)
class QuotaAssigned:
    """stack: where to go on; empty: done."""

    assigned: U64
    stack: Annotated[tuple[Place, ...], Many]


@dataclass(frozen=True, slots=True)
class QuotaTell:
    """Clients that work under exclusive leases learn of new limits by giving these leases up.
    Answered when nobody holds those on `inos` any more, with the next inodes behind `after` that
    the account may concern. names: the inodes are directories, in which files are created;
    otherwise files, which are written."""

    kind: U32
    number: U64
    names: bool
    after: U64
    inos: U64s


@dataclass(frozen=True, slots=True)
class QuotaTold:
    """inos: for the next request. after: where to go on; 0 at the end."""

    inos: U64s
    after: U64
