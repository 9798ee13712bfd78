"""The ioctl by which a program says which files it is going to read, in which order
(docs/decisions/0038-announced-reads.md): what is asked and how it is packed."""

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
)  # flags, count; then inode numbers of files, of their directories
_REPLACES: Final = 1


@dataclass(frozen=True, slots=True)
class Announcement:
    """inos and parents: a place for each file, in the order in which they will be read. replaces:
    what was announced before by whomever is not wanted any more."""

    inos: Sequence[int]
    parents: Sequence[int]
    replaces: bool

    def packed(self) -> bytes:
        head = _HEAD.pack(_REPLACES if self.replaces else 0, len(self.inos))
        columns = array("Q", self.inos).tobytes() + array("Q", self.parents).tobytes()
        return (head + columns).ljust(SIZE, b"\0")


def unpack_announcement(given: bytes) -> Announcement:
    """Raises ValueError for what is none."""
    if len(given) != SIZE:
        raise ValueError("an announcement of another size")
    flags, count = _HEAD.unpack_from(given)
    if flags & ~_REPLACES or count > FILES_MAX:
        raise ValueError("an announcement of unknown flags or too many files")
    middle, end = _HEAD.size + 8 * count, _HEAD.size + 16 * count
    inos, parents = array("Q", given[_HEAD.size : middle]), array("Q", given[middle:end])
    return Announcement(inos, parents, bool(flags & _REPLACES))
