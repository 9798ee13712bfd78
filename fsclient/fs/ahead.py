"""Opening ahead: files of a directory that is being read are opened before anybody asks for them.

The first open(2) of a file costs an upcall and a round trip; one of a file that lanes hold open
costs neither (docs/decisions/0017). When several files of one directory were opened for reading
through Python, a page of the directory is asked of the metaserver (OPEN_AHEAD), whose files are
then kept open as if they had been read. Each further open that comes through Python asks for the
next page, of twice the size: a program that reads a few files costs a small page.
What is not used is waste: when most of what was opened ahead leaves the kept set unused, nothing is
asked for a while, twice as long each time.
Everything here happens in tasks of its own: no request waits for it. Bounded: directories, pages in
flight, files that are open ahead and unused. Touched by the client's trio thread only; AheadPolicy
and AheadGuard are pure.
"""

import struct
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from fscommon.errors import FsError
from fscommon.layout.attributes import ATTRIBUTES_SIZE, LEASE_ENTRIES
from fscommon.layout.capability import CAPABILITY_SIZE
from fscommon.limits import OPEN_AHEAD_MAX
from fscommon.wire.ahead import OpenAhead, OpenedAhead
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from .complete import CompleteDirectories
from .inodes import KEPT_MAX, Inodes
from .ports import Lanes, Metadata

OPENS_MIN = 4  # different files of one directory, within ...
WITHIN_S = 30.0
AGAIN_S = 10.0  # a directory that was gone through is not looked at again for so long
BUSY_S = 1.0  # the same of one that others change
PAGE_COUNT_FIRST = 64
PAGES_AT_ONCE = 4
DIRECTORIES_MAX = 4096
UNUSED_MAX = KEPT_MAX // 2  # open ahead, and not opened by anybody yet
STALE_S = 60.0  # unused for so long, they make room for others
JUDGED_MIN = 512  # so many must have been used, or have left unused, before that is judged
REST_S_MIN = 10.0
REST_S_MAX = 600.0
_INO = struct.Struct(f"<Q{ATTRIBUTES_SIZE - 8}x")


@dataclass(slots=True)
class _Directory:
    since: float
    seen: set[int] = field(default_factory=set)  # inodes opened, at most OPENS_MIN
    cookie: int = 0
    count: int = PAGE_COUNT_FIRST
    is_asked: bool = False
    not_before: float = 0.0


class AheadPolicy:
    """Which page of which directory is to be asked for; time is passed in."""

    def __init__(self) -> None:
        self._directories: OrderedDict[int, _Directory] = OrderedDict()

    def opened(self, parent: int, ino: int, now: float) -> bool:
        """A file of parent was opened for reading, and not by lanes. True: ask for a page."""
        directory = self._directories.get(parent)
        if directory is None:
            directory = self._directories[parent] = _Directory(now)
            if len(self._directories) > DIRECTORIES_MAX:
                self._directories.popitem(last=False)
        self._directories.move_to_end(parent)
        if directory.is_asked or now < directory.not_before:
            return False
        if len(directory.seen) < OPENS_MIN:
            if now - directory.since > WITHIN_S:
                directory.seen.clear()
                directory.since = now
            directory.seen.add(ino)
        return len(directory.seen) >= OPENS_MIN

    def ask(self, parent: int) -> tuple[int, int] | None:
        """Cookie and count of the page to ask for; None: it is on its way, or not known."""
        directory = self._directories.get(parent)
        if directory is None or directory.is_asked:
            return None
        directory.is_asked = True
        return directory.cookie, directory.count

    def answered(self, parent: int, cookie: int, now: float, *, end: bool) -> None:
        """The page ended with that cookie: where it began, if there is nothing to be had now. end:
        there are no more."""
        directory = self._directories.get(parent)
        if directory is None:
            return
        directory.is_asked = False
        if cookie > directory.cookie:
            directory.cookie = cookie
            directory.count = min(directory.count * 2, OPEN_AHEAD_MAX)
        else:
            directory.not_before = now + BUSY_S
        if end:
            self._directories[parent] = _Directory(now, not_before=now + AGAIN_S)

    def clear(self) -> None:
        """Nothing is open ahead any more."""
        self._directories.clear()


class AheadGuard:
    """Whether opening ahead pays; time is passed in. Counts are sums since the mount."""

    def __init__(self) -> None:
        self._used = 0
        self._unused = 0
        self._rest_s = REST_S_MIN
        self._not_before = 0.0

    def may_ask(self, used: int, unused: int, now: float) -> bool:
        """used: files that were opened by an application after all. unused: that were not, and are
        open no longer."""
        if now < self._not_before:
            return False
        new_used, new_unused = used - self._used, unused - self._unused
        if new_used + new_unused < JUDGED_MIN:
            return True
        self._used, self._unused = used, unused
        if new_unused <= new_used:
            self._rest_s = REST_S_MIN
            return True
        self._not_before = now + self._rest_s
        self._rest_s = min(2 * self._rest_s, REST_S_MAX)
        return False


