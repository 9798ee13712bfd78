"""A store in memory, for tests: the committed state is an immutable ordered map.

A commit copies the map, so snapshots cost nothing and do not change. What was committed lives as
long as the object: a test that "restarts" the metaserver gives it the same store. Any thread may
call. It is not for production: nothing reaches a disk.
"""

from collections.abc import Iterator

from sortedcontainers import SortedDict  # type: ignore[import-untyped]

from metaserver.store.waist import Batch, StoreRoom


class MemorySnapshot:
    def __init__(self, records: SortedDict) -> None:
        self._records = records

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._records.get(key)
        return value

    def range(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in self._records.irange(start, end, inclusive=(True, False)):
            yield key, self._records[key]

    def close(self) -> None:
        """Does nothing: a snapshot holds no resources."""


class MemoryStore:
    def __init__(self) -> None:
        self._records: SortedDict = SortedDict()
        self.commits = 0

    def snapshot(self) -> MemorySnapshot:
        return MemorySnapshot(self._records)

    def commit(self, batch: Batch) -> None:
        records = self._records.copy()
        for key, value in batch:
            if value is None:
                records.pop(key, None)
            else:
                records[key] = value
        self._records = records
        self.commits += 1

    def room(self) -> StoreRoom:
        return StoreRoom(used=0, total=1 << 30)

    def close(self) -> None:
        """Does nothing: the records stay."""
