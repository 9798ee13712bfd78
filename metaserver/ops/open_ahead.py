"""OPEN_AHEAD: opens a page of a directory's files for reading, without a request for each.

It is for a client that reads one file after another (docs/decisions/0019-open-ahead.md). The client
gets what an OPEN of each file would return, and holds META and DATA of all of them by their
directory (docs/decisions/0022-directory-grants.md), so the metaserver keeps only a bit for each.

The op waits for nothing and recalls nothing. It leaves out files that another session holds or
waits for, that are being written, that have several names, or that this session has open already. A
repeat grants everything again. metaserver.lease_gate grants, as for every reply.
"""

import stat
from collections.abc import Iterator
from typing import Final, NamedTuple

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_READER,
    file_facts,
    ino_of,
)
from fscommon.layout.layout import is_replicated
from fscommon.limits import OPEN_AHEAD_MAX
from fscommon.types import Ino
from fscommon.wire.ahead import OpenAhead, OpenedAhead
from fscommon.wire.features import FEATURE_REPLICAS
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.leases.grants import Grant
from metaserver.namespace.inode import Inode
from metaserver.namespace.listing import list_page
from metaserver.ops import footprints, names
from metaserver.ops.row import OpRow
from metaserver.records import dentry_cookie, dentry_name
from metaserver.squash import may_read
from metaserver.transaction import Transaction

_NAMES = LEASE_META | LEASE_ENTRIES


class _Row(NamedTuple):
    """One of many entries. Only the fields that are needed to choose entries are unpacked."""

    key: bytes
    record: bytes  # of the inode: its attributes, and behind them its layout

    @property
    def ino(self) -> Ino:
        return Ino(ino_of(self.record))

    @property
    def tail(self) -> bytes:
        return self.record[ATTRIBUTES_SIZE:]


def open_ahead(tx: Transaction, request: OpenAhead, context: Context) -> OpenedAhead:
    if not 0 < request.count <= OPEN_AHEAD_MAX:
        raise FsError(Status.BAD_REQUEST, f"a page of {request.count} names")
    services, session, directory = context.services, context.session, Ino(request.ino)
    leases = services.leases
    rows, end = list_page(tx, directory, request.cookie, request.count, _Row)
    if not leases.would_grant(session, directory, _NAMES, context.now_s):
        rows, end = (), False  # others change the directory now
    knows = services.sessions.has_feature(session, FEATURE_REPLICAS)
    found = [
        row
        for row in rows
        if _may_be_granted(row, context)
        and _may_be_read(tx, row, context)
        and (knows or not is_replicated(row.tail))
    ]
    if len(found) > leases.room_ahead(session):
        found, end = [], True
    return OpenedAhead(
        names=tuple([dentry_name(row.key) for row in found]),
        attributes=b"".join([row.record[:ATTRIBUTES_SIZE] for row in found]),
        layouts=tuple([row.tail for row in found]),
        capabilities=b"".join([_capability(row, context) for row in found]),
        cookie=dentry_cookie(rows[-1].key) if rows else request.cookie,
        end=end,
    )


def _may_be_granted(row: _Row, context: Context) -> bool:
    """Whether the session may hold this file by its directory. An empty file may be held so, too:
    if it gets another layout, its writer hears of that at the open."""
    facts = file_facts(row.record)
    if not stat.S_ISREG(facts.mode) or facts.nlink != 1:
        return False
    services, session, ino = context.services, context.session, row.ino
    known = services.sessions.get(session)
    if known is None or ino in known.opens:
        return False
    if ino in services.intents or services.sessions.written_by(ino):
        return False
    return services.leases.would_grant(session, ino, LEASE_READER, context.now_s)


def _may_be_read(tx: Transaction, row: _Row, context: Context) -> bool:
    return context.key is None or may_read(tx, Inode.parse(row.record), context.key)


def _capability(row: _Row, context: Context) -> bytes:
    return context.services.capability(context, row.tail, row.ino, writable=False)


def _granted(request: OpenAhead, reply: OpenedAhead) -> Iterator[Grant]:
    yield reply.attributes, LEASE_READER


def _looks_into(request: OpenAhead) -> int:
    return request.ino


ROWS: Final = (
    OpRow(
        op=Op.OPEN_AHEAD,
        run=open_ahead,
        footprint=footprints.nothing,  # it takes what is free
        grants=_granted,
        looks_into=_looks_into,
        grants_by_directory=True,
        names=names.its_ino,
        squash=squash.read_inode,  # the op itself leaves out files that may not be read
    ),
)
