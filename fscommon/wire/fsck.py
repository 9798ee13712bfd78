"""What `braidfs fsck` asks a metaserver: which objects are named, and by what.

FSCK_NAMES reads a snapshot that BACKUP_BEGIN has begun, record by record, in parts of bounded work.
A part has packed rows: fields as the structs below say, and behind them what is left of the row.
FSCK_SLOTS says which files clients may have made without having told of them. FSCK_DROP drops
replicas that are lost. All are for administrators (connections of purpose "admin").
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from fscommon.archive import KEY_LENGTH_MAX
from fscommon.errors import ProtocolError
from fscommon.ranges import U32, U64, Blob, Most, U32s, U64s
from fscommon.wire.ops import Op

_HEAD: Final = struct.Struct("<BH")  # kind, and the length of the row behind this
_FILE: Final = struct.Struct("<QQqq")
_NAME: Final = struct.Struct("<QIQ")
_NUMBER: Final = struct.Struct("<Q")
_ENTRY: Final = struct.Struct("<QQB")


class Named(IntEnum):
    """What a row is about."""

    FILE = 1  # an inode with a layout: its objects may be there
    INLINE_FILE = 2  # its bytes are in its record; its layout names objects that need not be there
    DOOMED = 3  # the layout of a file that is gone, whose objects are being deleted
    INTENT = 4  # a layout to whose objects a truncate or inline bytes are under way
    LONE = 5  # an object that is being deleted
    PLANNED = 6  # an object that is being made
    DROPPED = 7  # an object that its layout names no longer
    WRITTEN = 8  # an inode that a session has open for writing
    ENTRY = 9  # a directory entry


class FileRow(NamedTuple):
    """Of FILE and INLINE_FILE; layout: packed, without inline bytes."""

    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int
    layout: bytes


class NameRow(NamedTuple):
    """Of LONE, PLANNED and DROPPED."""

    target: int
    number: int
    file_id: int


class EntryRow(NamedTuple):
    """Of ENTRY; kind: DT_* of the inode."""

    parent: int
    ino: int
    kind: int
    name: bytes


Row = FileRow | NameRow | EntryRow | bytes | int


def pack_row(kind: Named, row: Row) -> bytes:
    """bytes: a layout, of DOOMED and INTENT; int: an inode, of WRITTEN."""
    if isinstance(row, FileRow):
        body = _FILE.pack(*row[:-1]) + row.layout
    elif isinstance(row, NameRow):
        body = _NAME.pack(*row)
    elif isinstance(row, EntryRow):
        body = _ENTRY.pack(*row[:-1]) + row.name
    else:
        body = row if isinstance(row, bytes) else _NUMBER.pack(row)
    return _HEAD.pack(kind, len(body)) + body


def unpack_rows(raw: bytes) -> Iterator[tuple[Named, Row]]:
    """Raises ProtocolError."""
    at, end = 0, len(raw)
    try:
        while at < end:
            kind, length = _HEAD.unpack_from(raw, at)
            at += _HEAD.size
            body = raw[at : at + length]
            at += length
            if len(body) != length:
                raise ProtocolError("a row of names is cut off")
            yield Named(kind), _unpack(kind, body)
    except (struct.error, ValueError) as error:
        raise ProtocolError(f"a row of names is wrong: {error}") from None


def _unpack(kind: int, body: bytes) -> Row:
    if kind in (Named.FILE, Named.INLINE_FILE):
        return FileRow._make((*_FILE.unpack_from(body), body[_FILE.size :]))
    if kind in (Named.LONE, Named.PLANNED, Named.DROPPED):
        return NameRow(*_NAME.unpack(body))
    if kind == Named.ENTRY:
        return EntryRow._make((*_ENTRY.unpack_from(body), body[_ENTRY.size :]))
    return int(_NUMBER.unpack(body)[0]) if kind == Named.WRITTEN else body


@dataclass(frozen=True, slots=True)
class FsckNames:
    """Asks for the rows of the first records behind `after`; b"": from the beginning. id: of
    BACKUP_BEGIN, on this connection. entries: also directory entries."""

    id: U64
    after: Annotated[bytes, Most(KEY_LENGTH_MAX)]
    entries: bool


@dataclass(frozen=True, slots=True)
class FsckNamesPart:
    """after: to go on with; b"": these were the last ones. looked_at: how many records that were,
    of about `of` in all."""

    rows: Blob
    after: Annotated[bytes, Most(KEY_LENGTH_MAX)]
    looked_at: U32
    of: U64


@dataclass(frozen=True, slots=True)
class FsckSlots:
    """Asks for slots of the sessions behind this one, in order of their ids; 0: from the first."""

    after: U64


@dataclass(frozen=True, slots=True)
class FsckSlotsPart:
    """file_ids: which clients may have made, or may make, without having told. after: to go on
    with; 0: these were all. former_end: below this, clients may have others, from before this
    metaserver served them; 0: no client has."""

    file_ids: U64s
    after: U64
    former_end: U64


@dataclass(frozen=True, slots=True)
class FsckDrop:
    """Replicas of a file with this file id and truncate epoch that are lost: row i of the columns
    is the object with that number on that target."""

    ino: U64
    file_id: U64
    truncate_epoch: U32
    objects: U32s
    targets: U32s


@dataclass(frozen=True, slots=True)
class FsckDropped:
    """count: of these, which the layout names no longer, durably, and of which no client gets an
    answer. The others are the last ones of their stripe that are up, or the file has changed."""

    count: U32


FSCK_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.FSCK_NAMES: (FsckNames, FsckNamesPart),
    Op.FSCK_SLOTS: (FsckSlots, FsckSlotsPart),
    Op.FSCK_DROP: (FsckDrop, FsckDropped),
}
