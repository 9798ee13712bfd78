"""Root squash: of a client whose key says so, nobody is root (docs/decisions/0020-client-keys.md).

The kernel of a client checks who may do what, and its root passes everything, so a request tells
little of its caller. What it can never be here is root's own doing. Hence
- what is made belongs to nobody instead of root, is no device, and no owner is changed;
- what root owns is reached as far as it lets those who are not root: the bits of its group, unless
  that is root's too and no ACL says more, and of others. Only its owner may change more than that;
- xattrs that give rights to programs or are for administrators are not set.
`SQUASHES` has a row for each op that metaserver.confine lets through, None where there is nothing
to check. All functions raise EACCES or EPERM, or return the request as it is to be run.
"""

import stat
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    INODE_APPEND,
    INODE_IMMUTABLE,
    LEASE_DATA,
    LEASE_EXCLUSIVE_ALL,
)
from fscommon.wire.leases import LeaseTake
from fscommon.wire.messages import (
    SET_ATIME,
    SET_CTIME,
    SET_FLAGS,
    SET_GID,
    SET_GROW,
    SET_KILL_SUIDGID,
    SET_MTIME,
    SET_SIZE,
    SET_UID,
    Caller,
    Create,
    GetXattr,
    Link,
    MkNod,
    Open,
    RemoveXattr,
    Rename,
    SetAttr,
    SetXattr,
)
from fscommon.wire.ops import Op
from metaserver.keys import ClientKey
from metaserver.namespace import acl
from metaserver.namespace.entries import find_dentry
from metaserver.namespace.inode import Inode, find
from metaserver.records import xattr_key
from metaserver.transaction import Transaction

NOBODY: Final = 65534
ROOT_UID: Final = 0
READ, WRITE, SEARCH = 4, 2, 1
_OF_WRITERS: Final = (
    SET_SIZE | SET_GROW | SET_ATIME | SET_MTIME | SET_CTIME | SET_KILL_SUIDGID
)  # what the owner need not be asked for
_LOCKED_FLAGS: Final = INODE_IMMUTABLE | INODE_APPEND
_PRIVILEGED: Final = (b"trusted.", b"security.")
Squash = Callable[[Transaction, Any], Any]


# ---- what root owns -----------------------------------------------------------------------------


def check_may(tx: Transaction, ino: int, wanted: int) -> None:
    """Raises EACCES when nobody but root may do that with the inode. READ, WRITE, SEARCH."""
    inode = find(tx, ino)
    if inode is not None and not may(tx, inode, wanted):
        raise FsError(Status.EACCES, "it is root's, and root of this client is nobody")


def may(tx: Transaction, inode: Inode, wanted: int) -> bool:
    attributes = inode.attributes
    if attributes.uid != ROOT_UID:
        return True
    allowed = attributes.mode & 7
    if attributes.gid != ROOT_UID or _has_acl(tx, inode):
        allowed |= attributes.mode >> 3 & 7
    return wanted & ~allowed == 0


def may_read(tx: Transaction, inode: Inode, key: ClientKey | None) -> bool:
    """Whether a client with this key may be given the bytes unasked."""
    return key is None or not key.squashes_root or may(tx, inode, READ)


def _has_acl(tx: Transaction, inode: Inode) -> bool:
    return bool(inode.attributes.xattr_count) and (
        tx.get(xattr_key(inode.ino, acl.ACCESS)) is not None
    )


def _owned_by_root(tx: Transaction, ino: int) -> bool:
    inode = find(tx, ino)
    return inode is not None and inode.attributes.uid == ROOT_UID


def _forbid(message: str) -> FsError:
    return FsError(Status.EPERM, f"{message} is for root, and root of this client is nobody")


# ---- names --------------------------------------------------------------------------------------


def _look(tx: Transaction, request: Any) -> Any:
    check_may(tx, request.parent, SEARCH)
    return request


def _list(tx: Transaction, request: Any) -> Any:
    check_may(tx, request.ino, READ)
    return request


def _make(tx: Transaction, request: Any) -> Any:
    check_may(tx, request.parent, WRITE | SEARCH)
    return replace(request, caller=squashed(request.caller))


def squashed(caller: Caller) -> Caller:
    return replace(
        caller,
        uid=caller.uid or NOBODY,
        gid=caller.gid or NOBODY,
        groups=tuple(group for group in caller.groups if group != ROOT_UID),
    )


def _make_node(tx: Transaction, request: MkNod) -> MkNod:
    if stat.S_ISCHR(request.mode) or stat.S_ISBLK(request.mode):
        raise _forbid("making a device")
    made: MkNod = _make(tx, request)
    return made


def _create(tx: Transaction, request: Create) -> Create:
    dentry = None if request.exclusive else find_dentry(tx, request.parent, request.name)
    if dentry is None:
        made: Create = _make(tx, request)
        return made
    check_may(tx, request.parent, SEARCH)
    check_may(tx, dentry.ino, READ | WRITE if request.writable else READ)
    return request


def _remove(tx: Transaction, request: Any) -> Any:
    check_may(tx, request.parent, WRITE | SEARCH)
    _check_sticky(tx, request.parent, request.name)
    return request


