"""QUOTA_SET, QUOTA_LIST, QUOTA_ASSIGN, QUOTA_TELL: quotas, on connections of purpose "admin".

A walk over all entries of a directory makes it a tree, in steps of bounded work; each request has
the place where the walk goes on. A directory is assigned before its entries: what is made in it
from then on belongs to the tree, so the walk misses nothing. A walk that was interrupted starts
again.

Limits apply at the metaserver at once. Clients that write files, or make files in delegated
directories, learn of new limits when their exclusive leases are recalled: that is the footprint of
QUOTA_TELL.
"""

from itertools import islice
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_ENTRIES_EXCLUSIVE,
    LEASE_META,
)
from fscommon.layout.quota import GRACE_S_MAX, NO_LIMITS, AccountId, Limits, QuotaKind
from fscommon.limits import FILE_SIZE_MAX
from fscommon.types import Ino
from fscommon.wire.admin import SUM_DEPTH_MAX, Place
from fscommon.wire.messages import Empty
from fscommon.wire.ops import Op
from fscommon.wire.quota import (
    ASSIGN_INODES_MAX,
    QUOTA_ROWS_MAX,
    TELL_INODES_MAX,
    QuotaAssign,
    QuotaAssigned,
    QuotaList,
    QuotaReport,
    QuotaRow,
    QuotaSet,
    QuotaTell,
    QuotaTold,
)
from metaserver.context import Context
from metaserver.leases.holders import Need
from metaserver.namespace.charges import accounts_of, charge_change
from metaserver.namespace.inode import Inode, find, load, load_directory, save
from metaserver.namespace.paths import path_of
from metaserver.ops.row import Access, OpRow, always
from metaserver.quota.table import Account
from metaserver.records import dentries_after, dentry_cookie, pack_quota, quota_key, unpack_dentry
from metaserver.transaction import Transaction

_SECOND_NS = 10**9
_SUM_MAX = (1 << 64) - 1  # the largest number on the wire


def quota_set(tx: Transaction, request: QuotaSet, context: Context) -> Empty:
    context.check_serving()
    account = _account(request.kind, request.number)
    _check_limits(request.limits)
    if request.kind == QuotaKind.TREE:
        top = find(tx, request.number)
        if top is None or top.attributes.tree != request.number:
            raise FsError(Status.EINVAL, f"inode {request.number} is not the top of a tree")
    elif request.number == 0 and request.limits != NO_LIMITS:
        raise FsError(Status.EINVAL, "root has no limits")
    quotas = context.services.quotas
    quotas.set_limits(account, request.limits, context.now_ns)
    tx.put(quota_key(account), pack_quota(quotas.get(account).record()))
    context.wait_durable = True
    return Empty()


def _account(kind: int, number: int) -> AccountId:
    if kind not in (QuotaKind.TREE, QuotaKind.USER, QuotaKind.GROUP):
        raise FsError(Status.EINVAL, "no such kind of account")
    return kind, number


def _check_limits(limits: Limits) -> None:
    sizes = (limits.bytes_soft, limits.bytes_hard, limits.inodes_soft, limits.inodes_hard)
    if not all(0 <= size <= FILE_SIZE_MAX for size in sizes):
        raise FsError(Status.EINVAL, "a limit is out of range")
    if not 0 <= limits.grace_s <= GRACE_S_MAX:
        raise FsError(Status.EINVAL, "the grace time is out of range")
    for soft, hard in (sizes[:2], sizes[2:]):
        if hard and soft > hard:
            raise FsError(Status.EINVAL, "a soft limit is above its hard limit")


def quota_tell(tx: Transaction, request: QuotaTell, context: Context) -> QuotaTold:
    """Returns the next inodes that a session holds exclusively and that the limits concern. The
    footprint has recalled those that the request names; who got one of them since knows the
    limits."""
    context.check_serving()
    account = _account(request.kind, request.number)
    flag = LEASE_ENTRIES_EXCLUSIVE if request.names else LEASE_DATA_EXCLUSIVE
    held = context.services.leases.exclusive_behind(request.after, flag, TELL_INODES_MAX)
    concerned = tuple([ino for ino in held if _concerns(tx, ino, account)])
    return QuotaTold(concerned, held[-1] if held else 0)


def _concerns(tx: Transaction, ino: int, account: AccountId) -> bool:
    """Whether the account's limits may concern the inode. Any user may make files in a directory,
    but their tree is known."""
    inode = find(tx, ino)
    if inode is None:
        return False
    if inode.is_directory and account[0] != QuotaKind.TREE:
        return True
    return account in accounts_of(inode.attributes)


# ---- listing -----------------------------------------------------------------------------------


def quota_list(tx: Transaction, request: QuotaList, context: Context) -> QuotaReport:
    if request.count < 1:
        raise FsError(Status.EINVAL, "a page has at least one row")
    count = min(request.count, QUOTA_ROWS_MAX)
    after = (request.kind, request.number)
    found = (
        (account, entry)
        for account, entry in context.services.quotas.listing()
        if account > after and (entry.limits != NO_LIMITS or not request.only_limited)
    )
    page = list(islice(found, count + 1))
    rows = tuple(_row(tx, account, entry, context.now_ns) for account, entry in page[:count])
    return QuotaReport(rows, end=len(page) <= count)


