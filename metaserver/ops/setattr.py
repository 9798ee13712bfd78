"""SETATTR: sets mode, owner, size and times of an inode.

First, what the writer's lanes know and the metaserver does not know yet is merged. Then the size:
- A truncate to zero gives the file a new file id on fresh targets (or on those of a file of which
  it will be a copy) and queues the old objects for deletion. It waits for nothing.
- A growth changes only the number.
- A shrink commits size, truncate epoch and intent. It is answered when every target has cut.
- For a file with inline bytes only the record changes.
A change of owner removes the set-id bits and security.capability, and so does a request in which
the kernel asks for it.
"""

import stat
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    INODE_APPEND,
    INODE_FLAGS_SETTABLE,
    INODE_IMMUTABLE,
    LEASE_META_EXCLUSIVE,
)
from fscommon.layout.layout import Layout, without_inline
from fscommon.limits import FILE_SIZE_MAX
from fscommon.types import FileId, Ino
from fscommon.wire.births import Setting
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
    Opened,
    SetAttr,
)
from fscommon.wire.ops import Op
from metaserver import squash
from metaserver.context import Context
from metaserver.identity import Who
from metaserver.leases.holders import Need
from metaserver.namespace import acl
from metaserver.namespace.charges import charge_change, check_growth, size_limit
from metaserver.namespace.inline import cut_inline, has_inline
from metaserver.namespace.inode import Inode, find, load, save
from metaserver.namespace.layouts import check_knows, new_layout, shape_of
from metaserver.namespace.privileges import drop_capability_xattr, without_set_id
from metaserver.namespace.protection import check_may_change
from metaserver.namespace.replicas import forget_replicas, next_epoch, note_lack
from metaserver.namespace.written import merge_written
from metaserver.ops import grants
from metaserver.ops.footprints import WRITTEN_FILE
from metaserver.ops.row import OpRow
from metaserver.records import Intent, doomed_key, intent_key, xattr_key
from metaserver.transaction import Transaction

_VALID_MAX = 2 * SET_TIMES_GIVEN - 1
_TIMES = SET_ATIME | SET_MTIME | SET_CTIME
_SET_UNASKED = _TIMES | SET_MODE | SET_UID | SET_GID | SET_KILL_SUIDGID


def setattr_(tx: Transaction, request: SetAttr, context: Context) -> Opened:
    if request.valid > _VALID_MAX:
        raise FsError(Status.BAD_REQUEST, f"unknown attributes {request.valid:#x}")
    inode = load(tx, request.ino)
    check_may_change(inode, request.valid)
    if inode.is_file:
        check_knows(inode.tail, context)
    if request.valid & SET_SIZE or request.written_size:
        _check_resizable(inode, request, context)
    changed = merge_written(inode, request.written_size, request.written_mtime_ns)
    resize = _resizes(changed, request)
    shrunk = resize and 0 < request.size < changed.attributes.size and not has_inline(inode)
    if resize:
        check_growth(context, changed.attributes, request.size)
        changed = _resize(tx, changed, request, context)
    changed = _change_owner_and_mode(tx, changed, request, context)
    charge_change(tx, context, inode.attributes, changed.attributes)
    if changed is not inode or request.valid & (_TIMES | SET_KILL_SUIDGID):
        changed = _change_times(changed, request, context)
        save(tx, changed)
    if shrunk:
        _intend(tx, changed, context)
    return _reply(changed, inode, context)


def set_unasked(tx: Transaction, setting: Setting, context: Context) -> None:
    """Sets what a client has set by itself on a file that only this client may write. Raises
    ESTALE; EPERM if the file is protected; BAD_REQUEST for attributes that cannot be set so."""
    if setting.valid & ~_SET_UNASKED:
        raise FsError(Status.BAD_REQUEST, f"unknown attributes {setting.valid:#x}")
    inode = load(tx, setting.ino)
    ctime_ns = max(setting.ctime_ns, inode.attributes.ctime_ns)  # a move in the batch ran before
    request = SetAttr(
        setting.ino,
        setting.valid,
        setting.mode,
        setting.uid,
        setting.gid,
        0,
        setting.atime_ns,
        setting.mtime_ns,
        ctime_ns,
        0,
        setting.written_ns,
    )
    if not inode.is_file:
        raise FsError(Status.BAD_REQUEST, "not a regular file")
    check_may_change(inode, request.valid)
    context.services.leases.dismiss(context.session, inode.ino, context.now_s)
    written = merge_written(inode, 0, request.written_mtime_ns)
    changed = _change_owner_and_mode(tx, written, request, context)
    charge_change(tx, context, inode.attributes, changed.attributes)
    save(tx, _change_times(changed, request, context))


