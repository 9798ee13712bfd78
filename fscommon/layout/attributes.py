"""The attribute record of an inode: 128 packed bytes, the same on the wire, in the store and in
native tables (docs/INTERFACES.md, section 1).
"""

import struct
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from fscommon.errors import ProtocolError

ATTRIBUTES_SIZE: Final = 128
_RECORD: Final = struct.Struct("<3Q4q6I3Qq2IQ")


@dataclass(frozen=True, slots=True)
class Attributes:
    """Times are nanoseconds since 1970, blocks are 512 bytes, mode holds type and permissions."""

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
    parent: int = 0  # of a directory, else 0
    lease_deadline_ns: int = 0
    lease_flags: int = 0
    xattr_count: int = 0

    def pack(self) -> bytes:
        return _RECORD.pack(*_FIELDS(self), 0)


_FIELDS: Final = attrgetter(*Attributes.__slots__)


def unpack_attributes(raw: bytes) -> Attributes:
    """Raises ProtocolError unless raw is one record."""
    if len(raw) != ATTRIBUTES_SIZE:
        raise ProtocolError(f"an attribute record has {ATTRIBUTES_SIZE} bytes, not {len(raw)}")
    return Attributes(*_RECORD.unpack(raw)[:-1])
