"""Bodies of the trash operations (docs/decisions/0021-trash.md), for administrators (connections of
purpose "admin").

A name that is removed in a tree with a trash becomes an *entry*: of a directory, by its name, for
one inode. Entries of a directory that was itself removed stay entries of it. An inode is in the
trash at most once, so (directory, name, ino) identifies an entry.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import I64, U32, U64, Blob, Many, Message, Name, Names, Record, U32s
from fscommon.wire.ops import Op

TRASH_ENTRIES_MAX: Final = 1000  # entries in one page
TRASH_ITEMS_MAX: Final = 256  # restored or purged by one request
TRASH_TREES_MAX: Final = 1024
TRASH_PATHS_MAX: Final = 32  # trees in one TRASH_TREES, because the path of each is looked up
EXPIRY_S_MAX: Final = 10 * 366 * 86400


@dataclass(frozen=True, slots=True)
class TrashSet:
    """Sets what happens to names removed in directory ino and below: they go to the trash for
    expiry_s seconds, or no longer. The nearest directory above a name counts. Reply: TrashDone,
    when durable."""

    ino: U64
    on: bool
    expiry_s: I64


@dataclass(frozen=True, slots=True)
class TrashDone:
    """count: how many entries were purged."""

    count: U64 = 0


@dataclass(frozen=True, slots=True)
class TrashTrees:
    """Asks for a page of the trees behind the one with this number; at most TRASH_PATHS_MAX."""

    after: U64
    count: U32


@dataclass(frozen=True, slots=True)
class TrashTree:
    """A directory with a setting of its own for removed names. on False: they are removed at once.
    inodes: the number in its trash. names: the path; () for the root, and when it is not found."""

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
    """Asks for a page of the entries of a directory (which may itself be in the trash, or gone)
    behind (name hash, ino). name b"": any name."""

    directory: U64
    name: Name
    after_hash: U64
    after_ino: U64
    count: U32


@dataclass(frozen=True, slots=True)
class TrashByAge:
    """Asks for a page of the entries of a tree, those removed first before the others, behind
    (removed_ns, ino)."""

    tree: U64
    after_ns: U64
    after_ino: U64
    count: U32


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """tree: the one whose expiry counts. attributes: the packed record of the inode."""

    directory: U64
    name: Name
    ino: U64
    removed_ns: I64
    tree: U64
    attributes: Record


@dataclass(frozen=True, slots=True)
class TrashListed:
    """after_*: where to go on, unless this is the end."""

    entries: Annotated[tuple[TrashEntry, ...], Many]
    after: U64
    after_ino: U64
    end: bool


@dataclass(frozen=True, slots=True)
class TrashItem:
    """An entry of a directory, and the name that it will get."""

    name: Name
    ino: U64
    new_name: Name


@dataclass(frozen=True, slots=True)
class TrashRestore:
    """Gives entries of a directory a name in another directory, or in the same one. Answered when
    durable."""

    directory: U64
    new_directory: U64
    items: Annotated[tuple[TrashItem, ...], Many]


@dataclass(frozen=True, slots=True)
class TrashRestored:
    """The status of each item, and a message for it: ENOENT: it is not in the trash (any more);
    EEXIST: the name is taken; EXDEV, EDQUOT: the quota tree. Each item fails by itself."""

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
    """Removes entries for good; entries that are not there are skipped. Reply: TrashDone, when
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
