"""What the metaserver asks of a store: ordered keys, snapshots, and batches that are durable.

A snapshot shows one commit for as long as it is held. `commit` returns when the whole batch is on
stable storage; after a crash at any instant the store holds every batch whose commit returned and
at most one more, each whole or not at all. One thread commits, another reads.
What is written but not committed yet is metaserver.overlay, never the store.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

Batch = Sequence[tuple[bytes, bytes | None]]  # each key at most once; None deletes


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

    def fullness(self) -> float:
        """The used share of the room that the store has, 0..1."""
        ...

    def close(self) -> None: ...
