"""Makes a new inode: its number, owner, mode, ACLs, layout and times.

A set-group-id parent gives it its group and the set-group-id bit. The permission bits come from the
parent's default ACL, or else from the umask. A replayed op gets the number and layout that it had.
"""

import stat
from dataclasses import dataclass, replace

from fscommon.layout.attributes import INODE_LINKABLE, Attributes, sectors
from fscommon.layout.template import LAYOUT_XATTR, unpack_default
from fscommon.types import FileId, Ino
from fscommon.wire.messages import Caller
from metaserver.context import Context
from metaserver.namespace import acl
from metaserver.namespace.charges import charge_new
from metaserver.namespace.entries import new_key, put_dentry
from metaserver.namespace.inode import Inode, load_directory, save, touch_directory
from metaserver.namespace.layouts import cluster_default, new_layout, own_record
from metaserver.namespace.protection import check_may_add
from metaserver.namespace.replicas import note_lack
from metaserver.records import orphan_key, pack_number, xattr_key
from metaserver.transaction import Transaction

_PERMISSIONS = 0o7777


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller asks for. mode includes the type."""

    parent: int
    name: bytes
    mode: int
    caller: Caller
    rdev: int = 0
    target: bytes = b""  # of a symlink


def give_birth(tx: Transaction, wanted: Wanted, context: Context) -> Inode:
    """Makes the inode and its name. Raises ENOENT, ENOTDIR, EEXIST, ENAMETOOLONG, ENOSPC."""
    parent = load_directory(tx, wanted.parent)
    key = new_key(tx, wanted.parent, wanted.name)
    check_may_add(parent)
    inode = _make(tx, parent, wanted, context)
    save(tx, inode)
    put_dentry(tx, key, inode.ino, inode.attributes.mode)
    touch_directory(tx, parent, context.now_ns, subdirectories=int(inode.is_directory))
    return inode


def give_birth_nameless(
    tx: Transaction, wanted: Wanted, context: Context, *, linkable: bool
) -> Inode:
    """Makes an inode without a name, an orphan from the start. Raises ENOENT, ENOTDIR, ENOSPC."""
    parent = load_directory(tx, wanted.parent)
    check_may_add(parent)
    made = _make(tx, parent, wanted, context)
    flags = INODE_LINKABLE if linkable else 0
    inode = Inode(replace(made.attributes, nlink=0, flags=flags), made.tail)
    save(tx, inode)
    tx.put(orphan_key(inode.ino), pack_number(context.now_ns))
    context.services.sessions.orphaned(inode.ino)
    return inode


def _make(tx: Transaction, parent: Inode, wanted: Wanted, context: Context) -> Inode:
    context.check_room()
    xattrs, bits = _inherited_acls(tx, parent, wanted)
    layout = own_record(tx, parent)
    if layout is not None and stat.S_ISDIR(wanted.mode):
        xattrs.append((LAYOUT_XATTR, layout))
    inode = _new_inode(parent, wanted, bits, len(xattrs), context)
    if inode.is_file:
        inode = Inode(inode.attributes, _layout(inode.ino, layout, context))
        note_lack(tx, inode.ino, b"", inode.tail)
    for name, value in xattrs:
        tx.put(xattr_key(inode.ino, name), value)
    context.inodes_added += 1
    charge_new(context, inode.attributes, sum(len(name) + len(value) for name, value in xattrs))
    return inode


def _new_inode(
    parent: Inode, wanted: Wanted, bits: int, xattr_count: int, context: Context
) -> Inode:
    ino = context.replayed.ino if context.replayed else context.services.numbers.take()
    now_ns = context.now_ns
    is_directory = stat.S_ISDIR(wanted.mode)
    gid, bits = _group(parent, wanted, bits)
    attributes = Attributes(
        ino=ino,
        size=len(wanted.target),
        blocks=sectors(len(wanted.target)),
        atime_ns=now_ns,
        mtime_ns=now_ns,
        ctime_ns=now_ns,
        btime_ns=now_ns,
        mode=stat.S_IFMT(wanted.mode) | bits,
        nlink=2 if is_directory else 1,
        uid=wanted.caller.uid,
        gid=gid,
        rdev=wanted.rdev,
        data_version=1,
        change_version=1,
        parent=wanted.parent if is_directory else 0,
        xattr_count=xattr_count,
        tree=parent.attributes.tree,
    )
    return Inode(attributes, wanted.target)


def _layout(ino: Ino, default: bytes | None, context: Context) -> bytes:
    if context.replayed and context.replayed.layout:
        return context.replayed.layout
    if default is None:
        return default_layout(ino, context)
    return new_layout(FileId(ino), unpack_default(default), context).pack()


def default_layout(ino: Ino, context: Context) -> bytes:
    """Returns the layout of a file whose directory has no default of its own. Raises ENOSPC."""
    return new_layout(FileId(ino), cluster_default(context), context).pack()


def _group(parent: Inode, wanted: Wanted, bits: int) -> tuple[int, int]:
    """Returns group and permission bits by the set-group-id rules of directories."""
    caller = wanted.caller
    if not parent.attributes.mode & stat.S_ISGID:
        return caller.gid, bits
    gid = parent.attributes.gid
    if stat.S_ISDIR(wanted.mode):
        return gid, bits | stat.S_ISGID
    is_member = gid == caller.gid or gid in caller.groups or caller.uid == 0
    executable = stat.S_ISGID | stat.S_IXGRP
    if bits & executable == executable and not is_member:
        return gid, bits & ~stat.S_ISGID
    return gid, bits


def _inherited_acls(
    tx: Transaction, parent: Inode, wanted: Wanted
) -> tuple[list[tuple[bytes, bytes]], int]:
    """Returns the xattrs of the new inode, and its permission bits."""
    bits = wanted.mode & _PERMISSIONS
    if stat.S_ISLNK(wanted.mode):
        return [], 0o777
    raw = tx.get(xattr_key(parent.ino, acl.DEFAULT)) if parent.attributes.xattr_count else None
    if raw is None:
        return [], bits & ~wanted.caller.umask
    default = acl.unpack_acl(raw)
    access = acl.inherited(default, bits)
    bits = bits & ~0o777 | acl.mode_bits(access)
    xattrs = [] if acl.is_minimal(access) else [(acl.ACCESS, acl.pack_acl(access))]
    if stat.S_ISDIR(wanted.mode):
        xattrs.append((acl.DEFAULT, raw))
    return xattrs, bits
