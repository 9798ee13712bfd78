"""The op table: this *is* the protocol. One row per operation.

Codes 1-15 are control, 16-63 data (native on both ends), 64-199 metadata (msgpack bodies), 200-255
servers and administration. fscommon.wire.messages has the body of each metadata op.
native/include/braidfs/frame.h repeats the data codes; tests/wire compares them.
"""

from dataclasses import dataclass
from enum import IntEnum, unique

from fscommon.errors import Retry


@unique
class Op(IntEnum):
    HELLO = 1
    AUTH = 2
    PING = 3
    RDMA = 4

    READ = 16
    WRITE = 17
    SYNC = 18
    TRUNCATE = 19
    PUNCH = 20
    STAT = 21
    DELETE = 22
    FENCE = 23
    SEEK = 24
    COPY = 25
    DELETE_ALL = 26
    FETCH = 27
    RAISE_EPOCH = 28
    DROP_NAMES = 29

    LOOKUP = 64
    GETATTR = 65
    SETATTR = 66
    MKNOD = 67
    MKDIR = 68
    SYMLINK = 69
    READLINK = 70
    UNLINK = 71
    RMDIR = 72
    RENAME = 73
    LINK = 74
    CREATE = 75
    OPEN = 76
    CLOSE = 77
    READDIR = 78
    COMMIT = 79
    GETXATTR = 80
    SETXATTR = 81
    LISTXATTR = 82
    REMOVEXATTR = 83
    STATFS = 84
    BARRIER = 85
    TMPFILE = 86
    DELEGATE = 87
    CHANGE_BATCH = 88
    OPEN_AHEAD = 89
    LOCK_GET = 90
    LOCK_SET = 91
    LOCK_EVENTS = 92
    LOCK_CANCEL = 93
    LOCK_RESTORE = 94
    WRITE_INLINE = 95
    DROP_REPLICAS = 96
    SYNCED = 97

    SESSION_OPEN = 100
    SESSION_RENEW = 101
    SESSION_CLOSE = 102
    REPLAY_DONE = 103
    CLUSTER_MAP = 104
    LEASE_TAKE = 105
    LEASE_RETURN = 106
    RECALL = 107  # sent by the metaserver to a client
    SESSION_GRANT = 108
    MOUNT_ROOT = 109
    LEASE_RESTORE = 110

    REGISTER = 200
    HEARTBEAT = 201
    STATUS = 202
    LEASES = 203
    INSPECT = 204
    INSPECT_LIST = 205
    TREE_SUM = 206
    EVICT = 207
    LOCK_LIST = 210
    QUOTA_SET = 211
    QUOTA_LIST = 212
    QUOTA_ASSIGN = 213
    QUOTA_TELL = 214
    TRASH_SET = 215
    TRASH_TREES = 216
    TRASH_LIST = 217
    TRASH_BY_AGE = 218
    TRASH_RESTORE = 219
    TRASH_PURGE = 220
    KEY_CREATE = 221
    KEY_LIST = 222
    KEY_REVOKE = 223
    TARGET_SET = 224
    BACKUP_BEGIN = 225
    BACKUP_NEXT = 226
    BACKUP_END = 227
    META_SWITCH = 228
    META_FORGET = 229
    OBJECT_LIST = 230  # of a storage server
    TARGET_DROPPED = 231
    OBJECT_COPY = 232  # of a storage server
    JOB_LIST = 233
    JOB_SET = 234
    TARGET_REMOVE = 235
    OBJECT_SUM = 236  # of a storage server
    OBJECT_MEND = 237  # of a storage server
    SCRUB = 238
    SCRUB_LIST = 239
    FSCK_NAMES = 240
    FSCK_SLOTS = 241
    FSCK_DROP = 242


@dataclass(frozen=True, slots=True)
class Spec:
    """What a layer must know of an op without knowing what it does."""

    retry: Retry
    # It changes the namespace: its reply is stored, and it is replayed until it is durable.
    mutation: bool = False


_SAFE = Spec(Retry.SAFE)
_MUTATION = Spec(Retry.IF_IDEMPOTENT, mutation=True)

