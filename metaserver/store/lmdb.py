"""The embedded store: LMDB. This module is the only one that imports it.

One environment of one unnamed database. A commit is one LMDB write transaction, begun and ended
within one call because LMDB ties it to its thread; LMDB writes pages, fdatasyncs, writes the meta
page and syncs that, so a crash shows the batch whole or not at all. A snapshot is one read
transaction: LMDB keeps the pages it needs. The map is sparse: its size is a bound, not a use.

LMDB has no checksums. Behind each value lies the XXH3 of key and value, so that a damaged record is
an error of whoever needs it (DamagedRecordError, told to `on_damage`) and never another value. A
store without these sums, of an older program, is given them when it is opened.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

import lmdb

from fscommon.checksum import SUM_SIZE, xxh3_64_bytes
from fscommon.errors import BraidError, FsError, Status
from metaserver.store.waist import Batch

KEY_LENGTH_MAX: Final = 511  # LMDB's own bound; our longest key has 272 bytes
_SIZE_MIN: Final = 1 << 20
# Behind all others: records of this store have sums.
_SEALED_KEY: Final = b"\xff" * KEY_LENGTH_MAX

OnDamage = Callable[[str], None]


class StoreError(BraidError):
    """The store refused to read or write; the message says which store and why."""


class DamagedRecordError(FsError):
    """A record is not what was written: EIO for whoever needs it."""

    def __init__(self, key: bytes) -> None:
        super().__init__(Status.EIO, f"the record of key {key!r} in the metadata store is damaged")


def _seal(key: bytes, value: bytes) -> bytes:
    return value + xxh3_64_bytes(key + value)


class LmdbSnapshot:
    def __init__(self, transaction: lmdb.Transaction, on_damage: OnDamage) -> None:
        self._transaction = transaction
        self._on_damage = on_damage

    def get(self, key: bytes) -> bytes | None:
        sealed = cast(bytes | None, self._transaction.get(key))
        return None if sealed is None else self._opened(key, sealed)

    def _opened(self, key: bytes, sealed: bytes) -> bytes:
        value = sealed[:-SUM_SIZE]
        if xxh3_64_bytes(key + value) == sealed[-SUM_SIZE:]:
            return value
        error = DamagedRecordError(key)
        self._on_damage(error.message)
        raise error

    def range(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(start):
                return
            for key, value in cast(Iterator[tuple[bytes, bytes]], iter(cursor)):
                if key >= end:
                    return
                yield key, self._opened(key, value)

    def close(self) -> None:
        self._transaction.abort()


class LmdbStore:
    def __init__(
        self, directory: Path, *, size_max: int, on_damage: OnDamage = lambda _: None
    ) -> None:
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
        self._on_damage = on_damage
        try:
            self._give_sums()
        except lmdb.Error as error:
            self.close()
            raise StoreError(f"{directory}: its records cannot be given sums: {error}") from error

    def _give_sums(self) -> None:
        """Once, all or none: 1.5 s for a million records."""
        with self._environment.begin(write=True) as transaction:
            if transaction.get(_SEALED_KEY) is not None:
                return
            with transaction.cursor() as cursor:
                more = cursor.first()
                while more:
                    key, value = cursor.item()
                    cursor.put(key, _seal(key, value))
                    more = cursor.next()
            transaction.put(_SEALED_KEY, b"")

    def snapshot(self) -> LmdbSnapshot:
        return LmdbSnapshot(self._environment.begin(buffers=False), self._on_damage)

    def commit(self, batch: Batch) -> None:
        try:
            with self._environment.begin(write=True) as transaction:
                for key, value in batch:
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, _seal(key, value))
        except lmdb.Error as error:
            raise StoreError(f"{self._directory}: commit failed: {error}") from error

    def fullness(self) -> float:
        used = self._environment.info()["last_pgno"] * self._environment.stat()["psize"]
        return float(used / self._environment.info()["map_size"])

    def close(self) -> None:
        self._environment.close()
