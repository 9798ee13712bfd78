"""The attribute record of an inode: 128 packed bytes, the same on the wire, in the store and in
native tables (docs/INTERFACES.md, section 1).

In replies the record also grants leases: its last fields say which, and for how long; a stored
record has zeros there. Pure.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from fscommon.errors import ProtocolError
from fscommon.types import Ino

ATTRIBUTES_SIZE: Final = 128
_RECORD: Final = struct.Struct("<3Q4q6I3Qq2IQ")
_FILE: Final = struct.Struct("<8xQ40x4I4xI36xIQ")

# The facets of a lease: META (attributes and xattrs), ENTRIES (names in a directory, absent ones
# included), DATA (bytes of a file). Whoever holds the exclusive bit of a facet also holds the
# shared one.
LEASE_META: Final = 1
LEASE_ENTRIES: Final = 2
LEASE_DATA: Final = 4
LEASE_META_EXCLUSIVE: Final = 8
LEASE_ENTRIES_EXCLUSIVE: Final = 16
LEASE_DATA_EXCLUSIVE: Final = 32
LEASE_SHARED_ALL: Final = 7
LEASE_EXCLUSIVE_ALL: Final = 56
LEASE_EXCLUSIVE_SHIFT: Final = 3  # from a shared bit to its exclusive bit
LEASE_ALL: Final = LEASE_SHARED_ALL | LEASE_EXCLUSIVE_ALL
# Not a lease, but reported with them: another session has the inode open.
OPEN_ELSEWHERE: Final = 64
# Used for a directory, at the metaserver only: the session holds META and DATA of some of its
# files.
LEASE_CHILDREN: Final = 128
# Inode flags: those of FS_IOC_GETFLAGS that are kept; and LINKABLE: an O_TMPFILE that LINK may
# still give a name.
INODE_IMMUTABLE: Final = 0x10
INODE_APPEND: Final = 0x20
INODE_NODUMP: Final = 0x40
INODE_NOATIME: Final = 0x80
INODE_FLAGS_SETTABLE: Final = 0xF0
INODE_LINKABLE: Final = 1 << 31
# Facets that are granted together: for a file that is read, for one that a session alone may write,
# for a directory that a session alone may change.
LEASE_READER: Final = LEASE_META | LEASE_DATA
LEASE_WRITER: Final = LEASE_READER | LEASE_META_EXCLUSIVE | LEASE_DATA_EXCLUSIVE
LEASE_NAMER: Final = LEASE_META | LEASE_ENTRIES | LEASE_META_EXCLUSIVE | LEASE_ENTRIES_EXCLUSIVE
_LEASE: Final = struct.Struct("<qI")
_LEASE_AT: Final = 104
_OWNERS: Final = struct.Struct("<2I")  # uid, gid
_OWNERS_AT: Final = 64
_SECTOR: Final = 512
_INO_ALONE: Final = struct.Struct(f"<Q{ATTRIBUTES_SIZE - 8}x")


@dataclass(frozen=True, slots=True)
class Attributes:
    """The fields of a record. Times are as in fscommon.file_time, blocks have 512 bytes, mode holds
    type and permissions."""

    ino: int
    size: int = 0
    blocks: int = 0
    atime_ns: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    btime_ns: int = 0
    mode: int = 0
    nlink: int = 0
    uid: int = 0
    gid: int = 0
    rdev: int = 0
    flags: int = 0
    data_version: int = 0  # rises whenever bytes or size change
    change_version: int = 0  # rises with every change of the inode
    parent: int = 0  # the parent of a directory; otherwise 0
    lease_ns: int = 0  # duration, from when the request was sent; 0: nothing is held
    lease_flags: int = 0  # what this session holds on this inode after this reply
    xattr_count: int = 0
    # The directory tree whose quota counts the inode, by its topmost directory; 0: none.
    tree: int = 0

    def pack(self) -> bytes:
        return _RECORD.pack(*_FIELDS(self))


_FIELDS: Final = attrgetter(*Attributes.__slots__)


def sectors(size: int) -> int:
    """st_blocks of a file with `size` bytes."""
    return (size + _SECTOR - 1) // _SECTOR


def unpack_attributes(raw: bytes) -> Attributes:
    """The fields of a record of 128 bytes. Raises ProtocolError unless raw is one record."""
    if len(raw) != ATTRIBUTES_SIZE:
        raise ProtocolError(f"an attribute record has {ATTRIBUTES_SIZE} bytes, not {len(raw)}")
    return Attributes(*_RECORD.unpack(raw))


class RecordFields(NamedTuple):
    """The fields of a record, as those of Attributes, which take longer to make."""

    ino: int
    size: int
    blocks: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    btime_ns: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    flags: int
    data_version: int
    change_version: int
    parent: int
    lease_ns: int
    lease_flags: int
    xattr_count: int
    tree: int


def record_fields(records: bytes, start: int) -> RecordFields:
    """The fields of the record that begins at `start`."""
    return RecordFields._make(_RECORD.unpack_from(records, start))


class FileFacts(NamedTuple):
    """The fields of a record that the removal of a file needs."""

    size: int
    mode: int
    nlink: int
    uid: int
    gid: int
    flags: int
    xattr_count: int
    tree: int


def file_facts(record: bytes) -> FileFacts:
    """These fields of the attribute record at the beginning of `record`; bytes may follow it."""
    return FileFacts._make(_FILE.unpack_from(record))


def pack_fields(*fields: int) -> bytes:
    """A record of all the fields of Attributes, in order, without making an object."""
    return _RECORD.pack(*fields)


def ino_of(record: bytes) -> int:
    """The inode of an attribute record."""
    return int.from_bytes(record[:8], "little")


def inos_of(records: bytes) -> list[Ino]:
    """The inodes of attribute records that lie one after another."""
    return [Ino(ino) for (ino,) in _INO_ALONE.iter_unpack(records)]


def granted_in(records: bytes, start: int = 0) -> int:
    """LEASE_* bits that the session held on the inode of the record at `start`, as of the reply
    that carries it."""
    return int(_LEASE.unpack_from(records, start + _LEASE_AT)[1]) & LEASE_ALL


def names_granted(parents: bytes, ino: int) -> bool:
    """True when one of these records of directories belongs to `ino` and says that its names are
    leased."""
    inos = enumerate(inos_of(parents))
    here = (place * ATTRIBUTES_SIZE for place, found in inos if found == ino)
    return any(granted_in(parents, start) & LEASE_ENTRIES for start in here)


def with_lease(record: bytes, duration_ns: int, flags: int) -> bytes:
    """The record as it goes to a session that holds these LEASE_* bits on the inode."""
    leased = bytearray(record)
    put_lease(leased, 0, duration_ns, flags)
    return bytes(leased)


def with_owners(records: bytes, uid: Callable[[int], int], gid: Callable[[int], int]) -> bytes:
    """The records, one after another, with their owners mapped by `uid` and `gid`."""
    changed = bytearray(records)
    for at in range(_OWNERS_AT, len(records), ATTRIBUTES_SIZE):
        owner, group = _OWNERS.unpack_from(records, at)
        _OWNERS.pack_into(changed, at, uid(owner), gid(group))
    return bytes(changed)


def put_lease(records: bytearray, start: int, duration_ns: int, flags: int) -> None:
    """with_lease(), in place, for the record that begins at `start`."""
    _LEASE.pack_into(records, start + _LEASE_AT, duration_ns, flags)
