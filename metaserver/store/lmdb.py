"""The embedded store: LMDB. Only this module imports it.

The store is one environment with one unnamed database. A commit is one LMDB write transaction; it
begins and ends in one call, because LMDB ties it to its thread. LMDB writes pages, calls fdatasync,
writes the meta page and syncs that, so after a crash the batch is there whole or not at all. A
snapshot is one read transaction: LMDB keeps the pages that it needs. The map is sparse: its size is
a bound, and takes no space by itself.

A full store: every change needs fresh pages first, even a removal. So the metaserver accepts no
growth when less than a reserve is left (StoreRoom.is_full). The reserve counts against the bound,
which the map exceeds by a little, and against the disk, where it is allocated to the file ahead of
its pages.

LMDB has no checksums. So the XXH3 of key and value stands behind each value: a damaged record is an
error for the request that needs it (DamagedRecordError), and never another value. A store of an
older program, without these sums, gets them when it is opened.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import lmdb

from fscommon.checksum import SUM_SIZE, xxh3_64_bytes
from metaserver.store.waist import Batch, RecordError, StoreError, StoreFullError, StoreRoom

KEY_LENGTH_MAX: Final = 511  # LMDB's own bound; the longest key of records has 272 bytes
DATA: Final = "data.mdb"
_SIZE_MIN: Final = 1 << 20
_SIZE_MAX: Final = 1 << 44
_BEYOND: Final = 256 << 20  # the map exceeds the bound by this, or by a quarter of the bound
_RESERVE_MAX: Final = 64 << 20
_RESERVE_SHARE: Final = 32  # of a small disk
# A key behind all others, which says that records of this store have sums.
_SEALED_KEY: Final = b"\xff" * KEY_LENGTH_MAX
# What LMDB says of a file that it, or another program, has not left like this.
_DAMAGE: Final = (
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)


class DamagedRecordError(RecordError):
    """A record is not what was written: EIO for the request that needs it."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key, f"the record of key {key!r} in the metadata store is damaged")


class DamagedStoreError(StoreError):
    """The file is no store of LMDB, or its pages do not fit together."""


def _failure(what: str, error: lmdb.Error) -> StoreError:
    kind = DamagedStoreError if isinstance(error, _DAMAGE) else StoreError
    return kind(f"{what}: {error}")


def _seal(key: bytes, value: bytes) -> bytes:
    return value + xxh3_64_bytes(key + value)


def _is_whole(key: bytes, sealed: bytes) -> bool:
    return xxh3_64_bytes(key + sealed[:-SUM_SIZE]) == sealed[-SUM_SIZE:]


