"""A journal in memory, for tests: the log is one object, and each metaserver has a door to it.

A door can be told to fail (`Faults`): a call is lost on its way, or happens and its answer is lost,
or happens later, after other calls. What happens is decided by the caller's `faults`, so one seed
decides everything. It is not for production: nothing outlives the process.
"""

import contextlib
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

from metaserver.store.journal import (
    NO_NONCE,
    PAYLOAD_MAX,
    READ_BYTES_MAX,
    Entry,
    FencedError,
    Head,
    JournalFullError,
    Member,
    Sighting,
    TrimmedError,
    UnknownOutcomeError,
    UnreachableError,
    claimed,
)

_Result = TypeVar("_Result")


class Fault(Enum):
    NONE = "none"
    LOST = "lost"  # the call never reaches the log
    ANSWER_LOST = "answer lost"  # it happens, and the caller does not hear of it
    LATE = "late"  # it happens when `MemoryLog.deliver_late` is called
    FULL = "full"  # the log has no room for what is to be kept


@dataclass
class MemoryLog:
    """What all doors share."""

    head: Head = field(default_factory=Head)
    beats: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)
    first: int = 1  # index of the oldest entry that is kept
    reported: dict[str, Member] = field(default_factory=dict)
    late: list[Callable[[], object]] = field(default_factory=list)
    new_log: Callable[[], bytes] = lambda: uuid.uuid4().bytes
    lock: threading.RLock = field(default_factory=threading.RLock)  # doors may be of many threads

    def claim(self, seen: Sighting, owner: str, term: int = 0) -> Head:
        new = claimed(seen.head, owner, term)
        if not seen.head.log:
            new = replace(new, log=self.head.log or self.new_log())
        if self.head == new:
            return new
        if Sighting(self.head, self.beats) != seen:
            raise FencedError(f"the journal is at {self.head}, not as it was seen")
        self.head = new
        self.beats = 0
        return self.head

    def append(self, at: Head, nonce: bytes, payload: bytes) -> Head:
        new = replace(at, index=at.index + 1, nonce=nonce)
        if self.head == new:
            return new
        if self.head != at:
            raise FencedError(f"the journal is at {self.head}, not at {at}")
        self.entries[new.index] = Entry(new.index, new.term, nonce, at.nonce, payload)
        self.head = new
        return new

    def beat(self, head: Head) -> None:
        self._check_term(head)
        self.beats += 1

    def _check_term(self, head: Head) -> None:
        now = self.head
        if (now.log, now.term, now.owner) != (head.log, head.term, head.owner):
            raise FencedError(f"the journal is at {now}, not at {head}")

    def read(self, after: int) -> list[Entry]:
        if after + 1 < self.first:
            raise TrimmedError(f"the journal begins with entry {self.first}")
        found: list[Entry] = []
        size = 0
        for index in range(after + 1, self.head.index + 1):
            entry = self.entries[index]
            size += len(entry.payload)
            if found and size > READ_BYTES_MAX:
                break
            found.append(entry)
        return found

    def trim(self, head: Head, below: int) -> None:
        self._check_term(head)
        below = min(below, self.head.index)
        for index in range(self.first, below):
            del self.entries[index]
        self.first = max(self.first, below)

    def deliver_late(self, which: int = 0) -> None:
        """Lets one of the calls that were held up happen now."""
        with self.lock, contextlib.suppress(FencedError):  # nobody waits for its answer any more
            self.late.pop(which)()


class MemoryJournal:
    """One metaserver's door to the log. faults(name): what befalls a call of that name."""

    def __init__(
        self, log: MemoryLog, faults: Callable[[str], Fault] = lambda _: Fault.NONE
    ) -> None:
        self._log = log
        self._faults = faults

    def _ask(self, name: str, call: Callable[[], _Result]) -> _Result:
        fault = self._faults(name)
        if fault is Fault.FULL:
            raise JournalFullError("the journal in memory has no room")
        if fault is not Fault.NONE:
            raise UnreachableError(f"the journal in memory did not answer {name}")
        with self._log.lock:
            return call()

    def _change(self, name: str, call: Callable[[], _Result]) -> _Result:
        fault = self._faults(name)
        if fault is Fault.FULL:
            raise JournalFullError("the journal in memory has no room")
        with self._log.lock:
            if fault is Fault.LATE:
                self._log.late.append(call)
            elif fault is not Fault.LOST:
                found = call()
                if fault is Fault.NONE:
                    return found
        raise UnknownOutcomeError(f"the journal in memory did not answer {name}")

    def sighting(self) -> Sighting:
        return self._ask("sighting", lambda: Sighting(self._log.head, self._log.beats))

    def claim(self, seen: Sighting, owner: str, term: int = 0) -> Head:
        return self._change("claim", lambda: self._log.claim(seen, owner, term))

    def append(self, at: Head, nonce: bytes, payload: bytes) -> Head:
        if len(payload) > PAYLOAD_MAX or len(nonce) != len(NO_NONCE):
            raise ValueError("an entry of this size does not fit into a journal")
        return self._change("append", lambda: self._log.append(at, nonce, payload))

    def beat(self, head: Head) -> None:
        self._change("beat", lambda: self._log.beat(head))

    def read(self, after: int) -> Sequence[Entry]:
        return self._ask("read", lambda: self._log.read(after))

    def report(self, member: Member) -> None:
        self._ask("report", lambda: self._log.reported.__setitem__(member.name, member))

    def members(self) -> Sequence[Member]:
        return self._ask("members", lambda: [one for _, one in sorted(self._log.reported.items())])

    def forget(self, name: str) -> None:
        self._ask("forget", lambda: self._log.reported.pop(name, None))

    def trim(self, head: Head, below: int) -> None:
        self._ask("trim", lambda: self._log.trim(head, below))

    def close(self) -> None:
        """Does nothing: the log stays."""