def _check_resizable(inode: Inode, request: SetAttr, context: Context) -> None:
    if inode.is_directory:
        raise FsError(Status.EISDIR)
    if not inode.is_file:
        raise FsError(Status.EINVAL, "not a regular file")
    if max(request.size, request.written_size) > FILE_SIZE_MAX:
        raise FsError(Status.EFBIG)
    if request.written_size > inode.attributes.size and has_inline(inode):
        raise FsError(Status.EINVAL, "nobody has what lies in its record open for writing")
    context.check_not_truncating(inode.ino)


def _resizes(inode: Inode, request: SetAttr) -> bool:
    if request.valid & SET_GROW and request.size <= inode.attributes.size:
        return False
    return bool(request.valid & SET_SIZE)


def _resize(tx: Transaction, inode: Inode, request: SetAttr, context: Context) -> Inode:
    now_ns, size = context.now_ns, request.size
    if size == 0:
        tx.put(doomed_key(inode.layout().file_id), without_inline(inode.tail))
        forget_replicas(tx, inode.ino, inode.tail)
        fresh = _fresh_layout(tx, inode.layout(), request.like, context)
        note_lack(tx, inode.ino, b"", fresh)
        resized = Inode(inode.attributes, fresh).resized(0)
    elif size < inode.attributes.size and has_inline(inode):
        resized = cut_inline(inode, size).resized(size)
    elif size < inode.attributes.size:
        layout = inode.layout()
        cut = replace(layout, truncate_epoch=next_epoch(tx, inode.ino, layout))
        resized = Inode(inode.attributes, cut.pack()).resized(size)
    else:
        resized = inode.resized(size)
    return Inode(replace(resized.attributes, mtime_ns=now_ns), resized.tail)


def _fresh_layout(tx: Transaction, old: Layout, like: int, context: Context) -> bytes:
    if context.replayed is not None:
        return context.replayed.layout
    wanted = shape_of(old)
    file_id = FileId(context.services.numbers.take())
    model = find(tx, like) if like else None
    if model is not None and model.is_file:
        layout = model.layout()
        if shape_of(layout) == wanted and context.services.membership.may_share(layout):
            return _alike(file_id, layout).pack()
    return new_layout(file_id, wanted, context).pack()


def _alike(file_id: FileId, layout: Layout) -> Layout:
    """Returns the layout of a new file on the targets of another one."""
    return Layout(
        file_id,
        layout.chunk_size,
        layout.stripe_width,
        layout.targets,
        layout.replica_count,
        replicas_wanted=layout.replicas_wanted if layout.replica_count > 1 else 0,
    )


def _intend(tx: Transaction, inode: Inode, context: Context) -> None:
    intent = Intent(inode.attributes.size, inode.layout().truncate_epoch, inode.tail)
    tx.put(intent_key(inode.ino), intent.pack())
    context.services.intents.add(inode.ino)
    context.wait_truncate = inode.ino


def _change_owner_and_mode(
    tx: Transaction, inode: Inode, request: SetAttr, context: Context
) -> Inode:
    attributes = inode.attributes
    valid = request.valid
    if inode.is_directory:  # a directory keeps its set-id bits
        valid &= ~SET_KILL_SUIDGID
    owner = bool(valid & (SET_UID | SET_GID)) and not inode.is_directory
    if owner or valid & (SET_KILL_SUIDGID | SET_SIZE):
        attributes = drop_capability_xattr(tx, attributes, context)
    if owner or valid & SET_KILL_SUIDGID:
        attributes = without_set_id(attributes, every_group=bool(valid & SET_KILL_SGID))
    if valid & SET_MODE:
        mode = stat.S_IFMT(attributes.mode) | request.mode & 0o7777
        attributes = replace(attributes, mode=mode)
        _change_acl(tx, inode, mode)
    if valid & SET_FLAGS:
        kept = attributes.flags & ~INODE_FLAGS_SETTABLE
        attributes = replace(attributes, flags=kept | request.inode_flags & INODE_FLAGS_SETTABLE)
    if valid & SET_UID:
        attributes = replace(attributes, uid=request.uid)
    if valid & SET_GID:
        attributes = replace(attributes, gid=request.gid)
    return inode if attributes is inode.attributes else Inode(attributes, inode.tail)


