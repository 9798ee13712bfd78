"""Whom a client cannot be, nothing of it is: its key may say that nobody of it is root, that its
users are others in the cluster, or that all of them are one (metaserver.identity,
docs/decisions/0020-client-keys.md).

The kernel of a client checks who may do what, and its root passes everything, so a request tells
little of its caller. What it can never be here is the doing of a user whom the client cannot be.
Hence, calling what such users own foreign,
- what is made belongs to who asks, by the cluster's numbers, and to nobody where there is none;
- what is foreign is reached as far as its bits let others, its group if the client can be in that,
  and those users and groups of its ACL that it can be. Only its owner may change more than that;
- what belongs to a group that the client cannot be in lends that group to nobody (set-group-id);
- owners change, if at all, from one whom the client can be to another such;
- where nobody is root no device is made, and no xattr that gives rights to programs or is for
  administrators.
`SQUASHES` has a row for each op that metaserver.confine lets through, None where there is nothing
to check. All functions raise EACCES, EPERM or EINVAL, or return the request as it is to be run.
Replies go the other way in metaserver.shown.
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
from fscommon.types import Ino
from fscommon.wire.leases import LeaseTake
from fscommon.wire.messages import (
    SET_ATIME,
    SET_CTIME,
    SET_FLAGS,
    SET_GID,
    SET_GROW,
    SET_KILL_SGID,
    SET_KILL_SUIDGID,
    SET_MODE,
    SET_MTIME,
    SET_SIZE,
    SET_TIMES_GIVEN,
    SET_UID,
    XATTR_KILL_SGID,
    Caller,
    Create,
    GetXattr,
    Link,
    MkNod,
    Open,
    Rename,
    SetAttr,
    SetXattr,
)
from fscommon.wire.ops import Op
from metaserver.identity import NOBODY, Who
from metaserver.keys import ClientKey
from metaserver.namespace import acl
from metaserver.namespace.entries import find_dentry
from metaserver.namespace.inode import Inode, find
from metaserver.records import xattr_key
from metaserver.shown import ACLS, meant_acl
from metaserver.transaction import Transaction

READ, WRITE, SEARCH = 4, 2, 1
_OF_WRITERS: Final = (
    SET_SIZE
    | SET_GROW
    | SET_ATIME
    | SET_MTIME
    | SET_CTIME
    | SET_KILL_SUIDGID
    | SET_KILL_SGID
    | SET_TIMES_GIVEN
)  # what the owner need not be asked for
_LOCKED_FLAGS: Final = INODE_IMMUTABLE | INODE_APPEND
_PRIVILEGED: Final = (b"trusted.", b"security.")
Squash = Callable[[Transaction, Any, Who], Any]


# ---- what is foreign ----------------------------------------------------------------------------


def check_may(tx: Transaction, ino: int, wanted: int, who: Who) -> None:
    """Raises EACCES when nobody of the client may do that with the inode. READ, WRITE, SEARCH."""
    inode = find(tx, ino)
    if inode is not None and not may(tx, inode, wanted, who):
        raise FsError(Status.EACCES, "it is a user's whom this client cannot be")


def may(tx: Transaction, inode: Inode, wanted: int, who: Who) -> bool:
    attributes = inode.attributes
    if who.may_own(attributes.uid):
        return True
    allowed = attributes.mode & 7
    access = _access_acl(tx, inode)
    if access is not None:
        allowed |= _of_entries(access, attributes.gid, who)
    elif who.gids.may_be(attributes.gid):
        allowed |= attributes.mode >> 3 & 7
    return wanted & ~allowed == 0


def _access_acl(tx: Transaction, inode: Inode) -> acl.Acl | None:
    if not inode.attributes.xattr_count:
        return None
    raw = tx.get(xattr_key(inode.ino, acl.ACCESS))
    return None if raw is None else acl.unpack_acl(raw)


def _of_entries(access: acl.Acl, gid: int, who: Who) -> int:
    """What the entries give to those whom the client can be, within the mask."""
    allowed, mask = 0, 7
    for entry in access:
        if entry.tag == acl.MASK:
            mask = entry.permissions
        elif (
            (entry.tag == acl.USER and who.uids.may_be(entry.id))
            or (entry.tag == acl.GROUP and who.gids.may_be(entry.id))
            or (entry.tag == acl.GROUP_OBJ and who.gids.may_be(gid))
        ):
            allowed |= entry.permissions
    return allowed & mask


def may_read(tx: Transaction, inode: Inode, key: ClientKey | None) -> bool:
    """Whether a client with this key may be given the bytes unasked."""
    return key is None or key.who is None or may(tx, inode, READ, key.who)


def _is_foreign(tx: Transaction, ino: int, who: Who) -> bool:
    inode = find(tx, ino)
    return inode is not None and not who.may_own(inode.attributes.uid)


def _forbid(message: str) -> FsError:
    return FsError(Status.EPERM, f"{message} is not for whom this client can be")


# ---- names --------------------------------------------------------------------------------------


def _look(tx: Transaction, request: Any, who: Who) -> Any:
    check_may(tx, request.parent, SEARCH, who)
    return request


def _list(tx: Transaction, request: Any, who: Who) -> Any:
    check_may(tx, request.ino, READ, who)
    return request


def _make(tx: Transaction, request: Any, who: Who) -> Any:
    check_may(tx, request.parent, WRITE | SEARCH, who)
    return replace(request, caller=squashed(request.caller, who))


def squashed(caller: Caller, who: Who) -> Caller:
    groups = (who.gids.to_cluster(group) for group in caller.groups)
    return replace(
        caller,
        uid=_or_nobody(who.uids.to_cluster(caller.uid)),
        gid=_or_nobody(who.gids.to_cluster(caller.gid)),
        groups=tuple(dict.fromkeys(group for group in groups if group is not None)),
    )


def _or_nobody(number: int | None) -> int:
    return NOBODY if number is None else number


def _make_node(tx: Transaction, request: MkNod, who: Who) -> MkNod:
    if not who.may_be_root and (stat.S_ISCHR(request.mode) or stat.S_ISBLK(request.mode)):
        raise _forbid("making a device")
    made: MkNod = _make(tx, request, who)
    return made


def _create(tx: Transaction, request: Create, who: Who) -> Create:
    dentry = None if request.exclusive else find_dentry(tx, request.parent, request.name)
    if dentry is None:
        made: Create = _make(tx, request, who)
        return made
    check_may(tx, request.parent, SEARCH, who)
    check_may(tx, dentry.ino, READ | WRITE if request.writable else READ, who)
    return request


def _remove(tx: Transaction, request: Any, who: Who) -> Any:
    check_may(tx, request.parent, WRITE | SEARCH, who)
    _check_sticky(tx, request.parent, request.name, who)
    return request


def _check_sticky(tx: Transaction, parent: int, name: bytes, who: Who) -> None:
    """In a sticky directory names are their owners'."""
    directory = find(tx, parent)
    if directory is None or not directory.attributes.mode & stat.S_ISVTX:
        return
    dentry = find_dentry(tx, parent, name)
    if (
        dentry is not None
        and not who.may_own(directory.attributes.uid)
        and _is_foreign(tx, dentry.ino, who)
    ):
        raise _forbid("this name in a sticky directory")


