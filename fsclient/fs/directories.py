"""Open directories: listing by cookies, one bounded page of entries per handle.

A listing position is the cookie of the last entry taken: 1 is ".", 2 is "..", the metaserver's own
are larger. Nothing else is kept by a handle, so a directory of any size costs one page. The size of
a page follows what the kernel took last time, so that little is fetched that is delivered late:
entries that were fetched before a local change are delivered as *stale*, and whoever passes them on
must not let the kernel cache them (an entry that was unlinked meanwhile would come back to life).
Whole listings that were taken under leases are kept (fsclient.fs.listings), and given again without
a question.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import Attributes, ino_of, unpack_attributes
from fscommon.wire.messages import DirectoryEntry, ReadDir, ReadDirReply
from fscommon.wire.ops import Op

from .inodes import Inodes
from .listings import Listing, Listings
from .namespace import Namespace
from .ports import Metadata

PAGE_COUNT_FIRST = 128
PAGE_COUNT_MIN = 16
PAGE_COUNT_MAX = 512
COOKIE_SELF = 1
COOKIE_PARENT = 2


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry to be passed on. is_stale: a local change may have overtaken it. is_named: its name
    was told under the lease on the directory's names."""

    name: bytes
    cookie: int
    attributes: Attributes
    is_stale: bool
    is_named: bool


class OpenDirectory:
    """Page of entries fetched when change_count was that, and so many leases had been lost; end:
    no entries behind it. is_named: the names were leased. gathering: all entries so far. kept: a
    listing that is given instead. has_lost: changes of its names were lost with the session, and
    nobody was told yet."""

    __slots__ = (
        "change_count",
        "end",
        "entries",
        "gathering",
        "has_lost",
        "ino",
        "is_named",
        "kept",
        "loss_count",
        "page_count",
    )  # fmt: skip

    def __init__(self, ino: int) -> None:
        self.ino = ino
        self.gathering: Listing | None = None
        self.kept: Listing | None = None
        self.has_lost = False
        self.entries: tuple[DirectoryEntry, ...] = ()
        self.end = False
        self.is_named = False
        self.change_count = 0
        self.loss_count = 0
        self.page_count = PAGE_COUNT_FIRST

    def is_poor(self, index: int) -> bool:
        """Too little is left of the page to fill the kernel's buffer: a fresh page is better."""
        return not self.end and (len(self.entries) - index) * 2 < self.page_count


