"""What ops charge to the accounts of trees, users and groups, and what they are refused.

An op says in its context what an inode was and what it becomes; the engine merges that when the op
has succeeded. A replay is never refused: it was granted before. What is refused is new inodes and
growth that was asked for (a truncate, a rename into another tree). What a client has written or
made by itself is always taken: it was told beforehand how far a file may grow (`size_limit`), asks
again there before it refuses, makes no more files in a tree that has limits than its share
(metaserver.quota.shares), and none of users and groups that have some (`limited_owners`).
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
GROWTH: Final = 1 << 20  # what a writer may add before it asks again; more while there is plenty
_GROWTH_SHARE: Final = 8  # of what is left
OWNERS_MAX: Final = 4096  # users and groups that clients are told of
Owner = tuple[int, int, int]  # uid, gid, tree
_TREE, _USER, _GROUP = int(QuotaKind.TREE), int(QuotaKind.USER), int(QuotaKind.GROUP)


def accounts_of(attributes: Attributes) -> tuple[AccountId, ...]:
    owners = ((_USER, attributes.uid), (_GROUP, attributes.gid))
    return (*owners, (_TREE, attributes.tree)) if attributes.tree else owners


class Records(Protocol):
    """A snapshot, or a transaction."""

    def range(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]: ...


def charged_bytes(attributes: Attributes) -> int:
    """Beside those of its xattrs."""
    return attributes.size if stat.S_ISREG(attributes.mode) else 0


def xattr_bytes(store: Records, inode: Attributes) -> int:
    """What its xattrs count for: their names and values, ACLs and layouts of directories too."""
    if not inode.xattr_count:
        return 0
    xattrs = store.range(*xattrs_of(inode.ino))
    return sum(len(xattr_name(key)) + len(value) for key, value in xattrs)


def charges_of(inodes: Iterable[bytes], store: Records) -> Iterator[Charge]:
    """What these records of inodes come to, from nothing. store: where their xattrs are."""
    for value in inodes:
        attributes = unpack_attributes(value[:ATTRIBUTES_SIZE])
        size = charged_bytes(attributes) + xattr_bytes(store, attributes)
        for account in accounts_of(attributes):
            yield account, size, 1


def charge_new(context: Context, made: Attributes, xattrs: int) -> None:
    """xattrs: bytes of those that it is born with. Raises EDQUOT."""
    accounts = accounts_of(made)
    _check(context, accounts, xattrs, 1)
    context.charges += [(account, xattrs, 1) for account in accounts]


def charge_xattr(context: Context, inode: Attributes, more: int) -> None:
    """So many bytes of xattrs more, or less. Raises EDQUOT."""
    accounts = accounts_of(inode)
    _check(context, accounts, more, 0)
    context.charges += [(account, more, 0) for account in accounts]


def charge_many(context: Context, owner: Owner, count: int, size: int) -> None:
    """So many files more, or less, of which a client tells afterwards, with so many bytes."""
    uid, gid, tree = owner
    accounts = ((_USER, uid), (_GROUP, gid), (_TREE, tree))
    context.charges += [(account, size, count) for account in accounts[: 3 if tree else 2]]


def charge_removed(context: Context, gone: Attributes, xattrs: int) -> None:
    size = charged_bytes(gone) + xattrs
    context.charges += [(account, -size, -1) for account in accounts_of(gone)]
    if gone.tree == gone.ino:
        context.trees_gone.append(gone.ino)


def charge_change(tx: Records, context: Context, before: Attributes, after: Attributes) -> None:
    """xattrs that came or went are charged by themselves, before."""
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
    """A file is to be that long. Raises EDQUOT."""
    _check(context, accounts_of(before), size - before.size, 0)


def check_tree(tx: Records, context: Context, inode: Attributes, tree: int) -> None:
    """The inode is to come into this tree. Raises EDQUOT."""
    if is_limited(context, tree):
        size = charged_bytes(inode) + xattr_bytes(tx, inode)
        _check(context, ((_TREE, tree),), size, 1)


def size_limit(
    context: Context, before: Attributes, after: Attributes | None = None, *, wanted: int = 0
) -> int:
    """How long its writer may make the file before it asks again; as long as `wanted` if it may be.
    before: as the accounts know it until the op is merged (what it adds to the size is then taken
    from the room: the sum stays). after: whom it counts for after the op."""
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
    """What this client may make by itself in a directory whose tree has limits, more than it knows
    of; None: nothing."""
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
    """Users and groups that have limits; None: too many to tell."""
    owners = [account for account in context.services.quotas.limited if account[0] != _TREE]
    if len(owners) > OWNERS_MAX:
        return None
    uids = tuple([number for kind, number in owners if kind == _USER])
    return uids, tuple([number for kind, number in owners if kind == _GROUP])


def _check(context: Context, accounts: tuple[AccountId, ...], size: int, inodes: int) -> None:
    quotas = context.services.quotas
    if quotas.limited and context.replayed is None:
        quotas.check(accounts, size, inodes, context.now_ns)
