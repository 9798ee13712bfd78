"""Sums of files, written with their kind: `xxh3:…` (128 bits), or `blake2b:…` (256 bits).

xxh3 needs the package xxhash, which the users' package does not require. Without it sums are
blake2b of the standard library, at about a tenth of the speed: a run must not fail at its first
checkpoint because a package is missing, and a sum that is named can be verified anywhere.
"""

import hashlib
from pathlib import Path
from typing import Any

from .errors import CheckpointError

try:
    import xxhash
except ImportError:
    xxhash = None  # type: ignore[assignment,unused-ignore]

XXH3 = "xxh3"
BLAKE2B = "blake2b"
_PIECE = 4 << 20


def kind_here() -> str:
    """The kind of new sums."""
    return BLAKE2B if xxhash is None else XXH3


def sum_of(path: Path, kind: str | None = None) -> str:
    """`KIND:HEX` of a file's bytes. Raises CheckpointError for a kind that cannot be computed."""
    chosen = kind or kind_here()
    state = _start(chosen)
    piece = memoryview(bytearray(_PIECE))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(piece):
            state.update(piece[:count])
    return f"{chosen}:{state.hexdigest()}"


def _start(kind: str) -> Any:
    if kind == XXH3:
        if xxhash is None:
            raise CheckpointError("its sums are xxh3: install the package xxhash to verify them")
        return xxhash.xxh3_128()
    if kind == BLAKE2B:
        return hashlib.blake2b(digest_size=32)
    raise CheckpointError(f"this version does not know sums of the kind {kind!r}")
