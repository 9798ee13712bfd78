"""Directory prefetch (OPEN_AHEAD): the metaserver grants the next files of a directory that is
being read before a program opens them.

The first open(2) of a file costs an upcall and a round trip; an open of a file that lanes know by
its directory's grant costs neither (docs/decisions/0019, 0022). After several files of one
directory were opened for reading through Python, a page of the directory is requested from the
metaserver; the reply goes to the lanes. Each further open that comes through Python requests the
next page, of twice the size, so a program that reads a few files costs a small page. A program that
has read several directories will probably read others: there its first file is enough. Granted
files that are not used cost work in vain: when most are not used, no page is requested for a while,
twice as long each time. All this happens in tasks of its own: no request waits for it. Bounded:
directories, pages in flight, granted files. Touched by the client's trio thread only; AheadPolicy
and AheadGuard are pure.
"""

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from fscommon.errors import FsError
from fscommon.layout.attributes import ATTRIBUTES_SIZE, LEASE_CHILDREN, LEASE_ENTRIES, inos_of
from fscommon.layout.capability import CAPABILITY_SIZE
from fscommon.limits import OPEN_AHEAD_MAX
from fscommon.wire.ahead import OpenAhead, OpenedAhead
from fscommon.wire.leases import LeaseReturn, ReturnItem
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from .complete import CompleteDirectories
from .inodes import Inodes
from .ports import Lanes, Metadata

OPENS_MIN = 2  # different files of one directory, within ...
WITHIN_S = 30.0
AGAIN_S = 10.0  # pause of a directory of which the last page was granted
BUSY_S = 1.0  # pause of a directory that other clients change
PAGE_COUNT_FIRST = 128
DIRECTORIES_MIN = 4  # read within WITHIN_S: then the first file of another one is enough
EAGER_MAX = 64  # directories by their first file, and one more for each EAGER_USED used files
EAGER_USED = PAGE_COUNT_FIRST // 4
PAGES_AT_ONCE = 16  # with 4 a program opened 5% of its files before their pages came
DIRECTORIES_MAX = 4096
GRANTED_MAX = 1 << 20  # files; the directory that was granted first makes room
DIRECTORIES_GRANTED_MAX = 1 << 15
GIVE_UP_COUNT = 512  # files at a time
JUDGED_MIN = 512  # files that were used or given up unused, before they are compared
REST_S_MIN = 10.0
REST_S_MAX = 600.0


@dataclass(slots=True)
class _Directory:
    since: float
    seen: set[int] = field(default_factory=set)  # inodes opened, at most OPENS_MIN
    cookie: int = 0
    count: int = PAGE_COUNT_FIRST
    is_asked: bool = False
    not_before: float = 0.0


class AheadPolicy:
    """Decides which page of which directory is requested; time is passed in."""

    def __init__(self) -> None:
        self._directories: OrderedDict[int, _Directory] = OrderedDict()
        self._gone_into: deque[float] = deque(maxlen=DIRECTORIES_MIN)  # when each was first read
        self._eager = 0  # directories by their first file alone

    def opened(self, parent: int, ino: int, now: float, used: int = 0) -> bool:
        """Python opened a file of parent for reading. used: how many granted files were used so
        far. True: request a page."""
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
            if len(directory.seen) == OPENS_MIN:
                self._gone_into.append(now)
        return len(directory.seen) >= OPENS_MIN or self._goes_on(now, used)

    def _goes_on(self, now: float, used: int) -> bool:
        """Whether a program reads one directory after the other. Some pages may be in vain."""
        is_run = len(self._gone_into) == DIRECTORIES_MIN and now - self._gone_into[0] <= WITHIN_S
        if not is_run or self._eager >= EAGER_MAX + used // EAGER_USED:
            return False
        self._eager += 1
        self._gone_into.append(now)
        return True

    def ask(self, parent: int) -> tuple[int, int] | None:
        """Cookie and count of the page to request; None: none now."""
        directory = self._directories.get(parent)
        if directory is None or directory.is_asked:
            return None
        directory.is_asked = True
        return directory.cookie, directory.count

    def answered(self, parent: int, cookie: int, now: float, *, end: bool) -> None:
        """The reply has come. cookie: where the page ended; the cookie of its beginning if nothing
        was granted now. end: the directory has no more."""
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

    def announced(self, parent: int, now: float) -> bool:
        """A program announced files of parent. True: request a page, of the largest size."""
        directory = self._directories.get(parent)
        if directory is None:
            directory = self._directories[parent] = _Directory(now)
        if directory.is_asked or now < directory.not_before:
            return False
        directory.count = OPEN_AHEAD_MAX
        return True

    def gone(self, parent: int) -> None:
        """The files that were granted of parent are given up."""
        self._directories.pop(parent, None)

    def clear(self) -> None:
        """Nothing is granted any more."""
        self._directories.clear()


