"""Checks of requests from clients that cannot be every user. The key of a client may say that it
has no root, that its users have other ids in the cluster, or that all of them are one user
(metaserver.identity, docs/decisions/0020-client-keys.md).

The kernel of a client checks permissions, and lets its root do everything, so a request says little
about its caller. Still, such a client must do nothing as a user that it cannot be. An inode of such
a user is *foreign* to the client. Hence
- a new inode belongs to the caller, with the caller's id in the cluster, or to nobody if there is
  no such id;
- a foreign inode may be used as its mode allows others; also as it allows its group, if the client
  can be in that, and as its ACL allows users and groups that the client can be. Only its owner may
  change more than that;
- a file of a group that the client cannot be in gets no set-group-id bit;
- an owner may change, if at all, from one user that the client can be to another one;
- a client without root makes no devices, and sets no xattrs that give rights to programs or are for
  administrators.
Here are the checks that several ops share; the row of each op names its check (metaserver.ops.row).
A check raises EACCES, EPERM or EINVAL, or returns the request as it may run. metaserver.shown
translates replies.
"""

import stat
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fscommon.errors import FsError, Status
from fscommon.wire.messages import Caller
from metaserver.identity import NOBODY, Who
from metaserver.keys import ClientKey
from metaserver.namespace import acl
from metaserver.namespace.entries import find_dentry
from metaserver.namespace.inode import Inode, find
from metaserver.records import xattr_key
from metaserver.transaction import Transaction

READ, WRITE, SEARCH = 4, 2, 1
Squash = Callable[[Transaction, Any, Who], Any]


# ---- what is foreign ----------------------------------------------------------------------------


def check_may(tx: Transaction, ino: int, wanted: int, who: Who) -> None:
    """Raises EACCES if no user of the client may do this with the inode: READ, WRITE, SEARCH."""
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
    """Returns what the entries allow users and groups that the client can be, within the mask."""
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
    """Whether a client with this key may get the bytes without a request for them."""
    return key is None or key.who is None or may(tx, inode, READ, key.who)


def is_foreign(tx: Transaction, ino: int, who: Who) -> bool:
    inode = find(tx, ino)
    return inode is not None and not who.may_own(inode.attributes.uid)


def forbid(message: str) -> FsError:
    return FsError(Status.EPERM, f"{message} is not for whom this client can be")


# ---- names --------------------------------------------------------------------------------------


def look_into(tx: Transaction, request: Any, who: Who) -> Any:
    check_may(tx, request.parent, SEARCH, who)
    return request


def read_inode(tx: Transaction, request: Any, who: Who) -> Any:
    check_may(tx, request.ino, READ, who)
    return request


def make(tx: Transaction, request: Any, who: Who) -> Any:
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


def remove(tx: Transaction, request: Any, who: Who) -> Any:
    check_may(tx, request.parent, WRITE | SEARCH, who)
    check_sticky(tx, request.parent, request.name, who)
    return request


def check_sticky(tx: Transaction, parent: int, name: bytes, who: Who) -> None:
    """Raises EPERM if the name is in a sticky directory and belongs to another user."""
    directory = find(tx, parent)
    if directory is None or not directory.attributes.mode & stat.S_ISVTX:
        return
    dentry = find_dentry(tx, parent, name)
    if (
        dentry is not None
        and not who.may_own(directory.attributes.uid)
        and is_foreign(tx, dentry.ino, who)
    ):
        raise forbid("this name in a sticky directory")


# ---- inodes -------------------------------------------------------------------------------------


def write_inode(tx: Transaction, request: Any, who: Who) -> Any:
    check_may(tx, request.ino, READ | WRITE, who)
    return request


def lends_group(inode: Inode, gid: int | None, who: Who) -> bool:
    """Whether the file, with the set-group-id bit, would run as a group that the client cannot be
    in."""
    group = inode.attributes.gid if gid is None else gid
    return inode.is_file and not who.may_be_root and not who.gids.may_be(group)


def check_root(what: str, who: Who) -> None:
    if not who.may_be_root:
        raise forbid(what)
