"""Bodies of the lock operations: flock(2) and fcntl(2) across clients.

A lock belongs to an owner within a session: a process's file table (fcntl) or an open file
description (flock, OFD), by a number that the kernel chose. Ranges are half-open, [start, end); end
2**63 means "to the end of the file". Types are those of fcntl: 0 read, 1 write, 2 none. Each
request may be repeated: setting a lock again changes nothing, and tickets identify requests that
wait. `LOCK_BODIES` ties the bodies to their ops.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import U8, U32, U64, Many, Text, U64s
from fscommon.wire.ops import Op


@dataclass(frozen=True, slots=True)
class LockGet:
    """Asks for a held lock with which such a lock would conflict. Reply: LockFound."""

    ino: U64
    is_flock: bool
    owner: U64
    start: U64
    end: U64
    type: U8


@dataclass(frozen=True, slots=True)
class LockFound:
    """type 2 (none): there is no conflict, and the other fields are 0."""

    type: U8
    start: U64 = 0
    end: U64 = 0
    pid: U32 = 0
    session: U64 = 0


@dataclass(frozen=True, slots=True)
class LockSet:
    """Locks, changes or unlocks. ticket 0: EAGAIN instead of waiting; otherwise the client's number
    for this request, never used for another one: a repeat of a waiting request goes on waiting.
    is_loose: the lock may end without the client hearing of it: the client is asked (a RECALL of
    nothing) before this lock delays a lock of another client."""

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
    """granted False: the request waits; LOCK_EVENTS will name its ticket."""

    granted: bool


@dataclass(frozen=True, slots=True)
class LockEvents:
    """Answered when a ticket of this session was granted, however long that takes; a ticket is
    repeated until it is in `acknowledged`."""

    acknowledged: U64s


@dataclass(frozen=True, slots=True)
class LockGranted:
    tickets: U64s


@dataclass(frozen=True, slots=True)
class LockCancel:
    """The caller no longer waits. Reply: LockDone; granted when the lock was granted already, and
    is held."""

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
    """The locks that this session held when the metaserver was restarted; only before
    REPLAY_DONE."""

    locks: Annotated[tuple[HeldLock, ...], Many]


@dataclass(frozen=True, slots=True)
class LockRestored:
    """refused: how many of them another session has reported as its own."""

    refused: U64


@dataclass(frozen=True, slots=True)
class LockQuery:
    """For administrators: held and waiting locks, `count` of them behind the first `skip`."""

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


LOCK_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.LOCK_GET: (LockGet, LockFound),
    Op.LOCK_SET: (LockSet, LockDone),
    Op.LOCK_EVENTS: (LockEvents, LockGranted),
    Op.LOCK_CANCEL: (LockCancel, LockDone),
    Op.LOCK_RESTORE: (LockRestore, LockRestored),
    Op.LOCK_LIST: (LockQuery, LockReport),
}
