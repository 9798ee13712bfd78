"""Accounts: how much trees, users and groups have, and how much they may have.

Each directory tree, user and group has an account: the sizes of its regular files, the bytes of its
xattrs and its number of inodes, with soft and hard limits. The engine merges the charges of an op
that has succeeded, and adds the records of changed accounts to the batch with the op's own records.
So accounts and inodes agree after any crash, and a replay charges again what it does again. Nothing
here is read through the overlay, so sessions that share an account do not wait for each other.

A soft limit that has been exceeded for longer than its grace time refuses like a hard limit. Users
and groups have an account whether they have limits or not; a directory has one from the time when
it becomes a tree. User 0 and group 0 (root) have no limits. An empty account without limits is
forgotten. Only the event loop's thread uses the table. metaserver.records has the records,
metaserver.namespace.charges what ops charge, metaserver.ops.quota the requests of administrators.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.quota import NO_LIMITS, AccountId, Limits, QuotaKind
from metaserver.quota.shares import Room, ShareTable
from metaserver.records import QuotaRecord, pack_quota, quota_key

_SECOND_NS: Final = 10**9
Charge = tuple[AccountId, int, int]  # account, bytes added, inodes added


@dataclass(slots=True)
class Account:
    """One account. *_since_ns: when the soft limit was exceeded; 0: it is not exceeded."""

    bytes: int = 0
    inodes: int = 0
    limits: Limits = NO_LIMITS
    bytes_since_ns: int = 0
    inodes_since_ns: int = 0

    @property
    def is_needless(self) -> bool:
        return not self.bytes and not self.inodes and self.limits == NO_LIMITS

    def record(self) -> QuotaRecord:
        return QuotaRecord(
            self.bytes, self.inodes, self.limits, self.bytes_since_ns, self.inodes_since_ns
        )

    def watch(self, now_ns: int) -> None:
        """Notes after a change since when more is used than the soft limits allow."""
        soft = self.limits.bytes_soft
        self.bytes_since_ns = (self.bytes_since_ns or now_ns) if 0 < soft < self.bytes else 0
        soft = self.limits.inodes_soft
        self.inodes_since_ns = (self.inodes_since_ns or now_ns) if 0 < soft < self.inodes else 0

    def bytes_room(self, now_ns: int) -> int | None:
        """Returns how many bytes may be added; None: no limit."""
        limits = self.limits
        return _room(self.bytes, limits.bytes_hard, self._is_over(self.bytes_since_ns, now_ns))

    def inodes_room(self, now_ns: int) -> int | None:
        limits = self.limits
        return _room(self.inodes, limits.inodes_hard, self._is_over(self.inodes_since_ns, now_ns))

    def _is_over(self, since_ns: int, now_ns: int) -> bool:
        return since_ns > 0 and now_ns - since_ns > self.limits.grace_s * _SECOND_NS


def _room(used: int, hard: int, is_over: bool) -> int | None:
    if is_over:
        return 0
    return max(0, hard - used) if hard else None


class QuotaTable:
    def __init__(self) -> None:
        self._accounts: dict[AccountId, Account] = {}
        self._dirty: set[AccountId] = set()
        self.limited: set[AccountId] = set()  # accounts with limits
        self.shares = ShareTable()

    def put(self, account: AccountId, record: QuotaRecord) -> None:
        """Takes an account from the store."""
        self._accounts[account] = Account(
            record.bytes,
            record.inodes,
            record.limits,
            record.bytes_since_ns,
            record.inodes_since_ns,
        )
        if record.limits != NO_LIMITS:
            self.limited.add(account)

    def merge(self, charges: Iterable[Charge], now_ns: int) -> None:
        """Merges the charges of an op whose writes are in the overlay."""
        for account, size, inodes in charges:
            entry = self._accounts.get(account)
            if entry is None:
                entry = self._accounts[account] = Account()
            entry.bytes += size
            entry.inodes += inodes
            self._dirty.add(account)
            if account in self.limited:
                entry.watch(now_ns)

    def set_limits(self, account: AccountId, limits: Limits, now_ns: int) -> None:
        entry = self._accounts.setdefault(account, Account())
        entry.limits = limits
        entry.watch(now_ns)
        self._dirty.add(account)
        if limits == NO_LIMITS:
            self.limited.discard(account)
        else:
            self.limited.add(account)

    def check(self, accounts: Iterable[AccountId], size: int, inodes: int, now_ns: int) -> None:
        """Raises EDQUOT unless all of these accounts have room for this."""
        for account in accounts:
            if account not in self.limited:
                continue
            entry = self._accounts[account]
            for wanted, room in ((size, entry.bytes_room), (inodes, entry.inodes_room)):
                left = room(now_ns) if wanted > 0 else None
                if left is not None and left < wanted:
                    raise FsError(Status.EDQUOT, f"the quota of {_name(account)} is used up")

    def bytes_room(self, accounts: Iterable[AccountId], now_ns: int) -> int | None:
        """Returns how many bytes all of these accounts have room for; None: no limit."""
        rooms = [
            self._accounts[account].bytes_room(now_ns)
            for account in accounts
            if account in self.limited
        ]
        return min((room for room in rooms if room is not None), default=None)

    def room(self, account: AccountId, now_ns: int) -> Room:
        """Returns what is left to an account with limits."""
        entry = self._accounts[account]
        return Room(entry.bytes_room(now_ns), entry.inodes_room(now_ns))

    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """Returns the records that have changed since the last call, for the batch frozen now."""
        records: list[tuple[bytes, bytes | None]] = []
        for account in self._dirty:
            entry = self._accounts[account]
            if entry.is_needless:
                del self._accounts[account]
                records.append((quota_key(account), None))
            else:
                records.append((quota_key(account), pack_quota(entry.record())))
        self._dirty.clear()
        return records

    def get(self, account: AccountId) -> Account:
        return self._accounts.get(account) or Account()

    def take(self, account: AccountId) -> Account:
        """Forgets the account, and returns it."""
        return self._accounts.pop(account, None) or Account()

    def listing(self) -> Iterator[tuple[AccountId, Account]]:
        needed = (item for item in self._accounts.items() if not item[1].is_needless)
        return iter(sorted(needed, key=lambda item: item[0]))

    def __len__(self) -> int:
        return len(self._accounts)


def _name(account: AccountId) -> str:
    kind, number = account
    return f"{QuotaKind(kind).name.lower()} {number}"
