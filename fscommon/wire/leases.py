"""Bodies of the lease operations (docs/INTERFACES.md, section 7).

Grants need no message: they travel in the attribute records of replies
(fscommon.layout.attributes). These are the others: the metaserver recalls; the client returns,
requests leases that no reply granted, and reports to a restarted metaserver what it holds; an
administrator asks who holds what. `fscommon.wire.messages.BODIES` ties them to their ops.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import U32, U64, Many, Text
from fscommon.wire.ops import Op


@dataclass(frozen=True, slots=True)
class RecallItem:
    """One inode on which this session must give something up.

    flags: LEASE_* bits to give up; an exclusive bit alone leaves the shared lease. 0: keep
    everything, but commit size and mtime, then answer. granted_by: the request whose reply granted
    what is recalled; if that reply has not arrived, it is under way. limit: whatever replies to
    requests up to this id grant on these facets is void.
    """

    recall: U64  # number of the recall; rises, never 0
    ino: U64
    flags: U32
    granted_by: U64
    limit: U64


# Sent in place of a recall: the cluster map has changed, and SESSION_RENEW brings it. A client of
# an earlier release gives up nothing, because the inode does not exist.
MAP_NOTICE: Final = RecallItem(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Recall:
    """Metaserver to client, one-way, on the recall connection. Empty: leases are granted from now
    on."""

    items: Annotated[tuple[RecallItem, ...], Many]


@dataclass(frozen=True, slots=True)
class ReturnItem:
    """flags: LEASE_* bits that this session no longer holds. recall: the number of the recall that
    this ends; 0: a voluntary return. is_open: the client has the inode open and had not reported
    it; the metaserver must count it as open."""

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
    """A lease request: waits until these LEASE_* bits can be granted; the reply's record says what
    is held then."""

    ino: U64
    flags: U32


@dataclass(frozen=True, slots=True)
class SharedLease:
    ino: U64
    flags: U32  # LEASE_DATA, LEASE_ENTRIES


@dataclass(frozen=True, slots=True)
class LeaseRestore:
    """The leases that this session held when the metaserver was restarted; only before REPLAY_DONE.
    Exclusive leases are in SESSION_OPEN."""

    leases: Annotated[tuple[SharedLease, ...], Many]


@dataclass(frozen=True, slots=True)
class LeaseRestored:
    """The inodes on which nothing is held: they are gone, others hold them, or there are
    too many."""

    refused: Annotated[tuple[U64, ...], Many]


@dataclass(frozen=True, slots=True)
class LeaseQuery:
    """session 0: asks for the sums of every session; otherwise for that session's leases behind ino
    `after`."""

    session: U64
    after: U64 = 0
    count: U32 = 1000


@dataclass(frozen=True, slots=True)
class SessionLeases:
    session: U64
    node: Text
    inodes: U64  # inodes with any lease
    exclusive: U64  # those of them with an exclusive lease
    recalls: U32  # recalls that it has not answered yet
    # It has a recall connection, so leases are granted to it.
    is_cached: bool


@dataclass(frozen=True, slots=True)
class HeldLease:
    ino: U64
    flags: U32
    recalled: U32  # LEASE_* bits of recalls that are not answered yet


@dataclass(frozen=True, slots=True)
class LeaseReport:
    sessions: Annotated[tuple[SessionLeases, ...], Many]
    leases: Annotated[tuple[HeldLease, ...], Many]  # by ino; empty for session 0
    end: bool  # there are no more behind these


LEASE_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.LEASES: (LeaseQuery, LeaseReport),
    Op.LEASE_RESTORE: (LeaseRestore, LeaseRestored),
}
