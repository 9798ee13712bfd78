"""Layout of a file: which target holds which bytes, and at which offset of which object.

Chunk c of a file lies in the object of stripe index c % stripe_width; an object packs its chunks
densely. The packed record and the relations are docs/INTERFACES.md, section 1. Pure: choosing
targets is the metaserver's, moving bytes is native's.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fscommon.errors import ProtocolError
from fscommon.limits import (
    CHUNK_SIZE_MAX,
    CHUNK_SIZE_MIN,
    REPLICA_COUNT_MAX,
    STRIPE_WIDTH_MAX,
)

LAYOUT_VERSION: Final = 1
LAYOUT_HEAD_SIZE: Final = 32
_HEAD: Final = struct.Struct("<BBHIQIIQ")


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of an extent that lies in one chunk. length bytes at `offset` of the file are at
    `object_offset` of the object `stripe_index`."""

    stripe_index: int
    object_offset: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """targets are stripe-major: targets[stripe_index * replica_count + replica]."""

    file_id: int
    chunk_size: int
    stripe_width: int
    targets: tuple[int, ...]
    replica_count: int = 1
    truncate_epoch: int = 0
    flags: int = 0
    durable_stripes: int = 0  # bit i: the object of stripe index i was synced once

    def pack(self) -> bytes:
        head = _HEAD.pack(
            LAYOUT_VERSION, self.replica_count, self.stripe_width, self.chunk_size,
            self.file_id, self.truncate_epoch, self.flags, self.durable_stripes,
        )  # fmt: skip
        return head + struct.pack(f"<{len(self.targets)}I", *self.targets)

    def target(self, stripe_index: int, replica: int = 0) -> int:
        return self.targets[stripe_index * self.replica_count + replica]


def unpack_layout(raw: bytes) -> Layout:
    """Raises ProtocolError unless raw is exactly one sound record."""
    if len(raw) < LAYOUT_HEAD_SIZE:
        raise ProtocolError(f"a layout of {len(raw)} bytes is too short")
    version, replicas, width, chunk_size, file_id, epoch, flags, durable = _HEAD.unpack_from(raw)
    _check(version, replicas, width, chunk_size)
    count = replicas * width
    if len(raw) != LAYOUT_HEAD_SIZE + 4 * count:
        raise ProtocolError(f"a layout of {count} targets does not have {len(raw)} bytes")
    targets = struct.unpack_from(f"<{count}I", raw, LAYOUT_HEAD_SIZE)
    return Layout(file_id, chunk_size, width, targets, replicas, epoch, flags, durable)


def packed_file_id(raw: bytes) -> int:
    """The file id in a packed layout record, 0 for what has none."""
    return int.from_bytes(raw[8:16], "little")


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
    """Bytes of the object stripe_index of a file of file_size bytes without holes."""
    full_chunks, tail = divmod(file_size, layout.chunk_size)
    rows, last_index = divmod(full_chunks, layout.stripe_width)
    length = rows * layout.chunk_size
    if stripe_index < last_index:
        return length + layout.chunk_size
    return length + tail if stripe_index == last_index else length
