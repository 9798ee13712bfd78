"""Bodies of the quota operations, for administrators (connections of purpose "admin").

An account is a directory tree (by the inode number of its topmost directory), a user or a group.
Kinds are those of fscommon.layout.quota. `fscommon.wire.messages.BODIES` ties them to their ops.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.layout.quota import Limits
from fscommon.ranges import U32, U64, Many, Names, U64s
from fscommon.wire.admin import Place

QUOTA_ROWS_MAX: Final = 1000
ASSIGN_INODES_MAX: Final = 256  # visited for one QUOTA_ASSIGN
TELL_INODES_MAX: Final = 1024  # of one QUOTA_TELL


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """Reply: Empty, when durable. A tree must have been made one: QUOTA_ASSIGN."""

    kind: U32
    number: U64
    limits: Limits


@dataclass(frozen=True, slots=True)
class QuotaList:
    """A page of the accounts behind (kind, number), in this order."""

    kind: U32
    number: U64
    only_limited: bool
    count: U32


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """left_s: how long a soft limit may still be exceeded; -1: it is not, 0: no longer.
    names: the path of a tree from the root; () for others, and for one that has no name."""

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
    """Put the directories at the stack and what is below into a tree: the first of them is its
    topmost directory, and the walk begins with it, at cookie 0. tree 0: into that of its parent.
    A tree within keeps its own account. Repeating a step changes nothing."""

    top: U64
    tree: U64
    stack: Annotated[tuple[Place, ...], Many]


@dataclass(frozen=True, slots=True)
class QuotaAssigned:
    """The stack to go on from; empty: it is done."""

    assigned: U64
    stack: Annotated[tuple[Place, ...], Many]


@dataclass(frozen=True, slots=True)
class QuotaTell:
    """Clients that work under exclusive leases learn of new limits by giving them up: answered when
    nobody holds those of `inos` any more, with the next ones behind `after` that may concern the
    account. names: of directories, in which files are made; else of files, which are written."""

    kind: U32
    number: U64
    names: bool
    after: U64
    inos: U64s


@dataclass(frozen=True, slots=True)
class QuotaTold:
    """inos: to be told with the next request; after: where to go on from, 0 at the end."""

    inos: U64s
    after: U64