def read_store(directory: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yields all records of a store that nobody has open, and changes nothing. What a file with
    damaged pages does to LMDB may end this process. Raises DamagedStoreError, StoreError if it
    cannot be read for another reason."""
    data = directory / DATA
    if directory.exists() and not directory.is_dir():
        raise DamagedStoreError(f"{directory} is no directory")
    if not data.exists():
        return
    if not data.stat().st_size:
        raise DamagedStoreError(f"{data} is empty")
    try:
        environment = lmdb.open(str(directory), readonly=True, lock=False, max_dbs=0)
        try:
            with environment.begin(buffers=False) as transaction:
                yield from _checked(transaction, environment.stat()["entries"])
        finally:
            environment.close()
    except lmdb.Error as error:
        raise _failure(str(directory), error) from error


def _checked(transaction: lmdb.Transaction, count: int) -> Iterator[tuple[bytes, bytes]]:
    """The records of a store that has `count` of them."""
    has_sums = transaction.get(_SEALED_KEY) is not None
    before, found = b"", 0
    with transaction.cursor() as cursor:
        for key, sealed in cast(Iterator[tuple[bytes, bytes]], iter(cursor)):
            found += 1
            if key <= before:
                raise DamagedStoreError("its records are not in order")
            before = key
            if key == _SEALED_KEY:
                continue
            if has_sums and not _is_whole(key, sealed):
                raise DamagedStoreError(DamagedRecordError(key).message)
            yield key, sealed[:-SUM_SIZE] if has_sums else sealed
    if found != count:
        raise DamagedStoreError(f"it has {found} records, and says that it has {count}")


class LmdbSnapshot:
    def __init__(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction

    def get(self, key: bytes) -> bytes | None:
        sealed = cast(bytes | None, self._transaction.get(key))
        return None if sealed is None else self._opened(key, sealed)

    def _opened(self, key: bytes, sealed: bytes) -> bytes:
        if _is_whole(key, sealed):
            return sealed[:-SUM_SIZE]
        raise DamagedRecordError(key)

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
    def __init__(self, directory: Path, *, size_max: int) -> None:
        """Opens the store. size_max 0: as much as the disk holds. Raises OSError, StoreError."""
        directory.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(directory)
        disk_size = disk.f_blocks * disk.f_frsize
        self._size_max = max(min(size_max or disk_size, _SIZE_MAX), _SIZE_MIN)
        self._reserve = min(_RESERVE_MAX, disk_size // _RESERVE_SHARE)
        try:
            self._environment = lmdb.open(
                str(directory),
                map_size=self._size_max + max(self._size_max // 4, _BEYOND),
                max_dbs=0,
                max_readers=8,
                readahead=False,
                meminit=False,
                mode=0o600,
            )
        except lmdb.Error as error:
            raise _failure(str(directory), error) from error
        self._directory = directory
        self._file = os.open(directory / DATA, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._give_sums()
        except lmdb.Error as error:
            self.close()
            raise _failure(f"{directory}: its records cannot be given sums", error) from error
        self._allocated = 0
        self._room = self._measure()

    def _give_sums(self) -> None:
        """Adds sums to all records, in one transaction: 1.5 s for a million records."""
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
        return LmdbSnapshot(self._environment.begin(buffers=False))

    def commit(self, batch: Batch) -> None:
        try:
            with self._environment.begin(write=True) as transaction:
                for key, value in batch:
                    if value is None:
                        transaction.delete(key)
                    else:
                        transaction.put(key, _seal(key, value))
        except lmdb.Error as error:
            if isinstance(error, lmdb.MapFullError | lmdb.DiskError) or self._is_disk_full():
                raise StoreFullError(f"{self._directory}: no room for a commit: {error}") from error
            raise _failure(f"{self._directory}: commit failed", error) from error
        self._room = self._measure()

    def _is_disk_full(self) -> bool:
        """Whether the disk is full. LMDB reports an I/O error if a write is cut short."""
        disk = os.fstatvfs(self._file)
        return disk.f_bavail * disk.f_frsize < self._reserve

    def room(self) -> StoreRoom:
        return self._room

    def _measure(self) -> StoreRoom:
        """Measures the pages in use, without free ones, and how large the file may become."""
        stat = self._environment.stat()
        page = stat["psize"]
        used = (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * page
        self._allocate_ahead((self._environment.info()["last_pgno"] + 1) * page)
        disk = os.fstatvfs(self._file)
        file_size = max(self._allocated, os.fstat(self._file).st_size)
        by_disk = file_size + disk.f_bavail * disk.f_frsize
        total = min(self._size_max, by_disk)
        return StoreRoom(used, total, max(0, self._reserve - (by_disk - total)))

    def _allocate_ahead(self, end: int) -> None:
        """Allocates the reserve behind the file's last page, as far as the disk has room."""
        if self._allocated >= end + self._reserve:
            return
        for share in (2.0, 1.0, 0.5, 0.25):
            wanted = int(self._reserve * share)
            if wanted == 0 or end + wanted <= self._allocated:
                return
            try:
                os.posix_fallocate(self._file, end, wanted)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    return  # this file system cannot: bound and free bytes must suffice
            else:
                self._allocated = end + wanted
                return

    def close(self) -> None:
        os.close(self._file)
        self._environment.close()