class Directories:
    def __init__(
        self, meta: Metadata, namespace: Namespace, inodes: Inodes, listings: Listings
    ) -> None:
        self._meta = meta
        self._namespace = namespace
        self._inodes = inodes
        self._listings = listings
        self._open: dict[int, OpenDirectory] = {}

    def open(self, fh: int, ino: int) -> None:
        self._open[fh] = OpenDirectory(ino)

    def release(self, fh: int) -> None:
        self._open.pop(fh, None)

    async def sync(self, fh: int) -> None:
        """fsync: every change of names that was answered is durable. EIO, once for each handle, if
        some in this directory were lost."""
        await self._namespace.barrier()
        directory = self._get(fh)
        if directory.has_lost:
            directory.has_lost = False
            raise FsError(Status.EIO, "changes of names in it were lost with the session")

    def lose(self, inos: Set[int]) -> None:
        """Changes of names in these directories were lost."""
        for directory in self._open.values():
            directory.has_lost |= directory.ino in inos

    def __len__(self) -> int:
        return len(self._open)

    def handles(self) -> tuple[tuple[int, int], ...]:
        """Of all that are open: handle and inode."""
        return tuple((fh, directory.ino) for fh, directory in self._open.items())

    def ino_of(self, fh: int) -> int:
        return self._get(fh).ino

    async def dots(self, fh: int, cookie: int) -> list[Listed]:
        """The entries of the directory itself and its parent, if they lie behind cookie."""
        if cookie >= COOKIE_PARENT:
            return []
        directory = self._get(fh)
        self._inodes.catch_up()
        directory.kept = self._listings.find(directory.ino)
        if directory.kept is not None:
            own = directory.kept.own
            directory.gathering = None
        else:
            asked = self._listings.gather(directory.ino)
            own = await self._namespace.getattr(directory.ino)
            directory.gathering = asked.of(own)
        parent = Attributes(own.parent or own.ino, mode=own.mode)
        listed = [
            Listed(b".", COOKIE_SELF, own, True, False),
            Listed(b"..", COOKIE_PARENT, parent, True, False),
        ]
        return listed[cookie:]

    async def page(self, fh: int, cookie: int) -> Iterator[Listed]:
        """Entries behind cookie, at least one unless the directory ends there."""
        directory = self._get(fh)
        self._inodes.catch_up()
        if directory.kept is not None and self._listings.is_good(directory.kept, cookie):
            return self._list_kept(directory.kept, cookie)
        directory.kept = None
        index = _index_behind(directory.entries, cookie) if cookie > COOKIE_PARENT else None
        if index is None or directory.is_poor(index):
            await self._fetch(directory, cookie)
            index = 0
        return self._list(directory, index)

    def taken(self, fh: int, count: int, *, was_full: bool) -> None:
        """The kernel took that many entries of the last page; was_full: it refused one more."""
        directory = self._get(fh)
        wanted = count + 2 if was_full else max(directory.page_count, count * 2)
        directory.page_count = max(PAGE_COUNT_MIN, min(wanted, PAGE_COUNT_MAX))

    def _get(self, fh: int) -> OpenDirectory:
        directory = self._open.get(fh)
        if directory is None:
            raise FsError(Status.EBADF)
        return directory

    async def _fetch(self, directory: OpenDirectory, cookie: int) -> None:
        change_count, loss_count = self._inodes.change_count, self._inodes.losses.now
        behind = cookie if cookie > COOKIE_PARENT else 0
        request = ReadDir(directory.ino, behind, directory.page_count)
        reply = await self._meta.call(Op.READDIR, request, ReadDirReply)
        if not reply.entries and not reply.end:
            raise FsError(Status.EIO, "a directory page without entries and without end")
        self._inodes.see_parents(reply.parents)
        directory.is_named = self._namespace.are_leased(directory.ino, reply.parents)
        if not directory.is_named:
            directory.gathering = None
        if directory.gathering is not None:
            self._listings.add(directory.gathering, behind, reply.entries, end=reply.end)
            if reply.end:
                directory.gathering = None
        directory.entries = reply.entries
        directory.end = reply.end
        directory.change_count = change_count
        directory.loss_count = loss_count

    def _list(self, directory: OpenDirectory, index: int) -> Iterator[Listed]:
        inodes = self._inodes
        is_changed = directory.change_count != inodes.change_count
        is_changed = is_changed or self._is_lost(directory, directory.ino)
        for entry in directory.entries[index:]:
            is_stale = is_changed or self._is_lost(directory, ino_of(entry.attributes))
            if is_stale:
                attributes = inodes.see(unpack_attributes(entry.attributes))
            else:
                attributes = inodes.see_record(entry.attributes)
            inodes.parents.note(attributes.ino, directory.ino)
            yield Listed(entry.name, entry.cookie, attributes, is_stale, directory.is_named)

    def _list_kept(self, kept: Listing, cookie: int) -> Iterator[Listed]:
        """At least one, unless the directory ends there; and none that is not known any more."""
        inodes = self._inodes
        for entry in self._listings.known_behind(kept, cookie):
            attributes = inodes.see_record(entry.attributes)
            yield Listed(entry.name, entry.cookie, attributes, False, True)

    def _is_lost(self, directory: OpenDirectory, ino: int) -> bool:
        """A lease on the inode was given up since the page was asked for."""
        return self._inodes.losses.of(ino) > directory.loss_count


def _index_behind(entries: tuple[DirectoryEntry, ...], cookie: int) -> int | None:
    """Index of the entry that follows the one with this cookie; None if it is not in the page."""
    for index, entry in enumerate(entries):
        if entry.cookie == cookie:
            return index + 1
    return None
