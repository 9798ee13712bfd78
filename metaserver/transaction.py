"""What one op reads and writes: a write set, over the overlay, over the store's snapshot.

An op is a plain synchronous function. If it succeeds, its write set is merged; if it raises, the
write set is dropped. `foreign` is the newest uncommitted transaction of another session that the
op's reads met. The op's reply, even an error, waits for that commit (rule 17).
"""

from collections.abc import Iterator
from heapq import merge
from itertools import chain

from fscommon.types import SessionId, Txn
from metaserver.overlay import Cell, Overlay


class Transaction:
    __slots__ = (
        "_committing",
        "_filling",
        "_overlay",
        "_snapshot",
        "foreign",
        "session",
        "touched",
        "writes",
    )

    def __init__(self, overlay: Overlay, session: SessionId) -> None:
        self._overlay = overlay
        self._filling = overlay.filling.cells
        self._committing = overlay.committing.cells
        self._snapshot = overlay.snapshot
        self.session = session
        self.foreign = Txn(0)
        self.writes: dict[bytes, bytes | None] = {}
        self.touched: list[bytes] = []  # directories that gained or lost a name, packed

    def get(self, key: bytes) -> bytes | None:
        if key in self.writes:
            return self.writes[key]
        cell = self._filling.get(key) or self._committing.get(key)
        if cell is None:
            return self._snapshot.get(key)
        if cell[1] != self.session and cell[2] > self.foreign:
            self.foreign = cell[2]
        return cell[0]

    def existed(self, key: bytes) -> bool:
        """Whether this record existed before the op."""
        cell = self._filling.get(key) or self._committing.get(key)
        return (self._snapshot.get(key) if cell is None else cell[0]) is not None

    def put(self, key: bytes, value: bytes) -> None:
        self.writes[key] = value

    def delete(self, key: bytes) -> None:
        self.writes[key] = None

    def range(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields the records with start <= key < end, in order, including what this op has written.

        The op must not write into the range while it iterates."""
        own = sorted(key for key in self.writes if start <= key < end)
        layers = []
        for keys in self._overlaid(start, end, own):
            first = next(keys, None)
            if first is not None:
                layers.append((key, b"") for key in chain((first,), keys))
        if not layers:  # nothing in the range has changed since the snapshot
            yield from self._snapshot.range(start, end)
            return
        previous = None
        for key, value in merge(*layers, self._snapshot.range(start, end), key=_key):
            if key == previous:
                continue
            previous = key
            found = self._layered(key, value)
            if found is not None:
                yield key, found

    def _overlaid(self, start: bytes, end: bytes, own: list[bytes]) -> Iterator[Iterator[bytes]]:
        yield iter(own)
        yield self._overlay.filling.keys(start, end)
        yield self._overlay.committing.keys(start, end)

    def _layered(self, key: bytes, stored: bytes) -> bytes | None:
        if key in self.writes:
            return self.writes[key]
        cell: Cell | None = self._filling.get(key) or self._committing.get(key)
        if cell is None:
            return stored
        if cell[1] != self.session and cell[2] > self.foreign:
            self.foreign = cell[2]
        return cell[0]


def _key(record: tuple[bytes, bytes]) -> bytes:
    return record[0]
