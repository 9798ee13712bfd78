"""Capabilities: the metaserver's word that a session may touch the objects of a file (rule 25).

64 packed bytes: what is allowed to whom, and a MAC under a key that only the metaserver and the
storage servers have. Storage servers verify them in native (native/src/server).
"""

import hmac
import struct
from typing import Final

CAPABILITY_SIZE: Final = 64
RIGHT_READ: Final = 1
RIGHT_WRITE: Final = 2

_SIGNED: Final = struct.Struct("<QQIIQ16x")
_MAC_SIZE: Final = 16


def capability_key(cluster_key: bytes, cluster_uuid: bytes) -> bytes:
    """The 32-byte key for the capabilities of one cluster."""
    return hmac.digest(cluster_key, b"braidfs capability" + cluster_uuid, "sha256")


def make_capability(
    key: bytes, *, file_id: int, session: int, rights: int, map_epoch: int, ino: int
) -> bytes:
    signed = _SIGNED.pack(file_id, session, rights, map_epoch, ino)
    return signed + hmac.digest(key, signed, "sha256")[:_MAC_SIZE]
