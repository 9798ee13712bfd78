"""Open directories: listing by cookies, with one bounded page of entries per handle.

A position in a listing is the cookie of the last entry taken: 1 is ".", 2 is "..", those of the
metaserver are larger. A handle keeps one page, so a directory of any size costs one page. The part
of a page that came under leases goes to the lanes, which give it to the kernel, and again as long
as it is leased (native/src/names/lister.h). Only what they cannot answer is listed here, entry by
entry. The size of such a page follows what the kernel took last time, so that few entries are
delivered late: entries that were fetched before a local change are delivered as *stale*, and the
caller must not let the kernel cache them (an entry that was unlinked meanwhile would come back).
Touched by the client's trio thread only.
"""

import struct
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import NamedTuple

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    ATTRIBUTES_SIZE,
    LEASE_ENTRIES,
    LEASE_META,
    Attributes,
    RecordFields,
    inos_of,
    record_fields,
    unpack_attributes,
)
from fscommon.wire.messages import ReadDir, ReadDirReply
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from .complete import CompleteDirectories
from .inodes import Inodes
from .namespace import Namespace
from .ports import Lanes, Metadata

PAGE_COUNT_FIRST = 128
PAGE_COUNT_MIN = 16
PAGE_COUNT_MAX = 1024
COOKIE_SELF = 1
COOKIE_PARENT = 2


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of a listing. is_stale: a local change may have overtaken it. is_named: its name
    came under the lease on the directory's names."""

    name: bytes
    cookie: int
    attributes: Attributes
    is_stale: bool
    is_named: bool


class Unleased(NamedTuple):
    """One entry of a listing whose attributes are as the metaserver said, and under no lease: of a
    large tree that is most of them, so they are made with little work."""

    name: bytes
    cookie: int
    inode: RecordFields


@dataclass(frozen=True, slots=True)
class Page:
    """A page of entries, as columns. end: the directory has no more entries."""

    names: tuple[bytes, ...] = ()
    cookies: tuple[int, ...] = ()
    inos: tuple[int, ...] = ()
    records: bytes = b""
    end: bool = False

    def record(self, index: int) -> bytes:
        return self.records[index * ATTRIBUTES_SIZE : (index + 1) * ATTRIBUTES_SIZE]

    def index_behind(self, cookie: int) -> int | None:
        """Index of the entry that follows the one with this cookie; None if it is not here."""
        return self.cookies.index(cookie) + 1 if cookie in self.cookies else None


@dataclass(frozen=True, slots=True)
class Moment:
    """The counters when a page was requested: local changes, lost leases, changes of the
    directory's names by Python and by lanes."""

    change_count: int = 0
    loss_count: int = 0
    state: int = 0
    lane_changes: int = 0


class OpenDirectory:
    """asked: the counters when the page was requested. is_named: its names were leased. has_lost:
    changes of its names were lost with the session, and no fsync has reported it yet."""

    __slots__ = ("asked", "has_lost", "ino", "is_named", "page", "page_count")

    def __init__(self, ino: int) -> None:
        self.ino = ino
        self.has_lost = False
        self.page = Page()
        self.is_named = False
        self.asked = Moment()
        self.page_count = PAGE_COUNT_FIRST

    def is_poor(self, index: int) -> bool:
        """Whether too little is left of the page to fill the kernel's buffer."""
        return not self.page.end and (len(self.page.names) - index) * 2 < self.page_count