def _check_sticky(tx: Transaction, parent: int, name: bytes) -> None:
    """In a sticky directory names are their owners'."""
    directory = find(tx, parent)
    if directory is None or not directory.attributes.mode & stat.S_ISVTX:
        return
    dentry = find_dentry(tx, parent, name)
    if (
        dentry is not None
        and directory.attributes.uid == ROOT_UID
        and _owned_by_root(tx, dentry.ino)
    ):
        raise _forbid("this name in a sticky directory")


def _rename(tx: Transaction, request: Rename) -> Rename:
    for parent, name in (
        (request.parent, request.name),
        (request.new_parent, request.new_name),
    ):
        check_may(tx, parent, WRITE | SEARCH)
        _check_sticky(tx, parent, name)
        dentry = find_dentry(tx, parent, name)
        moved = find(tx, dentry.ino) if dentry is not None else None
        if moved is not None and moved.is_directory and request.parent != request.new_parent:
            check_may(tx, moved.ino, WRITE)  # its `..` changes
    return request


def _link(tx: Transaction, request: Link) -> Link:
    check_may(tx, request.new_parent, WRITE | SEARCH)
    check_may(tx, request.ino, READ | WRITE)
    return request


# ---- inodes -------------------------------------------------------------------------------------


def _open(tx: Transaction, request: Open) -> Open:
    """A capability to write reads, too."""
    check_may(tx, request.ino, READ | WRITE if request.writable else READ)
    return request


def _write(tx: Transaction, request: Any) -> Any:
    check_may(tx, request.ino, READ | WRITE)
    return request


def _lock(tx: Transaction, request: Any) -> Any:
    check_may(tx, request.ino, READ)
    return request


def _restore_locks(tx: Transaction, request: Any) -> Any:
    for ino in {lock.ino for lock in request.locks}:
        check_may(tx, ino, READ)
    return request


def _take(tx: Transaction, request: LeaseTake) -> LeaseTake:
    if request.flags & LEASE_EXCLUSIVE_ALL:
        check_may(tx, request.ino, READ | WRITE)
    elif request.flags & LEASE_DATA:
        check_may(tx, request.ino, READ)
    return request


def _setattr(tx: Transaction, request: SetAttr) -> SetAttr:
    inode = find(tx, request.ino)
    if inode is None:
        return request
    attributes, valid = inode.attributes, request.valid
    if valid & SET_UID and request.uid != attributes.uid:
        raise _forbid("another owner")
    if valid & SET_GID and request.gid != attributes.gid and request.gid == ROOT_UID:
        raise _forbid("root's group")
    if valid & SET_FLAGS and (request.inode_flags ^ attributes.flags) & _LOCKED_FLAGS:
        raise _forbid("a change of protecting flags")
    if attributes.uid == ROOT_UID:
        if valid & ~_OF_WRITERS:
            raise _forbid("a change of what root owns")
        check_may(tx, request.ino, READ | WRITE)
    return request


def _get_xattr(tx: Transaction, request: GetXattr) -> GetXattr:
    if request.name.startswith(b"user."):
        check_may(tx, request.ino, READ)
    return request


def _change_xattr(tx: Transaction, request: SetXattr | RemoveXattr) -> SetXattr | RemoveXattr:
    if request.name.startswith(_PRIVILEGED):
        raise _forbid("this xattr")
    if _owned_by_root(tx, request.ino):
        if not request.name.startswith(b"user."):
            raise _forbid("a change of what root owns")
        check_may(tx, request.ino, WRITE)
    return request


SQUASHES: Final[dict[Op, Squash | None]] = {
    Op.PING: None,
    Op.LOOKUP: _look,
    Op.GETATTR: None,
    Op.SETATTR: _setattr,
    Op.MKNOD: _make_node,
    Op.MKDIR: _make,
    Op.SYMLINK: _make,
    Op.READLINK: None,
    Op.UNLINK: _remove,
    Op.RMDIR: _remove,
    Op.RENAME: _rename,
    Op.LINK: _link,
    Op.CREATE: _create,
    Op.OPEN: _open,
    Op.CLOSE: None,
    Op.READDIR: _list,
    Op.COMMIT: _write,
    Op.GETXATTR: _get_xattr,
    Op.SETXATTR: _change_xattr,
    Op.LISTXATTR: None,
    Op.REMOVEXATTR: _change_xattr,
    Op.STATFS: None,
    Op.BARRIER: None,
    Op.TMPFILE: _make,
    Op.DELEGATE: None,  # gives nothing to confined clients
    Op.OPEN_AHEAD: _list,  # and leaves out what may not be read
    Op.LOCK_GET: None,
    Op.LOCK_SET: _lock,
    Op.LOCK_EVENTS: None,
    Op.LOCK_CANCEL: None,
    Op.LOCK_RESTORE: _restore_locks,
    Op.SESSION_OPEN: None,
    Op.SESSION_RENEW: None,
    Op.SESSION_CLOSE: None,
    Op.REPLAY_DONE: None,
    Op.SESSION_GRANT: None,
    Op.MOUNT_ROOT: None,
    Op.CLUSTER_MAP: None,
    Op.LEASE_TAKE: _take,
    Op.LEASE_RETURN: None,
}


def squash(tx: Transaction, op: Op, request: Any) -> Any:
    function = SQUASHES[op]
    return request if function is None else function(tx, request)