SPECS: dict[Op, Spec] = {
    Op.HELLO: Spec(Retry.NEVER),
    Op.AUTH: Spec(Retry.NEVER),
    Op.PING: _SAFE,
    Op.RDMA: Spec(Retry.NEVER),
    Op.READ: _SAFE,
    Op.WRITE: Spec(Retry.IF_IDEMPOTENT),
    Op.SYNC: _SAFE,
    Op.TRUNCATE: _SAFE,
    Op.PUNCH: Spec(Retry.IF_IDEMPOTENT),
    Op.STAT: _SAFE,
    Op.DELETE: _SAFE,
    Op.FENCE: _SAFE,
    Op.SEEK: _SAFE,
    Op.COPY: Spec(Retry.IF_IDEMPOTENT),
    Op.DELETE_ALL: _SAFE,
    Op.FETCH: _SAFE,
    Op.RAISE_EPOCH: _SAFE,
    Op.DROP_NAMES: _SAFE,
    Op.LOOKUP: _SAFE,
    Op.GETATTR: _SAFE,
    Op.SETATTR: _MUTATION,
    Op.MKNOD: _MUTATION,
    Op.MKDIR: _MUTATION,
    Op.SYMLINK: _MUTATION,
    Op.READLINK: _SAFE,
    Op.UNLINK: _MUTATION,
    Op.RMDIR: _MUTATION,
    Op.RENAME: _MUTATION,
    Op.LINK: _MUTATION,
    Op.CREATE: _MUTATION,
    Op.OPEN: _SAFE,
    Op.CLOSE: _SAFE,
    Op.READDIR: _SAFE,
    Op.COMMIT: _MUTATION,
    Op.GETXATTR: _SAFE,
    Op.SETXATTR: _MUTATION,
    Op.LISTXATTR: _SAFE,
    Op.REMOVEXATTR: _MUTATION,
    Op.STATFS: _SAFE,
    Op.BARRIER: _SAFE,
    Op.DELEGATE: _SAFE,
    Op.CHANGE_BATCH: _MUTATION,
    Op.WRITE_INLINE: _MUTATION,
    Op.DROP_REPLICAS: _SAFE,
    Op.SYNCED: _SAFE,
    Op.OPEN_AHEAD: _SAFE,
    Op.TMPFILE: _MUTATION,
    Op.LOCK_GET: _SAFE,
    Op.LOCK_SET: _SAFE,
    Op.LOCK_EVENTS: _SAFE,
    Op.LOCK_CANCEL: _SAFE,
    Op.LOCK_RESTORE: _SAFE,
    Op.LOCK_LIST: _SAFE,
    Op.SESSION_OPEN: _SAFE,
    Op.SESSION_RENEW: _SAFE,
    Op.SESSION_CLOSE: _SAFE,
    Op.REPLAY_DONE: _SAFE,
    Op.CLUSTER_MAP: _SAFE,
    Op.LEASE_TAKE: _SAFE,
    Op.LEASE_RETURN: _SAFE,
    Op.LEASE_RESTORE: _SAFE,
    Op.RECALL: _SAFE,
    Op.SESSION_GRANT: _SAFE,
    Op.MOUNT_ROOT: _SAFE,
    Op.REGISTER: _SAFE,
    Op.HEARTBEAT: _SAFE,
    Op.STATUS: _SAFE,
    Op.LEASES: _SAFE,
    Op.INSPECT: _SAFE,
    Op.INSPECT_LIST: _SAFE,
    Op.TREE_SUM: _SAFE,
    Op.EVICT: _SAFE,
    Op.QUOTA_SET: _SAFE,
    Op.QUOTA_LIST: _SAFE,
    Op.QUOTA_ASSIGN: _SAFE,
    Op.QUOTA_TELL: _SAFE,
    Op.TRASH_SET: _SAFE,
    Op.TRASH_TREES: _SAFE,
    Op.TRASH_LIST: _SAFE,
    Op.TRASH_BY_AGE: _SAFE,
    Op.TRASH_RESTORE: Spec(Retry.NEVER),
    Op.TRASH_PURGE: _SAFE,
    Op.KEY_CREATE: Spec(Retry.NEVER),
    Op.KEY_LIST: _SAFE,
    Op.KEY_REVOKE: _SAFE,
    Op.TARGET_SET: _SAFE,
    Op.BACKUP_BEGIN: Spec(Retry.NEVER),
    Op.BACKUP_NEXT: _SAFE,
    Op.BACKUP_END: _SAFE,
    Op.META_SWITCH: Spec(Retry.NEVER),
    Op.META_FORGET: Spec(Retry.NEVER),
    Op.OBJECT_LIST: _SAFE,
    Op.TARGET_DROPPED: _SAFE,
    Op.OBJECT_COPY: _SAFE,
    Op.JOB_LIST: _SAFE,
    Op.JOB_SET: _SAFE,
    Op.TARGET_REMOVE: _SAFE,
    Op.FSCK_NAMES: _SAFE,
    Op.FSCK_SLOTS: _SAFE,
    Op.FSCK_DROP: _SAFE,
    Op.OBJECT_SUM: _SAFE,
    Op.OBJECT_MEND: _SAFE,
    Op.SCRUB: _SAFE,
    Op.SCRUB_LIST: _SAFE,
}

# Mutations whose reply also registers the inode that they created as open.
OPENING: frozenset[Op] = frozenset((Op.CREATE, Op.TMPFILE))
