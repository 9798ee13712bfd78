"""STATFS: room in bytes from heartbeats, inodes from the count kept with every commit."""

from fscommon.wire.messages import Empty, StatFsReply
from metaserver.context import Context, Services
from metaserver.transaction import Transaction


def statfs(tx: Transaction, request: Empty, context: Context) -> StatFsReply:
    return measure(context.services)


def measure(services: Services) -> StatFsReply:
    return services.membership.statfs(
        inodes_used=services.progress.inodes, inode_room=services.inode_room
    )
