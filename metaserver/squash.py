"""What a client may not do as a user that it cannot be: its key may say that nobody of it is root,
that its users are others in the cluster, or that all of them are one (metaserver.identity,
docs/decisions/0020-client-keys.md).

The kernel of a client checks who may do what, and its root passes everything, so a request tells
little of its caller. But a client does nothing as a user that it cannot be. An inode of such a user
is foreign to the client. Hence
- what is made belongs to who asks, by the cluster's numbers, and to nobody where there is none;
- what is foreign is reached as far as its bits let others, its group if the client can be in that,
  and those users and groups of its ACL that it can be. Only its owner may change more than that;
- what belongs to a group that the client cannot be in lends that group to nobody (set-group-id);
- owners change, if at all, from one whom the client can be to another such;
- where nobody is root no device is made, and no xattr that gives rights to programs or is for
  administrators.
Here are the checks that several ops share; each op names its own in its row (metaserver.ops.row).
All of them raise EACCES, EPERM or EINVAL, or return the request as it is to be run. Replies go the
other way in metaserver.shown.
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
    """In a sticky directory names are their owners'."""
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
    """A program with the set-group-id bit would run as a group that the client cannot be in."""
    group = inode.attributes.gid if gid is None else gid
    return inode.is_file and not who.may_be_root and not who.gids.may_be(group)


def check_root(what: str, who: Who) -> None:
    if not who.may_be_root:
        raise forbid(what)