def _rename(tx: Transaction, request: Rename, who: Who) -> Rename:
    for parent, name in ((request.parent, request.name), (request.new_parent, request.new_name)):
        check_may(tx, parent, WRITE | SEARCH, who)
        _check_sticky(tx, parent, name, who)
        dentry = find_dentry(tx, parent, name)
        moved = find(tx, dentry.ino) if dentry is not None else None
        if moved is not None and moved.is_directory and request.parent != request.new_parent:
            check_may(tx, moved.ino, WRITE, who)  # its `..` changes
    return request


def _link(tx: Transaction, request: Link, who: Who) -> Link:
    check_may(tx, request.new_parent, WRITE | SEARCH, who)
    check_may(tx, request.ino, READ | WRITE, who)
    return request


# ---- inodes -------------------------------------------------------------------------------------


def _open(tx: Transaction, request: Open, who: Who) -> Open:
    """A capability to write reads, too."""
    check_may(tx, request.ino, READ | WRITE if request.writable else READ, who)
    return request


def _write(tx: Transaction, request: Any, who: Who) -> Any:
    check_may(tx, request.ino, READ | WRITE, who)
    return request


def _lock(tx: Transaction, request: Any, who: Who) -> Any:
    check_may(tx, request.ino, READ, who)
    return request


def _restore_locks(tx: Transaction, request: Any, who: Who) -> Any:
    for ino in {lock.ino for lock in request.locks}:
        check_may(tx, ino, READ, who)
    return request


