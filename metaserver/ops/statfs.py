"""STATFS: room in bytes from heartbeats, inodes from the count kept with every commit, and room for
inodes from what the store takes for one: as full as the store is, so full are they. A new file with
bytes also needs an inode of a target, so there are no more free than the targets have.

In a tree that has limits the room is that of the tree, as `df` shows a project's quota on a local
file system: its limit is the size, and no more is free than it and the cluster both have.
"""

from dataclasses import replace
from typing import Final

from fscommon.layout.quota import QuotaKind
from fscommon.wire.messages import StatFs, StatFsReply
from metaserver.context import Context, Services
from metaserver.namespace.inode import find
from metaserver.quota.table import Account
from metaserver.transaction import Transaction

_INODE_SIZE: Final = 1024  # bytes of the store per inode with its name, about
_INODES_FIRST: Final = 100  # fewer tell no size


def statfs(tx: Transaction, request: StatFs, context: Context) -> StatFsReply:
    whole = _with_objects(measure(context.services), context.services.membership.files_free())
    inode = find(tx, request.ino) if request.ino else None
    account = (int(QuotaKind.TREE), inode.attributes.tree) if inode is not None else None
    quotas = context.services.quotas
    return _within(whole, quotas.get(account)) if account in quotas.limited else whole


def measure(services: Services) -> StatFsReply:
    """Inodes as the metadata store alone limits them."""
    progress = services.progress
    room, inodes = progress.room, progress.inodes
    size = max(_INODE_SIZE, room.used // max(inodes, _INODES_FIRST))
    free = 0 if room.is_full else min(room.total // _INODE_SIZE - inodes, room.free // size)
    return services.membership.statfs(inodes_used=inodes, inodes_free=max(0, free))


def _with_objects(whole: StatFsReply, files_free: int) -> StatFsReply:
    free = min(whole.inodes_free, files_free)
    used = whole.inodes_total - whole.inodes_free
    return replace(whole, inodes_total=used + free, inodes_free=free)


def _within(whole: StatFsReply, tree: Account) -> StatFsReply:
    limits = tree.limits
    most_bytes = limits.bytes_hard or limits.bytes_soft
    if most_bytes:
        left = max(0, most_bytes - tree.bytes)
        whole = replace(
            whole,
            bytes_total=min(whole.bytes_total, most_bytes),
            bytes_free=min(whole.bytes_free, left),
            bytes_available=min(whole.bytes_available, left),
        )
    most_inodes = limits.inodes_hard or limits.inodes_soft
    if most_inodes:
        left = max(0, most_inodes - tree.inodes)
        whole = replace(
            whole,
            inodes_total=min(whole.inodes_total, most_inodes),
            inodes_free=min(whole.inodes_free, left),
        )
    return whole
