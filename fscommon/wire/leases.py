"""Bodies of the lease operations (docs/INTERFACES.md, section 7).

Grants need no message: they travel in the attribute records of replies
(fscommon.layout.attributes). These are the ways back: the metaserver recalls, the client returns,
takes what no reply granted, and an administrator asks who holds what.
`fscommon.wire.messages.BODIES` ties them to their ops.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecallItem:
    """One inode of which this session is to give something up.

    flags: LEASE_* bits to give up; an exclusive bit alone leaves the shared lease. 0: keep
    everything, but commit size and mtime, then say so. granted_by: the request whose reply
    granted what is asked for; if that reply has not arrived, it is on its way. limit: whatever
    replies to requests up to this id grant on these facets counts no more."""

    recall: int  # its number; rises, never 0
    ino: int
    flags: int
    granted_by: int
    limit: int


@dataclass(frozen=True, slots=True)
class Recall:
    """Metaserver to client, one-way, on the recall connection. Empty: leases are granted now."""

    items: tuple[RecallItem, ...]


@dataclass(frozen=True, slots=True)
class ReturnItem:
    """flags: LEASE_* bits that this session holds no longer. recall: the number of the recall
    that this ends, 0 when nobody asked. is_open: the client has the inode open without having
    told so: the metaserver is to count it as open."""

    ino: int
    flags: int
    recall: int = 0
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class LeaseReturn:
    """Client to metaserver, on the session's connection."""

    items: tuple[ReturnItem, ...]


@dataclass(frozen=True, slots=True)
class LeaseTake:
    """Wait until these LEASE_* bits can be granted; the reply's record says what is held then."""

    ino: int
    flags: int


@dataclass(frozen=True, slots=True)
class LeaseQuery:
    """session 0: the sums of every session; else that session's leases behind ino `after`."""

    session: int
    after: int = 0
    count: int = 1000


@dataclass(frozen=True, slots=True)
class SessionLeases:
    session: int
    node: str
    inodes: int  # with any lease
    exclusive: int  # of them, with an exclusive one
    recalls: int  # that it has not answered yet
    is_cached: bool  # it has a recall connection: leases are granted to it


@dataclass(frozen=True, slots=True)
class HeldLease:
    ino: int
    flags: int
    recalled: int  # LEASE_* bits of recalls that are not answered yet


@dataclass(frozen=True, slots=True)
class LeaseReport:
    sessions: tuple[SessionLeases, ...]
    leases: tuple[HeldLease, ...]  # in order of ino; empty for session 0
    end: bool  # there are no more behind these
