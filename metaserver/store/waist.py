"""What the metaserver needs of a store: ordered keys, snapshots, and durable batches.

A snapshot shows one commit for as long as it is held. `commit` returns when the whole batch is on
stable storage. After a crash at any time, the store has every batch whose commit had returned, and
at most one more; each is there whole or not at all. One thread commits, another one reads.
What is written but not committed is in metaserver.overlay, never in the store.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from fscommon.errors import BraidError, FsError, Status

_FULL_SHARE: Final = 20  # 1/20 of the whole is kept for removals ...
_FULL_MAX: Final = 1 << 30  # ... but no more than this

Batch = Sequence[tuple[bytes, bytes | None]]  # has each key at most once; None deletes the key


class StoreError(BraidError):
    """The store refused to read or write; the message says which store and why."""


class RecordError(FsError):
    """One record cannot be given out: EIO for the request that needs it. The others can."""

    def __init__(self, key: bytes, message: str) -> None:
        super().__init__(Status.EIO, message)
        self.key = key


class StoreFullError(StoreError):
    """There is no room for the batch, within the store's bound or on its disk. Nothing was written;
    the same batch may fit later."""


class JournalRoomError(StoreFullError):
    """The journal, not this store, has no room for the batch. That passes: what changes something
    waits, and is not refused."""


class StoreUncertainError(StoreError):
    """The batch may be durable, or may become so: only committing the same batch again tells. No
    other batch may be committed before."""


@dataclass(frozen=True, slots=True)
class StoreRoom:
    """The bytes that records take, and that they may take: by the store's bound, and by the free
    space of the disk. reserve: the bytes that are kept so that removals can be written."""

    used: int
    total: int
    reserve: int = 0

    @property
    def free(self) -> int:
        return max(0, self.total - self.used)

    @property
    def is_full(self) -> bool:
        """Whether no growth fits any more."""
        return self.free <= max(self.reserve, min(self.total // _FULL_SHARE, _FULL_MAX))


class Snapshot(Protocol):
    """One committed state. One thread uses it; its iterators must end before `close`."""

    def get(self, key: bytes) -> bytes | None: ...

    def range(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the records with start <= key < end, in order of their keys."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    def snapshot(self) -> Snapshot:
        """Returns the newest committed state."""
        ...

    def commit(self, batch: Batch) -> None:
        """Writes the batch and waits until it is durable. If it raises StoreError, nothing was
        written, except for StoreUncertainError."""
        ...

    def room(self) -> StoreRoom:
        """Returns the room after the last commit. Any thread may call."""
        ...

    def close(self) -> None: ...
