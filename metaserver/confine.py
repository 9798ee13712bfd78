"""What the key of a client forbids it, checked with every request that such a client sends.

A client with a key of its own is taken for hostile: it may name any inode, claim any lease, replay
what never was. `RULES` says of each op that it may send which inodes the request names and whether
it changes anything; an op without a rule is refused. So
- a key that was revoked or has expired is refused everything;
- of a read-only key every change is EROFS, and it holds nothing exclusively;
- a key for a tree reaches an inode only if that is in the tree: the record of each inode says so
  (docs/decisions/0015-quotas-by-size.md), whatever names it has. What is outside does not exist;
- whom its client cannot be, nothing that it asks for is done by (metaserver.squash);
- a confined client's changes are durable when they are answered: it has nothing to replay, and
  nothing that it claims to have been answered is believed. Files that it made by itself are of
  slots that it was given, which it proves where the metaserver does not remember them
  (metaserver.ops.delegate).
What a capability allows at storage servers is what the metaserver put into it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import LEASE_EXCLUSIVE_ALL
from fscommon.types import ROOT_INO
from fscommon.wire.births import ChangeBatch, Delegate
from fscommon.wire.leases import LeaseReturn
from fscommon.wire.messages import SessionOpen
from fscommon.wire.ops import SPECS, Op
from metaserver.context import Context
from metaserver.keys import ClientKey
from metaserver.namespace.inode import find
from metaserver.squash import squash
from metaserver.transaction import Transaction

TREES_NESTED_MAX: Final = 64  # quota trees within one another

Inodes = Iterable[int]
Rewrite = Callable[[Transaction, Any, ClientKey], Any]


def _none(request: Any) -> Inodes:
    return ()


def _ino(request: Any) -> Inodes:
    return (request.ino,)


def _ino_if_any(request: Any) -> Inodes:
    return (request.ino,) if request.ino else ()


def _set(request: Any) -> Inodes:
    return (request.ino, request.like) if request.like else (request.ino,)


def _parent(request: Any) -> Inodes:
    return (request.parent,)


def _both_parents(request: Any) -> Inodes:
    return (request.parent, request.new_parent)


def _linked(request: Any) -> Inodes:
    return (request.ino, request.new_parent)


def _changed_parents(request: ChangeBatch) -> Inodes:
    parents = {birth.parent for birth in request.births}
    parents.update(removal.parent for removal in request.removals)
    parents.update(move.parent for move in request.moves)
    return parents


def _locked(request: Any) -> Inodes:
    return {lock.ino for lock in request.locks}


def _leased(request: Any) -> Inodes:
    return [lease.ino for lease in request.leases]


def _as_it_is(tx: Transaction, request: Any, key: ClientKey) -> Any:
    return request


def _own_directory(tx: Transaction, request: Delegate, key: ClientKey) -> Delegate:
    """Whose users are others than the cluster's gets none, as in a tree that is full: its files are
    made, and removed, by ordinary requests."""
    return request if key.who is None else Delegate(0, 0)


def _own_changes(tx: Transaction, request: ChangeBatch, key: ClientKey) -> ChangeBatch:
    if key.who is not None:
        raise FsError(Status.EPERM, f"CHANGE_BATCH is not for the key '{key.name}' of a client")
    return request


def _own_opens(tx: Transaction, request: SessionOpen, key: ClientKey) -> SessionOpen:
    opens = tuple(ino for ino in request.opens if is_inside(tx, ino, key))
    held = () if key.is_read_only else request.exclusive
    exclusive = tuple(ino for ino in held if is_inside(tx, ino, key))
    return replace(request, opens=opens, exclusive=exclusive)


def _own_returns(tx: Transaction, request: LeaseReturn, key: ClientKey) -> LeaseReturn:
    """A return is taken in any case, as others may wait for it; that it says `open` is not."""
    return LeaseReturn(
        tuple(
            replace(item, is_open=False)
            if item.is_open and not is_inside(tx, item.ino, key)
            else item
            for item in request.items
        )
    )


def _never(request: Any) -> bool:
    return False


def _always(request: Any) -> bool:
    return True


def _if_writable(request: Any) -> bool:
    return bool(request.writable)


def _if_exclusive(request: Any) -> bool:
    return bool(request.flags & LEASE_EXCLUSIVE_ALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """inodes: that the request names. changes: whether a read-only key may not ask for it.
    rewrite: what a confined client asks for in place of it."""

    inodes: Callable[[Any], Inodes] = _none
    changes: Callable[[Any], bool] = _never
    rewrite: Rewrite = _as_it_is


RULES: Final[dict[Op, Rule]] = {
    Op.PING: Rule(),
    Op.LOOKUP: Rule(_parent),
    Op.GETATTR: Rule(_ino),
    Op.SETATTR: Rule(_set, _always),
    Op.MKNOD: Rule(_parent, _always),
    Op.MKDIR: Rule(_parent, _always),
    Op.SYMLINK: Rule(_parent, _always),
    Op.READLINK: Rule(_ino),
    Op.UNLINK: Rule(_parent, _always),
    Op.RMDIR: Rule(_parent, _always),
    Op.RENAME: Rule(_both_parents, _always),
    Op.LINK: Rule(_linked, _always),
    Op.CREATE: Rule(_parent, _always),
    Op.OPEN: Rule(_ino, _if_writable),
    Op.CLOSE: Rule(),  # of what the session has open
    Op.READDIR: Rule(_ino),
    Op.COMMIT: Rule(_ino, _always),
    Op.WRITE_INLINE: Rule(_ino, _always),
    Op.GETXATTR: Rule(_ino),
    Op.SETXATTR: Rule(_ino, _always),
    Op.LISTXATTR: Rule(_ino),
    Op.REMOVEXATTR: Rule(_ino, _always),
    Op.STATFS: Rule(_ino_if_any),
    Op.BARRIER: Rule(),
    Op.TMPFILE: Rule(_parent, _always),
    Op.DELEGATE: Rule(_ino_if_any, _always, _own_directory),
    Op.CHANGE_BATCH: Rule(_changed_parents, _always, _own_changes),
    Op.OPEN_AHEAD: Rule(_ino),
    Op.LOCK_GET: Rule(_ino),
    Op.LOCK_SET: Rule(_ino),
    Op.LOCK_EVENTS: Rule(),
    Op.LOCK_CANCEL: Rule(),
    Op.LOCK_RESTORE: Rule(_locked),
    Op.SESSION_OPEN: Rule(rewrite=_own_opens),
    Op.SESSION_RENEW: Rule(),
    Op.SESSION_CLOSE: Rule(),
    Op.REPLAY_DONE: Rule(),
    Op.SESSION_GRANT: Rule(),
    Op.MOUNT_ROOT: Rule(),  # looks by itself
    Op.CLUSTER_MAP: Rule(),
    Op.LEASE_TAKE: Rule(_ino, _if_exclusive),
    Op.LEASE_RETURN: Rule(rewrite=_own_returns),
    Op.LEASE_RESTORE: Rule(_leased),
}


def check_key(key: ClientKey, op: Op, now_ns: int) -> None:
    """Before anything else is looked at. Raises EACCES: the key is good no more; EPERM."""
    why = key.refusal(now_ns)
    if why:
        raise FsError(Status.EACCES, why)
    if op not in RULES:
        raise FsError(Status.EPERM, f"{op.name} is not for the key '{key.name}' of a client")


def confine(tx: Transaction, op: Op, request: Any, context: Context) -> Any:
    """The request as it may be run. Raises EROFS; ESTALE: no such inode, to this client; EACCES,
    EPERM: it would take a user whom the client cannot be."""
    key = context.key
    if key is None or not key.is_confined:
        return request
    rule = RULES[op]
    if key.is_read_only and rule.changes(request):
        raise FsError(Status.EROFS, f"the key '{key.name}' is for reading only")
    if key.root != ROOT_INO:
        for ino in rule.inodes(request):
            if not is_inside(tx, ino, key):
                raise FsError(Status.ESTALE, f"inode {ino} is gone")
    if key.who is not None:
        request = squash(tx, op, request, key.who)
    context.wait_durable = SPECS[op].mutation
    return rule.rewrite(tx, request, key)


def is_inside(tx: Transaction, ino: int, key: ClientKey) -> bool:
    """The inode is there, and in the key's tree or in one within it."""
    if key.root == ROOT_INO:
        return True
    for _ in range(TREES_NESTED_MAX):
        inode = find(tx, ino)
        tree = inode.attributes.tree if inode is not None else 0
        if tree in (0, key.root):
            return tree != 0
        top = find(tx, tree)
        if top is None or not top.is_directory or top.attributes.nlink == 0:
            return False
        ino = top.attributes.parent
    return False
