"""Gives leases up: when the metaserver recalls them, when they end, when the session is lost.

A task works on each recall. It waits for the grant to which the recall refers; then, all at once,
it drains and commits what only this client knows, drops cached state, and has the kernel do so;
when no new reads or writes may begin, it does the same for what came meanwhile; then it returns the
lease. Native notifier threads tell the kernel; they may have to wait for a directory's lock or a
locked page (rule 6). This wait is bounded: for a directory's lock it is NAMES_WAIT_S, because the
lock's holder may wait for another client that waits for us; the kernel is told as soon as the lock
is free. Pages locked by reads and writes that wait for this same lease are not waited for, others
up to PAGES_WAIT_S. Recalls of shared leases that come together, as they do when the metaserver
recalls the oldest of too many, are handled by one task and returned together. Reads and writes of
the file go on while its lease is recalled and not returned yet (`recalling`); native invalidates
the pages that they leave one by one, before the return. Touched by the client's trio thread only.
fsclient.leases.recall_progress says how far a recall is; fsclient.leases.connection is the
connection for recalls.
"""

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol, TypeVar

import trio

from fscommon.errors import FsError
from fscommon.layout.attributes import (
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_ENTRIES_EXCLUSIVE,
    LEASE_EXCLUSIVE_ALL,
    LEASE_META,
    LEASE_READER,
    LEASE_SHARED_ALL,
)
from fscommon.native_ports import NamesPort
from fscommon.tasks import open_tasks
from fscommon.wire.leases import LeaseRestore, LeaseReturn, RecallItem, ReturnItem, SharedLease
from fscommon.wire.ops import Op

from .former import FormerMetaserver, FormerNames
from .holder import Leases
from .recall_progress import RecallMark, RecallProgress, RecallState
from .spans import Turns
from .table import KnownLimit, Limit

NAMES_WAIT_S = 0.2
ATTRIBUTES_WAIT_S = 0.5
PAGES_WAIT_S = 2.0
RECALLS_MAX = 4096
RESTORED_MAX = 4096  # leases on files that nobody has open
RESTORED_AT_ONCE = 16384
LAPSE_TICK_S = 0.25
ENDED_KEPT: Final = 64
_DRAINED: Final = LEASE_DATA_EXCLUSIVE | LEASE_ENTRIES_EXCLUSIVE
K = TypeVar("K")


class Metaserver(FormerMetaserver, Protocol):
    def tell(self, op: Op, message: object, *, urgent: bool = False) -> Limit: ...
    async def answered(self, request_id: int) -> None: ...


