"""The layout of a file: which target holds which bytes, and at which offset of which object.

Chunk c of a file lies in the object with stripe index c % stripe_width; an object packs its chunks
densely. The bytes of a tiny file may follow the record itself instead (`inline`): then no object
holds any of them (docs/decisions/0037-inline-data.md). A stripe may have several places for
replicas; the object of each replica has a generation of its own (docs/decisions/0063-mirrors.md). A
file with one replica that never moved has a record of version 1, any other one of version 2.
docs/INTERFACES.md, section 1, has the packed records and the relations.

Pure. Not here: choosing targets (the metaserver), moving bytes (native code).
"""

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from fscommon.errors import ProtocolError
from fscommon.limits import (
    CHUNK_SIZE_MAX,
    CHUNK_SIZE_MIN,
    GENERATION_MAX,
    GENERATION_SHIFT,
    INLINE_LENGTH_MAX,
    OBJECT_BYTES_MAX,
    REPLICA_COUNT_MAX,
    REPLICA_PLACES_MAX,
    STRIPE_WIDTH_MAX,
)

LAYOUT_VERSION: Final = 1
REPLICATED_VERSION: Final = 2
LAYOUT_HEAD_SIZE: Final = 32
VACANT: Final = 0  # no target: a place that waits for a replica
STRIPE_WIDTH: Final = slice(2, 4)  # where these fields are in a packed record
SHAPE: Final = slice(2, 8)  # stripe width and chunk size
FILE_ID: Final = slice(8, 16)
TRUNCATE_EPOCH: Final = slice(16, 20)
_FLAGS_AT: Final = 20
_INLINE: Final = 1  # flag: the file's bytes follow the targets
_HEAD: Final = struct.Struct("<BBHIQIIQ")
_REPLICATED: Final = struct.Struct("<IB3s")  # behind the head, in version 2
_REPLICA: Final = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of an extent that lies in one chunk: `length` bytes at `offset` of the file are at
    `object_offset` of the object `stripe_index`."""

    stripe_index: int
    object_offset: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Replica:
    """The object of one stripe on one target."""

    stripe_index: int
    target: int
    generation: int = 0

    @property
    def object_number(self) -> int:
        """As the object is named in frames and on disk, beside the file id."""
        return self.stripe_index | self.generation << GENERATION_SHIFT


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout. targets are stripe-major: targets[stripe_index * replica_count + place], and so are
    generations, of which () means that all are 0. replica_count: places of each stripe, of which
    some may be VACANT. replicas_wanted: so many replicas the stripe is to have; 0: one for each
    place. generation_last: the highest generation that was ever given out. inline: the file begins
    with these bytes, reads as zeros behind them, and has no objects; b"": the file has objects."""

    file_id: int
    chunk_size: int
    stripe_width: int
    targets: tuple[int, ...]
    replica_count: int = 1
    truncate_epoch: int = 0
    flags: int = 0
    durable_stripes: int = 0  # bit i: the object of stripe index i was synced once
    inline: bytes = b""
    generations: tuple[int, ...] = ()
    generation_last: int = 0
    replicas_wanted: int = 0

    @property
    def is_replicated(self) -> bool:
        """Its record is one of version 2, which former releases do not know."""
        return self.replica_count > 1 or self.generation_last > 0

    def pack(self) -> bytes:
        head = _HEAD.pack(
            REPLICATED_VERSION if self.is_replicated else LAYOUT_VERSION,
            self.replica_count,
            self.stripe_width,
            self.chunk_size,
            self.file_id,
            self.truncate_epoch,
            self.flags | (_INLINE if self.inline else 0),
            self.durable_stripes,
        )
        if not self.is_replicated:
            return head + struct.pack(f"<{len(self.targets)}I", *self.targets) + self.inline
        wanted = self.replicas_wanted or self.replica_count
        generations = self.generations or (0,) * len(self.targets)
        rows = b"".join(map(_REPLICA.pack, self.targets, generations))
        return head + _REPLICATED.pack(self.generation_last, wanted, b"") + rows + self.inline

    def target(self, stripe_index: int, replica: int = 0) -> int:
        return self.targets[stripe_index * self.replica_count + replica]

    def replicas(self) -> Iterator["Replica"]:
        """The replicas that there are; vacant places are left out."""
        generations = self.generations or itertools.repeat(0)
        for index, (target, generation) in enumerate(zip(self.targets, generations, strict=False)):
            if target != VACANT:
                yield Replica(index // self.replica_count, target, generation)


def unpack_layout(raw: bytes) -> Layout:
    """The layout of a packed record. Raises ProtocolError unless raw is exactly one sound
    record."""
    if len(raw) < LAYOUT_HEAD_SIZE:
        raise ProtocolError(f"a layout of {len(raw)} bytes is too short")
    version, places, width, chunk_size, file_id, epoch, flags, durable = _HEAD.unpack_from(raw)
    _check(version, places, width, chunk_size)
    count = places * width
    end = _end_of_targets(version, count)
    behind = len(raw) - end
    if behind < 0 or not (0 < behind <= INLINE_LENGTH_MAX if flags & _INLINE else behind == 0):
        raise ProtocolError(f"a layout of {count} targets does not have {len(raw)} bytes")
    layout = Layout(
        file_id, chunk_size, width, (), places, epoch, flags & ~_INLINE, durable, raw[end:]
    )
    if version == REPLICATED_VERSION:
        return _with_replicas(layout, raw[LAYOUT_HEAD_SIZE:end])
    return replace(layout, targets=struct.unpack_from(f"<{count}I", raw, LAYOUT_HEAD_SIZE))


def layout_fault(raw: bytes) -> str:
    """Why unpack_layout() would refuse this record, or its truncate epoch cannot rise any more; ""
    for a sound one. It is quick, since files have few shapes and few sets of places."""
    if len(raw) < LAYOUT_HEAD_SIZE:
        return f"a layout of {len(raw)} bytes is too short"
    end = len(raw)
    if raw[_FLAGS_AT] & _INLINE:
        end = _end_of_targets(raw[0], raw[1] * (raw[2] | raw[3] << 8))
        if not 0 < len(raw) - end <= INLINE_LENGTH_MAX:
            return f"a layout does not have {len(raw)} bytes"
    if raw[TRUNCATE_EPOCH][2:] == b"\xff\xff":
        return "the truncate epoch of a layout is out of range"
    return _fault_of_places(raw[:8], raw[LAYOUT_HEAD_SIZE:end])


@lru_cache(4096)
def _fault_of_places(head: bytes, places: bytes) -> str:
    """As layout_fault(); head: with the shape, places: what is behind the head."""
    try:
        unpack_layout(head + bytes(LAYOUT_HEAD_SIZE - len(head)) + places)
    except ProtocolError as error:
        return str(error)
    return ""


def _end_of_targets(version: int, count: int) -> int:
    if version == REPLICATED_VERSION:
        return LAYOUT_HEAD_SIZE + _REPLICATED.size + _REPLICA.size * count
    return LAYOUT_HEAD_SIZE + 4 * count


def _with_replicas(layout: Layout, raw: bytes) -> Layout:
    last, wanted, rest = _REPLICATED.unpack_from(raw)
    targets, generations = zip(*_REPLICA.iter_unpack(raw[_REPLICATED.size :]), strict=True)
    if not 1 <= wanted <= REPLICA_COUNT_MAX or last > GENERATION_MAX or any(rest):
        raise ProtocolError(f"a layout cannot want {wanted} replicas, of generations up to {last}")
    if layout.replica_count == 1 and not last:
        raise ProtocolError("a layout of one replica has no record of version 2")
    if max(generations) > last:
        raise ProtocolError("a layout names a generation that it never gave out")
    for at in range(0, len(targets), layout.replica_count):
        stripe = [one for one in targets[at : at + layout.replica_count] if one != VACANT]
        if not stripe or len(set(stripe)) < len(stripe):
            raise ProtocolError("a stripe has no replica, or two on one target")
    return replace(
        layout,
        targets=targets,
        generations=generations,
        generation_last=last,
        replicas_wanted=wanted,
    )


def replicas_wanted(layout: Layout) -> int:
    """How many replicas each stripe is to have."""
    return layout.replicas_wanted or layout.replica_count


def is_replicated(raw: bytes) -> bool:
    """True when a sound record, or b"", is one that former releases cannot read."""
    return bool(raw) and raw[0] == REPLICATED_VERSION


def is_inline(raw: bytes) -> bool:
    """True when the file's bytes are in its record, which is sound or b""."""
    return bool(raw) and bool(raw[_FLAGS_AT] & _INLINE)


def without_inline(raw: bytes) -> bytes:
    """The sound record, or b"", without inline bytes, as the removal of the objects needs it."""
    if not is_inline(raw):
        return raw
    end = _end_of_targets(raw[0], raw[1] * (raw[2] | raw[3] << 8))
    return raw[:_FLAGS_AT] + bytes([raw[_FLAGS_AT] & ~_INLINE]) + raw[_FLAGS_AT + 1 : end]


def with_inline(raw: bytes, inline: bytes) -> bytes:
    """The packed layout of a file without objects, with these bytes inline."""
    return replace(unpack_layout(raw), inline=inline).pack()


def packed_file_id(raw: bytes) -> int:
    """The file id in a packed layout record; 0 for b""."""
    return int.from_bytes(raw[FILE_ID], "little")


def packed_places(raw: bytes) -> tuple[bytes, int]:
    """The targets of a sound record, u32 each, stripe-major; and how many places a stripe has, 0
    for a record of version 1."""
    count = raw[1] * (raw[2] | raw[3] << 8)
    if raw[0] == LAYOUT_VERSION:
        return raw[LAYOUT_HEAD_SIZE : LAYOUT_HEAD_SIZE + 4 * count], 0
    rows = raw[LAYOUT_HEAD_SIZE + _REPLICATED.size :][: _REPLICA.size * count]
    return b"".join(rows[at : at + 4] for at in range(0, len(rows), _REPLICA.size)), raw[1]


def storable_end(shape: bytes) -> int:
    """For a layout with this SHAPE: the offset before which any byte of the file can be stored.
    Behind it only a hole may lie, which needs no object."""
    width, chunk_size = struct.unpack("<HI", shape)
    rows, rest = divmod(OBJECT_BYTES_MAX, chunk_size)
    return int(rows * width * chunk_size + rest)


def _check(version: int, replica_count: int, stripe_width: int, chunk_size: int) -> None:
    if version not in (LAYOUT_VERSION, REPLICATED_VERSION):
        raise ProtocolError(f"layout version {version} is unknown")
    places_max = 1 if version == LAYOUT_VERSION else REPLICA_PLACES_MAX
    if not 1 <= replica_count <= places_max:
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
