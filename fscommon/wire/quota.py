"""Bodies of the quota operations, for administrators (connections of purpose "admin").

An account is a directory tree (by the inode number of its topmost directory), a user or a group.
Kinds are those of fscommon.layout.quota. `fscommon.wire.messages.BODIES` ties them to their ops.
"""

from dataclasses import dataclass
from typing import Final

from fscommon.layout.quota import Limits
from fscommon.wire.admin import Place

QUOTA_ROWS_MAX: Final = 1000
ASSIGN_INODES_MAX: Final = 256  # visited for one QUOTA_ASSIGN
TELL_INODES_MAX: Final = 1024  # of one QUOTA_TELL


@dataclass(frozen=True, slots=True)
class QuotaSet:
    """Reply: Empty, when durable. A tree must have been made one: QUOTA_ASSIGN."""

    kind: int
    number: int
    limits: Limits


@dataclass(frozen=True, slots=True)
class QuotaList:
    """A page of the accounts behind (kind, number), in this order."""

    kind: int
    number: int
    only_limited: bool
    count: int


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """left_s: how long a soft limit may still be exceeded; -1: it is not, 0: no longer.
    names: the path of a tree from the root; () for others, and for one that has no name."""

    kind: int
    number: int
    used_bytes: int
    used_inodes: int
    limits: Limits
    bytes_left_s: float
    inodes_left_s: float
    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class QuotaReport:
    rows: tuple[QuotaRow, ...]
    end: bool


@dataclass(frozen=True, slots=True)
class QuotaAssign:
    """Put the directories at the stack and what is below into a tree: the first of them is its
    topmost directory, and the walk begins with it, at cookie 0. tree 0: into that of its parent.
    A tree within keeps its own account. Repeating a step changes nothing."""

    top: int
    tree: int
    stack: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class QuotaAssigned:
    """The stack to go on from; empty: it is done."""

    assigned: int
    stack: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class QuotaTell:
    """Clients that work under exclusive leases learn of new limits by giving them up: answered when
    nobody holds those of `inos` any more, with the next ones behind `after` that may concern the
    account. names: of directories, in which files are made; else of files, which are written."""

    kind: int
    number: int
    names: bool
    after: int
    inos: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class QuotaTold:
    """inos: to be told with the next request; after: where to go on from, 0 at the end."""

    inos: tuple[int, ...]
    after: int
