"""XXH3-64, the one checksum of BraidFS, and the door to the xxhash library.

Frames, blocks, superblocks and hashes of names use it. It detects accidents, not attackers: what
must not be forged carries an HMAC (fscommon.auth, fscommon.layout.capability). Pure.
"""

from typing import Final, TypeAlias

import xxhash

from fscommon.limits import BLOCK_SIZE

Bytes: TypeAlias = bytes | bytearray | memoryview

SUM_SIZE: Final = 8

xxh3_64 = xxhash.xxh3_64_intdigest  # an alias instead of a function saves a call per frame
xxh3_64_bytes = xxhash.xxh3_64_digest


def block_sums(offset: int, payload: Bytes) -> list[int]:
    """One sum for each block that [offset, offset + length) touches: of the part of the block
    inside the range."""
    view = memoryview(payload)
    sums = []
    start = 0
    while start < len(view):
        end = min(len(view), start + BLOCK_SIZE - (offset + start) % BLOCK_SIZE)
        sums.append(xxh3_64(view[start:end]))
        start = end
    return sums
