"""GETXATTR, SETXATTR, LISTXATTR, REMOVEXATTR.

There are the namespaces user, trusted and security, and the two POSIX ACLs of system. The kernel
checks permissions. Setting an access ACL sets the mode; an ACL that says no more than the mode is
not stored. The client asks to clear the set-group-id bit with it if its caller is not in the file's
group. `braidfs.layout` is the layout of a file, or a directory's default for new files
(metaserver.namespace.layouts); it is not listed, so that tools that copy xattrs leave it out.
"""

import stat
from dataclasses import replace
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.template import LAYOUT_XATTR
from fscommon.limits import XATTR_LIST_LENGTH_MAX, XATTR_NAME_LENGTH_MAX, XATTR_VALUE_LENGTH_MAX
from fscommon.types import Ino
from fscommon.wire.messages import (
    XATTR_KILL_SGID,
    Entry,
    GetXattr,
    ListXattr,
    RemoveXattr,
    SetXattr,
    XattrNames,
    XattrValue,
)
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.identity import Who
from metaserver.namespace import acl
from metaserver.namespace.charges import charge_xattr
from metaserver.namespace.inode import Inode, find, load, save
from metaserver.namespace.layouts import layout_text, wanted_default, with_layout
from metaserver.namespace.protection import check_may_set_xattr
from metaserver.namespace.replicas import note_lack
from metaserver.ops import footprints, grants, names
from metaserver.ops.row import OpRow
from metaserver.records import xattr_key, xattr_name, xattrs_of
from metaserver.shown import ACLS, meant_acl
from metaserver.transaction import Transaction

XATTR_CREATE, XATTR_REPLACE = 1, 2
_PREFIXES = (b"user.", b"trusted.", b"security.")
_ALWAYS_FIT = XATTR_LIST_LENGTH_MAX // (XATTR_NAME_LENGTH_MAX + 1)


def getxattr(tx: Transaction, request: GetXattr, context: Context) -> XattrValue:
    _check_name(request.name)
    inode = load(tx, request.ino)
    if request.name == LAYOUT_XATTR:
        return XattrValue(layout_text(tx, inode))
    value = tx.get(xattr_key(inode.ino, request.name)) if inode.attributes.xattr_count else None
    if value is None:
        raise FsError(Status.ENODATA)
    return XattrValue(value)


def setxattr(tx: Transaction, request: SetXattr, context: Context) -> Entry:
    _check_name(request.name)
    if len(request.value) > XATTR_VALUE_LENGTH_MAX:
        raise FsError(Status.E2BIG)
    inode = load(tx, request.ino)
    check_may_set_xattr(inode)
    context.check_room()
    if request.flags == XATTR_KILL_SGID and request.name == acl.ACCESS:
        return _set_access(tx, inode, request.value, context, ~stat.S_ISGID)
    if request.flags not in (0, XATTR_CREATE, XATTR_REPLACE):
        raise FsError(Status.EINVAL, "unknown flags of setxattr")
    if request.name == LAYOUT_XATTR:
        return _set_layout(tx, inode, request.value, context)
    exists = tx.get(xattr_key(inode.ino, request.name)) is not None
    if exists and request.flags == XATTR_CREATE:
        raise FsError(Status.EEXIST)
    if not exists and request.flags == XATTR_REPLACE:
        raise FsError(Status.ENODATA)
    if request.name == acl.ACCESS:
        return _set_access(tx, inode, request.value, context)
    value = _sound_default(inode, request.value) if request.name == acl.DEFAULT else request.value
    if not exists:
        _check_names(tx, inode, request.name)
    changed = _put(tx, inode, request.name, value, context)
    return Entry(save(tx, changed.changed(context.now_ns)))


def listxattr(tx: Transaction, request: ListXattr, context: Context) -> XattrNames:
    inode = load(tx, request.ino)
    if not inode.attributes.xattr_count:
        return XattrNames(())
    return XattrNames(tuple(name for name in _names(tx, inode) if name != LAYOUT_XATTR))


def removexattr(tx: Transaction, request: RemoveXattr, context: Context) -> Entry:
    _check_name(request.name)
    inode = load(tx, request.ino)
    check_may_set_xattr(inode)
    if tx.get(xattr_key(inode.ino, request.name)) is None:
        raise FsError(Status.ENODATA)
    return Entry(save(tx, _remove(tx, inode, request.name, context).changed(context.now_ns)))


def _check_name(name: bytes) -> None:
    if len(name) > XATTR_NAME_LENGTH_MAX:
        raise FsError(Status.ERANGE)
    if b"\0" in name:
        raise FsError(Status.EINVAL, "not a name of an xattr")
    if name in (acl.ACCESS, acl.DEFAULT, LAYOUT_XATTR):
        return
    if not name.startswith(_PREFIXES):
        raise FsError(Status.EOPNOTSUPP, "unknown namespace of xattrs")
    if name in _PREFIXES:
        raise FsError(Status.EINVAL, "an xattr without a name")


