"""Keeps a store at the end of a journal: that of a standby metaserver.

Entries are applied in the order of the log, each once, together with the mark of the last of them.
The mark and the chain of nonces show when the store has followed another log than the one that is
there: an engine was restored from a backup, or a quorum of before has returned. Such a store is not
mended; its metaserver takes a copy of the state from the active one.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from metaserver.store.batches import unpack_batch
from metaserver.store.journal import (
    DamagedJournalError,
    Entry,
    Head,
    Journal,
    LaterReleaseError,
    TrimmedError,
)
from metaserver.store.journaled import Mark, has_names, mark_in
from metaserver.store.waist import Store, StoreError


class NeedsCopyError(StoreError):
    """The store cannot follow the journal from where it is: it needs a copy of the state."""


class ForeignStateError(StoreError):
    """The store has records that were never in this journal. Nobody throws them away: the
    administrator decides which ones count."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The number of the form that all records have, and which of them this release reads. key: of
    the record with the number, which `unpack` returns."""

    key: bytes
    newest: int
    unpack: Callable[[bytes | None], int]

    def check(self, value: bytes | None) -> None:
        """Raises LaterReleaseError."""
        number = self.unpack(value)
        if number > self.newest:
            raise LaterReleaseError(
                f"the names have schema {number}, of a later release; this one reads schemas up to "
                f"{self.newest}: upgrade this metaserver"
            )


class Follower:
    def __init__(
        self, store: Store, journal: Journal, *, lost: str = "", schema: Schema | None = None
    ) -> None:
        """lost: why an empty store is not the beginning of a new name space; "": it may be. schema:
        None reads all. Raises StoreError."""
        self._store = store
        self._journal = journal
        self._lost = lost
        self._is_empty = not has_names(store)
        self._schema = schema
        snapshot = store.snapshot()
        try:
            self.mark = mark_in(snapshot)
            self._schema_value = snapshot.get(schema.key) if schema is not None else None
        finally:
            snapshot.close()

    def follow(self, head: Head) -> bool:
        """Applies some of the entries that the store lacks, and returns whether it is at `head`.

        Raises NeedsCopyError, ForeignStateError, StoreError, UnreachableError,
        DamagedJournalError, LaterReleaseError."""
        mark = self.mark
        if self._schema is not None:
            self._schema.check(self._schema_value)
        if self._is_empty and self._lost:
            raise NeedsCopyError(self._lost)
        if mark is None or mark.index == 0:
            return head.index == 0 or self._follow_first(mark, head)
        self._check_log(mark, head)
        if mark.index < head.index:
            try:
                entries = self._journal.read(mark.index)
            except TrimmedError as error:
                raise NeedsCopyError(f"the journal has been trimmed: {error}") from error
            self._apply(mark, entries)
        return self.mark == Mark.of(head)

    def _follow_first(self, mark: Mark | None, head: Head) -> bool:
        """The log has entries, and the store has applied none of them. Its own state may be what
        they build on: if this metaserver has written the first one, and was killed then."""
        if mark is not None and mark.log == head.log:
            with suppress(TrimmedError):
                entries = self._journal.read(0)
                if entries and entries[0].nonce == mark.nonce:
                    self._apply(replace(mark, nonce=entries[0].previous), entries)
                    return self.mark == Mark.of(head)
        if self._is_empty:
            raise NeedsCopyError("the store is empty")
        raise ForeignStateError(
            "the store has names of its own, but the journal was begun by another metaserver"
        )

    def _check_log(self, mark: Mark, head: Head) -> None:
        if mark.log != head.log:
            raise NeedsCopyError("the store has followed another journal")
        if mark.index > head.index:
            raise NeedsCopyError(
                f"the store has entry {mark.index}, but the journal ends with {head.index}"
            )
        if mark.index == head.index and mark.nonce != head.nonce:
            raise NeedsCopyError(f"the store has another entry {mark.index} than the journal")

    def _apply(self, mark: Mark, entries: Sequence[Entry]) -> None:
        """One commit for all entries: of two that write one key the later one counts."""
        cells: dict[bytes, bytes | None] = {}
        index, nonce = mark.index, mark.nonce
        for entry in entries:
            if entry.index != index + 1:
                raise DamagedJournalError(f"entry {entry.index} comes behind entry {index}")
            if entry.previous != nonce:
                raise NeedsCopyError(f"entry {entry.index} follows another one than the store has")
            cells.update(unpack_batch(entry.payload))
            index, nonce = entry.index, entry.nonce
        if self._schema is not None and self._schema.key in cells:
            self._schema.check(cells[self._schema.key])
        if entries:
            reached = Mark(mark.log, index, nonce)
            self._store.commit([*cells.items(), reached.record()])
            self.mark = reached
