"""The layout of a file: which target holds which bytes, and at which offset of which object.

Chunk c of a file lies in the object with stripe index c % stripe_width; an object packs its chunks
densely. The bytes of a tiny file may follow the record itself instead (`inline`): then no object
holds any of them (docs/decisions/0037-inline-data.md). docs/INTERFACES.md, section 1, has the
packed record and the relations.

Pure. Not here: choosing targets (the metaserver), moving bytes (native code).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from fscommon.errors import ProtocolError
from fscommon.limits import (
    CHUNK_SIZE_MAX,
    CHUNK_SIZE_MIN,
    INLINE_LENGTH_MAX,
    OBJECT_BYTES_MAX,
    REPLICA_COUNT_MAX,
    STRIPE_WIDTH_MAX,
)

LAYOUT_VERSION: Final = 1
LAYOUT_HEAD_SIZE: Final = 32
STRIPE_WIDTH: Final = slice(2, 4)  # where these fields are in a packed record
SHAPE: Final = slice(2, 8)  # stripe width and chunk size
FILE_ID: Final = slice(8, 16)
TRUNCATE_EPOCH: Final = slice(16, 20)
_FLAGS_AT: Final = 20
_INLINE: Final = 1  # flag: the file's bytes follow the targets
_HEAD: Final = struct.Struct("<BBHIQIIQ")


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of an extent that lies in one chunk: `length` bytes at `offset` of the file are at
    `object_offset` of the object `stripe_index`."""

    stripe_index: int
    object_offset: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout. targets are stripe-major: targets[stripe_index * replica_count + replica]. inline:
    the file begins with these bytes, reads as zeros behind them, and has no objects; b"": the file
    has objects."""

    file_id: int
    chunk_size: int
    stripe_width: int
    targets: tuple[int, ...]
    replica_count: int = 1
    truncate_epoch: int = 0
    flags: int = 0
    durable_stripes: int = 0  # bit i: the object of stripe index i was synced once
    inline: bytes = b""

    def pack(self) -> bytes:
        head = _HEAD.pack(
            LAYOUT_VERSION,
            self.replica_count,
            self.stripe_width,
            self.chunk_size,
            self.file_id,
            self.truncate_epoch,
            self.flags | (_INLINE if self.inline else 0),
            self.durable_stripes,
        )
        return head + struct.pack(f"<{len(self.targets)}I", *self.targets) + self.inline

    def target(self, stripe_index: int, replica: int = 0) -> int:
        return self.targets[stripe_index * self.replica_count + replica]


def unpack_layout(raw: bytes) -> Layout:
    """The layout of a packed record. Raises ProtocolError unless raw is exactly one sound
    record."""
    if len(raw) < LAYOUT_HEAD_SIZE:
        raise ProtocolError(f"a layout of {len(raw)} bytes is too short")
    version, replicas, width, chunk_size, file_id, epoch, flags, durable = _HEAD.unpack_from(raw)
    _check(version, replicas, width, chunk_size)
    count = replicas * width
    behind = len(raw) - LAYOUT_HEAD_SIZE - 4 * count
    if behind < 0 or not (0 < behind <= INLINE_LENGTH_MAX if flags & _INLINE else behind == 0):
        raise ProtocolError(f"a layout of {count} targets does not have {len(raw)} bytes")
    targets = struct.unpack_from(f"<{count}I", raw, LAYOUT_HEAD_SIZE)
    inline = raw[len(raw) - behind :] if behind else b""
    return Layout(
        file_id, chunk_size, width, targets, replicas, epoch, flags & ~_INLINE, durable, inline
    )


def is_inline(raw: bytes) -> bool:
    """True when the file's bytes are in its record, which is sound or b""."""
    return bool(raw) and bool(raw[_FLAGS_AT] & _INLINE)


def without_inline(raw: bytes) -> bytes:
    """The record without inline bytes, as the removal of the objects needs it."""
    return with_inline(raw, b"") if is_inline(raw) else raw


def with_inline(raw: bytes, inline: bytes) -> bytes:
    """The packed layout of a file without objects, with these bytes inline."""
    return replace(unpack_layout(raw), inline=inline).pack()


def packed_file_id(raw: bytes) -> int:
    """The file id in a packed layout record; 0 for b""."""
    return int.from_bytes(raw[FILE_ID], "little")


def packed_targets(raw: bytes) -> bytes:
    """The targets of a sound record without replicas: u32 each, by stripe index."""
    return raw[LAYOUT_HEAD_SIZE : LAYOUT_HEAD_SIZE + 4 * (raw[2] | raw[3] << 8)]


def storable_end(shape: bytes) -> int:
    """For a layout with this SHAPE: the offset before which any byte of the file can be stored.
    Behind it only a hole may lie, which needs no object."""
    width, chunk_size = struct.unpack("<HI", shape)
    rows, rest = divmod(OBJECT_BYTES_MAX, chunk_size)
    return int(rows * width * chunk_size + rest)


def _check(version: int, replica_count: int, stripe_width: int, chunk_size: int) -> None:
    if version != LAYOUT_VERSION:
        raise ProtocolError(f"layout version {version} is not {LAYOUT_VERSION}")
    if not 1 <= replica_count <= REPLICA_COUNT_MAX:
        raise ProtocolError(f"a layout cannot have {replica_count} replicas")
    if not 1 <= stripe_width <= STRIPE_WIDTH_MAX:
        raise ProtocolError(f"a layout cannot have stripe width {stripe_width}")
    if chunk_size % CHUNK_SIZE_MIN or not CHUNK_SIZE_MIN <= chunk_size <= CHUNK_SIZE_MAX:
        raise ProtocolError(f"a layout cannot have chunks of {chunk_size} bytes")


def pieces(layout: Layout, offset: int, length: int) -> Iterator[Piece]:
    """The extent [offset, offset + length) of the file, cut at chunk borders, in order."""
    end = offset + length
    while offset < end:
        chunk, inside = divmod(offset, layout.chunk_size)
        row, stripe_index = divmod(chunk, layout.stripe_width)
        size = min(end - offset, layout.chunk_size - inside)
        yield Piece(stripe_index, row * layout.chunk_size + inside, offset, size)
        offset += size


def object_length(layout: Layout, stripe_index: int, file_size: int) -> int:
    """Length of the object `stripe_index` of a file of file_size bytes without holes."""
    full_chunks, tail = divmod(file_size, layout.chunk_size)
    rows, last_index = divmod(full_chunks, layout.stripe_width)
    length = rows * layout.chunk_size
    if stripe_index < last_index:
        return length + layout.chunk_size
    return length + tail if stripe_index == last_index else length
