"""What a directory says about the layout of new files in it: chunk size, stripe width, replicas.

As text it is the xattr `braidfs.layout` ("chunk_size=4MiB,stripe_width=8,replicas=2"); as a packed
record it is what the metaserver stores. A directory without one uses the cluster's configuration; a
new sub-directory inherits that of its parent. Records of one replica are those of releases that
knew no replicas. Pure.
"""

import struct
from dataclasses import dataclass
from typing import Final

from fscommon.errors import ProtocolError
from fscommon.limits import CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, REPLICA_COUNT_MAX, STRIPE_WIDTH_MAX

LAYOUT_XATTR: Final = b"braidfs.layout"
_RECORD: Final = struct.Struct("<BBHI")
_VERSION: Final = 1  # of one replica; the byte behind it is not read
_REPLICATED_VERSION: Final = 2
_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20}
_TEXT_LENGTH_MAX: Final = 256
_SAYS: Final = "chunk_size=BYTES, stripe_width=COUNT and replicas=COUNT"


@dataclass(frozen=True, slots=True)
class LayoutDefault:
    """The default. stripe_width: over how many targets a new file is spread, if there are
    so many. replicas: of each stripe, in distinct failure domains."""

    chunk_size: int
    stripe_width: int
    replicas: int = 1

    def pack(self) -> bytes:
        if self.replicas == 1:
            return _RECORD.pack(_VERSION, 0, self.stripe_width, self.chunk_size)
        return _RECORD.pack(_REPLICATED_VERSION, self.replicas, self.stripe_width, self.chunk_size)

    def pool(self) -> int:
        """The number of the pool of slots with such layouts; never 0."""
        return int.from_bytes(self.pack(), "little")

    def text(self) -> str:
        numbers = f"chunk_size={self.chunk_size},stripe_width={self.stripe_width}"
        return f"{numbers},replicas={self.replicas}"


def unpack_default(raw: bytes) -> LayoutDefault:
    """The default of a packed record. Raises ProtocolError."""
    if len(raw) != _RECORD.size:
        raise ProtocolError(f"a layout default of {len(raw)} bytes")
    version, replicas, stripe_width, chunk_size = _RECORD.unpack(raw)
    if version not in (_VERSION, _REPLICATED_VERSION):
        raise ProtocolError(f"layout default version {version} is unknown")
    try:
        return _checked(chunk_size, stripe_width, 1 if version == _VERSION else replicas)
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def parse_default(text: bytes, base: LayoutDefault) -> LayoutDefault:
    """The default that the text describes; `base` fills in what it does not say. Raises ValueError
    with a sentence."""
    if len(text) > _TEXT_LENGTH_MAX:
        raise ValueError("a layout has at most 256 characters")
    values = {
        "chunk_size": base.chunk_size,
        "stripe_width": base.stripe_width,
        "replicas": base.replicas,
    }
    words = text.decode("ascii").strip("\0 \n").replace(",", " ").split()
    if not words:
        raise ValueError(f"a layout says one or more of {_SAYS}")
    for word in words:
        name, equals, value = word.partition("=")
        if name not in values or not equals:
            raise ValueError(f"'{word}' is none of {_SAYS}")
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


def _checked(chunk_size: int, stripe_width: int, replicas: int) -> LayoutDefault:
    if not CHUNK_SIZE_MIN <= chunk_size <= CHUNK_SIZE_MAX or chunk_size % CHUNK_SIZE_MIN:
        raise ValueError(
            f"chunk_size={chunk_size} is no multiple of {CHUNK_SIZE_MIN} (64 KiB) "
            f"up to {CHUNK_SIZE_MAX} (64 MiB)"
        )
    if not 1 <= stripe_width <= STRIPE_WIDTH_MAX:
        raise ValueError(f"stripe_width={stripe_width} is not from 1 to {STRIPE_WIDTH_MAX}")
    if not 1 <= replicas <= REPLICA_COUNT_MAX:
        raise ValueError(f"replicas={replicas} is not from 1 to {REPLICA_COUNT_MAX}")
    return LayoutDefault(chunk_size, stripe_width, replicas)
