"""OPEN_AHEAD: a page of a directory, whose files this session holds open for reading from now on.

For a client that reads one file after another: what it will open next is opened before it asks
(docs/decisions/0019-open-ahead.md). A file is opened exactly as by OPEN, and its reply grants the
same leases; but nothing waits and nobody is asked for anything. What another session holds or waits
for, what is being written, what has several names, and what this session has open already, is left
out. Doing it again opens what is not open yet: a client whose reply was lost with its connection
has said meanwhile what it has open (SESSION_OPEN), and the rest was closed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import ATTRIBUTES_SIZE, LEASE_DATA, LEASE_ENTRIES, LEASE_META
from fscommon.limits import OPEN_AHEAD_MAX
from fscommon.types import FileId, Ino
from fscommon.wire.ahead import OpenAhead, OpenedAhead
from metaserver.context import Context
from metaserver.namespace.inode import Inode
from metaserver.namespace.listing import list_page
from metaserver.records import dentry_cookie, dentry_name
from metaserver.transaction import Transaction

_READER = LEASE_META | LEASE_DATA
_NAMES = LEASE_META | LEASE_ENTRIES


class _Row(NamedTuple):
    name: bytes
    record: bytes
    inode: Inode
    cookie: int


def open_ahead(tx: Transaction, request: OpenAhead, context: Context) -> OpenedAhead:
    if not 0 < request.count <= OPEN_AHEAD_MAX:
        raise FsError(Status.BAD_REQUEST, f"a page of {request.count} names")
    rows, end = list_page(tx, request.ino, request.cookie, request.count, _row)
    if not context.services.leases.would_grant(
        context.session, Ino(request.ino), _NAMES, context.now_s
    ):
        rows, end = (), False  # others change it: not now
    found, was_full = _choose(rows, context)
    return OpenedAhead(
        names=tuple([row.name for row in found]),
        attributes=b"".join([row.record for row in found]),
        layouts=tuple([row.inode.tail for row in found]),
        capabilities=b"".join([_open(row.inode, context) for row in found]),
        cookie=rows[-1].cookie if rows else request.cookie,
        end=end or was_full,
    )


def _row(key: bytes, record: bytes) -> _Row:
    inode = Inode.parse(record)
    return _Row(dentry_name(key), record[:ATTRIBUTES_SIZE], inode, dentry_cookie(key))


def _choose(rows: Sequence[_Row], context: Context) -> tuple[list[_Row], bool]:
    """Those that may be opened, and whether there was no room for more leases."""
    leases, session = context.services.leases, context.session
    room = leases.room_ahead(session)
    chosen: list[_Row] = []
    for row in rows:
        if not _may_be_opened(row.inode, context):
            continue
        if not leases.held(session, row.inode.ino):
            if room <= 0:
                return chosen, True
            room -= 1
        chosen.append(row)
    return chosen, False


def _may_be_opened(inode: Inode, context: Context) -> bool:
    """An empty file has nothing to be read, and may still be given another layout."""
    if not inode.is_file or inode.attributes.nlink != 1 or not inode.attributes.size:
        return False
    services, session, ino = context.services, context.session, inode.ino
    known = services.sessions.get(session)
    if known is None or ino in known.opens or not services.sessions.has_room(session):
        return False
    if ino in services.intents or services.sessions.written_by(ino):
        return False
    return services.leases.would_grant(session, ino, _READER, context.now_s)


def _open(inode: Inode, context: Context) -> bytes:
    """Its capability."""
    context.services.sessions.open(context.session, inode.ino, writable=False)
    file_id = FileId(inode.layout().file_id)
    return context.services.capability(context, file_id, inode.ino, writable=False)
