"""Bodies of the trash operations (docs/decisions/0021-trash.md), for administrators (connections of
purpose "admin").

A name that is removed in a tree with a trash is an *entry*: of a directory, by its name, for one
inode. Entries of a directory that was removed itself stay entries of it. An inode is in the trash
at most once, so (directory, name, ino) names an entry.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import I64, U32, U64, Blob, Many, Message, Name, Names, Record, U32s
from fscommon.wire.ops import Op

TRASH_ENTRIES_MAX: Final = 1000  # of one page
TRASH_ITEMS_MAX: Final = 256  # restored or purged by one request
TRASH_TREES_MAX: Final = 1024
TRASH_PATHS_MAX: Final = 32  # of one TRASH_TREES: each is looked for
EXPIRY_S_MAX: Final = 10 * 366 * 86400


@dataclass(frozen=True, slots=True)
class TrashSet:
    """What is removed in directory ino and below goes to the trash for expiry_s, or no longer. The
    nearest directory above a name counts. Reply: TrashDone, when durable."""

    ino: U64
    on: bool
    expiry_s: I64


@dataclass(frozen=True, slots=True)
class TrashDone:
    """count: what was purged."""

    count: U64 = 0


@dataclass(frozen=True, slots=True)
class TrashTrees:
    """A page of the trees behind the one with this number; TRASH_PATHS_MAX at most."""

    after: U64
    count: U32


@dataclass(frozen=True, slots=True)
class TrashTree:
    """A directory of which it was said what becomes of removed names. on False: they are gone.
    inodes: in its trash. names: the path, () for the root and when it is not found."""

    ino: U64
    on: bool
    expiry_s: I64
    inodes: U64
    names: Names


@dataclass(frozen=True, slots=True)
class TrashReport:
    trees: Annotated[tuple[TrashTree, ...], Many]
    end: bool


@dataclass(frozen=True, slots=True)
class TrashList:
    """A page of the entries of a directory (which may be in the trash itself, or gone) behind
    (name hash, ino). name b"": any."""

    directory: U64
    name: Name
    after_hash: U64
    after_ino: U64
    count: U32


@dataclass(frozen=True, slots=True)
class TrashByAge:
    """A page of the entries of a tree, those first that were removed first, behind
    (removed_ns, ino)."""

    tree: U64
    after_ns: U64
    after_ino: U64
    count: U32


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """tree: whose expiry counts. attributes: the packed record of the inode."""

    directory: U64
    name: Name
    ino: U64
    removed_ns: I64
    tree: U64
    attributes: Record


@dataclass(frozen=True, slots=True)
class TrashListed:
    """after_*: where to go on from, unless this is the end."""

    entries: Annotated[tuple[TrashEntry, ...], Many]
    after: U64
    after_ino: U64
    end: bool


@dataclass(frozen=True, slots=True)
class TrashItem:
    """An entry of a directory, and the name that it is to get."""

    name: Name
    ino: U64
    new_name: Name


@dataclass(frozen=True, slots=True)
class TrashRestore:
    """Give entries of a directory a name in another one, or in the same. Reply when durable."""

    directory: U64
    new_directory: U64
    items: Annotated[tuple[TrashItem, ...], Many]


@dataclass(frozen=True, slots=True)
class TrashRestored:
    """The status of each item, and what to say of it: ENOENT it is not in the trash (any more),
    EEXIST the name is taken, EXDEV, EDQUOT the quota tree. Items fail alone."""

    errors: U32s
    messages: Annotated[tuple[Message, ...], Many]
    parents: Blob = b""


@dataclass(frozen=True, slots=True)
class TrashMark:
    """An entry to be removed for good."""

    directory: U64
    name: Name
    ino: U64


@dataclass(frozen=True, slots=True)
class TrashPurge:
    """Remove entries for good; those that are not there are passed over. Reply: TrashDone, when
    durable."""

    marks: Annotated[tuple[TrashMark, ...], Many]


TRASH_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.TRASH_SET: (TrashSet, TrashDone),
    Op.TRASH_TREES: (TrashTrees, TrashReport),
    Op.TRASH_LIST: (TrashList, TrashListed),
    Op.TRASH_BY_AGE: (TrashByAge, TrashListed),
    Op.TRASH_RESTORE: (TrashRestore, TrashRestored),
    Op.TRASH_PURGE: (TrashPurge, TrashDone),
}
