"""OPEN_AHEAD: a page of a directory, whose files this session may read from now on without a word.

For a client that reads one file after another (docs/decisions/0019-open-ahead.md): it gets what an
OPEN of each would have brought, and holds META and DATA of all of them by their directory
(docs/decisions/0022-directory-grants.md): nothing is kept here for each file but a bit. Nothing
waits and nobody is asked for anything. What another session holds or waits for, what is being
written, what has several names, and what this session has open already, is left out. Doing it again
grants it again. The grant itself is metaserver.leases.gate's, as of every reply.
"""

from typing import NamedTuple

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import ATTRIBUTES_SIZE, LEASE_ENTRIES, LEASE_META, LEASE_READER
from fscommon.limits import OPEN_AHEAD_MAX
from fscommon.types import FileId, Ino
from fscommon.wire.ahead import OpenAhead, OpenedAhead
from metaserver.context import Context
from metaserver.namespace.inode import Inode
from metaserver.namespace.listing import list_page
from metaserver.records import dentry_cookie, dentry_name
from metaserver.squash import may_read
from metaserver.transaction import Transaction

_NAMES = LEASE_META | LEASE_ENTRIES


class _Row(NamedTuple):
    name: bytes
    record: bytes
    inode: Inode
    cookie: int


def open_ahead(tx: Transaction, request: OpenAhead, context: Context) -> OpenedAhead:
    if not 0 < request.count <= OPEN_AHEAD_MAX:
        raise FsError(Status.BAD_REQUEST, f"a page of {request.count} names")
    leases, session, directory = context.services.leases, context.session, Ino(request.ino)
    rows, end = list_page(tx, directory, request.cookie, request.count, _row)
    if not leases.would_grant(session, directory, _NAMES, context.now_s):
        rows, end = (), False  # others change it: not now
    found = [
        row for row in rows
        if _may_be_granted(row.inode, context) and may_read(tx, row.inode, context.key)
    ]  # fmt: skip
    if len(found) > leases.room_ahead(session):
        found, end = [], True
    return OpenedAhead(
        names=tuple([row.name for row in found]),
        attributes=b"".join([row.record for row in found]),
        layouts=tuple([row.inode.tail for row in found]),
        capabilities=b"".join([_capability(row.inode, context) for row in found]),
        cookie=rows[-1].cookie if rows else request.cookie,
        end=end,
    )


def _row(key: bytes, record: bytes) -> _Row:
    inode = Inode.parse(record)
    return _Row(dentry_name(key), record[:ATTRIBUTES_SIZE], inode, dentry_cookie(key))


def _may_be_granted(inode: Inode, context: Context) -> bool:
    """An empty file may still be given another layout, which whoever writes it learns as it opens
    it."""
    if not inode.is_file or inode.attributes.nlink != 1:
        return False
    services, session, ino = context.services, context.session, inode.ino
    known = services.sessions.get(session)
    if known is None or ino in known.opens:
        return False
    if ino in services.intents or services.sessions.written_by(ino):
        return False
    return services.leases.would_grant(session, ino, LEASE_READER, context.now_s)


def _capability(inode: Inode, context: Context) -> bytes:
    file_id = FileId(inode.layout().file_id)
    return context.services.capability(context, file_id, inode.ino, writable=False)
