"""What one op reads and writes: a write set, over the overlay, over the store's snapshot.

An op is a plain synchronous function. If it succeeds, its write set is merged; if it raises, the
write set is dropped. `foreign` is the newest uncommitted transaction of another session that the
op's reads met. The op's reply, even an error, waits for that commit (rule 17).
"""

from collections.abc import Callable, Iterator
from functools import partial
from heapq import merge
from itertools import chain

from fscommon.types import SessionId, Txn
from metaserver.overlay import Cell, Overlay

_Record = tuple[bytes, bytes]


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
        Raises RecordError at one that cannot be read.

        The op must not write into the range while it iterates."""
        return self._merged(start, end, self._snapshot.range)

    def readable(
        self, start: bytes, end: bytes, left_out: list[bytes] | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """As range(), but leaves out what cannot be read: the others are not to wait for it. The
        keys of that go to `left_out`."""
        stored = partial(self._snapshot.readable, left_out=left_out)
        return self._merged(start, end, stored)

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """As range(), but yields the keys alone, also of records whose values cannot be read."""
        for key, _ in self._merged(start, end, self._snapshot.keys):
            yield key

    def _merged(
        self, start: bytes, end: bytes, stored: Callable[[bytes, bytes], Iterator[_Record]]
    ) -> Iterator[_Record]:
        own = sorted(key for key in self.writes if start <= key < end)
        layers = []
        for keys in self._overlaid(start, end, own):
            first = next(keys, None)
            if first is not None:
                layers.append((key, b"") for key in chain((first,), keys))
        if not layers:  # nothing in the range has changed since the snapshot
            yield from stored(start, end)
            return
        previous = None
        for key, value in merge(*layers, stored(start, end), key=_key):
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


def _key(record: _Record) -> bytes:
    return record[0]