def _row(tx: Transaction, account: AccountId, entry: Account, now_ns: int) -> QuotaRow:
    kind, number = account
    return QuotaRow(
        kind,
        number,
        min(max(0, entry.bytes), _SUM_MAX),
        max(0, entry.inodes),
        entry.limits,
        _left_s(entry.bytes_since_ns, entry.limits, now_ns),
        _left_s(entry.inodes_since_ns, entry.limits, now_ns),
        path_of(tx, number) if kind == QuotaKind.TREE else (),
    )


def _left_s(since_ns: int, limits: Limits, now_ns: int) -> float:
    return max(0.0, limits.grace_s - (now_ns - since_ns) / _SECOND_NS) if since_ns else -1.0


# ---- assigning ---------------------------------------------------------------------------------


def quota_assign(tx: Transaction, request: QuotaAssign, context: Context) -> QuotaAssigned:
    context.check_serving()
    if not 0 < len(request.stack) <= SUM_DEPTH_MAX:
        raise FsError(Status.EINVAL, f"a walk has 1 to {SUM_DEPTH_MAX} directories on its stack")
    top = load_directory(tx, request.top)
    if request.tree not in (0, top.ino):
        raise FsError(Status.EINVAL, "a tree is named by its topmost directory")
    key = None if request.tree else context.services.keys.of_root(top.ino, context.now_ns)
    if key is not None:
        raise FsError(Status.EBUSY, f"the key '{key.name}' is for this tree: revoke it first")
    tree = request.tree or _tree_above(tx, top)
    walk = _Walk(tx, context, tree, top)
    if len(request.stack) == 1 and request.stack[0] == Place(top.ino, 0):
        walk.assign(top)
    stack = walk.run(list(request.stack))
    if len(stack) > SUM_DEPTH_MAX:
        raise FsError(Status.EOVERFLOW, f"directories are nested over {SUM_DEPTH_MAX} deep")
    context.wait_durable = not stack
    return QuotaAssigned(walk.assigned, tuple(stack))


def _tree_above(tx: Transaction, top: Inode) -> int:
    """The tree in which the directory is, if it is not the top of a tree itself."""
    if top.ino == top.attributes.parent:
        return 0
    return load(tx, top.attributes.parent).attributes.tree


class _Walk:
    def __init__(self, tx: Transaction, context: Context, tree: int, top: Inode) -> None:
        self._tx = tx
        self._context = context
        self._tree = tree
        self._top = top
        self.assigned = 0

    def assign(self, inode: Inode) -> None:
        before = inode.attributes
        if before.tree == self._tree:
            return
        after = inode.changed(before.ctime_ns, tree=self._tree)
        charge_change(self._tx, self._context, before, after.attributes)
        save(self._tx, after)
        self.assigned += 1

    def run(self, stack: list[Place]) -> list[Place]:
        left = ASSIGN_INODES_MAX
        while stack and left > 0:
            place = stack.pop()
            below, cookie, left = self._entries(place, left)
            if below is not None or left <= 0:
                stack.append(Place(place.ino, cookie))
            if below is not None:
                stack.append(Place(below, 0))
        return stack

    def _entries(self, place: Place, left: int) -> tuple[int | None, int, int]:
        """Assigns entries up to the next directory. Returns that directory, the last cookie, and
        how many more entries may be assigned."""
        cookie = place.cookie
        page = islice(self._tx.range(*dentries_after(place.ino, cookie)), left)
        for key, value in list(page):
            cookie = dentry_cookie(key)
            left -= 1
            inode = find(self._tx, unpack_dentry(value)[0])
            if inode is None or self._is_another_tree(inode):
                continue
            self.assign(inode)
            if inode.is_directory:
                return inode.ino, cookie, left
        return None, cookie, left - 1

    def _is_another_tree(self, inode: Inode) -> bool:
        return inode.is_directory and inode.attributes.tree == inode.ino != self._top.ino


# ---- rows --------------------------------------------------------------------------------------


def _asked_back(tx: Transaction, request: QuotaTell) -> list[Need]:
    shared = LEASE_META | (LEASE_ENTRIES if request.names else LEASE_DATA)
    return [Need(Ino(ino), shared) for ino in request.inos[:TELL_INODES_MAX]]


def _begins(request: QuotaAssign) -> bool:
    """Only the first step of a walk gets a line in the audit log."""
    return len(request.stack) <= 1


ROWS: Final = (
    OpRow(op=Op.QUOTA_SET, run=quota_set, access=Access.ADMIN, audited=always),
    OpRow(op=Op.QUOTA_LIST, run=quota_list, access=Access.ADMIN),
    OpRow(op=Op.QUOTA_ASSIGN, run=quota_assign, access=Access.ADMIN, audited=_begins),
    OpRow(op=Op.QUOTA_TELL, run=quota_tell, access=Access.ADMIN, footprint=_asked_back),
)
