"""Which users a client may be: how ids of its users map to ids of the cluster.

This is made from a client's key (docs/decisions/0020-client-keys.md). `Ids` maps ids of one kind,
users or groups; `Who` has both. A user who has no id in the cluster is nobody (65534), on both
sides. Pure; used by metaserver.squash and metaserver.shown.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from fscommon.errors import FsError, Status
from fscommon.wire.keys import KEY_SQUASH_ROOT, IdMap, IdRange

NOBODY: Final = 65534
ROOT: Final = 0
ID_MAX: Final = 0xFFFFFFFE  # (uid_t)-1 is no id


class Ids(Protocol):
    def to_cluster(self, number: int) -> int | None:
        """The cluster's id for an id of the client; None: it has none, so the user is nobody."""
        ...

    def to_client(self, number: int) -> int:
        """The id that the client is shown for an id of the cluster."""
        ...

    def may_be(self, number: int) -> bool:
        """Whether a user of the client can be this user of the cluster, or be in this group."""
        ...


@dataclass(frozen=True, slots=True)
class AsTheyAre:
    """Ids are the same on both sides. but_root: except that nobody is root."""

    but_root: bool

    def to_cluster(self, number: int) -> int | None:
        return None if self.but_root and number == ROOT else number

    def to_client(self, number: int) -> int:
        return number

    def may_be(self, number: int) -> bool:
        return number != ROOT or not self.but_root


@dataclass(frozen=True, slots=True)
class Always:
    """Every user of the client is this one user. The client is shown the ids of the cluster."""

    number: int

    def to_cluster(self, number: int) -> int | None:
        return self.number

    def to_client(self, number: int) -> int:
        return number

    def may_be(self, number: int) -> bool:
        return number == self.number


class Mapped:
    """Ids map by ranges, which check_map has found sound."""

    def __init__(self, ranges: Sequence[IdRange]) -> None:
        self._inward = _Side([(row.client, row.cluster, row.count) for row in ranges])
        self._outward = _Side([(row.cluster, row.client, row.count) for row in ranges])

    def to_cluster(self, number: int) -> int | None:
        return NOBODY if number == NOBODY else self._inward.find(number)

    def to_client(self, number: int) -> int:
        found = self._outward.find(number)
        return NOBODY if found is None else found

    def may_be(self, number: int) -> bool:
        return number == NOBODY or self._outward.find(number) is not None


class _Side:
    """The ranges, sorted by their first id on one side."""

    def __init__(self, rows: list[tuple[int, int, int]]) -> None:
        self._rows = sorted(rows)
        self._starts = [start for start, _, _ in self._rows]

    def find(self, number: int) -> int | None:
        place = bisect_right(self._starts, number) - 1
        if place < 0:
            return None
        start, other, count = self._rows[place]
        return other + number - start if number < start + count else None


@dataclass(frozen=True, slots=True)
class Who:
    """Which users and groups a client may be. gives_away: it may change owners, among the users
    that it may be. translates: ids in its replies differ from those in the store."""

    uids: Ids
    gids: Ids
    gives_away: bool = False
    translates: bool = False

    @property
    def may_be_root(self) -> bool:
        return self.uids.may_be(ROOT)

    def may_own(self, uid: int) -> bool:
        """Whether a user of the client may do what the owner of a file may do."""
        return self.uids.may_be(uid) or self.may_be_root


def who_of(flags: int, ids: IdMap) -> Who | None:
    """Returns None if the client may be every user, with the ids of the cluster."""
    squashes_root = bool(flags & KEY_SQUASH_ROOT)
    if ids.everybody:
        uid, gid = ids.everybody
        return Who(Always(uid), Always(gid))
    if ids.uids or ids.gids:
        uids: Ids = Mapped(ids.uids) if ids.uids else AsTheyAre(but_root=squashes_root)
        no_root = AsTheyAre(but_root=not uids.may_be(ROOT))
        gids: Ids = Mapped(ids.gids) if ids.gids else no_root
        return Who(uids, gids, gives_away=not squashes_root, translates=True)
    if squashes_root:
        return Who(AsTheyAre(but_root=True), AsTheyAre(but_root=True))
    return None


# ---- what can be asked for ----------------------------------------------------------------------


def check_map(flags: int, ids: IdMap) -> None:
    """Raises EINVAL if a range is not one of ids, or if the map is ambiguous."""
    if ids.everybody:
        _check_everybody(flags, ids)
    for kind, ranges in (("users", ids.uids), ("groups", ids.gids)):
        for row in ranges:
            _check_range(row)
        _check_apart(f"{kind} of the client", [(row.client, row) for row in ranges])
        _check_apart(f"{kind} of the cluster", [(row.cluster, row) for row in ranges])
    if flags & KEY_SQUASH_ROOT and ids.uids and Mapped(ids.uids).may_be(ROOT):
        raise FsError(Status.EINVAL, "root is mapped and squashed: it can be one of both")


def _check_everybody(flags: int, ids: IdMap) -> None:
    if len(ids.everybody) != 2 or not all(0 < number <= ID_MAX for number in ids.everybody):
        raise FsError(Status.EINVAL, "all are one user with a group, neither of which is root's")
    if flags & KEY_SQUASH_ROOT or ids.uids or ids.gids:
        raise FsError(Status.EINVAL, "where all are one user nobody else is to be mapped")


def _check_range(row: IdRange) -> None:
    for start in (row.client, row.cluster):
        last = start + row.count - 1
        if start < 0 or row.count < 1 or last > ID_MAX:
            raise FsError(Status.EINVAL, f"{row.text}: numbers are 0 to {ID_MAX}")
        if start <= NOBODY <= last:
            raise FsError(
                Status.EINVAL, f"{row.text}: {NOBODY} is nobody and stays so; leave it out"
            )


def _check_apart(whose: str, starts: list[tuple[int, IdRange]]) -> None:
    starts.sort(key=lambda item: item[0])
    for (start, row), (following, other) in pairwise(starts):
        if following < start + row.count:
            raise FsError(Status.EINVAL, f"{row.text} and {other.text} have {whose} in common")
