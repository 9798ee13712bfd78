"""OBJECT_LIST: what objects a target has. OBJECT_COPY: makes an object from one of another target.
OBJECT_SUM: reads an object from its device, and says what it is and what of it is damaged.
OBJECT_MEND: writes what is damaged again, from another replica. A storage server answers these on
connections of purpose "admin", to whoever has the cluster key.

The objects of a target lie in 256 directories, which a caller goes through one after the other; all
objects of a file id are in the same one. Names in a directory have an order, and the caller says
behind which one to go on: so a repeat is harmless, and the storage server keeps nothing.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.checksum import xxh3_64
from fscommon.ranges import U32, U64, Many, Text, Token, U64s
from fscommon.wire.ops import Op

DIRECTORIES: Final = 256
OBJECTS_MAX: Final = 4096  # of one reply
END_UNKNOWN: Final = 2**64 - 1
RANGES_MAX: Final = 1024  # of damage, in one message


def directory_of(file_id: int) -> int:
    """The directory in which the objects of this file id lie, on each target."""
    return xxh3_64(file_id.to_bytes(8, "little")) & (DIRECTORIES - 1)


def name_of_object(file_id: int, number: int) -> str:
    """The name of the object's file in its directory."""
    return f"{file_id:016x}.{number:x}"


@dataclass(frozen=True, slots=True)
class ObjectList:
    """directory: below DIRECTORIES. after: the newest name that the caller has of it; "": none."""

    target: U64
    directory: U32
    after: Text


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """bytes: that the object takes on the disk. age_s: since it was changed last, by the clock of
    its host. end: what of the object lies behind this cannot be in its file, as that is too short;
    END_UNKNOWN: nothing is known of it, or an earlier release does not say."""

    file_id: U64
    stripe_index: U32
    bytes: U64
    age_s: U64
    end: U64 = END_UNKNOWN


@dataclass(frozen=True, slots=True)
class ObjectListing:
    """At most OBJECTS_MAX rows. after: to go on with in this directory; "": that was all of it."""

    rows: Annotated[tuple[ObjectRow, ...], Many]
    after: Text


@dataclass(frozen=True, slots=True)
class ObjectCopy:
    """Makes the object (file id, object number) of a target of this server, a name that was never
    used, from another object of the same file. The copy ends when the asking connection does.

    epoch: of the new object. source_address: "host:port" of the storage server that has the
    source, which is source_object of source_target. must_exist: the source was durable once, so it
    is lost if it is missing; otherwise a missing source is a hole, and the new object empty."""

    target: U64
    file_id: U64
    object: U32
    epoch: U32
    source_address: Text
    source_target: U64
    source_object: U32
    must_exist: bool = False


@dataclass(frozen=True, slots=True)
class ObjectCopied:
    """The copy is durable. incarnation, source_incarnation: of the two targets, from the beginning
    of the copy to its end. bytes: that were copied, without holes."""

    incarnation: U64
    source_incarnation: U64
    bytes: U64


@dataclass(frozen=True, slots=True)
class ObjectSum:
    """Has the server read all of an object from its device, and compare it with its sums. It ends
    when the asking connection does. reads: otherwise it says only what the sums say, which takes
    a hundredth of the time."""

    target: U64
    file_id: U64
    object: U32
    reads: bool = True


@dataclass(frozen=True, slots=True)
class ObjectSummed:
    """digest: of the bytes as they were written last, with holes as zeros and without zeros at the
    end; b"": it is not known, as records of the object are lost, which is not mended where it lies.
    blocks_damaged: of which the device has other bytes than were written, or none; offsets,
    lengths: where these are, at most RANGES_MAX ranges. bytes: read from the device.
    records_renewed: record pages that were damaged and are whole again. incarnation: of the
    target."""

    length: U64
    epoch: U32
    digest: Token
    blocks_damaged: U64
    offsets: U64s
    lengths: U64s
    bytes: U64
    records_renewed: U64
    incarnation: U64


@dataclass(frozen=True, slots=True)
class ObjectMend:
    """Has the server write ranges of an object again, at most RANGES_MAX, with the bytes that the
    source has: those blocks of them that are damaged, and to which these bytes belong by their
    sums. source_address and so on: as of OBJECT_COPY."""

    target: U64
    file_id: U64
    object: U32
    offsets: U64s
    lengths: U64s
    source_address: Text
    source_target: U64
    source_object: U32


@dataclass(frozen=True, slots=True)
class ObjectMended:
    """blocks: that are mended durably. offsets, lengths: ranges of which blocks are left."""

    blocks: U64
    offsets: U64s
    lengths: U64s


OBJECT_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.OBJECT_LIST: (ObjectList, ObjectListing),
    Op.OBJECT_COPY: (ObjectCopy, ObjectCopied),
    Op.OBJECT_SUM: (ObjectSum, ObjectSummed),
    Op.OBJECT_MEND: (ObjectMend, ObjectMended),
}
