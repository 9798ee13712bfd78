"""The operations of the metaserver, and the table that the engine looks them up in.

An op is a plain function `op(tx, request, context) -> reply`: it never awaits, so it is atomic; it
raises FsError to fail, which drops its writes. Rows also say from which kind of connection an op
is taken, and whether it needs a session.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.ops.admin import evict, inspect, inspect_list, tree_sum
from metaserver.ops.barrier import barrier, ping
from metaserver.ops.close import close
from metaserver.ops.cluster import cluster_map, heartbeat, register, target_set
from metaserver.ops.commit import commit
from metaserver.ops.create import create
from metaserver.ops.delegate import change_batch, delegate
from metaserver.ops.getattr import getattr_
from metaserver.ops.keys import key_create, key_list, key_revoke, mount_root, session_grant
from metaserver.ops.leases import lease_restore, lease_return, lease_take, leases
from metaserver.ops.link import link
from metaserver.ops.locks import (
    lock_cancel,
    lock_events,
    lock_get,
    lock_list,
    lock_restore,
    lock_set,
)
from metaserver.ops.lookup import lookup
from metaserver.ops.mkdir import mkdir
from metaserver.ops.mknod import mknod
from metaserver.ops.open import open_
from metaserver.ops.open_ahead import open_ahead
from metaserver.ops.quota import quota_assign, quota_list, quota_set, quota_tell
from metaserver.ops.readdir import readdir
from metaserver.ops.readlink import readlink
from metaserver.ops.rename import rename
from metaserver.ops.rmdir import rmdir
from metaserver.ops.session import replay_done, session_close, session_open, session_renew
from metaserver.ops.setattr import setattr_
from metaserver.ops.statfs import statfs
from metaserver.ops.status import status
from metaserver.ops.symlink import symlink
from metaserver.ops.tmpfile import tmpfile
from metaserver.ops.trash import (
    trash_by_age,
    trash_list,
    trash_purge,
    trash_restore,
    trash_set,
    trash_trees,
)
from metaserver.ops.unlink import unlink
from metaserver.ops.write_inline import write_inline
from metaserver.ops.xattrs import getxattr, listxattr, removexattr, setxattr
from metaserver.transaction import Transaction

OpFunction = Callable[[Transaction, Any, Context], Any]


class Access(Enum):
    SESSION = "session"  # a client with a session; waits for the end of a recovery
    CONTROL = "control"  # a client with a session; served during recovery
    CLIENT = "client"  # a client connection, with or without a session
    SERVER = "server"  # storage servers
    ADMIN = "admin"  # the command line
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Handler:
    function: OpFunction
    access: Access = Access.SESSION


HANDLERS: Final[dict[Op, Handler]] = {
    Op.PING: Handler(ping, Access.ANY),
    Op.LOOKUP: Handler(lookup),
    Op.GETATTR: Handler(getattr_),
    Op.SETATTR: Handler(setattr_),
    Op.MKNOD: Handler(mknod),
    Op.MKDIR: Handler(mkdir),
    Op.SYMLINK: Handler(symlink),
    Op.READLINK: Handler(readlink),
    Op.UNLINK: Handler(unlink),
    Op.RMDIR: Handler(rmdir),
    Op.RENAME: Handler(rename),
    Op.LINK: Handler(link),
    Op.CREATE: Handler(create),
    Op.OPEN: Handler(open_),
    Op.CLOSE: Handler(close, Access.CONTROL),
    Op.READDIR: Handler(readdir),
    Op.COMMIT: Handler(commit),
    Op.WRITE_INLINE: Handler(write_inline),
    Op.GETXATTR: Handler(getxattr),
    Op.SETXATTR: Handler(setxattr),
    Op.LISTXATTR: Handler(listxattr),
    Op.REMOVEXATTR: Handler(removexattr),
    Op.STATFS: Handler(statfs),
    Op.BARRIER: Handler(barrier),
    Op.DELEGATE: Handler(delegate),
    Op.CHANGE_BATCH: Handler(change_batch),
    Op.OPEN_AHEAD: Handler(open_ahead),
    Op.TMPFILE: Handler(tmpfile),
    Op.LOCK_GET: Handler(lock_get),
    Op.LOCK_SET: Handler(lock_set),
    Op.LOCK_EVENTS: Handler(lock_events),
    Op.LOCK_CANCEL: Handler(lock_cancel),
    Op.LOCK_RESTORE: Handler(lock_restore, Access.CONTROL),
    Op.LOCK_LIST: Handler(lock_list, Access.ADMIN),
    Op.LEASE_TAKE: Handler(lease_take),
    Op.LEASE_RETURN: Handler(lease_return, Access.CONTROL),
    Op.LEASE_RESTORE: Handler(lease_restore, Access.CONTROL),
    Op.SESSION_OPEN: Handler(session_open, Access.CLIENT),
    Op.SESSION_RENEW: Handler(session_renew, Access.CONTROL),
    Op.SESSION_CLOSE: Handler(session_close, Access.CONTROL),
    Op.REPLAY_DONE: Handler(replay_done, Access.CONTROL),
    Op.SESSION_GRANT: Handler(session_grant, Access.CONTROL),
    Op.MOUNT_ROOT: Handler(mount_root),
    Op.CLUSTER_MAP: Handler(cluster_map, Access.ANY),
    Op.REGISTER: Handler(register, Access.SERVER),
    Op.HEARTBEAT: Handler(heartbeat, Access.SERVER),
    Op.STATUS: Handler(status, Access.ANY),
    Op.LEASES: Handler(leases, Access.ANY),
    Op.INSPECT: Handler(inspect, Access.ADMIN),
    Op.INSPECT_LIST: Handler(inspect_list, Access.ADMIN),
    Op.TREE_SUM: Handler(tree_sum, Access.ADMIN),
    Op.EVICT: Handler(evict, Access.ADMIN),
    Op.QUOTA_SET: Handler(quota_set, Access.ADMIN),
    Op.QUOTA_LIST: Handler(quota_list, Access.ADMIN),
    Op.QUOTA_ASSIGN: Handler(quota_assign, Access.ADMIN),
    Op.QUOTA_TELL: Handler(quota_tell, Access.ADMIN),
    Op.TRASH_SET: Handler(trash_set, Access.ADMIN),
    Op.TRASH_TREES: Handler(trash_trees, Access.ADMIN),
    Op.TRASH_LIST: Handler(trash_list, Access.ADMIN),
    Op.TRASH_BY_AGE: Handler(trash_by_age, Access.ADMIN),
    Op.TRASH_RESTORE: Handler(trash_restore, Access.ADMIN),
    Op.TRASH_PURGE: Handler(trash_purge, Access.ADMIN),
    Op.KEY_CREATE: Handler(key_create, Access.ADMIN),
    Op.KEY_LIST: Handler(key_list, Access.ADMIN),
    Op.KEY_REVOKE: Handler(key_revoke, Access.ADMIN),
    Op.TARGET_SET: Handler(target_set, Access.ADMIN),
}
