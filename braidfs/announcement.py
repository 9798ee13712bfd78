"""The ioctl by which a program announces the files that it will read, in order
(docs/decisions/0038-announced-reads.md): its number and its format. Pure."""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

IOCTL_ANNOUNCE: Final = 0x7FF8B401  # _IOW(0xb4, 1, 16376 bytes)
FILES_MAX: Final = 1023  # of one call
SIZE: Final = 16376

_HEAD: Final = struct.Struct(
    "<2I"
)  # flags, count; then inode numbers of files, then of their directories
_REPLACES: Final = 1


@dataclass(frozen=True, slots=True)
class Announcement:
    """An announcement. inos, parents: of each file, in the order in which they will be read.
    replaces: it replaces all earlier announcements, of any program."""

    inos: Sequence[int]
    parents: Sequence[int]
    replaces: bool

    def packed(self) -> bytes:
        head = _HEAD.pack(_REPLACES if self.replaces else 0, len(self.inos))
        columns = array("Q", self.inos).tobytes() + array("Q", self.parents).tobytes()
        return (head + columns).ljust(SIZE, b"\0")


def unpack_announcement(given: bytes) -> Announcement:
    """Unpacks an announcement. Raises ValueError if it is invalid."""
    if len(given) != SIZE:
        raise ValueError("an announcement of the wrong size")
    flags, count = _HEAD.unpack_from(given)
    if flags & ~_REPLACES or count > FILES_MAX:
        raise ValueError("an announcement with unknown flags or too many files")
    middle, end = _HEAD.size + 8 * count, _HEAD.size + 16 * count
    inos, parents = array("Q", given[_HEAD.size : middle]), array("Q", given[middle:end])
    return Announcement(inos, parents, bool(flags & _REPLACES))
