"""STATFS: returns the size of the file system, and how much of it is free.

Bytes come from heartbeats. The number of inodes is counted with every commit; the number of free
ones comes from the free bytes of the store, and from what one inode needs there. A new file with
bytes also needs an inode on a target, so there are no more free inodes than targets have.

Where new files get several replicas, each byte and each file takes room in as many failure domains:
the sizes are those of what users can store.

In a tree with limits, the limit is the size, as `df` shows a project's quota on a local file
system; no more is free than both the limit and the cluster have.
"""

from dataclasses import replace
from typing import Final

from fscommon.layout.quota import QuotaKind
from fscommon.observe.room import fitting
from fscommon.wire.admin import FILES_UNLIMITED
from fscommon.wire.messages import StatFs, StatFsReply
from fscommon.wire.ops import Op
from metaserver.context import Context, Services
from metaserver.namespace.inode import Inode, find
from metaserver.namespace.layouts import cluster_default, default_in, shape_of
from metaserver.ops import footprints, names
from metaserver.ops.row import OpRow
from metaserver.quota.table import Account
from metaserver.transaction import Transaction

_INODE_SIZE: Final = 1024  # bytes of the store for one inode with its name, about
_INODES_FIRST: Final = 100  # with fewer inodes, their average size means nothing


def statfs(tx: Transaction, request: StatFs, context: Context) -> StatFsReply:
    inode = find(tx, request.ino) if request.ino else None
    whole = _for_users(measure(context.services), _replicas(tx, inode, context), context)
    account = (int(QuotaKind.TREE), inode.attributes.tree) if inode is not None else None
    quotas = context.services.quotas
    return _within(whole, quotas.get(account)) if account in quotas.limited else whole


def measure(services: Services) -> StatFsReply:
    """Returns the sizes, with inodes as the metadata store alone limits them."""
    progress = services.progress
    room, inodes = progress.room, progress.inodes
    size = max(_INODE_SIZE, room.used // max(inodes, _INODES_FIRST))
    free = 0 if room.is_full else min(room.total // _INODE_SIZE - inodes, room.free // size)
    return services.membership.statfs(inodes_used=inodes, inodes_free=max(0, free))


def _replicas(tx: Transaction, inode: Inode | None, context: Context) -> int:
    """Returns how many replicas a new file gets at this place."""
    if inode is not None and inode.is_directory:
        return default_in(tx, inode, context).replicas
    if inode is not None and inode.is_file:
        return shape_of(inode.layout()).replicas
    return cluster_default(context).replicas


def _for_users(whole: StatFsReply, replicas: int, context: Context) -> StatFsReply:
    membership = context.services.membership
    files_free = membership.files_free()
    if replicas == 1:
        return _with_objects(whole, files_free)
    total, free, available = (fitting(rooms, replicas) for rooms in membership.rooms_for_replicas())
    if files_free != FILES_UNLIMITED:
        files_free //= replicas
    whole = replace(whole, bytes_total=total, bytes_free=free, bytes_available=available)
    return _with_objects(whole, files_free)


def _with_objects(whole: StatFsReply, files_free: int) -> StatFsReply:
    free = min(whole.inodes_free, files_free)
    used = whole.inodes_total - whole.inodes_free
    return replace(whole, inodes_total=used + free, inodes_free=free)


def _within(whole: StatFsReply, tree: Account) -> StatFsReply:
    limits = tree.limits
    total, free = _narrow(
        (whole.bytes_total, whole.bytes_free), limits.bytes_hard or limits.bytes_soft, tree.bytes
    )
    available = min(whole.bytes_available, free)
    inodes_total, inodes_free = _narrow(
        (whole.inodes_total, whole.inodes_free),
        limits.inodes_hard or limits.inodes_soft,
        tree.inodes,
    )
    return replace(
        whole,
        bytes_total=total,
        bytes_free=free,
        bytes_available=available,
        inodes_total=inodes_total,
        inodes_free=inodes_free,
    )


def _narrow(room: tuple[int, int], limit: int, used: int) -> tuple[int, int]:
    """Returns total and free room within a limit; limit 0 means none."""
    total, free = room
    return (min(total, limit), min(free, max(0, limit - used))) if limit else room


ROWS: Final = (
    OpRow(op=Op.STATFS, run=statfs, footprint=footprints.nothing, names=names.its_ino_if_any),
)
