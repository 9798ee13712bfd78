"""KEY_CREATE, KEY_LIST, KEY_REVOKE for administrators; SESSION_GRANT and MOUNT_ROOT for clients.

docs/decisions/0020-client-keys.md explains client keys. KEY_CREATE and KEY_REVOKE are answered when
they are durable. From the request to revoke a key on, its sessions are refused here, and
metaserver.eviction evicts them and has the storage servers fence them.
"""

import secrets
from itertools import islice
from typing import Final

from fscommon.auth.key import session_secret
from fscommon.errors import FsError, Status
from fscommon.types import ROOT_INO, Ino
from fscommon.wire.admin import INSPECT_NAMES_MAX
from fscommon.wire.codec import encode
from fscommon.wire.keys import (
    ID_RANGES_MAX,
    KEY_FLAGS,
    KEY_NAME_LENGTH_MAX,
    KEY_PATH_LENGTH_MAX,
    KEY_ROWS_MAX,
    KeyCreate,
    KeyCreated,
    KeyList,
    KeyReport,
    KeyRevoke,
    KeyRow,
    MountRoot,
    SessionGrant,
)
from fscommon.wire.messages import Empty, Entry
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.identity import check_map
from metaserver.keys import ClientKey, flags_of
from metaserver.namespace.entries import get_dentry
from metaserver.namespace.inode import Inode, load, load_directory
from metaserver.namespace.paths import path_of
from metaserver.namespace.trees import is_inside
from metaserver.ops import footprints, names
from metaserver.ops.row import Access, OpRow, always
from metaserver.records import client_key_key
from metaserver.transaction import Transaction

_TIME_END = 1 << 63


def key_create(tx: Transaction, request: KeyCreate, context: Context) -> KeyCreated:
    context.check_serving()
    _check_wanted(request, context.now_ns)
    keys = context.services.keys
    if keys.named(request.name, context.now_ns) is not None:
        raise FsError(Status.EEXIST, f"there is a key '{request.name}': revoke it first")
    _check_root(tx, request.root)
    _make_room(tx, context)
    key = ClientKey(
        _new_id(context),
        request.name,
        Ino(request.root),
        request.path,
        flags_of(request.flags, request.ids),
        context.now_ns,
        request.expires_ns,
        ids=request.ids,
    )
    keys.put(key)
    tx.put(client_key_key(key.id), encode(key.record()))
    context.wait_durable = True
    return KeyCreated(key.id, context.services.cluster)


def _check_wanted(request: KeyCreate, now_ns: int) -> None:
    if not 0 < len(request.name) <= KEY_NAME_LENGTH_MAX or not request.name.isprintable():
        raise FsError(Status.EINVAL, f"a name has 1 to {KEY_NAME_LENGTH_MAX} printable characters")
    if len(request.path) > KEY_PATH_LENGTH_MAX:
        raise FsError(Status.EINVAL, "the path is too long")
    if request.flags & ~KEY_FLAGS:
        raise FsError(Status.EINVAL, f"unknown rights {request.flags:#x}")
    if request.expires_ns and not now_ns < request.expires_ns < _TIME_END:
        raise FsError(Status.EINVAL, "the key would have expired already, or never would")
    if max(len(request.ids.uids), len(request.ids.gids)) > ID_RANGES_MAX:
        raise FsError(Status.EINVAL, f"a key has at most {ID_RANGES_MAX} ranges of users or groups")
    check_map(request.flags, request.ids)


def _check_root(tx: Transaction, root: int) -> None:
    if root == ROOT_INO:
        return
    top = load_directory(tx, root)
    if top.attributes.tree != top.ino:
        raise FsError(Status.EINVAL, f"inode {root} is not the top of a tree")


def _make_room(tx: Transaction, context: Context) -> None:
    keys = context.services.keys
    oldest = keys.superfluous(context.now_ns)
    if oldest is not None:
        keys.drop(oldest.id)
        tx.delete(client_key_key(oldest.id))
    elif keys.is_full:
        raise FsError(Status.ENOSPC, "there are too many keys: revoke some")


def _new_id(context: Context) -> int:
    while context.services.keys.get(key_id := secrets.randbits(63) + 1) is not None:
        pass
    return key_id


def key_list(tx: Transaction, request: KeyList, context: Context) -> KeyReport:
    count = min(max(request.count, 1), KEY_ROWS_MAX)
    found = list(islice(context.services.keys.behind(request.after), count + 1))
    rows = tuple(_row(tx, key, context) for key in found[:count])
    return KeyReport(rows, end=len(found) <= count)


def _row(tx: Transaction, key: ClientKey, context: Context) -> KeyRow:
    services = context.services
    return KeyRow(
        key.id,
        key.name,
        key.root,
        key.path,
        path_of(tx, key.root),
        key.flags,
        key.created_ns,
        key.expires_ns,
        key.revoked_ns,
        tuple(session.id for session in services.sessions.with_key(key)),
        services.keys.ending(key),
        key.ids,
    )


def key_revoke(tx: Transaction, request: KeyRevoke, context: Context) -> Empty:
    key = context.services.keys.get(request.id)
    if key is None:
        raise FsError(Status.ENOENT, f"there is no key {request.id:016x}")
    if not key.revoked_ns:
        key.revoked_ns = max(context.now_ns, 1)
        tx.put(client_key_key(key.id), encode(key.record()))
    context.services.sessions.condemn_refused(context.now_ns)
    context.wait_durable = True
    return Empty()


# ---- for clients -------------------------------------------------------------------------------


def session_grant(tx: Transaction, request: Empty, context: Context) -> SessionGrant:
    key = context.key
    if key is None:
        return SessionGrant("", 0, b"")
    secret = session_secret(context.services.capability_key, context.session)
    return SessionGrant(key.name, key.flags, secret)


def mount_root(tx: Transaction, request: MountRoot, context: Context) -> Entry:
    """Finds the directory to mount. The reply says nothing of directories above the key's tree."""
    if len(request.names) > INSPECT_NAMES_MAX:
        raise FsError(Status.ENAMETOOLONG, f"a path has at most {INSPECT_NAMES_MAX} names")
    key = context.key
    inode = load(tx, ROOT_INO)
    for name in request.names:
        try:
            inode = _child(tx, inode, name)
        except FsError:
            if key is None or is_inside(tx, inode.ino, key):
                raise
            raise _not_for(key) from None
    if key is not None and not is_inside(tx, inode.ino, key):
        raise _not_for(key)
    return Entry(inode.attributes.pack())


def _child(tx: Transaction, inode: Inode, name: bytes) -> Inode:
    if not inode.is_directory:
        raise FsError(Status.ENOTDIR)
    return load(tx, get_dentry(tx, inode.ino, name).ino)


def _not_for(key: ClientKey) -> FsError:
    return FsError(Status.EACCES, f"the key '{key.name}' is for {key.path}: mount HOST{key.path}")


ROWS: Final = (
    OpRow(op=Op.KEY_CREATE, run=key_create, access=Access.ADMIN, audited=always),
    OpRow(op=Op.KEY_LIST, run=key_list, access=Access.ADMIN),
    OpRow(op=Op.KEY_REVOKE, run=key_revoke, access=Access.ADMIN, audited=always),
    OpRow(op=Op.SESSION_GRANT, run=session_grant, access=Access.CONTROL, names=names.no_inodes),
    # The client gets its leases with later requests. mount_root() itself checks the key's tree.
    OpRow(op=Op.MOUNT_ROOT, run=mount_root, footprint=footprints.nothing, names=names.no_inodes),
)
