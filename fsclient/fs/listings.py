"""Whole listings of directories, kept while nothing in them can have changed.

A listing that was taken from beginning to end is kept if the names were leased (ENTRIES) all the
time, and is given again, without a question to the metaserver, as long as they are: no lease on the
directory was lost since before its first page was asked for, and this client has changed no name
in it. Each entry has the attributes of then: it is given only while META of its inode is held and
was not lost in between, and no local change of anything has happened; else the rest is asked for.
So what is given is what the metaserver would answer now.
Bounded by entries; the listing that was used longest ago goes first. Pure; touched by the client's
trio thread only.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from fscommon.layout.attributes import LEASE_ENTRIES, LEASE_META, Attributes, granted_in, ino_of
from fscommon.wire.messages import DirectoryEntry

from ..leases.holder import Leases
from .complete import CompleteDirectories
from .inodes import Inodes

ENTRIES_MAX = 1 << 17  # of all listings together


@dataclass(frozen=True, slots=True)
class Moment:
    """What was counted when a listing began: local changes, lost leases, changes of its names."""

    change_count: int
    loss_count: int
    state: int

    def of(self, own: Attributes) -> "Listing":
        return Listing(own, self, [])


@dataclass(frozen=True, slots=True)
class Listing:
    """own: the directory's attributes, of which number, type and parent count. entries: those so
    far, while it is being taken."""

    own: Attributes
    begun: Moment
    entries: list[DirectoryEntry]


def _cookie(entry: DirectoryEntry) -> int:
    return entry.cookie


class Listings:
    def __init__(self, inodes: Inodes, leases: Leases, complete: CompleteDirectories) -> None:
        self._inodes = inodes
        self._leases = leases
        self._complete = complete
        self._kept: OrderedDict[int, Listing] = OrderedDict()
        self._entry_count = 0

    def __len__(self) -> int:
        return self._entry_count

    # ---- taking -------------------------------------------------------------------------------

    def gather(self, ino: int) -> Moment:
        """Before the first question of a listing leaves."""
        inodes = self._inodes
        return Moment(inodes.change_count, inodes.losses.now, self._complete.state(ino))

    def add(
        self, taken: Listing, behind: int, page: tuple[DirectoryEntry, ...], *, end: bool
    ) -> None:
        """A page came, of the entries behind a cookie, which may lie in the midst of what came
        before. One that does not follow makes the listing useless, as does whatever happened."""
        entries = taken.entries
        place = bisect_right(entries, behind, key=_cookie)
        follows = not behind or (place and entries[place - 1].cookie == behind)
        if not follows or place + len(page) >= ENTRIES_MAX or not self._names_are_known(taken):
            entries.clear()
            return
        entries[place:] = page
        if end:
            self._keep(taken)

    def _keep(self, taken: Listing) -> None:
        ino = taken.own.ino
        self._drop(ino)
        self._kept[ino] = taken
        self._entry_count += len(taken.entries) + 1
        while self._entry_count > ENTRIES_MAX:
            self._drop(next(iter(self._kept)))

    def _drop(self, ino: int) -> None:
        listing = self._kept.pop(ino, None)
        if listing is not None:
            self._entry_count -= len(listing.entries) + 1

    # ---- giving -------------------------------------------------------------------------------

    def find(self, ino: int) -> Listing | None:
        listing = self._kept.get(ino)
        if listing is None:
            return None
        all_known = all(map(self._knows(listing), listing.entries))
        if not all_known or not self._names_are_known(listing):
            self._drop(ino)
            return None
        self._kept.move_to_end(ino)
        return listing

    def is_good(self, listing: Listing, cookie: int) -> bool:
        """What follows the cookie can be given: at least one entry, or the end."""
        place = bisect_right(listing.entries, cookie, key=_cookie)
        rest = listing.entries[place : place + 1]
        return self._names_are_known(listing) and all(map(self._knows(listing), rest))

    def known_behind(self, listing: Listing, cookie: int) -> Iterator[DirectoryEntry]:
        """Until the first that is not known any more."""
        knows = self._knows(listing)
        place = bisect_right(listing.entries, cookie, key=_cookie)
        for index in range(place, len(listing.entries)):
            entry = listing.entries[index]
            if not knows(entry):
                return
            yield entry

    def _names_are_known(self, listing: Listing) -> bool:
        ino, begun = listing.own.ino, listing.begun
        return (
            self._leases.holds(ino, LEASE_ENTRIES)
            and self._inodes.losses.of(ino) <= begun.loss_count
            and self._complete.state(ino) == begun.state
            and self._inodes.change_count == begun.change_count
        )

    def _knows(self, listing: Listing) -> "Knows":
        return Knows(self._leases, self._inodes, listing.begun.loss_count)


class Knows:
    """Whether the attributes of an entry are those of now."""

    __slots__ = ("_holds", "_loss_count", "_lost_at")

    def __init__(self, leases: Leases, inodes: Inodes, loss_count: int) -> None:
        self._holds = leases.holds
        self._lost_at = inodes.losses.of
        self._loss_count = loss_count

    def __call__(self, entry: DirectoryEntry) -> bool:
        ino = ino_of(entry.attributes)
        is_leased = granted_in(entry.attributes) & LEASE_META and self._holds(ino, LEASE_META)
        return bool(is_leased) and self._lost_at(ino) <= self._loss_count
