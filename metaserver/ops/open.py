"""OPEN: opens the inode for the session, and returns a capability for its objects.

The store also records which sessions have a file open for writing, because a client that dies
together with the metaserver reports its opens to nobody (metaserver.eviction). The reply waits for
this record only if the file is replicated: a target that lost power must not answer for what is
being written (docs/decisions/0063-mirrors.md). Inline bytes move to objects when a client asks for
that (`moves`) because it is about to write, not at each open for writing: many clients that open so
never write.
"""

from dataclasses import replace
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.layout import is_replicated
from fscommon.types import Ino
from fscommon.wire.messages import Open, Opened
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.identity import Who
from metaserver.leases.holders import Need
from metaserver.namespace.charges import NO_SIZE_LIMIT, size_limit
from metaserver.namespace.inline import has_inline, spill
from metaserver.namespace.inode import Inode, load
from metaserver.namespace.layouts import check_knows
from metaserver.namespace.protection import check_may_open
from metaserver.ops import footprints, grants, names
from metaserver.ops.row import OpRow
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
    tx: Transaction,
    inode: Inode,
    context: Context,
    *,
    writable: bool,
    wanted: int = 0,
    is_new: bool = False,
) -> Opened:
    """is_new: the file is made in this transaction, and no more durable than the record of its
    writer."""
    services = context.services
    context.check_not_truncating(inode.ino)
    if not services.sessions.is_writer(context.session, inode.ino):
        check_may_open(inode, writable=writable)
    if inode.is_file:
        check_knows(inode.tail, context)
    if not services.sessions.has_room(context.session):
        raise FsError(Status.EBUSY, "this session has too many inodes open")
    services.sessions.open(context.session, inode.ino, writable=writable)
    packed = inode.attributes.pack()
    if not inode.is_file:
        return Opened(packed, b"", b"")
    key = writer_key(context.session, inode.ino)
    if writable:
        if tx.get(key) is None:
            context.notes[key] = b""
        context.wait_durable |= not is_new and is_replicated(inode.tail)
    capability = services.capability(context, inode.tail, inode.ino, writable=writable)
    limit = NO_SIZE_LIMIT
    if writable:
        limit = size_limit(context, inode.attributes, wanted=wanted)
    return Opened(packed, inode.tail, capability, limit)


def _footprint(tx: Transaction, request: Open) -> list[Need]:
    return footprints.opened_inode(tx, Ino(request.ino), writable=request.writable)


def _writes(request: Open) -> bool:
    return bool(request.writable)


def _squash(tx: Transaction, request: Open, who: Who) -> Open:
    """A capability for writing also allows reading."""
    wanted = squash.READ | squash.WRITE if request.writable else squash.READ
    squash.check_may(tx, request.ino, wanted, who)
    return request


ROWS: Final = (
    OpRow(
        op=Op.OPEN,
        run=open_,
        footprint=_footprint,
        grants=grants.opened,
        names=names.its_ino,
        changes=_writes,
        squash=_squash,
    ),
)