def _change_acl(tx: Transaction, inode: Inode, mode: int) -> None:
    if not inode.attributes.xattr_count:
        return
    key = xattr_key(inode.ino, acl.ACCESS)
    raw = tx.get(key)
    if raw is not None:
        tx.put(key, acl.pack_acl(acl.with_mode(acl.unpack_acl(raw), mode)))


def _change_times(inode: Inode, request: SetAttr, context: Context) -> Inode:
    valid = request.valid
    times = {}
    if valid & SET_ATIME:
        times["atime_ns"] = request.atime_ns
    if valid & SET_MTIME:
        times["mtime_ns"] = request.mtime_ns
    if valid & SET_CTIME and request.ctime_ns:
        times["ctime_ns"] = request.ctime_ns
    return inode.changed(context.now_ns, **times)


def _reply(inode: Inode, before: Inode, context: Context) -> Opened:
    packed = inode.attributes.pack()
    if not inode.is_file:
        return Opened(packed, b"", b"")
    capability = context.services.capability(context, inode.tail, inode.ino, writable=True)
    limit = size_limit(context, before.attributes, inode.attributes)
    return Opened(packed, inode.tail, capability, limit)


# ---- row ---------------------------------------------------------------------------------------

_OF_WRITERS: Final = (
    SET_SIZE
    | SET_GROW
    | SET_ATIME
    | SET_MTIME
    | SET_CTIME
    | SET_KILL_SUIDGID
    | SET_KILL_SGID
    | SET_TIMES_GIVEN
)  # what any writer may change, not only the owner
_PROTECTING_FLAGS: Final = INODE_IMMUTABLE | INODE_APPEND


def _footprint(tx: Transaction, request: SetAttr) -> list[Need]:
    resizes = request.valid & SET_SIZE
    return [Need(Ino(request.ino), WRITTEN_FILE if resizes else LEASE_META_EXCLUSIVE)]


def _names(request: SetAttr) -> Iterable[int]:
    return (request.ino, request.like) if request.like else (request.ino,)


def _squash(tx: Transaction, request: SetAttr, who: Who) -> SetAttr:
    inode = find(tx, request.ino)
    if inode is None:
        return request
    attributes, valid = inode.attributes, request.valid
    if valid & SET_UID:
        request = replace(request, uid=_new_owner(attributes.uid, request.uid, who))
    if valid & SET_GID:
        request = replace(request, gid=_new_group(attributes.gid, request.gid, who))
    if valid & SET_FLAGS and (request.inode_flags ^ attributes.flags) & _PROTECTING_FLAGS:
        squash.check_root("a change of protecting flags", who)
    gid = request.gid if valid & SET_GID else None
    if valid & SET_MODE and squash.lends_group(inode, gid, who):
        request = replace(request, mode=request.mode & ~stat.S_ISGID)
    if not who.may_own(attributes.uid):
        if valid & ~_OF_WRITERS:
            raise squash.forbid("a change of what others own")
        squash.check_may(tx, request.ino, squash.READ | squash.WRITE, who)
    return request


def _new_owner(uid: int, wanted: int, who: Who) -> int:
    """Returns the new owner. To give a file to its owner is no change, whatever id of the owner
    the client was shown."""
    new = uid if wanted == who.uids.to_client(uid) else who.uids.to_cluster(wanted)
    if new == uid:
        return uid
    if not who.gives_away:
        raise squash.forbid("another owner")
    if new is None:
        raise _unmapped("user", wanted)
    return new


def _new_group(gid: int, wanted: int, who: Who) -> int:
    new = gid if wanted == who.gids.to_client(gid) else who.gids.to_cluster(wanted)
    if new is not None:
        return new
    raise _unmapped("group", wanted) if who.translates else squash.forbid("root's group")


def _unmapped(kind: str, number: int) -> FsError:
    return FsError(Status.EINVAL, f"the key of this client maps no {kind} {number}")


ROWS: Final = (
    OpRow(
        op=Op.SETATTR,
        run=setattr_,
        footprint=_footprint,
        grants=grants.found,
        names=_names,
        squash=_squash,
        repeat_waits_for_truncate=True,
    ),
)
