"""STATFS: room in bytes from heartbeats, inodes from the count kept with every commit, and room for
inodes from what the store takes for one: as full as the store is, so full are they."""

from typing import Final

from fscommon.wire.messages import Empty, StatFsReply
from metaserver.context import Context, Services
from metaserver.transaction import Transaction

_INODE_SIZE: Final = 1024  # bytes of the store per inode with its name, about
_INODES_FIRST: Final = 100  # fewer tell no size


def statfs(tx: Transaction, request: Empty, context: Context) -> StatFsReply:
    return measure(context.services)


def measure(services: Services) -> StatFsReply:
    progress = services.progress
    room, inodes = progress.room, progress.inodes
    size = max(_INODE_SIZE, room.used // max(inodes, _INODES_FIRST))
    free = 0 if room.is_full else min(room.total // _INODE_SIZE - inodes, room.free // size)
    return services.membership.statfs(inodes_used=inodes, inodes_free=max(0, free))