class Directories:
    def __init__(
        self,
        meta: Metadata,
        lanes: Lanes,
        leases: Leases,
        namespace: Namespace,
        inodes: Inodes,
        complete: CompleteDirectories,
    ) -> None:
        self._meta = meta
        self._lanes = lanes
        self._leases = leases
        self._namespace = namespace
        self._inodes = inodes
        self._complete = complete
        self._open: dict[int, OpenDirectory] = {}
        self.opened: Callable[[int, int], None] = lambda fh, ino: None
        self.closed: Callable[[int], None] = lambda fh: None

    def open(self, fh: int, ino: int) -> None:
        self._open[fh] = OpenDirectory(ino)
        self.opened(fh, ino)

    def release(self, fh: int) -> None:
        self._open.pop(fh, None)
        self.closed(fh)

    async def sync(self, fh: int) -> None:
        """fsync: every change of names that was answered is durable. EIO, once for each handle, if
        some in this directory were lost."""
        await self._namespace.barrier()
        directory = self._get(fh)
        if directory.has_lost:
            directory.has_lost = False
            raise FsError(Status.EIO, "changes of its names were lost with the session")

    def lose(self, inos: Set[int]) -> None:
        """Changes of names in these directories were lost."""
        for directory in self._open.values():
            directory.has_lost |= directory.ino in inos

    def __len__(self) -> int:
        return len(self._open)

    def handles(self) -> tuple[tuple[int, int], ...]:
        """Handle and inode of all open directories."""
        return tuple((fh, directory.ino) for fh, directory in self._open.items())

    def ino_of(self, fh: int) -> int:
        return self._get(fh).ino

    async def dots(self, fh: int, cookie: int) -> list[Listed]:
        """The entries "." and "..", if they lie behind cookie."""
        if cookie >= COOKIE_PARENT:
            return []
        own = await self._namespace.getattr(self._get(fh).ino)
        parent = Attributes(own.parent or own.ino, mode=own.mode)
        listed = [
            Listed(b".", COOKIE_SELF, own, True, False),
            Listed(b"..", COOKIE_PARENT, parent, True, False),
        ]
        return listed[cookie:]

    async def page(self, fh: int, cookie: int) -> Iterator[Listed | Unleased]:
        """Entries behind cookie, at least one unless the directory ends there."""
        directory = self._get(fh)
        self._inodes.catch_up()
        index = directory.page.index_behind(cookie) if cookie > COOKIE_PARENT else None
        if index is None or directory.is_poor(index):
            await self._fetch(directory, cookie)
            index = 0
        return self._list(directory, index)

    def told(self, fh: int, cookie: int, size: int) -> bytes | None:
        """The entries behind cookie, by lanes and in the kernel's format; None: they cannot."""
        return self._lanes.names.listing_read(self._get(fh).ino, cookie, size)

    def taken(self, fh: int, count: int, *, was_full: bool) -> None:
        """The kernel took this many entries. was_full: it had no room for one more."""
        directory = self._get(fh)
        wanted = count + 2 if was_full else max(directory.page_count, count * 2)
        directory.page_count = max(PAGE_COUNT_MIN, min(wanted, PAGE_COUNT_MAX))

    def _get(self, fh: int) -> OpenDirectory:
        directory = self._open.get(fh)
        if directory is None:
            raise FsError(Status.EBADF)
        return directory

    async def _fetch(self, directory: OpenDirectory, cookie: int) -> None:
        asked = self._moment(directory.ino)
        behind = cookie if cookie > COOKIE_PARENT else 0
        request = ReadDir(directory.ino, behind, directory.page_count)
        reply = await self._meta.call(Op.READDIR, request, ReadDirReply)
        page = _page_of(reply)
        self._inodes.see_parents(reply.parents)
        directory.is_named = self._namespace.are_leased(directory.ino, reply.parents)
        directory.asked = asked
        directory.page = page
        self._inodes.catch_up()
        if directory.is_named and self._tell_lanes(directory, behind):
            directory.page_count = min(directory.page_count * 2, PAGE_COUNT_MAX)

    def _moment(self, ino: int) -> Moment:
        inodes = self._inodes
        return Moment(
            inodes.change_count,
            inodes.losses.now,
            self._complete.state(ino),
            self._lanes.names.names_changes(),
        )

    def _tell_lanes(self, directory: OpenDirectory, behind: int) -> bool:
        """Gives the lanes the leased part of the page. False: its names are not leased."""
        ino, page, asked = directory.ino, directory.page, directory.asked
        self._inodes.parents.note_all(page.inos, ino)
        if asked.loss_count == self._inodes.losses.now:
            if asked.change_count == self._inodes.change_count:
                self._inodes.see_rows(page.records)
        else:
            for index, entry in enumerate(page.inos):
                if not self._is_stale(directory, entry):
                    self._inodes.see_row(entry, page.record(index))
        is_sure = (
            self._leases.holds(ino, LEASE_ENTRIES)
            and not self._is_lost(directory, ino)
            and self._complete.state(ino) == asked.state
        )
        return is_sure and self._lanes.names.names_list(
            ino,
            page.names,
            _numbers(page.inos),
            _numbers(page.cookies),
            behind,
            page.end,
            asked.lane_changes,
        )

    def _list(self, directory: OpenDirectory, index: int) -> Iterator[Listed | Unleased]:
        inodes, page = self._inodes, directory.page
        is_as_seen = self._is_as_seen(directory)
        for at in range(index, len(page.names)):
            ino = page.inos[at]
            if is_as_seen and inodes.is_unknown(ino):
                fields = record_fields(page.records, at * ATTRIBUTES_SIZE)
                if not fields.lease_flags & LEASE_META:
                    yield Unleased(page.names[at], page.cookies[at], fields)
                    continue
            is_stale = self._is_stale(directory, ino) or self._is_lost(directory, directory.ino)
            if is_stale:
                attributes = inodes.see(unpack_attributes(page.record(at)))
            else:
                attributes = inodes.see_record(page.record(at))
            inodes.parents.note(ino, directory.ino)
            yield Listed(page.names[at], page.cookies[at], attributes, is_stale, directory.is_named)

    def _is_as_seen(self, directory: OpenDirectory) -> bool:
        """Whether see_rows() has seen the page, and nothing has changed for this client since it
        was requested. Counts only rise, so what is equal now was so when the page came."""
        inodes, asked = self._inodes, directory.asked
        is_same = (asked.change_count, asked.loss_count) == (inodes.change_count, inodes.losses.now)
        return directory.is_named and is_same

    def _is_stale(self, directory: OpenDirectory, ino: int) -> bool:
        """Whether the page's attributes of the inode may be from before a change."""
        is_changed = directory.asked.change_count != self._inodes.change_count
        return is_changed or self._is_lost(directory, ino)

    def _is_lost(self, directory: OpenDirectory, ino: int) -> bool:
        """Whether a lease on the inode was given up since the page was requested."""
        return self._inodes.losses.of(ino) > directory.asked.loss_count


def _page_of(reply: ReadDirReply) -> Page:
    """Unpacks a reply. Raises EIO if its columns do not fit, or if it is empty and not the end."""
    count = len(reply.names)
    is_whole = len(reply.cookies) == 8 * count and len(reply.attributes) == ATTRIBUTES_SIZE * count
    if not is_whole or not (count or reply.end):
        raise FsError(Status.EIO, "the metaserver sent an invalid page of a directory")
    cookies = struct.unpack(f"<{count}Q", reply.cookies)
    return Page(reply.names, cookies, tuple(inos_of(reply.attributes)), reply.attributes, reply.end)


def _numbers(values: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)