class AheadGuard:
    """Decides whether directory prefetch pays; time is passed in. Counts are from the mount on."""

    def __init__(self) -> None:
        self._used = 0
        self._unused = 0
        self._rest_s = REST_S_MIN
        self._not_before = 0.0

    def may_ask(self, used: int, unused: int, now: float) -> bool:
        """used: granted files that were opened. unused: those that were given up unopened."""
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
        self,
        meta: Metadata,
        lanes: Lanes,
        leases: Leases,
        inodes: Inodes,
        complete: CompleteDirectories,
        log: Callable[[str], None],
    ) -> None:
        self._meta = meta
        self._lanes = lanes
        self._leases = leases
        self._inodes = inodes
        self._complete = complete
        self._log = log
        self._policy = AheadPolicy()
        self._guard = AheadGuard()
        self._granted: dict[int, None] = {}  # directories, oldest first
        self._asking: set[int] = set()  # directories with a page in flight
        self._whole: set[int] = set()  # granted directories whose last page was granted
        self._leaving: set[int] = set()  # directories that are being given up: no page is requested
        self._wanted, self._wanting = trio.open_memory_channel[tuple[int, int, int]](PAGES_AT_ONCE)
        self._is_on = False
        # Gives up leases on files that nobody has opened (fsclient.leases.recalls).
        self.give_up: Callable[[Sequence[int]], Awaitable[None]] = _give_up_nothing

    async def run(self) -> None:
        """Runs until cancelled; without it nothing is prefetched."""
        self._is_on = True
        async with trio.open_nursery() as nursery:
            for _ in range(PAGES_AT_ONCE):
                nursery.start_soon(self._work)

    def was_read(self, ino: int) -> None:
        """An application opened the file for reading, and lanes could not answer."""
        parent = self._inodes.parents.of(ino)
        if not (parent and self._is_on and self._leases.is_on) or parent in self._leaving:
            return
        now = trio.current_time()
        children = self._lanes.names.children_counts()
        if not self._policy.opened(parent, ino, now, children.used):
            return
        if not self._guard.may_ask(children.used, children.unused, now):
            return
        page = self._policy.ask(parent)
        if page is None:
            return
        try:
            self._wanted.send_nowait((parent, *page))
        except trio.WouldBlock:  # enough pages are requested
            self._policy.answered(parent, page[0], now, end=False)

    def clear(self) -> None:
        """Shared leases are lost: files that are open by directories' grants are counted as opens
        of their own. The metaserver is told to give up the grants, which it may still count."""
        for ino in self._lanes.names.children_of(0):
            self._inodes.single(ino)
        for parent in self._granted:
            if parent not in self._asking:
                self._return(parent)
        self._leaving |= self._asking
        self._policy.clear()
        self._granted.clear()
        self._whole.clear()

    async def go_through(self, parent: int) -> None:
        """Has all files of the directory granted that can be and are not yet."""
        if not (self._is_on and self._leases.is_on) or parent in self._whole:
            return
        while parent not in self._leaving and self._policy.announced(parent, trio.current_time()):
            page = self._policy.ask(parent)
            if page is None:
                return
            await self._go_on(parent, *page)

    async def _work(self) -> None:
        async for parent, cookie, count in self._wanting:
            await self._go_on(parent, cookie, count)

    async def _go_on(self, parent: int, cookie: int, count: int) -> None:
        await self._make_room(parent, count)
        self._asking.add(parent)
        try:
            await self._open_page(parent, cookie, count)
        finally:
            self._asking.discard(parent)
        if parent in self._leaving:  # it was given up meanwhile
            self._return(parent)
            self._leaving.discard(parent)

    async def _open_page(self, parent: int, cookie: int, count: int) -> None:
        """After the reply has come this must not wait: a recall must not overtake it."""
        state, resized = self._complete.state(parent), self._inodes.resized_closed
        request = OpenAhead(parent, cookie, count)
        try:
            reply = await self._meta.call(Op.OPEN_AHEAD, request, OpenedAhead)
        except FsError:  # of the directory, or no answer: files are opened one by one
            self._policy.answered(parent, cookie, trio.current_time(), end=True)
            return
        if not _is_whole(reply):
            self._log(f"a page of directory {parent} has columns of different lengths")
            self._policy.answered(parent, cookie, trio.current_time(), end=True)
            return
        if parent in self._leaving:
            return await self.give_up(inos_of(reply.attributes))
        self._inodes.catch_up()
        self._inodes.see_parents(reply.parents)
        has_names = self._leases.holds(parent, LEASE_ENTRIES)
        has_names &= state == self._complete.state(parent)
        if resized == self._inodes.resized_closed:  # else a layout may be outdated
            self._take(parent, reply, has_names=has_names)
        self._policy.answered(parent, reply.cookie, trio.current_time(), end=reply.end)
        if reply.end and parent in self._granted:
            self._whole.add(parent)

    def _take(self, parent: int, reply: OpenedAhead, *, has_names: bool) -> None:
        """Gives the page to the lanes. A file that they refuse keeps any leases of its own here."""
        inodes, table = self._inodes, self._leases.table
        inos = inos_of(reply.attributes)
        wanted = bytes([inodes.may_open_ahead(ino) for ino in inos])
        taken = self._lanes.names.open_ahead(
            parent,
            has_names,
            reply.names,
            reply.attributes,
            reply.layouts,
            reply.capabilities,
            wanted,
        )
        for ino, is_taken in zip(inos, taken, strict=True):
            if is_taken:
                table.forget(ino)
        if inos:
            self._granted[parent] = None

    # ---- bounds -------------------------------------------------------------------------------

    async def _make_room(self, parent: int, count: int) -> None:
        """Gives up the directories that were granted first, but not `parent`."""
        while (
            self._lanes.names.children_counts().count + count > GRANTED_MAX
            or len(self._granted) >= DIRECTORIES_GRANTED_MAX
        ):
            busy = self._asking | {parent}
            oldest = next((ino for ino in self._granted if ino not in busy), None)
            if oldest is None:
                return
            del self._granted[oldest]
            self._whole.discard(oldest)
            self._leaving.add(oldest)
            self._policy.gone(oldest)
            inos = self._lanes.names.children_of(oldest)
            for begin in range(0, len(inos), GIVE_UP_COUNT):
                await self.give_up(inos[begin : begin + GIVE_UP_COUNT])
            self._return(oldest)
            self._leaving.discard(oldest)

    def _return(self, parent: int) -> None:
        item = ReturnItem(parent, LEASE_CHILDREN, 0)
        self._meta.tell(Op.LEASE_RETURN, LeaseReturn((item,)), urgent=True)


async def _give_up_nothing(inos: Sequence[int]) -> None:
    pass


def _is_whole(reply: OpenedAhead) -> bool:
    count = len(reply.names)
    return (
        len(reply.layouts) == count
        and len(reply.attributes) == count * ATTRIBUTES_SIZE
        and len(reply.capabilities) == count * CAPABILITY_SIZE
    )