class Ahead:
    def __init__(
        self, meta: Metadata, lanes: Lanes, leases: Leases, inodes: Inodes,
        complete: CompleteDirectories, log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._meta = meta
        self._lanes = lanes
        self._leases = leases
        self._inodes = inodes
        self._complete = complete
        self._log = log
        self._policy = AheadPolicy()
        self._guard = AheadGuard()
        self._pages: deque[tuple[float, array[int]]] = deque()  # when they came: inodes
        self._page_inodes = 0
        self._wanted, self._wanting = trio.open_memory_channel[tuple[int, int, int]](PAGES_AT_ONCE)
        self._is_on = False

    async def run(self) -> None:
        """Until cancelled; without it nothing is opened ahead."""
        self._is_on = True
        async with trio.open_nursery() as nursery:
            for _ in range(PAGES_AT_ONCE):
                nursery.start_soon(self._work)

    def was_read(self, ino: int) -> None:
        """An application opened it for reading, and lanes could not answer that."""
        parent = self._inodes.parents.of(ino)
        if not (parent and self._is_on and self._leases.is_on):
            return
        now = trio.current_time()
        if not self._policy.opened(parent, ino, now) or not self._may_ask(now):
            return
        page = self._policy.ask(parent)
        if page is None:
            return
        try:
            self._wanted.send_nowait((parent, *page))
        except trio.WouldBlock:  # enough is asked for
            self._policy.answered(parent, page[0], now, end=False)

    def clear(self) -> None:
        """The leases are lost, and what was open under them is not kept."""
        self._policy.clear()
        self._pages.clear()
        self._page_inodes = 0

    async def _work(self) -> None:
        async for page in self._wanting:
            await self._open_page(*page)

    async def _open_page(self, parent: int, cookie: int, count: int) -> None:
        """From the reply on nothing waits: a file's CLOSE must not overtake it."""
        state, resized = self._complete.state(parent), self._inodes.resized_closed
        request = OpenAhead(parent, cookie, count)
        try:
            reply = await self._meta.call(Op.OPEN_AHEAD, request, OpenedAhead)
        except FsError:  # the directory is gone, or the metaserver is: files are opened one by one
            self._policy.answered(parent, cookie, trio.current_time(), end=True)
            return
        if not _is_whole(reply):
            self._log(f"a page of directory {parent} has columns of different lengths")
            self._policy.answered(parent, cookie, trio.current_time(), end=True)
            return
        self._inodes.catch_up()
        self._inodes.see_parents(reply.parents)
        is_certain = self._leases.holds(parent, LEASE_ENTRIES) and state == self._complete.state(
            parent
        )
        is_present = resized == self._inodes.resized_closed
        self._take(parent if is_certain else 0, reply, is_present=is_present)
        self._policy.answered(parent, reply.cookie, trio.current_time(), end=reply.end)

    def _take(self, parent: int, reply: OpenedAhead, *, is_present: bool) -> None:
        """is_present: its layouts are those of now. What is not taken is closed again."""
        inodes = self._inodes
        inos = [ino for (ino,) in _INO.iter_unpack(reply.attributes)]
        wanted = bytes([is_present and inodes.may_open_ahead(ino) for ino in inos])
        taken = self._lanes.open_ahead(
            parent, reply.names, reply.attributes, reply.layouts, reply.capabilities, wanted
        )
        for ino, layout, is_taken in zip(inos, reply.layouts, taken, strict=True):
            if is_taken:
                inodes.opened_ahead(ino, layout)
            else:
                inodes.give_back(ino)
        self._note_page(array("Q", inos))

    # ---- bounds -------------------------------------------------------------------------------

    def _may_ask(self, now: float) -> bool:
        given, used, unused = self._lanes.ahead_counts()
        if not self._guard.may_ask(used, unused, now):
            return False
        return given - used - unused < UNUSED_MAX or self._give_up_oldest(now)

    def _give_up_oldest(self, now: float) -> bool:
        """Close what nobody has asked for in a long time."""
        if not self._pages or now - self._pages[0][0] < STALE_S:
            return False
        _, inos = self._pages.popleft()
        self._page_inodes -= len(inos)
        for ino in inos:
            if self._lanes.is_unused(ino):
                self._inodes.unkeep(ino)
        return True

    def _note_page(self, inos: "array[int]") -> None:
        self._pages.append((trio.current_time(), inos))
        self._page_inodes += len(inos)
        while self._page_inodes > KEPT_MAX:
            self._page_inodes -= len(self._pages.popleft()[1])


def _is_whole(reply: OpenedAhead) -> bool:
    count = len(reply.names)
    return (
        len(reply.layouts) == count
        and len(reply.attributes) == count * ATTRIBUTES_SIZE
        and len(reply.capabilities) == count * CAPABILITY_SIZE
    )
