"""Bodies of DELEGATE and CHANGE_BATCH, the delegated changes (docs/decisions/0013-delegation.md,
0014-removals.md, 0025-renames.md).

A client that holds the names of a directory exclusively creates files in it by itself, from slots
that it was given before; it also removes names and renames them. It sets attributes of a file that
it alone may write. It reports all of this afterwards, in order, in batches.
"""

import stat
from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.layout.attributes import pack_fields, sectors
from fscommon.ranges import I64, U32, U64, Blob, Many, Name, Record, U32s, U64s

_PERMISSIONS: Final = 0o7777


@dataclass(frozen=True, slots=True)
class Delegate:
    """Asks for the names and attributes of directory ino exclusively (0: of no directory), and for
    slots: at most count of the cluster's default layout, or, if the directory has a layout of its
    own and no other extended attribute, at most own_count of that (from a client that knows pools).
    They are no more than this session may have unused. returned: slots that it will not use."""

    ino: U64
    count: U32
    own_count: U32 = 0
    returned: U64s = ()


@dataclass(frozen=True, slots=True)
class Slot:
    """A file that may be created: its inode number, its layout, and a capability to write it."""

    ino: U64
    layout: Record
    capability: Record


@dataclass(frozen=True, slots=True)
class Delegated:
    """attributes: those of the directory, with the leases held on it; b"" for ino 0, and for a
    directory in which no files may be created by the client (its tree is nearly full). uids, gids:
    users and groups with limits, whose files are created at the metaserver. files, size_limit: in a
    tree with limits, how many more files may be created in this directory, and to what size each
    may grow before its writer asks; 0, 0: the tree has no limits. pool: of the slots, and of files
    in the directory; 0: the slots have the cluster's default layout, and so have files in the
    directory as long as it has no extended attributes."""

    attributes: Record
    slots: Annotated[tuple[Slot, ...], Many]
    uids: U32s = ()
    gids: U32s = ()
    files: U32 = 0
    size_limit: U64 = 0
    pool: U64 = 0


@dataclass(frozen=True, slots=True)
class Birth:
    """A regular file that the client created from a slot, and opened. mode: permission bits. Times
    are nanoseconds since 1970. changes: how often it was written since, with size and mtime_ns as
    they are now; they are reported with this record instead of in a COMMIT; 0: it is empty.
    is_open: it has not been closed since."""

    ino: U64
    parent: U64
    name: Name
    mode: U32
    uid: U32
    gid: U32
    time_ns: I64
    layout: Record
    writable: bool
    changes: U32 = 0
    size: U64 = 0
    mtime_ns: I64 = 0
    is_open: bool = True

    def record(self, tree: int = 0) -> bytes:
        """The attributes of the file as reported here. tree: that of the directory, which only the
        metaserver knows."""
        time_ns, version = self.time_ns, 1 + self.changes
        size, mtime_ns = (self.size, self.mtime_ns) if self.changes else (0, time_ns)
        return pack_fields(
            self.ino,
            size,
            sectors(size),
            time_ns,
            mtime_ns,
            max(time_ns, mtime_ns),
            time_ns,
            stat.S_IFREG | self.mode & _PERMISSIONS,
            1,
            self.uid,
            self.gid,
            0,
            0,
            version,
            version,
            0,
            0,
            0,
            0,
            tree,
        )


@dataclass(frozen=True, slots=True)
class Removal:
    """A name that the client removed, of anything but a directory. ino: the inode it named.
    time_ns: since 1970. after: how many births of the same batch came before it."""

    parent: U64
    name: Name
    ino: U64
    time_ns: I64
    after: U32


@dataclass(frozen=True, slots=True)
class Setting:
    """Attributes of a regular file that the client set, as by SETATTR. valid: of SET_MODE, UID,
    GID, ATIME, MTIME, CTIME and KILL_SUIDGID. written_ns: when the file was written before its
    mtime was set; 0 when that is reported in another way."""

    ino: U64
    valid: U32
    mode: U32
    uid: U32
    gid: U32
    atime_ns: I64
    mtime_ns: I64
    ctime_ns: I64
    written_ns: I64


@dataclass(frozen=True, slots=True)
class Move:
    """A name that the client changed within its directory, of anything but a directory. ino: the
    inode it names. replaced: the inode that had the new name, as its only one; 0: none. time_ns:
    since 1970. after: how many births and removals of the same batch came before it."""

    parent: U64
    name: Name
    new_name: Name
    ino: U64
    replaced: U64
    time_ns: I64
    after: U32


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """Births, removals and moves, each in order; `after` says how they are interleaved. Settings,
    in order, apply after all of them: a file whose only name was removed meanwhile no longer
    exists. proofs: the capability of each birth's slot, from a client whose word alone is not
    accepted; otherwise empty."""

    births: Annotated[tuple[Birth, ...], Many]
    removals: Annotated[tuple[Removal, ...], Many] = ()
    settings: Annotated[tuple[Setting, ...], Many] = ()
    moves: Annotated[tuple[Move, ...], Many] = ()
    proofs: Annotated[tuple[Record, ...], Many] = ()


@dataclass(frozen=True, slots=True)
class Changed:
    """The status of each birth, removal, setting and move; empty when all of them succeeded."""

    errors: U32s
    removal_errors: U32s = ()
    parents: Blob = b""
    setting_errors: U32s = ()
    move_errors: U32s = ()
