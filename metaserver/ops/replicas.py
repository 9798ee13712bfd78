"""DROP_REPLICAS and SYNCED: what writers say of the replicas of a file.

A DROP_REPLICAS looks at the layout. If there is something to be dropped, or a dropped name of which
somebody may get an answer, metaserver.dropping does the work, and the request runs again when that
is done. So a repeat waits for the same, and gets the present layout.
"""

from typing import Final

from fscommon.errors import FsError, Status
from fscommon.types import Ino
from fscommon.wire.messages import Empty, Opened
from fscommon.wire.ops import Op
from fscommon.wire.replicas import DROPS_MAX, DropReplicas, Synced
from metaserver import squash
from metaserver.context import Context, ParkedError
from metaserver.drops import Drop
from metaserver.namespace.charges import size_limit
from metaserver.namespace.inode import Inode, load
from metaserver.namespace.protection import check_may_open
from metaserver.namespace.replicas import droppable, names_of
from metaserver.ops import footprints, grants, names
from metaserver.ops.row import Access, OpRow, always
from metaserver.records import ObjectName, dropped_key, pack_number, unsynced_key
from metaserver.transaction import Transaction


def drop_replicas(tx: Transaction, request: DropReplicas, context: Context) -> Opened:
    inode = load(tx, request.ino)
    named = _named(request)
    _check(inode, context)
    services = context.services
    drop = Drop(context.session, inode.ino, request.file_id, request.truncate_epoch, named)
    drop_or_wait(tx, inode, drop, context)
    context.check_not_truncating(inode.ino)
    capability = services.capability(context, inode.tail, inode.ino, writable=True)
    limit = size_limit(context, inode.attributes)
    return Opened(inode.attributes.pack(), inode.tail, capability, limit)


def drop_or_wait(tx: Transaction, inode: Inode, drop: Drop, context: Context) -> None:
    """Returns when there is nothing left to do. Otherwise the request waits until that is done, and
    runs again. Raises NOT_READY if a target has not answered in time."""
    if not _is_left_to_do(tx, inode, drop, context):
        return
    drops = context.services.drops
    if drops.take_late(drop.names):
        raise FsError(Status.NOT_READY, "a target does not say that it has dropped its object")
    drops.want(drop)
    raise ParkedError(drop_key(inode.ino))


def drop_key(ino: Ino) -> tuple[str, Ino]:
    """The key under which requests wait until replicas of a file are dropped."""
    return "drop", ino


def _named(request: DropReplicas) -> tuple[ObjectName, ...]:
    if len(request.objects) != len(request.targets) or not 0 < len(request.objects) <= DROPS_MAX:
        raise FsError(Status.BAD_REQUEST, f"name 1 to {DROPS_MAX} replicas, each by two numbers")
    rows = zip(request.targets, request.objects, strict=True)
    return tuple([ObjectName(target, request.file_id, number) for target, number in rows])


def _check(inode: Inode, context: Context) -> None:
    if not inode.is_file:
        raise FsError(Status.EINVAL, "not a regular file")
    if not context.services.sessions.is_writer(context.session, inode.ino):
        check_may_open(inode, writable=True)


def _is_left_to_do(tx: Transaction, inode: Inode, drop: Drop, context: Context) -> bool:
    layout = inode.layout()
    if (layout.file_id, layout.truncate_epoch) == (drop.file_id, drop.epoch):
        membership, now_s = context.services.membership, context.now_s
        if droppable(layout, drop.names, lambda target: membership.is_answering(target, now_s)):
            return True
    present = set(names_of(layout))
    return any(
        name not in present
        and not context.services.drops.is_settled(name)
        and tx.get(dropped_key(name)) is not None
        for name in drop.names
    )


def synced(tx: Transaction, request: Synced, context: Context) -> Empty:
    """Ends what CLOSE has said of these files, unless a later CLOSE has said so again."""
    for ino, serial in zip(request.inos, request.serials, strict=False):
        key = unsynced_key(Ino(ino), context.session)
        if tx.get(key) == pack_number(serial):
            tx.delete(key)
    return Empty()


ROWS: Final = (
    OpRow(
        op=Op.DROP_REPLICAS,
        run=drop_replicas,
        footprint=footprints.nothing,
        grants=grants.only_held,
        names=names.its_ino,
        changes=always,
        squash=squash.write_inode,
    ),
    # It changes nothing but what a CLOSE of its session has said.
    OpRow(op=Op.SYNCED, run=synced, access=Access.CONTROL, names=names.no_inodes),
)
