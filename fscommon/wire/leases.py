"""Bodies of the lease operations (docs/INTERFACES.md, section 7).

Grants need no message: they travel in the attribute records of replies
(fscommon.layout.attributes). These are the ways back: the metaserver recalls, the client returns,
takes what no reply granted, tells a restarted metaserver what it holds, and an administrator asks
who holds what.
`fscommon.wire.messages.BODIES` ties them to their ops.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import U32, U64, Many, Text
from fscommon.wire.ops import Op


@dataclass(frozen=True, slots=True)
class RecallItem:
    """One inode of which this session is to give something up.

    flags: LEASE_* bits to give up; an exclusive bit alone leaves the shared lease. 0: keep
    everything, but commit size and mtime, then say so. granted_by: the request whose reply
    granted what is asked for; if that reply has not arrived, it is on its way. limit: whatever
    replies to requests up to this id grant on these facets counts no more."""

    recall: U64  # its number; rises, never 0
    ino: U64
    flags: U32
    granted_by: U64
    limit: U64


# In place of a recall: the cluster map has changed, SESSION_RENEW brings it. A client of an earlier
# release gives up nothing of an inode that does not exist.
MAP_NOTICE: Final = RecallItem(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Recall:
    """Metaserver to client, one-way, on the recall connection. Empty: leases are granted now."""

    items: Annotated[tuple[RecallItem, ...], Many]


@dataclass(frozen=True, slots=True)
class ReturnItem:
    """flags: LEASE_* bits that this session holds no longer. recall: the number of the recall
    that this ends, 0 when nobody asked. is_open: the client has the inode open without having
    told so: the metaserver is to count it as open."""

    ino: U64
    flags: U32
    recall: U64 = 0
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class LeaseReturn:
    """Client to metaserver, on the session's connection."""

    items: Annotated[tuple[ReturnItem, ...], Many]


@dataclass(frozen=True, slots=True)
class LeaseTake:
    """Wait until these LEASE_* bits can be granted; the reply's record says what is held then."""

    ino: U64
    flags: U32


@dataclass(frozen=True, slots=True)
class SharedLease:
    ino: U64
    flags: U32  # LEASE_DATA, LEASE_ENTRIES


@dataclass(frozen=True, slots=True)
class LeaseRestore:
    """What this session held when the metaserver was restarted; only before REPLAY_DONE. Exclusive
    leases are in SESSION_OPEN."""

    leases: Annotated[tuple[SharedLease, ...], Many]


@dataclass(frozen=True, slots=True)
class LeaseRestored:
    """The inodes of which nothing is held: they are gone, others hold them, or there are too
    many."""

    refused: Annotated[tuple[U64, ...], Many]


@dataclass(frozen=True, slots=True)
class LeaseQuery:
    """session 0: the sums of every session; else that session's leases behind ino `after`."""

    session: U64
    after: U64 = 0
    count: U32 = 1000


@dataclass(frozen=True, slots=True)
class SessionLeases:
    session: U64
    node: Text
    inodes: U64  # with any lease
    exclusive: U64  # of them, with an exclusive one
    recalls: U32  # that it has not answered yet
    is_cached: bool  # it has a recall connection: leases are granted to it


@dataclass(frozen=True, slots=True)
class HeldLease:
    ino: U64
    flags: U32
    recalled: U32  # LEASE_* bits of recalls that are not answered yet


@dataclass(frozen=True, slots=True)
class LeaseReport:
    sessions: Annotated[tuple[SessionLeases, ...], Many]
    leases: Annotated[tuple[HeldLease, ...], Many]  # in order of ino; empty for session 0
    end: bool  # there are no more behind these


LEASE_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.LEASES: (LeaseQuery, LeaseReport),
    Op.LEASE_RESTORE: (LeaseRestore, LeaseRestored),
}
