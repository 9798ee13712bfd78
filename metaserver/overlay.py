"""What ops have written and the store does not hold yet: two generations of cells over a snapshot.

`filling` takes the write sets of ops. `freeze` turns it into `committing` and hands its records to
the committer's thread. `committed` drops that generation once the store holds it, and moves to a
newer snapshot. A read looks into filling, committing and snapshot, in this order. A cell remembers
the session and the transaction that wrote it, so that a reader of another session knows what its
reply must wait for (commit on share, rule 17). A deleted key is a cell whose value is None.
Invariant: committing and snapshot together do not change between freeze and committed.
Only the event loop's thread calls; the committer's thread sees only the frozen batch.
"""

from collections.abc import Iterator
from itertools import islice

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from fscommon.types import SessionId, Txn
from metaserver.forms import FormedSnapshot, Once, log_damage
from metaserver.store.waist import Batch, Store, StoreRoom

Cell = tuple[bytes | None, SessionId, Txn]


class Generation:
    """Cells by key. Keys are sorted only when somebody reads a range. size: bytes of the keys and
    values that were put, also of those that were replaced since."""

    __slots__ = ("_order", "_unordered", "cells", "note", "size")

    def __init__(self) -> None:
        self.cells: dict[bytes, Cell] = {}
        self.size = 0
        self._order: SortedList = SortedList()
        self._unordered: list[bytes] = []
        self.note = self._unordered.append  # called for each key that is new in cells

    def put(self, key: bytes, cell: Cell) -> None:
        if key not in self.cells:
            self.note(key)
        self.cells[key] = cell

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        if self._unordered:
            self._order.update(self._unordered)
            self._unordered.clear()
        previous = None
        for key in self._order.irange(start, end, inclusive=(True, False)):
            if key != previous:
                yield key
            previous = key


class Overlay:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._tell = Once(log_damage)
        self.filling = Generation()
        self.committing = Generation()
        self.snapshot = FormedSnapshot(store.snapshot(), self._tell)

    def merge(self, writes: dict[bytes, bytes | None], session: SessionId, txn: Txn) -> Txn:
        """Adds a write set. Returns the newest transaction of other sessions that it overwrites."""
        cells, note = self.filling.cells, self.filling.note
        committing = self.committing.cells
        foreign = Txn(0)
        self.filling.size += sum(map(len, writes)) + sum(map(len, filter(None, writes.values())))
        for key, value in writes.items():
            old = cells.get(key)
            if old is None:
                note(key)
                old = committing.get(key)
            if old is not None and old[1] != session and old[2] > foreign:
                foreign = old[2]
            cells[key] = (value, session, txn)
        return foreign

    def freeze(self) -> Batch:
        """Turns filling into committing. The caller commits the batch, then calls `committed`."""
        assert not self.committing.cells, "one batch at a time"
        self.committing, self.filling = self.filling, Generation()
        return [(key, cell[0]) for key, cell in self.committing.cells.items()]

    def committed(self) -> None:
        self.snapshot.close()
        self.snapshot = FormedSnapshot(self._store.snapshot(), self._tell)
        self.committing = Generation()

    def stored(self, keys: tuple[bytes, bytes], count_max: int) -> list[tuple[bytes, bytes]]:
        """Returns the first durable records of a range, at most count_max of them. What cannot be
        read is left out, and told of."""
        return list(islice(self.snapshot.readable(*keys), count_max))

    def stored_keys(self, keys: tuple[bytes, bytes], count_max: int) -> list[bytes]:
        """As stored(), but the keys alone, also of records whose values are damaged."""
        return [key for key, _ in islice(self.snapshot.keys(*keys), count_max)]

    def stored_record(self, key: bytes) -> bytes | None:
        """Returns the durable record of this key. Raises RecordError."""
        return self.snapshot.get(key)

    def room(self) -> StoreRoom:
        return self._store.room()

    def close(self) -> None:
        """Lets go of the store."""
        self.snapshot.close()