def _set_access(
    tx: Transaction, inode: Inode, value: bytes, context: Context, kept: int = ~0
) -> Entry:
    """Sets an access ACL. kept: the bits of the mode that the caller may keep."""
    if stat.S_ISLNK(inode.attributes.mode):
        raise FsError(Status.EOPNOTSUPP, "a symbolic link has no ACL")
    access = acl.unpack_acl(value)
    mode = inode.attributes.mode & kept & ~0o777 | acl.mode_bits(access)
    if acl.is_minimal(access):
        changed = _remove(tx, inode, acl.ACCESS, context)
    else:
        changed = _put(tx, inode, acl.ACCESS, acl.pack_acl(access), context)
    return Entry(save(tx, changed.changed(context.now_ns, mode=mode)))


def _set_layout(tx: Transaction, inode: Inode, value: bytes, context: Context) -> Entry:
    wanted = wanted_default(tx, inode, value, context)
    context.wait_durable = True
    if inode.is_file:
        changed = with_layout(inode, wanted, context)
        note_lack(tx, inode.ino, inode.tail, changed.tail)
    else:
        changed = _put(tx, inode, LAYOUT_XATTR, wanted.pack(), context)
    return Entry(save(tx, changed.changed(context.now_ns)))


def _names(tx: Transaction, inode: Inode) -> list[bytes]:
    return [xattr_name(key) for key, _ in tx.range(*xattrs_of(inode.ino))]


def _sound_default(inode: Inode, value: bytes) -> bytes:
    if not inode.is_directory:
        raise FsError(Status.EACCES, "only a directory has a default ACL")
    return acl.pack_acl(acl.unpack_acl(value))


def _check_names(tx: Transaction, inode: Inode, name: bytes) -> None:
    if inode.attributes.xattr_count < _ALWAYS_FIT:
        return
    names = sum(len(one) + 1 for one in _names(tx, inode))
    if names + len(name) + 1 > XATTR_LIST_LENGTH_MAX:
        raise FsError(Status.ENOSPC, "no room for more xattrs")


def _put(tx: Transaction, inode: Inode, name: bytes, value: bytes, context: Context) -> Inode:
    """Writes the xattr and charges it. Raises EDQUOT."""
    key = xattr_key(inode.ino, name)
    old = tx.get(key)
    more = len(name) + len(value) if old is None else len(value) - len(old)
    charge_xattr(context, inode.attributes, more)
    tx.put(key, value)
    return _counted(inode, int(old is None))


def _remove(tx: Transaction, inode: Inode, name: bytes, context: Context) -> Inode:
    """Removes the xattr if it exists."""
    key = xattr_key(inode.ino, name)
    old = tx.get(key)
    if old is None:
        return inode
    charge_xattr(context, inode.attributes, -len(name) - len(old))
    tx.delete(key)
    return _counted(inode, -1)


def _counted(inode: Inode, added: int) -> Inode:
    count = inode.attributes.xattr_count + added
    return Inode(replace(inode.attributes, xattr_count=count), inode.tail)


# ---- rows --------------------------------------------------------------------------------------

_PRIVILEGED: Final = (b"trusted.", b"security.")


def _squash_get(tx: Transaction, request: GetXattr, who: Who) -> GetXattr:
    if request.name.startswith(b"user."):
        squash.check_may(tx, request.ino, squash.READ, who)
    return request


def _squash_set(tx: Transaction, request: SetXattr, who: Who) -> SetXattr:
    _check_may_change(tx, request, who)
    if request.name not in ACLS or not request.value:
        return request
    inode, stored = find(tx, request.ino), tx.get(xattr_key(Ino(request.ino), request.name))
    if inode is not None and request.name == acl.ACCESS and squash.lends_group(inode, None, who):
        request = replace(request, flags=XATTR_KILL_SGID)
    return replace(request, value=meant_acl(request.value, stored, who))


def _squash_remove(tx: Transaction, request: RemoveXattr, who: Who) -> RemoveXattr:
    _check_may_change(tx, request, who)
    return request


def _check_may_change(tx: Transaction, request: SetXattr | RemoveXattr, who: Who) -> None:
    if request.name.startswith(_PRIVILEGED):
        squash.check_root("this xattr", who)
    if squash.is_foreign(tx, request.ino, who):
        if not request.name.startswith(b"user."):
            raise squash.forbid("a change of what others own")
        squash.check_may(tx, request.ino, squash.WRITE, who)


ROWS: Final = (
    OpRow(
        op=Op.GETXATTR,
        run=getxattr,
        footprint=footprints.attributes,
        names=names.its_ino,
        squash=_squash_get,
    ),
    OpRow(
        op=Op.SETXATTR,
        run=setxattr,
        footprint=footprints.changed_attributes,
        grants=grants.found,
        names=names.its_ino,
        squash=_squash_set,
    ),
    OpRow(op=Op.LISTXATTR, run=listxattr, footprint=footprints.attributes, names=names.its_ino),
    OpRow(
        op=Op.REMOVEXATTR,
        run=removexattr,
        footprint=footprints.changed_attributes,
        grants=grants.found,
        names=names.its_ino,
        squash=_squash_remove,
    ),
)