class Tokens(Protocol):
    """Waits for notifications: fsclient.fs.drains.Drains."""

    async def notified(self, start: Callable[[int], object], timeout_s: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class Caches:
    """What is given up with a lease. drain(ino): sends written bytes to the targets, size and time
    to the metaserver, and waits until nothing is in flight; arrive(ino): only waits for the bytes,
    also of a closed file; publish(ino): does most of drain(), both at once. report_size(ino): only
    commits what is known of size and time. give_back(ino): ends the delegation of a directory.
    forget(ino, bits): drops what is cached of the inode under these bits. close(ino): sends a CLOSE
    now, if nobody has the inode open any more. single(ino): turns what is held by the directory's
    grant into leases; single_all(): of all files."""

    drain: Callable[[int], Awaitable[None]]
    arrive: Callable[[int], Awaitable[None]]
    publish: Callable[[int], Awaitable[None]]
    report_size: Callable[[int], Awaitable[None]]
    give_back: Callable[[int], Awaitable[None]]
    forget: Callable[[int, int], None]
    close: Callable[[int], None]
    single: Callable[[int], None]
    single_all: Callable[[], None]


class _Unsent:
    """The limit of a recall whose return is not sent yet: everything is masked."""

    __slots__ = ("request_id",)

    def __init__(self) -> None:
        self.request_id = 0


class Recalls:
    def __init__(
        self,
        leases: Leases,
        names: NamesPort,
        meta: Metaserver,
        tokens: Tokens,
        caches: Caches,
        log: Callable[[str], None],
    ) -> None:
        self._leases = leases
        self._names = names
        self._meta = meta
        self._tokens = tokens
        self._caches = caches
        self._log = log
        self._in_work: dict[int, RecallProgress] = {}  # by the number of the recall
        self.ended: deque[RecallProgress] = deque(maxlen=ENDED_KEPT)  # the newest at the end
        self._turns = Turns()
        self.former = FormerNames(names, meta, log)
        self.recall_count = 0
        self.late_count = 0  # recalls whose names the kernel did not forget in time
        self._lapsed = False
        # Takes events of the lanes: a file that was closed a moment ago is not open any more.
        self.listen: Callable[[], None] = lambda: None

    async def give_up(self, inos: Sequence[int]) -> None:
        """Gives up META and DATA of these files, without a recall."""
        recalls = [RecallProgress(RecallItem(0, ino, LEASE_READER, 0, 0)) for ino in inos]
        async with trio.open_nursery() as nursery:
            await self._work_together(recalls, nursery)

    def tell_open(self, ino: int) -> None:
        """Lanes opened the file by its directory's grant: tells the metaserver."""
        self._return([ReturnItem(ino, 0, 0, is_open=True)])

    # ---- recalls ------------------------------------------------------------------------------

    def start(self, items: tuple[RecallItem, ...], nursery: trio.Nursery) -> None:
        """Starts tasks for these recalls, except those that have one."""
        self.listen()
        together: list[RecallProgress] = []
        for item in items:
            known = self._in_work.get(item.recall)
            if known is not None:
                known.mark(RecallMark.REPEATED)
            if known is not None or len(self._in_work) >= RECALLS_MAX:
                continue
            one = self._in_work[item.recall] = RecallProgress(item)
            self.recall_count += 1
            if self._is_light(item):
                together.append(one)
            else:
                nursery.start_soon(self._work, one)
        if together:
            nursery.start_soon(self._work_together, together, nursery)

    def in_work(self) -> tuple[RecallProgress, ...]:
        """The recalls that the metaserver waits for."""
        return tuple(self._in_work.values())

    def _end(self, one: RecallProgress) -> None:
        """The work on the recall has ended."""
        if not one.has_ended:
            one.enter(RecallState.ABANDONED)
        self._in_work.pop(one.item.recall, None)
        self.ended.append(one)

    def _is_light(self, item: RecallItem) -> bool:
        """Whether the leases need no draining: their state is only dropped."""
        held = item.flags | self._leases.table.held(item.ino)
        is_shared = not held & (LEASE_EXCLUSIVE_ALL | LEASE_ENTRIES)
        return bool(item.flags) and is_shared and not self._leases.using.is_open(item.ino)

    async def _work_together(self, recalls: list[RecallProgress], nursery: trio.Nursery) -> None:
        """Handles light recalls together, except those that are not light any more."""
        try:
            for one in recalls:
                await self._meta.answered(one.item.granted_by)
        except BaseException:
            for one in recalls:
                self._end(one)
            raise
        mine: list[RecallProgress] = []
        for one in recalls:
            if self._is_light(one.item) and self._turns.take_now(one.item.ino):
                mine.append(one)
            else:
                nursery.start_soon(self._work, one)
        try:
            if mine:
                await self._give_up(mine)
        finally:
            for one in mine:
                self._turns.give_back(one.item.ino)
                self._end(one)

    async def _work(self, one: RecallProgress) -> None:
        try:
            await self._meta.answered(one.item.granted_by)
            await self._leases.using.wait(one.item.ino)
            async with self._turns.of(one.item.ino):
                await self._answer(one)
        finally:
            self._end(one)

    async def _answer(self, one: RecallProgress) -> None:
        """Answers one recall. Those of one inode are answered in turn: an answer also ends earlier
        recalls that demanded less."""
        if one.item.flags:
            await self._give_up([one])
        else:
            await self._report_size(one)

    async def _report_size(self, one: RecallProgress) -> None:
        one.enter(RecallState.REPORTING_SIZE)
        try:
            await self._caches.report_size(one.item.ino)
        except FsError as error:
            self._log(f"a recall of inode {one.item.ino} failed: {error}")
            one.enter(RecallState.FAILED)
        self._return([ReturnItem(one.item.ino, 0, one.item.recall)])
        one.enter(RecallState.RETURNED)

    async def _give_up(self, recalls: Sequence[RecallProgress]) -> None:
        """Gives up leases; of several inodes only shared ones. Grants are masked from the beginning
        until the return is sent, then up to its id."""
        leases = self._leases
        unsent = _Unsent()
        lost: dict[RecallProgress, int] = {}
        items = [one.item for one in recalls]
        for one, item in zip(recalls, items, strict=True):
            self._caches.single(item.ino)
            leases.leaving.begin(item.ino)
            lost[one] = leases.table.give_up(item.ino, item.flags, unsent)
            if self.former.are_believed:  # a killed process could not report what it held
                lost[one] |= item.flags & LEASE_SHARED_ALL
            leases.table.give_up(item.ino, item.flags, KnownLimit(max(1, item.limit)))
            one.enter(RecallState.MASKED)
        try:
            await self._drop({one: bits for one, bits in lost.items() if bits})
            _enter_all(recalls, RecallState.FORGOTTEN)
        except FsError as error:  # the writer learns of it at fsync or close
            self._log(f"what was written to inode {items[0].ino} is lost: {error}")
        finally:
            failed = [one for one in recalls if one.state is not RecallState.FORGOTTEN]
            _enter_all(failed, RecallState.FAILED)
            for one in recalls:
                self._end_recalling(one.item.ino, lost[one])
                self._caches.close(one.item.ino)
            limit = self._return(ReturnItem(item.ino, item.flags, item.recall) for item in items)
            _enter_all(recalls, RecallState.RETURNED)
            unsent.request_id = max([1, *(item.limit for item in items)])
            for item in items:
                leases.table.give_up(item.ino, item.flags, limit)
                leases.leaving.end(item.ino)

    async def _drop(self, lost: dict[RecallProgress, int]) -> None:
        leases = self._leases
        for one, bits in lost.items():
            ino = one.item.ino
            leases.recalling[ino] = leases.recalling.get(ino, 0) | bits
            if bits & LEASE_DATA and one.item.recall:
                leases.bytes_recalled(ino)
            leases.tell_lanes(ino)
            self._caches.forget(ino, bits)
        _enter_all((one for one, bits in lost.items() if bits & _DRAINED), RecallState.DRAINING)
        for one, bits in lost.items():
            if bits & LEASE_ENTRIES_EXCLUSIVE:
                await self._caches.give_back(one.item.ino)
            if bits & LEASE_ENTRIES:
                await self.former.expire(one.item.ino)
        written = [one.item.ino for one, bits in lost.items() if bits & LEASE_DATA_EXCLUSIVE]
        async with open_tasks() as tasks:
            for ino in written:
                tasks.start_soon(self._publish, ino)
            await self._forget_shared(lost)
        used = [one for one, bits in lost.items() if self._end_recalling(one.item.ino, bits)]
        for ino in written:
            await self._caches.drain(ino)
        busy = [one for one in used if lost[one] & LEASE_DATA]
        # Under a shared lease lanes send again what a target has lost, of closed files, too. Nobody
        # else may write before that has arrived.
        for one in busy:
            await self._caches.arrive(one.item.ino)
        if busy:
            await self._tell_kernel(used, 0)  # invalidates the pages that they left

    async def _publish(self, ino: int) -> None:
        """Publishes written bytes. drain() tries again what fails, and reports it."""
        with suppress(FsError):
            await self._caches.publish(ino)

    async def _forget_shared(self, lost: dict[RecallProgress, int]) -> None:
        for facets, recalls in _by_facets(lost).items():
            if facets:
                await self._tell_kernel(recalls, facets)

    def _end_recalling(self, ino: int, lost: int) -> bool:
        """Ends `recalling` for these bits. True: reads or writes went on meanwhile, or still do."""
        left = self._leases.recalling.get(ino, 0) & ~lost
        if left:
            self._leases.recalling[ino] = left
        else:
            self._leases.recalling.pop(ino, None)
        return self._leases.tell_lanes(ino)

    async def _tell_kernel(self, recalls: list[RecallProgress], facets: int) -> None:
        inos = [one.item.ino for one in recalls]
        wait_s = ATTRIBUTES_WAIT_S if facets & LEASE_META else NAMES_WAIT_S
        wait_s = PAGES_WAIT_S if facets & LEASE_DATA else wait_s
        in_time = await self._tokens.notified(
            lambda token: self._names.lease_drop(token, inos, facets), wait_s
        )
        if not in_time:
            self.late_count += 1
            for one in recalls:
                one.mark(RecallMark.LATE)

    def _return(self, items: Iterable[ReturnItem]) -> Limit:
        return self._meta.tell(Op.LEASE_RETURN, LeaseReturn(tuple(items)), urgent=True)

    # ---- the end of all leases ----------------------------------------------------------------

    async def watch_end(self, clock: Callable[[], float]) -> None:
        """Watches for leases that end because they were not renewed: the kernel drops its pages
        before others change them (rule 11). Names and attributes have their times in the kernel."""
        while True:
            await trio.sleep(LAPSE_TICK_S)
            ended = self._leases.is_on and clock() >= self._leases.table.until
            is_any = len(self._leases.table) or self._names.children_counts().count
            if ended and not self._lapsed and is_any:
                self._log("leases ended: no word from the metaserver in time")
                self._caches.single_all()
                self._forget(self._leases.table.drop_shared())
            self._lapsed = ended

    def restarted(self) -> None:
        """The metaserver was restarted. It has been told of the exclusive leases, and will be told
        of others before it grants anything; what was held by directory grants becomes leases. META
        leases end: changes of attributes that are reported later may have failed. Recalls that are
        not returned go on, and their leases are reported as held."""
        self._mark_all(RecallMark.RESTARTED)
        self._caches.single_all()
        self._forget(self._leases.table.end(LEASE_META))

    def restorable(self, opened: Iterable[int]) -> Iterator[LeaseRestore]:
        """The leases to report to it: all on these inodes, and the latest others. Those that are
        left out are given up."""
        shared = self._leases.table.shared()
        first = dict.fromkeys(ino for ino in opened if ino in shared)
        others = [ino for ino in shared if ino not in first]
        count = max(0, len(others) - RESTORED_MAX)
        self.lost(others[:count])
        rows = (SharedLease(ino, shared[ino]) for ino in [*first, *others[count:]])
        while batch := tuple(islice(rows, RESTORED_AT_ONCE)):
            yield LeaseRestore(batch)

    def lost(self, inos: Iterable[int] | None) -> None:
        """Drops the shared leases on these inodes; None: on all that are not held exclusively."""
        self._forget(self._leases.table.end(LEASE_SHARED_ALL, inos))

    def evicted(self) -> None:
        """The session was evicted, with every lease."""
        self._mark_all(RecallMark.SESSION_LOST)
        self._caches.single_all()
        self._forget(self._leases.table.clear())
        self._names.leases_clear()

    def _mark_all(self, mark: RecallMark) -> None:
        for one in self._in_work.values():
            one.mark(mark)

    def _forget(self, held: dict[int, int]) -> None:
        for ino, bits in held.items():
            self._leases.tell_lanes(ino)
            self._caches.forget(ino, bits)
        for facets, inos in _by_facets(held).items():
            self._names.lease_drop(0, inos, facets)


def _enter_all(recalls: Iterable[RecallProgress], state: RecallState) -> None:
    for one in recalls:
        one.enter(state)


def _by_facets(lost: dict[K, int]) -> dict[int, list[K]]:
    """Groups inodes, or their recalls, by the facets that are lost."""
    groups = defaultdict(list)
    for one, bits in lost.items():
        groups[bits & LEASE_SHARED_ALL].append(one)
    return groups
