"""What ops charge to the accounts of trees, users and groups, and what quotas refuse them.

An op notes in its context what an inode was and what it becomes; the engine merges this when the op
has succeeded. New inodes are refused, and growth on request: a truncate, or a rename into another
tree. A replay is never refused, because it was granted before.

What a client has written, or made by itself, is always accepted. It knows beforehand how far a file
may grow (`size_limit`), and asks again at that size before it refuses a write. In a tree with
limits it makes no more files than its share (metaserver.quota.shares), and it makes none for users
and groups that have limits (`limited_owners`).
"""

import stat
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_ENTRIES_EXCLUSIVE,
    Attributes,
    unpack_attributes,
)
from fscommon.layout.quota import AccountId, QuotaKind
from fscommon.limits import FILE_SIZE_MAX
from fscommon.types import Ino, SessionId
from metaserver.context import Context
from metaserver.quota.shares import Share
from metaserver.quota.table import Charge
from metaserver.records import xattr_name, xattrs_of

NO_SIZE_LIMIT: Final = -1
GROWTH: Final = 1 << 20  # bytes that a writer may add before it asks again; more if much is left
_GROWTH_SHARE: Final = 8  # at most this part of what is left
OWNERS_MAX: Final = 4096  # users and groups with limits that clients get to know
Owner = tuple[int, int, int]  # uid, gid, tree
_TREE, _USER, _GROUP = int(QuotaKind.TREE), int(QuotaKind.USER), int(QuotaKind.GROUP)


def accounts_of(attributes: Attributes) -> tuple[AccountId, ...]:
    owners = ((_USER, attributes.uid), (_GROUP, attributes.gid))
    return (*owners, (_TREE, attributes.tree)) if attributes.tree else owners


class Records(Protocol):
    """Records of the store: a snapshot, or a transaction."""

    def readable(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]: ...


def charged_bytes(attributes: Attributes) -> int:
    """Returns the bytes that the inode counts for, without its xattrs."""
    return attributes.size if stat.S_ISREG(attributes.mode) else 0


def xattr_bytes(store: Records, inode: Attributes) -> int:
    """Returns the bytes that its xattrs count for: names and values, also of ACLs and layouts."""
    if not inode.xattr_count:
        return 0
    xattrs = store.readable(*xattrs_of(inode.ino))
    return sum(len(xattr_name(key)) + len(value) for key, value in xattrs)


def charges_of(inodes: Iterable[bytes], store: Records) -> Iterator[Charge]:
    """Counts these records of inodes anew. store has their xattrs."""
    for value in inodes:
        attributes = unpack_attributes(value[:ATTRIBUTES_SIZE])
        size = charged_bytes(attributes) + xattr_bytes(store, attributes)
        for account in accounts_of(attributes):
            yield account, size, 1


def charge_new(context: Context, made: Attributes, xattrs: int) -> None:
    """Charges a new inode. xattrs: the bytes of those that it has from the start. Raises EDQUOT."""
    accounts = accounts_of(made)
    _check(context, accounts, xattrs, 1)
    context.charges += [(account, xattrs, 1) for account in accounts]


def charge_xattr(context: Context, inode: Attributes, more: int) -> None:
    """Charges a change of the bytes of xattrs. Raises EDQUOT."""
    accounts = accounts_of(inode)
    _check(context, accounts, more, 0)
    context.charges += [(account, more, 0) for account in accounts]


def charge_many(context: Context, owner: Owner, count: int, size: int) -> None:
    """Charges files that a client has made or removed already, with their bytes."""
    uid, gid, tree = owner
    accounts = ((_USER, uid), (_GROUP, gid), (_TREE, tree))
    context.charges += [(account, size, count) for account in accounts[: 3 if tree else 2]]


def charge_removed(context: Context, gone: Attributes, xattrs: int) -> None:
    size = charged_bytes(gone) + xattrs
    context.charges += [(account, -size, -1) for account in accounts_of(gone)]
    if gone.tree == gone.ino:
        context.trees_gone.append(gone.ino)


def charge_change(tx: Records, context: Context, before: Attributes, after: Attributes) -> None:
    """Charges the change of an inode. Changes of xattrs are charged by themselves, before."""
    old, new = accounts_of(before), accounts_of(after)
    more = charged_bytes(after) - charged_bytes(before)
    if old == new:
        if more:
            context.charges += [(account, more, 0) for account in new]
        return
    xattrs = xattr_bytes(tx, after)
    context.charges += [(account, -charged_bytes(before) - xattrs, -1) for account in old]
    context.charges += [(account, charged_bytes(after) + xattrs, 1) for account in new]


def check_growth(context: Context, before: Attributes, size: int) -> None:
    """Raises EDQUOT if the file may not become so long."""
    _check(context, accounts_of(before), size - before.size, 0)


def check_tree(tx: Records, context: Context, inode: Attributes, tree: int) -> None:
    """Raises EDQUOT if the inode may not move into this tree."""
    if is_limited(context, tree):
        size = charged_bytes(inode) + xattr_bytes(tx, inode)
        _check(context, ((_TREE, tree),), size, 1)


def size_limit(
    context: Context, before: Attributes, after: Attributes | None = None, *, wanted: int = 0
) -> int:
    """Returns how long its writer may make the file before it asks again: `wanted`, if the limits
    allow that. before: the attributes that the accounts know until the op is merged. What the op
    adds to the size is then taken from the room, so the sum stays. after: the attributes after the
    op, which say to whom the file belongs."""
    quotas = context.services.quotas
    if not quotas.limited:
        return NO_SIZE_LIMIT
    accounts = accounts_of(before)
    if after is not None and accounts_of(after) != accounts:
        return 0
    room = quotas.bytes_room(accounts, context.now_ns)
    if room is None:
        return NO_SIZE_LIMIT
    growth = max(GROWTH, room // _GROWTH_SHARE, wanted - before.size)
    return min(before.size + min(room, growth), FILE_SIZE_MAX)


def share_of_tree(context: Context, directory: Attributes) -> Share | None:
    """Returns what the client may make by itself in this directory, whose tree has limits, on top
    of what it knows; None: nothing."""
    services = context.services

    def is_held(session: SessionId, ino: Ino) -> bool:
        return bool(services.leases.held(session, ino) & LEASE_ENTRIES_EXCLUSIVE)

    room = services.quotas.room((_TREE, directory.tree), context.now_ns)
    return services.quotas.shares.grant(
        context.session, Ino(directory.ino), directory.tree, room, is_held
    )


def is_limited(context: Context, tree: int) -> bool:
    return (_TREE, tree) in context.services.quotas.limited


def limited_owners(context: Context) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the users and groups that have limits; None: too many for a reply."""
    owners = [account for account in context.services.quotas.limited if account[0] != _TREE]
    if len(owners) > OWNERS_MAX:
        return None
    uids = tuple([number for kind, number in owners if kind == _USER])
    return uids, tuple([number for kind, number in owners if kind == _GROUP])


def _check(context: Context, accounts: tuple[AccountId, ...], size: int, inodes: int) -> None:
    quotas = context.services.quotas
    if quotas.limited and context.replayed is None:
        quotas.check(accounts, size, inodes, context.now_ns)
