"""Capabilities: the metaserver's statement that a session may touch the objects of a file (rule
25).

64 packed bytes: what is allowed to whom, which objects the file has and where, and a MAC under a
key that only the metaserver and the storage servers have. Storage servers verify them in native
code (native/src/server). Pure.
"""

import hmac
import struct
from functools import lru_cache
from typing import Final

from fscommon.layout.layout import FILE_ID, STRIPE_WIDTH, TRUNCATE_EPOCH, packed_places

CAPABILITY_SIZE: Final = 64
RIGHT_READ: Final = 1
RIGHT_WRITE: Final = 2

_SIGNED: Final = struct.Struct("<8sQIIQ2sH4sQ")
_MAC_SIZE: Final = 16
TARGET_MARK_FACTOR: Final = 0x9E3779B1
MARKS_KEPT: Final = 4096
_U32: Final = (1 << 32) - 1
_MAP_EPOCH: Final = slice(20, 24)


def capability_key(cluster_key: bytes, cluster_uuid: bytes) -> bytes:
    """The 32-byte key for the capabilities of one cluster."""
    return hmac.digest(cluster_key, b"braidfs capability" + cluster_uuid, "sha256")


def make_capability(
    key: bytes, *, layout: bytes, session: int, rights: int, map_epoch: int, ino: int
) -> bytes:
    """A capability of 64 bytes. `layout` is the packed record of the file, which has no objects but
    those."""
    targets, places = packed_places(layout)
    signed = _SIGNED.pack(
        layout[FILE_ID],
        session,
        rights,
        map_epoch,
        ino,
        layout[STRIPE_WIDTH],
        places,
        layout[TRUNCATE_EPOCH],
        _target_marks(targets),
    )
    return signed + hmac.digest(key, signed, "sha256")[:_MAC_SIZE]


@lru_cache(MARKS_KEPT)
def _target_marks(packed: bytes) -> int:
    """A part of each target's number for each place: as many bits as there is room for, none in
    layouts of more than 64 places. There are few distinct sets of targets, and every open needs
    this, so results are cached."""
    targets = struct.unpack(f"<{len(packed) // 4}I", packed)
    bits = min(32, 64 // len(targets))
    marks = 0
    for target in reversed(targets):
        marks = marks << bits | (target * TARGET_MARK_FACTOR & _U32) >> 32 - bits
    return marks


def map_epoch_of(capability: bytes) -> int:
    """The map epoch in a capability; 0 for b""."""
    return int.from_bytes(capability[_MAP_EPOCH], "little")