def _take(tx: Transaction, request: LeaseTake, who: Who) -> LeaseTake:
    if request.flags & LEASE_EXCLUSIVE_ALL:
        check_may(tx, request.ino, READ | WRITE, who)
    elif request.flags & LEASE_DATA:
        check_may(tx, request.ino, READ, who)
    return request


def _setattr(tx: Transaction, request: SetAttr, who: Who) -> SetAttr:
    inode = find(tx, request.ino)
    if inode is None:
        return request
    attributes, valid = inode.attributes, request.valid
    if valid & SET_UID:
        request = replace(request, uid=_new_owner(attributes.uid, request.uid, who))
    if valid & SET_GID:
        request = replace(request, gid=_new_group(attributes.gid, request.gid, who))
    if valid & SET_FLAGS and (request.inode_flags ^ attributes.flags) & _LOCKED_FLAGS:
        _check_root("a change of protecting flags", who)
    if valid & SET_MODE and _lends_group(inode, request.gid if valid & SET_GID else None, who):
        request = replace(request, mode=request.mode & ~stat.S_ISGID)
    if not who.may_own(attributes.uid):
        if valid & ~_OF_WRITERS:
            raise _forbid("a change of what others own")
        check_may(tx, request.ino, READ | WRITE, who)
    return request


def _lends_group(inode: Inode, gid: int | None, who: Who) -> bool:
    """A program with the set-group-id bit would run as a group that the client cannot be in."""
    group = inode.attributes.gid if gid is None else gid
    return inode.is_file and not who.may_be_root and not who.gids.may_be(group)


def _check_root(what: str, who: Who) -> None:
    if not who.may_be_root:
        raise _forbid(what)


def _new_owner(uid: int, asked: int, who: Who) -> int:
    """Giving it to whom it belongs already is no change, whatever the client is shown of it."""
    wanted = uid if asked == who.uids.to_client(uid) else who.uids.to_cluster(asked)
    if wanted == uid:
        return uid
    if not who.gives_away:
        raise _forbid("another owner")
    if wanted is None:
        raise _unmapped("user", asked)
    return wanted


def _new_group(gid: int, asked: int, who: Who) -> int:
    wanted = gid if asked == who.gids.to_client(gid) else who.gids.to_cluster(asked)
    if wanted is not None:
        return wanted
    raise _unmapped("group", asked) if who.translates else _forbid("root's group")


def _unmapped(kind: str, number: int) -> FsError:
    return FsError(Status.EINVAL, f"the key of this client maps no {kind} {number}")


def _get_xattr(tx: Transaction, request: GetXattr, who: Who) -> GetXattr:
    if request.name.startswith(b"user."):
        check_may(tx, request.ino, READ, who)
    return request


def _set_xattr(tx: Transaction, request: SetXattr, who: Who) -> SetXattr:
    _change_xattr(tx, request, who)
    if request.name not in ACLS or not request.value:
        return request
    inode, stored = find(tx, request.ino), tx.get(xattr_key(Ino(request.ino), request.name))
    if inode is not None and request.name == acl.ACCESS and _lends_group(inode, None, who):
        request = replace(request, flags=XATTR_KILL_SGID)
    return replace(request, value=meant_acl(request.value, stored, who))


def _change_xattr(tx: Transaction, request: Any, who: Who) -> Any:
    if request.name.startswith(_PRIVILEGED):
        _check_root("this xattr", who)
    if _is_foreign(tx, request.ino, who):
        if not request.name.startswith(b"user."):
            raise _forbid("a change of what others own")
        check_may(tx, request.ino, WRITE, who)
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
    Op.WRITE_INLINE: _write,
    Op.GETXATTR: _get_xattr,
    Op.SETXATTR: _set_xattr,
    Op.LISTXATTR: None,
    Op.REMOVEXATTR: _change_xattr,
    Op.STATFS: None,
    Op.BARRIER: None,
    Op.TMPFILE: _make,
    Op.DELEGATE: None,  # gives nothing to such clients
    Op.CHANGE_BATCH: None,  # refused to them
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
    Op.LEASE_RESTORE: None,  # of what may be read
}


def squash(tx: Transaction, op: Op, request: Any, who: Who) -> Any:
    function = SQUASHES[op]
    return request if function is None else function(tx, request, who)
