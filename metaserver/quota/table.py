"""What trees, users and groups have, and what they may have.

An account is a directory tree, a user or a group: the sizes of its regular files, the bytes of its
xattrs and its number of inodes, with soft and hard limits. The engine merges the charges of an op
that succeeded, and adds the records of the accounts that changed to the batch that the op's own
records are in: after any crash accounts and inodes say the same, and replays charge again what they
do again. Nothing here is read through the overlay, so sessions do not wait for each other for
sharing an account.

A soft limit that has been exceeded for longer than its grace time refuses like a hard one.
Everybody has an account, limits or not; one of a tree, from when it is made one. Users and groups
of number 0 (root) have no limits. An account that is empty and has no limits is forgotten.
Only the event loop's thread touches it. The records are metaserver.records, charges by ops
metaserver.namespace.charges, the requests of administrators metaserver.ops.quota.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.quota import NO_LIMITS, AccountId, Limits, QuotaKind
from metaserver.quota.shares import Room, ShareTable
from metaserver.records import QuotaRecord, pack_quota, quota_key

_SECOND_NS: Final = 10**9
Charge = tuple[AccountId, int, int]  # bytes and inodes more


@dataclass(slots=True)
class Account:
    """since: when the soft limit was exceeded, 0: it is not."""

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
        """After a change: since when is more used than the soft limits allow?"""
        soft = self.limits.bytes_soft
        self.bytes_since_ns = (self.bytes_since_ns or now_ns) if 0 < soft < self.bytes else 0
        soft = self.limits.inodes_soft
        self.inodes_since_ns = (self.inodes_since_ns or now_ns) if 0 < soft < self.inodes else 0

    def bytes_room(self, now_ns: int) -> int | None:
        """How many bytes more; None: as many as there is room for."""
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
        self.limited: set[AccountId] = set()  # accounts that have limits
        self.shares = ShareTable()

    def put(self, account: AccountId, record: QuotaRecord) -> None:
        """From the store."""
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
        """The op that made these charges is in the overlay."""
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
        """Raises EDQUOT unless all of them have room for so much more."""
        for account in accounts:
            if account not in self.limited:
                continue
            entry = self._accounts[account]
            for wanted, room in ((size, entry.bytes_room), (inodes, entry.inodes_room)):
                left = room(now_ns) if wanted > 0 else None
                if left is not None and left < wanted:
                    raise FsError(Status.EDQUOT, f"the quota of {_name(account)} is used up")

    def bytes_room(self, accounts: Iterable[AccountId], now_ns: int) -> int | None:
        """How many bytes more all of them may have; None: no limit."""
        rooms = [
            self._accounts[account].bytes_room(now_ns)
            for account in accounts
            if account in self.limited
        ]
        return min((room for room in rooms if room is not None), default=None)

    def room(self, account: AccountId, now_ns: int) -> Room:
        """What is left to an account that has limits."""
        entry = self._accounts[account]
        return Room(entry.bytes_room(now_ns), entry.inodes_room(now_ns))

    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """Records of what changed since the last call, for the batch that is frozen now."""
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
        """Forget the account: what it was."""
        return self._accounts.pop(account, None) or Account()

    def listing(self) -> Iterator[tuple[AccountId, Account]]:
        needed = (item for item in self._accounts.items() if not item[1].is_needless)
        return iter(sorted(needed, key=lambda item: item[0]))

    def __len__(self) -> int:
        return len(self._accounts)


def _name(account: AccountId) -> str:
    kind, number = account
    return f"{QuotaKind(kind).name.lower()} {number}"
