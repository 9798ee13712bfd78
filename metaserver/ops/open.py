"""OPEN: this session holds the inode open; a capability for its objects.

Who has a file open for writing is also a record of the store (not waited for), because a client
that died together with the metaserver says its opens to nobody: see metaserver.eviction.
What lies in its record is moved to its objects before anybody writes, which is not before anybody
has it open for writing: many who do never write.
"""

from dataclasses import replace

from fscommon.errors import FsError, Status
from fscommon.wire.messages import Open, Opened
from metaserver.context import Context
from metaserver.namespace.inline import has_inline, spill
from metaserver.namespace.inode import Inode, load
from metaserver.namespace.protection import check_may_open
from metaserver.quota.charges import NO_SIZE_LIMIT, size_limit
from metaserver.records import writer_key
from metaserver.transaction import Transaction


def open_(tx: Transaction, request: Open, context: Context) -> Opened:
    inode = load(tx, request.ino)
    opened = open_inode(tx, inode, context, writable=request.writable, wanted=request.wanted)
    if not (request.writable and request.moves and has_inline(inode)):
        return opened
    layout = spill(tx, inode, context).tail
    capability = context.services.capability(context, layout, inode.ino, writable=True)
    return replace(opened, layout=layout, capability=capability)


def open_inode(
    tx: Transaction, inode: Inode, context: Context, *, writable: bool, wanted: int = 0
) -> Opened:
    services = context.services
    context.check_not_truncating(inode.ino)
    if not services.sessions.is_writer(context.session, inode.ino):
        check_may_open(inode, writable=writable)
    if not services.sessions.has_room(context.session):
        raise FsError(Status.EBUSY, "this session has too many inodes open")
    services.sessions.open(context.session, inode.ino, writable=writable)
    packed = inode.attributes.pack()
    if not inode.is_file:
        return Opened(packed, b"", b"")
    key = writer_key(context.session, inode.ino)
    if writable and tx.get(key) is None:
        context.notes[key] = b""
    capability = services.capability(context, inode.tail, inode.ino, writable=writable)
    limit = NO_SIZE_LIMIT
    if writable:
        limit = size_limit(context, inode.attributes, wanted=wanted)
    return Opened(packed, inode.tail, capability, limit)
