"""OBJECT_LIST: what objects a target has. OBJECT_COPY: makes an object from one of another target.
A storage server answers both on connections of purpose "admin", to whoever has the cluster key.

The objects of a target lie in 256 directories, which a caller goes through one after the other; all
objects of a file id are in the same one. Names in a directory have an order, and the caller says
behind which one to go on: so a repeat is harmless, and the storage server keeps nothing.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.checksum import xxh3_64
from fscommon.ranges import U32, U64, Many, Text
from fscommon.wire.ops import Op

DIRECTORIES: Final = 256
OBJECTS_MAX: Final = 4096  # of one reply
END_UNKNOWN: Final = 2**64 - 1


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
    its host. end: of its file on the disk, with the records in it; END_UNKNOWN from an earlier
    release."""

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


OBJECT_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.OBJECT_LIST: (ObjectList, ObjectListing),
    Op.OBJECT_COPY: (ObjectCopy, ObjectCopied),
}
