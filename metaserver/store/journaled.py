"""A store whose commits are in a journal first: that of the active metaserver.

A commit appends the batch to the journal, and applies it to the store below after that, together
with the *mark*: identity of the log, index and nonce of the entry. So the store below never has
what the log does not have, and the mark says exactly how far it has come (M2 and M6 of
docs/decisions/0062-journal.md). A batch whose append has an unknown outcome stays the next one: the
same bytes with the same nonce are appended until the outcome is known.

The first entry of a log builds on the state that its author had. So its nonce is in the author's
mark before it is appended: only a store with that mark may follow the log from its beginning.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from fscommon.errors import ProtocolError
from fscommon.ranges import U64, Token
from fscommon.wire.codec import decode, encode
from metaserver.store.batches import pack_batch
from metaserver.store.journal import (
    NONCE_SIZE,
    FencedError,
    Head,
    Journal,
    JournalFullError,
    UnknownOutcomeError,
)
from metaserver.store.terms import ActiveLease
from metaserver.store.waist import (
    Batch,
    JournalRoomError,
    Snapshot,
    Store,
    StoreError,
    StoreRoom,
    StoreUncertainError,
)

MARK_KEY: Final = b"Mjournal"  # it is one of the `M` records


class DeposedError(StoreError):
    """Another metaserver has claimed the journal. The batch is not durable in this term, and the
    store below does not have it."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The newest entry that a store has applied. index 0: none, and nonce is that of the first
    entry, which was about to be appended."""

    log: Token
    index: U64
    nonce: Token

    @classmethod
    def of(cls, head: Head) -> "Mark":
        return cls(head.log, head.index, head.nonce)

    def record(self) -> tuple[bytes, bytes]:
        return MARK_KEY, encode(self)


def mark_in(snapshot: Snapshot) -> Mark | None:
    """The mark of a store; None if it has never followed a journal. Raises StoreError."""
    raw = snapshot.get(MARK_KEY)
    try:
        return None if raw is None else decode(Mark, raw)
    except ProtocolError as error:
        raise StoreError(f"the store's mark of the journal is damaged: {error}") from error


def has_names(store: Store) -> bool:
    """Whether the store has any record beside the mark."""
    snapshot = store.snapshot()
    try:
        return any(key != MARK_KEY for key, _ in islice(snapshot.range(b"", b"\xff"), 2))
    finally:
        snapshot.close()


def forget_mark(store: Store) -> None:
    """The store goes on without a journal. It may begin a new one, and follows none any more: what
    it has from now on is in no journal."""
    snapshot = store.snapshot()
    try:
        is_marked = snapshot.get(MARK_KEY) is not None
    finally:
        snapshot.close()
    if is_marked:
        store.commit([(MARK_KEY, None)])


@dataclass(slots=True)
class _Attempt:
    """A batch that is being appended. sent_s: when the first attempt began."""

    batch: Batch
    nonce: bytes
    payload: bytes
    sent_s: float


class JournaledStore:
    """head: what the claim returned; the store below has applied all up to it. Each commit that
    succeeds proves the lease, from the moment at which the *first* attempt of its append was sent:
    other metaservers may have seen that one, and count from then on."""

    def __init__(
        self,
        below: Store,
        journal: Journal,
        head: Head,
        *,
        lease: ActiveLease,
        clock: Callable[[], float],
    ) -> None:
        self._below = below
        # Called with the seconds until the outcome of an append was known.
        self.appended: Callable[[float], None] = lambda seconds: None
        self._journal = journal
        self._lease = lease
        self._clock = clock
        self._attempt: _Attempt | None = None
        self.head = head

    def snapshot(self) -> Snapshot:
        return self._below.snapshot()

    def commit(self, batch: Batch) -> None:
        """Raises DeposedError, StoreUncertainError, StoreFullError, StoreError."""
        attempt = self._attempt
        if attempt is None:
            attempt = self._attempt = self._first_attempt(batch)
        elif attempt.batch is not batch:
            raise ValueError("the outcome of the batch before is not known yet")
        try:
            head = self._journal.append(self.head, attempt.nonce, attempt.payload)
        except FencedError as error:
            raise DeposedError(f"another metaserver is active: {error}") from error
        except UnknownOutcomeError as error:
            raise StoreUncertainError(str(error)) from error
        except JournalFullError as error:
            raise JournalRoomError(str(error)) from error
        self._lease.proven(attempt.sent_s)
        self.appended(self._clock() - attempt.sent_s)
        self._below.commit([*batch, Mark.of(head).record()])
        self.head = head
        self._attempt = None

    def _first_attempt(self, batch: Batch) -> _Attempt:
        nonce = secrets.token_bytes(NONCE_SIZE)
        if self.head.index == 0:
            self._below.commit([Mark(self.head.log, 0, nonce).record()])
        return _Attempt(batch, nonce, pack_batch(batch), self._clock())

    def room(self) -> StoreRoom:
        return self._below.room()

    def close(self) -> None:
        self._below.close()
