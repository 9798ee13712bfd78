"""What a directory says about the layout of new files in it: chunk size and stripe width.

As text it is the xattr `braidfs.layout` ("chunk_size=4MiB,stripe_width=8"); as a packed record it
is what the metaserver stores. A directory without one uses the cluster's configuration; a new
sub-directory inherits that of its parent. Pure.
"""

import struct
from dataclasses import dataclass
from typing import Final

from fscommon.errors import ProtocolError
from fscommon.limits import CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, STRIPE_WIDTH_MAX

LAYOUT_XATTR: Final = b"braidfs.layout"
_RECORD: Final = struct.Struct("<BxHI")
_VERSION: Final = 1
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20}
_TEXT_LENGTH_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class LayoutDefault:
    """The default. stripe_width: over how many targets a new file is spread, if there are
    so many."""

    chunk_size: int
    stripe_width: int

    def pack(self) -> bytes:
        return _RECORD.pack(_VERSION, self.stripe_width, self.chunk_size)

    def text(self) -> str:
        return f"chunk_size={self.chunk_size},stripe_width={self.stripe_width}"


def unpack_default(raw: bytes) -> LayoutDefault:
    """The default of a packed record. Raises ProtocolError."""
    if len(raw) != _RECORD.size:
        raise ProtocolError(f"a layout default of {len(raw)} bytes")
    version, stripe_width, chunk_size = _RECORD.unpack(raw)
    if version != _VERSION:
        raise ProtocolError(f"layout default version {version} is not {_VERSION}")
    try:
        return _checked(chunk_size, stripe_width)
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def parse_default(text: bytes, base: LayoutDefault) -> LayoutDefault:
    """The default that the text describes; `base` fills in what it does not say. Raises ValueError
    with a sentence."""
    if len(text) > _TEXT_LENGTH_MAX:
        raise ValueError("a layout has at most 256 characters")
    values = {"chunk_size": base.chunk_size, "stripe_width": base.stripe_width}
    words = text.decode("ascii").strip("\0 \n").replace(",", " ").split()
    if not words:
        raise ValueError("a layout says chunk_size=BYTES, stripe_width=COUNT, or both")
    for word in words:
        name, equals, value = word.partition("=")
        if name not in values or not equals:
            raise ValueError(f"'{word}' is none of chunk_size=BYTES and stripe_width=COUNT")
        values[name] = _number(name, value)
    return _checked(**values)


def _number(name: str, value: str) -> int:
    digits = value.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = value[len(digits) :].lower().removesuffix("ib").removesuffix("b")
    if not (digits.isascii() and digits.isdigit()) or unit not in _UNITS or len(digits) > 12:
        raise ValueError(f"{name}={value}: a number is expected, or one with KiB or MiB")
    if unit and name != "chunk_size":
        raise ValueError(f"{name}={value}: a plain number is expected")
    return int(digits) * _UNITS[unit]


def _checked(chunk_size: int, stripe_width: int) -> LayoutDefault:
    if not CHUNK_SIZE_MIN <= chunk_size <= CHUNK_SIZE_MAX or chunk_size % CHUNK_SIZE_MIN:
        raise ValueError(
            f"chunk_size={chunk_size} is no multiple of {CHUNK_SIZE_MIN} (64 KiB) "
            f"up to {CHUNK_SIZE_MAX} (64 MiB)"
        )
    if not 1 <= stripe_width <= STRIPE_WIDTH_MAX:
        raise ValueError(f"stripe_width={stripe_width} is not from 1 to {STRIPE_WIDTH_MAX}")
    return LayoutDefault(chunk_size, stripe_width)
