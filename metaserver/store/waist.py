"""What the metaserver asks of a store: ordered keys, snapshots, and batches that are durable.

A snapshot shows one commit for as long as it is held. `commit` returns when the whole batch is on
stable storage; after a crash at any instant the store holds every batch whose commit returned and
at most one more, each whole or not at all. One thread commits, another reads.
What is written but not committed yet is metaserver.overlay, never the store.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from fscommon.errors import BraidError

_FULL_SHARE: Final = 20  # of the whole that is kept for removals
_FULL_MAX: Final = 1 << 30  # but no more

Batch = Sequence[tuple[bytes, bytes | None]]  # each key at most once; None deletes


class StoreError(BraidError):
    """The store refused to read or write; the message says which store and why."""


class StoreFullError(StoreError):
    """There is no room for the batch: not in the store's bound, or not on its disk. Nothing was
    written; the same batch may fit later."""


@dataclass(frozen=True, slots=True)
class StoreRoom:
    """Bytes that records take, and bytes that they may take: by the store's bound, and by the disk
    as others have filled it. reserve: what is kept so that removals can be written."""

    used: int
    total: int
    reserve: int = 0

    @property
    def free(self) -> int:
        return max(0, self.total - self.used)

    @property
    def is_full(self) -> bool:
        """Nothing that grows fits any more."""
        return self.free <= max(self.reserve, min(self.total // _FULL_SHARE, _FULL_MAX))


class Snapshot(Protocol):
    """One committed state. Used by one thread; iterators end before `close`."""

    def get(self, key: bytes) -> bytes | None: ...

    def range(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Records with start <= key < end, in order of their keys."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    def snapshot(self) -> Snapshot:
        """The newest committed state."""
        ...

    def commit(self, batch: Batch) -> None:
        """Write the batch and wait until it is durable. Raises StoreError: nothing was written."""
        ...

    def room(self) -> StoreRoom:
        """As of the last commit; any thread."""
        ...

    def close(self) -> None: ...
