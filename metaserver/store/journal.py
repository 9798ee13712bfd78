"""What metaservers need of a journal: one log of commit batches, which outlives each of them.

The log is kept by an engine that is highly available by itself (metaserver.store.journals). Its
*head* says which entry is the newest, and which metaserver may append the next one. All that
changes the head compares the whole of it first, in the engine's own transaction: so the entries of
two metaservers never mix, whatever is late, repeated or cut off. A metaserver becomes active by
`claim`, which raises the term; from then on appends and beats of the former term fail.

Calls block; each ends within `timeout_s` of its engine. One thread uses a journal object at a time;
a program that beats beside its appends opens two. Entries form a chain: each names the nonce of the
entry before, so a follower notices that it has followed another log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from fscommon.errors import BraidError

NONCE_SIZE: Final = 16
NO_NONCE: Final = bytes(NONCE_SIZE)  # of the entry "before the first one"
PAYLOAD_MAX: Final = 64 << 20  # bytes of one entry
READ_BYTES_MAX: Final = 8 << 20  # `read` returns about this much at once


class JournalError(BraidError):
    """A call to the journal failed; the message says which engine and why."""


class UnreachableError(JournalError):
    """The engine did not answer a question in time, or refused it. Nothing was changed."""


class UnknownOutcomeError(JournalError):
    """A change may have happened, may not, or may still happen. The caller tries again with the
    same arguments until it knows."""


class FencedError(JournalError):
    """The head is not what the caller has compared it with: another metaserver has claimed the
    journal. If the caller wanted to append, nobody may be told that it is durable."""


class TrimmedError(JournalError):
    """Entries that were asked for have been trimmed: a copy of the state is needed."""


class JournalFullError(JournalError):
    """The engine has no room. Nothing was changed; the same call may succeed later."""


class DamagedJournalError(JournalError):
    """What the engine returned is not what a metaserver wrote."""


class LaterReleaseError(JournalError):
    """A later release has written what this one cannot read: this metaserver is to be upgraded."""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest entry of a log, and whose turn it is.

    log: identity of the log, 16 bytes; empty if no metaserver has claimed the journal ever.
    term: rises with each claim. index, nonce: of the newest entry; 0 and zeros before the first.
    owner: which process may append, in words that no other process uses; empty if it has resigned.
    """

    log: bytes = b""
    term: int = 0
    index: int = 0
    nonce: bytes = NO_NONCE
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """The head, and how often its owner has beaten so far in its term, both of one moment."""

    head: Head
    beats: int


@dataclass(frozen=True, slots=True)
class Entry:
    index: int
    term: int
    nonce: bytes
    previous: bytes  # nonce of the entry before
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Member:
    """What a metaserver says of itself: how far its own store has come.

    log, applied: identity of the log and index of the entry that its store has durably; `reports`
    counts, so that others see that it is alive without a clock in common. kept: where it keeps a
    damaged store, of before; empty: it has none.
    """

    name: str
    address: str
    log: bytes
    applied: int
    reports: int
    kept: str = ""


@dataclass(frozen=True, slots=True)
class EngineMember:
    """One server of an engine, as a program for administrators shows it. bytes_max: None if the
    engine has no bound of its own. alarms: sentences, also why the server is not reachable."""

    endpoint: str
    is_reachable: bool
    is_leader: bool = False
    bytes_used: int = 0
    bytes_max: int | None = None
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """How the servers of an engine are: what the `health` of a journal with servers returns."""

    engine: str
    members: tuple[EngineMember, ...]


def claimed(seen: Head, owner: str, term: int = 0) -> Head:
    """The head that a claim makes of the one that was seen."""
    return replace(seen, term=max(seen.term + 1, term), owner=owner)


class Journal(Protocol):
    def sighting(self) -> Sighting:
        """Returns the head as of a moment within the call: it is linearizable. Raises
        UnreachableError, DamagedJournalError."""
        ...

    def claim(self, seen: Sighting, owner: str, term: int = 0) -> Head:
        """Makes `owner` the one who appends, if head and beats still are as seen; an empty owner
        resigns. Raises the term by one, or to `term` if that is more; a journal without a head gets
        a new log.

        Raises FencedError if they are not as seen, JournalFullError, UnknownOutcomeError: the
        caller may call again with the same arguments. If an earlier attempt has succeeded, and
        nothing happened after it, the call returns its head.
        """
        ...

    def append(self, at: Head, nonce: bytes, payload: bytes) -> Head:
        """Appends one entry behind `at`, and returns the new head.

        Raises FencedError, JournalFullError, UnknownOutcomeError: the caller calls again with the
        same three arguments, and nothing else, until the outcome is known. If an earlier attempt
        has succeeded, the call returns its head. A call may make several attempts itself; so after
        FencedError only the log says whether the entry is in it.
        """
        ...

    def beat(self, head: Head) -> None:
        """Raises the beats, if the term and the owner are those of head. Raises FencedError,
        JournalFullError (some engines without room refuse each change), UnknownOutcomeError."""
        ...

    def read(self, after: int) -> Sequence[Entry]:
        """Returns entries with an index above `after`, in order, without a gap, about
        READ_BYTES_MAX of payload and at least one entry if there is one. Raises TrimmedError if
        the entry after+1 existed and is gone, UnreachableError, DamagedJournalError."""
        ...

    def report(self, member: Member) -> None:
        """Keeps what a metaserver says of itself, by its name. Raises UnreachableError,
        JournalFullError."""
        ...

    def members(self) -> Sequence[Member]:
        """Returns what was reported, in order of names. Raises UnreachableError."""
        ...

    def forget(self, name: str) -> None:
        """Removes what the metaserver of that name reported. Raises UnreachableError."""
        ...

    def trim(self, head: Head, below: int) -> None:
        """Deletes entries with an index below `below`, if the term is that of head; never the
        newest one. Raises FencedError, UnreachableError: then some may be gone."""
        ...

    def close(self) -> None: ...
