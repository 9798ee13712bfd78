"""Bodies of the lock operations: flock(2) and fcntl(2) across clients.

A lock belongs to an owner of a session: a process's file table (fcntl) or an open file description
(flock, OFD), a number that the kernel chose. Ranges are half-open, [start, end); end 2**63 is "to
the end of the file". Types are those of fcntl: 0 read, 1 write, 2 none.
All of them may be repeated: setting a lock again changes nothing, tickets name requests that wait.
`fscommon.wire.messages.BODIES` ties them to their ops.
"""

from dataclasses import dataclass
from typing import Annotated

from fscommon.ranges import U8, U32, U64, Many, Text, U64s


@dataclass(frozen=True, slots=True)
class LockGet:
    """Who holds what such a lock would contradict? Reply: LockFound."""

    ino: U64
    is_flock: bool
    owner: U64
    start: U64
    end: U64
    type: U8


@dataclass(frozen=True, slots=True)
class LockFound:
    """type 2 (none): nobody; the rest is 0."""

    type: U8
    start: U64 = 0
    end: U64 = 0
    pid: U32 = 0
    session: U64 = 0


@dataclass(frozen=True, slots=True)
class LockSet:
    """Lock, change or unlock. ticket 0: EAGAIN instead of waiting; otherwise the client's number
    for this request, never used for another one: a repeat of one that waits goes on waiting.
    is_loose: it may be gone without the client having heard: it is asked (a RECALL of nothing)
    before the lock keeps another client's from being had at once."""

    ino: U64
    is_flock: bool
    owner: U64
    start: U64
    end: U64
    type: U8
    pid: U32
    ticket: U64
    is_loose: bool


@dataclass(frozen=True, slots=True)
class LockDone:
    """granted False: it waits; LOCK_EVENTS will name its ticket."""

    granted: bool


@dataclass(frozen=True, slots=True)
class LockEvents:
    """Answered when a ticket of this session was granted, however long that takes; again and
    again until it is in `acknowledged`."""

    acknowledged: U64s


@dataclass(frozen=True, slots=True)
class LockGranted:
    tickets: U64s


@dataclass(frozen=True, slots=True)
class LockCancel:
    """The caller waits no longer. Reply: LockDone, granted if it was, and is, had."""

    ticket: U64


@dataclass(frozen=True, slots=True)
class HeldLock:
    ino: U64
    is_flock: bool
    owner: U64
    start: U64
    end: U64
    type: U8
    pid: U32


@dataclass(frozen=True, slots=True)
class LockRestore:
    """What this session held when the metaserver was restarted; only before REPLAY_DONE."""

    locks: Annotated[tuple[HeldLock, ...], Many]


@dataclass(frozen=True, slots=True)
class LockRestored:
    """How many another session has said to hold."""

    refused: U64


@dataclass(frozen=True, slots=True)
class LockQuery:
    """For administrators: held and waiting ones, `count` of them behind the first `skip`."""

    skip: U32 = 0
    count: U32 = 1000


@dataclass(frozen=True, slots=True)
class LockRow:
    lock: HeldLock
    session: U64
    node: Text
    is_waiting: bool


@dataclass(frozen=True, slots=True)
class LockReport:
    locks: Annotated[tuple[LockRow, ...], Many]
    end: bool
