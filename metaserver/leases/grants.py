"""The lease fields in the attribute records of a reply.

They are written in place: the encoded body has the records unchanged, those of a listing one after
another. The row of the op says which records a reply has, and which leases to grant on them
(metaserver.ops.row). The stored reply has no lease fields, so a repeat grants nothing.
"""

from collections.abc import Callable, Iterator
from typing import Final

from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_ENTRIES,
    LEASE_META,
    inos_of,
    put_lease,
)
from fscommon.types import Ino

Grant = tuple[bytes, int]  # attribute records, and the LEASE_* bits to grant on their inodes
NAMES: Final = LEASE_META | LEASE_ENTRIES


def write_grants(
    body: bytes, grants: Iterator[Grant], grant: Callable[[Ino, int], int], duration_ns: int
) -> bytes:
    """Returns the body with leases in its records: `grant(ino, wanted)` says what is held."""
    patched = bytearray(body)
    behind = 0
    for records, wanted in grants:
        at = body.index(records, behind)
        behind = at + len(records)
        for ino in inos_of(records):
            held = grant(ino, wanted)
            if held:
                put_lease(patched, at, duration_ns, held)
            at += ATTRIBUTES_SIZE
    return bytes(patched)
