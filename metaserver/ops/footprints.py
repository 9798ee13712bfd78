"""Footprints that several ops share: what an op reads and changes, inode by inode, before it runs.

A shared bit stands for a read that must see what an exclusive holder knows, an exclusive bit for a
change that no other session may go on caching. A footprint is a pure function of the request and of
what the transaction shows; an op that will fail has the footprint of what it looks at. Attributes
that a reply shows in passing (of the inodes in a LOOKUP or READDIR) are no read: a client without a
lease on them believes them for nothing but the name.
Every op of a session has a footprint, and so has each op of administrators that looks at names: it
sees what a client made a moment ago. Footprints of a single op are in the file of that op.
"""

import stat
from typing import Any, Final

from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_ENTRIES_EXCLUSIVE,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
    LEASE_READER,
    unpack_attributes,
)
from fscommon.types import Ino
from metaserver.leases.holders import Need
from metaserver.records import dentry_key, inode_key, unpack_dentry
from metaserver.transaction import Transaction

CHANGED_NAMES: Final = LEASE_ENTRIES_EXCLUSIVE | LEASE_META_EXCLUSIVE
WRITTEN_FILE: Final = LEASE_META_EXCLUSIVE | LEASE_DATA_EXCLUSIVE
# Of a directory: a session that knows names in it that nobody else knows sends them, and keeps its
# leases.
SENT_NAMES: Final = LEASE_META


def nothing(tx: Transaction, request: Any) -> list[Need]:
    return []


def names_of_parent(tx: Transaction, request: Any) -> list[Need]:
    return [Need(Ino(request.parent), LEASE_ENTRIES)]


def names(tx: Transaction, request: Any) -> list[Need]:
    return [Need(Ino(request.ino), LEASE_ENTRIES)]


def attributes(tx: Transaction, request: Any) -> list[Need]:
    return [Need(Ino(request.ino), LEASE_META)]


def changed_attributes(tx: Transaction, request: Any) -> list[Need]:
    return [Need(Ino(request.ino), LEASE_META_EXCLUSIVE)]


def written_file(tx: Transaction, request: Any) -> list[Need]:
    return [Need(Ino(request.ino), WRITTEN_FILE)]


def added_name(tx: Transaction, request: Any) -> list[Need]:
    return [Need(Ino(request.parent), CHANGED_NAMES)]


def removed_name(tx: Transaction, request: Any) -> list[Need]:
    ino = ino_named(tx, request.parent, request.name)
    if ino is None:
        return names_of_parent(tx, request)
    return [Need(Ino(request.parent), CHANGED_NAMES), Need(ino, LEASE_META_EXCLUSIVE)]


def opened_inode(tx: Transaction, ino: Ino, *, writable: bool) -> list[Need]:
    if not _is_file(tx, ino):
        return [Need(ino, LEASE_META)]
    return [Need(ino, WRITTEN_FILE if writable else LEASE_READER)]


def ino_named(tx: Transaction, parent: int, name: bytes) -> Ino | None:
    value = tx.get(dentry_key(parent, name))
    return None if value is None else unpack_dentry(value)[0]


def _is_file(tx: Transaction, ino: Ino) -> bool:
    raw = tx.get(inode_key(ino))
    return raw is not None and stat.S_ISREG(unpack_attributes(raw[:ATTRIBUTES_SIZE]).mode)
