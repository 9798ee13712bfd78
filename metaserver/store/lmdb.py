"""The embedded store: LMDB. This module is the only one that imports it.

One environment of one unnamed database. A commit is one LMDB write transaction, begun and ended
within one call because LMDB ties it to its thread; LMDB writes pages, fdatasyncs, writes the meta
page and syncs that, so a crash shows the batch whole or not at all. A snapshot is one read
transaction: LMDB keeps the pages it needs. The map is sparse: its size is a bound, not a use.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import lmdb

from fscommon.errors import BraidError
from metaserver.store.waist import Batch

KEY_LENGTH_MAX: Final = 511  # LMDB's own bound; our longest key has 272 bytes
_SIZE_MIN: Final = 1 << 20


class StoreError(BraidError):
    """The store refused to read or write; the message says which store and why."""


class LmdbSnapshot:
    def __init__(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction

    def get(self, key: bytes) -> bytes | None:
        return cast(bytes | None, self._transaction.get(key))

    def range(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(start):
                return
            for key, value in cast(Iterator[tuple[bytes, bytes]], iter(cursor)):
                if key >= end:
                    return
                yield key, value

    def close(self) -> None:
        self._transaction.abort()


class LmdbStore:
    def __init__(self, directory: Path, *, size_max: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._environment = lmdb.open(
                str(directory),
                map_size=max(size_max, _SIZE_MIN),
                max_dbs=0,
                max_readers=8,
                readahead=False,
                meminit=False,
                mode=0o600,
            )
        except lmdb.Error as error:
            raise StoreError(f"{directory}: {error}") from error
        self._directory = directory

    def snapshot(self) -> LmdbSnapshot:
        return LmdbSnapshot(self._environment.begin(buffers=False))

    def commit(self, batch: Batch) -> None:
        try:
            with self._environment.begin(write=True) as transaction:
                for key, value in batch:
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, value)
        except lmdb.Error as error:
            raise StoreError(f"{self._directory}: commit failed: {error}") from error

    def fullness(self) -> float:
        used = self._environment.info()["last_pgno"] * self._environment.stat()["psize"]
        return float(used / self._environment.info()["map_size"])

    def close(self) -> None:
        self._environment.close()
