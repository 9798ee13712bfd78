"""Ranges of the fields of messages and records: what a value from outside may be.

They are part of a field's type, as `ino: U64` or `name: Name`; to mypy they are plain int, bytes
and so on. fscommon.wire.codec refuses whatever is outside of them before anybody acts on it, and
takes no class with a number, a text or a list that has none. A range says what fits where the
value goes; what it means (a name that is too long, a size beyond what a file may have) is for the
op to say, in the words of POSIX.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.limits import FRAME_BODY_LENGTH_MAX

ARRAY_LENGTH_MAX: Final = 1 << 17  # entries of one array


@dataclass(frozen=True, slots=True)
class Width:
    """Of an int: the format character of `struct` that it must fit."""

    code: str

    @property
    def low(self) -> int:
        bits = _BITS[self.code.upper()]
        return -(1 << (bits - 1)) if self.code.islower() else 0

    @property
    def high(self) -> int:
        bits = _BITS[self.code.upper()]
        return (1 << (bits - 1 if self.code.islower() else bits)) - 1


_BITS: Final = {"B": 8, "H": 16, "I": 32, "Q": 64}


@dataclass(frozen=True, slots=True)
class Most:
    """Of bytes, a text or an array: how many it may have."""

    length: int


U8 = Annotated[int, Width("B")]
U16 = Annotated[int, Width("H")]
U32 = Annotated[int, Width("I")]
U64 = Annotated[int, Width("Q")]
I64 = Annotated[int, Width("q")]

Name = Annotated[bytes, Most(4096)]  # of a file: longer than may be, so that ENAMETOOLONG is said
Record = Annotated[bytes, Most(8192)]  # a layout, a target of a link, a capability
Token = Annotated[bytes, Most(64)]  # a uuid, a nonce, a proof
Blob = Annotated[bytes, Most(FRAME_BODY_LENGTH_MAX)]
Text = Annotated[str, Most(4096)]  # names of nodes, paths, addresses
Message = Annotated[str, Most(1 << 16)]  # to people

Many = Most(ARRAY_LENGTH_MAX)  # of an array: as many as a message can have
Names = Annotated[tuple[Name, ...], Many]
U32s = Annotated[tuple[U32, ...], Many]
U64s = Annotated[tuple[U64, ...], Many]
