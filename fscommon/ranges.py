"""Ranges of the fields of messages and records: which values from outside are allowed.

A range is part of a field's type, as in `ino: U64` or `name: Name`; to mypy these are plain int,
bytes and so on. fscommon.wire.codec refuses values out of range before anybody acts on them, and
accepts no class with a number, a text or a list that has no range. A range says what fits where the
value goes. Whether the value makes sense (a name that is too long, a size beyond the limit of
files) is for the op to say, in the words of POSIX. Pure.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.limits import FRAME_BODY_LENGTH_MAX

ARRAY_LENGTH_MAX: Final = 1 << 17  # entries of one array


@dataclass(frozen=True, slots=True)
class Width:
    """The range of an int: the format character of `struct` into which it must fit."""

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
    """The longest that bytes, a text or an array may be."""

    length: int


U8 = Annotated[int, Width("B")]
U16 = Annotated[int, Width("H")]
U32 = Annotated[int, Width("I")]
U64 = Annotated[int, Width("Q")]
I64 = Annotated[int, Width("q")]

# Of a file. Longer than allowed, so that the op can answer ENAMETOOLONG.
Name = Annotated[bytes, Most(4096)]
Record = Annotated[bytes, Most(8192)]  # a layout, the target of a link, or a capability
Token = Annotated[bytes, Most(64)]  # a uuid, a nonce, or a proof
Blob = Annotated[bytes, Most(FRAME_BODY_LENGTH_MAX)]
Text = Annotated[str, Most(4096)]  # names of nodes, paths, addresses
Message = Annotated[str, Most(1 << 16)]  # for people

# Of an array: as many entries as a message can have.
Many = Most(ARRAY_LENGTH_MAX)
Names = Annotated[tuple[Name, ...], Many]
U32s = Annotated[tuple[U32, ...], Many]
U64s = Annotated[tuple[U64, ...], Many]
