"""How a commit batch lies in a journal's entry: packed, compressed, and with a sum.

The form: a byte for the version, the XXH3 64 of what follows it (8 bytes), then, compressed by
zlib, the pairs in the order of the batch: length of the key (u16), length of the value (u32; all
ones: the key is deleted), key, value. An entry that is not exactly that is a DamagedJournalError,
and one of a later version a LaterReleaseError: no part of it is used.
"""

import struct
import zlib
from typing import Final

from fscommon.checksum import SUM_SIZE, xxh3_64_bytes
from metaserver.store.journal import DamagedJournalError, LaterReleaseError
from metaserver.store.waist import Batch

_VERSION: Final = b"\x01"
_LEVEL: Final = 1  # records repeat each other: the fastest level takes most of it
_LENGTHS: Final = struct.Struct("<HI")
_DELETED: Final = 0xFFFF_FFFF
_UNPACKED_MAX: Final = 1 << 30
_KEY_MAX: Final = 510  # bytes: a store takes no longer one, and has one of 511 for itself


def pack_batch(batch: Batch) -> bytes:
    parts: list[bytes] = []
    for key, value in batch:
        length = _DELETED if value is None else len(value)
        parts += (_LENGTHS.pack(len(key), length), key, value or b"")
    packed = zlib.compress(b"".join(parts), _LEVEL)
    return _VERSION + xxh3_64_bytes(packed) + packed


def unpack_batch(payload: bytes) -> list[tuple[bytes, bytes | None]]:
    """Raises DamagedJournalError, LaterReleaseError."""
    packed = payload[1 + SUM_SIZE :]
    if payload[:1] > _VERSION:
        raise LaterReleaseError(
            f"entries of the journal have form {payload[0]}, of a later release; this one reads "
            f"forms up to {_VERSION[0]}: upgrade this metaserver"
        )
    if payload[:1] != _VERSION:
        raise DamagedJournalError("an entry of the journal has no form that there ever was")
    if xxh3_64_bytes(packed) != payload[1 : 1 + SUM_SIZE]:
        raise DamagedJournalError("an entry of the journal does not match its sum")
    try:
        return _pairs(_inflated(packed))
    except (zlib.error, ValueError, struct.error) as error:
        raise DamagedJournalError(f"an entry of the journal is no batch: {error}") from error


def _inflated(packed: bytes) -> bytes:
    inflating = zlib.decompressobj()
    found = inflating.decompress(packed, _UNPACKED_MAX)
    if not inflating.eof or inflating.unused_data:
        raise ValueError("it does not end where it says, or is too large")
    return found


def _pairs(packed: bytes) -> list[tuple[bytes, bytes | None]]:
    found: list[tuple[bytes, bytes | None]] = []
    at = 0
    while at < len(packed):
        key_length, value_length = _LENGTHS.unpack_from(packed, at)
        if not 0 < key_length <= _KEY_MAX:
            raise ValueError(f"it has a key of {key_length} bytes")
        key_end = at + _LENGTHS.size + key_length
        end = key_end + (0 if value_length == _DELETED else value_length)
        if end > len(packed):
            raise ValueError("it ends within a pair")
        key = packed[at + _LENGTHS.size : key_end]
        found.append((key, None if value_length == _DELETED else packed[key_end:end]))
        at = end
    return found
