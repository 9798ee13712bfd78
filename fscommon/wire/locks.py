"""Bodies of the lock operations: flock(2) and fcntl(2) across clients.

A lock belongs to an owner of a session: a process's file table (fcntl) or an open file description
(flock, OFD), a number that the kernel chose. Ranges are half-open, [start, end); end 2**63 is "to
the end of the file". Types are those of fcntl: 0 read, 1 write, 2 none.
All of them may be repeated: setting a lock again changes nothing, tickets name requests that wait.
`fscommon.wire.messages.BODIES` ties them to their ops.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LockGet:
    """Who holds what such a lock would contradict? Reply: LockFound."""

    ino: int
    is_flock: bool
    owner: int
    start: int
    end: int
    type: int


@dataclass(frozen=True, slots=True)
class LockFound:
    """type 2 (none): nobody; the rest is 0."""

    type: int
    start: int = 0
    end: int = 0
    pid: int = 0
    session: int = 0


@dataclass(frozen=True, slots=True)
class LockSet:
    """Lock, change or unlock. ticket 0: EAGAIN instead of waiting; otherwise the client's number
    for this request, never used for another one: a repeat of one that waits goes on waiting."""

    ino: int
    is_flock: bool
    owner: int
    start: int
    end: int
    type: int
    pid: int
    ticket: int


@dataclass(frozen=True, slots=True)
class LockDone:
    """granted False: it waits; LOCK_EVENTS will name its ticket."""

    granted: bool


@dataclass(frozen=True, slots=True)
class LockEvents:
    """Answered when a ticket of this session was granted, however long that takes; again and
    again until it is in `acknowledged`."""

    acknowledged: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LockGranted:
    tickets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LockCancel:
    """The caller waits no longer. Reply: LockDone, granted if it was, and is, had."""

    ticket: int


@dataclass(frozen=True, slots=True)
class HeldLock:
    ino: int
    is_flock: bool
    owner: int
    start: int
    end: int
    type: int
    pid: int


@dataclass(frozen=True, slots=True)
class LockRestore:
    """What this session held when the metaserver was restarted; only before REPLAY_DONE."""

    locks: tuple[HeldLock, ...]


@dataclass(frozen=True, slots=True)
class LockRestored:
    """How many another session has said to hold."""

    refused: int


@dataclass(frozen=True, slots=True)
class LockQuery:
    """For administrators: held and waiting ones, `count` of them behind the first `skip`."""

    skip: int = 0
    count: int = 1000


@dataclass(frozen=True, slots=True)
class LockRow:
    lock: HeldLock
    session: int
    node: str
    is_waiting: bool


@dataclass(frozen=True, slots=True)
class LockReport:
    locks: tuple[LockRow, ...]
    end: bool
