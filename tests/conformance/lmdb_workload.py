"""Commits pseudo-random batches to an LMDB store and marks in the write log when each commit
returned.

It runs as a program under the recorder of record_writes.c; `batches` gives the test the same
batches.
"""

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from metaserver.store.lmdb import LmdbStore
from metaserver.store.waist import Batch

MARK = b"M" + bytes(12)  # it is a record of kind M without bytes: a commit returned


def batches(seed: int, count: int) -> Iterator[Batch]:
    """Small and large values, overwrites and deletes: pages are reused and freed."""
    chance = random.Random(seed)
    for _ in range(count):
        batch: dict[bytes, bytes | None] = {}
        for _ in range(chance.choice([1, 3, 30, 120])):
            key = b"%c%06d" % (chance.choice(b"IDRX"), chance.randrange(700))
            size = chance.choice([0, 40, 200, 900, 9000])
            batch[key] = None if chance.random() < 0.35 else chance.randbytes(size)
        yield list(batch.items())


def main() -> None:
    directory, log, seed, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    store = LmdbStore(directory, size_max=1 << 28)
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for batch in batches(seed, count):
        store.commit(batch)
        os.write(fd, MARK)
    store.close()


if __name__ == "__main__":
    main()
