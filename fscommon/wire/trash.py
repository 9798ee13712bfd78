"""Bodies of the trash operations (docs/decisions/0021-trash.md), for administrators (connections of
purpose "admin").

A name that is removed in a tree with a trash is an *entry*: of a directory, by its name, for one
inode. Entries of a directory that was removed itself stay entries of it. An inode is in the trash
at most once, so (directory, name, ino) names an entry.
"""

from dataclasses import dataclass
from typing import Final

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

    ino: int
    on: bool
    expiry_s: int


@dataclass(frozen=True, slots=True)
class TrashDone:
    """count: what was purged."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class TrashTrees:
    """A page of the trees behind the one with this number; TRASH_PATHS_MAX at most."""

    after: int
    count: int


@dataclass(frozen=True, slots=True)
class TrashTree:
    """A directory of which it was said what becomes of removed names. on False: they are gone.
    inodes: in its trash. names: the path, () for the root and when it is not found."""

    ino: int
    on: bool
    expiry_s: int
    inodes: int
    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TrashReport:
    trees: tuple[TrashTree, ...]
    end: bool


@dataclass(frozen=True, slots=True)
class TrashList:
    """A page of the entries of a directory (which may be in the trash itself, or gone) behind
    (name hash, ino). name b"": any."""

    directory: int
    name: bytes
    after_hash: int
    after_ino: int
    count: int


@dataclass(frozen=True, slots=True)
class TrashByAge:
    """A page of the entries of a tree, those first that were removed first, behind
    (removed_ns, ino)."""

    tree: int
    after_ns: int
    after_ino: int
    count: int


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """tree: whose expiry counts. attributes: the packed record of the inode."""

    directory: int
    name: bytes
    ino: int
    removed_ns: int
    tree: int
    attributes: bytes


@dataclass(frozen=True, slots=True)
class TrashListed:
    """after_*: where to go on from, unless this is the end."""

    entries: tuple[TrashEntry, ...]
    after: int
    after_ino: int
    end: bool


@dataclass(frozen=True, slots=True)
class TrashItem:
    """An entry of a directory, and the name that it is to get."""

    name: bytes
    ino: int
    new_name: bytes


@dataclass(frozen=True, slots=True)
class TrashRestore:
    """Give entries of a directory a name in another one, or in the same. Reply when durable."""

    directory: int
    new_directory: int
    items: tuple[TrashItem, ...]


@dataclass(frozen=True, slots=True)
class TrashRestored:
    """The status of each item, and what to say of it: ENOENT it is not in the trash (any more),
    EEXIST the name is taken, EXDEV, EDQUOT the quota tree. Items fail alone."""

    errors: tuple[int, ...]
    messages: tuple[str, ...]
    parents: bytes = b""


@dataclass(frozen=True, slots=True)
class TrashMark:
    """An entry to be removed for good."""

    directory: int
    name: bytes
    ino: int


@dataclass(frozen=True, slots=True)
class TrashPurge:
    """Remove entries for good; those that are not there are passed over. Reply: TrashDone, when
    durable."""

    marks: tuple[TrashMark, ...]


TRASH_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.TRASH_SET: (TrashSet, TrashDone),
    Op.TRASH_TREES: (TrashTrees, TrashReport),
    Op.TRASH_LIST: (TrashList, TrashListed),
    Op.TRASH_BY_AGE: (TrashByAge, TrashListed),
    Op.TRASH_RESTORE: (TrashRestore, TrashRestored),
    Op.TRASH_PURGE: (TrashPurge, TrashDone),
}
