"""Which transfers of a shared file belong to which rank, and how one rank writes and reads its own.

The module needs only the standard library, because programs of other environments use it
(mpi_ranks.py).
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsclient.validate.load import BLOCK_BYTES
from tests.bench.data import buffers
from tests.bench.data.amounts import MIB


@dataclass(frozen=True, slots=True)
class Pattern:
    """`offsets`: of the transfers of a rank; its arguments are rank, ranks, transfers of each."""

    name: str
    transfer: int
    strided: bool

    def offsets(self, rank: int, ranks: int, count: int) -> Iterator[int]:
        for number in range(count):
            index = rank + number * ranks if self.strided else rank * count + number
            yield index * self.transfer


SEGMENTED = Pattern("segmented, 1 MiB", MIB, strided=False)
STRIDED = Pattern("strided, 1 MiB", MIB, strided=True)
HARD = Pattern("strided, 47,008 bytes", BLOCK_BYTES, strided=True)
PATTERNS = (SEGMENTED, STRIDED, HARD)


def marked(content: memoryview, offset: int) -> memoryview:
    """A transfer that says in its first bytes where it belongs."""
    content[:8] = offset.to_bytes(8, "little")
    return content


def check(content: memoryview, offset: int) -> None:
    """Raises OSError for a transfer that belongs elsewhere."""
    if content[:8] != offset.to_bytes(8, "little"):
        raise OSError(0, f"wrong bytes at offset {offset}")


def write(path: str, offsets: Iterable[int], transfer: int) -> float:
    """Creates the file if it is missing, and syncs it; returns the bytes written."""
    content, done = buffers.filled(transfer), 0
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    for offset in offsets:
        if os.pwrite(file, marked(content, offset), offset) != transfer:
            raise OSError(0, f"a short write at offset {offset}")
        done += transfer
    os.fsync(file)
    os.close(file)
    return float(done)


def read(path: str, offsets: Iterable[int], transfer: int) -> float:
    """Reads and checks; returns the bytes read."""
    into, done = buffers.pages(transfer), 0
    file = os.open(path, os.O_RDONLY)
    for offset in offsets:
        if os.preadv(file, [into], offset) != transfer:
            raise OSError(0, f"a short read at offset {offset}")
        check(into, offset)
        done += transfer
    os.close(file)
    return float(done)
