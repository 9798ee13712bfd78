"""Giving leases up: when the metaserver recalls them, when they end, when the session is lost.

A recall is worked on by a task of its own: wait for the grant that it speaks of; drain and commit
what only this client knows, forget and make the kernel forget, all at once; then, when nothing may
begin any more, what came meanwhile; then return the lease. The kernel is
told by native notifier threads, which may have to wait for a directory's lock or a locked page
(rule 6). That is bounded: a directory's lock is waited for NAMES_WAIT_S, because who holds it may
wait for another client that waits for us; the kernel is told as soon as it is free. Pages locked by
reads and writes that wait for this very lease are not waited for, others up to PAGES_WAIT_S.
Recalls of shared leases that come together, as they do when the metaserver asks for the oldest of
too many back, are worked on by one task and returned together.
Reads and writes of the file go on while its lease is recalled and not yet returned
(`recalling`); the pages that they leave are invalidated one by one (native), before the return.
Touched by the client's trio thread only. How far a recall is: fsclient.leases.recall_progress. The
connection that recalls come by: fsclient.leases.connection.
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
    """Waiting for the lanes: fsclient.fs.drains.Drains."""

    async def notified(self, start: Callable[[int], object], timeout_s: float) -> bool: ...


@dataclass(frozen=True, slots=True)
class Caches:
    """What else is to be given up with a lease. settle(ino): written bytes to the targets, size and
    time to the metaserver, and nothing is under way any more; publish(ino): the most of it, both at
    once. tell_size(ino): only what is known of them. give_back(ino): the names of a directory are
    exclusive no longer. forget(ino, bits): whatever is remembered of the inode
    under these bits. close(ino): if nobody has it open any more, the metaserver is told now.
    single(ino): what is held by its directory becomes leases of its own; single_all(): of all."""

    settle: Callable[[int], Awaitable[None]]
    publish: Callable[[int], Awaitable[None]]
    tell_size: Callable[[int], Awaitable[None]]
    give_back: Callable[[int], Awaitable[None]]
    forget: Callable[[int, int], None]
    close: Callable[[int], None]
    single: Callable[[int], None]
    single_all: Callable[[], None]


class _Unsent:
    """The limit of a recall in work: everything is masked."""

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
        self._in_work: dict[int, RecallProgress] = {}  # by number
        self.ended: deque[RecallProgress] = deque(maxlen=ENDED_KEPT)  # the newest at the end
        self._turns = Turns()
        self.former = FormerNames(names, meta, log)
        self.recall_count = 0
        self.late_count = 0  # recalls whose names the kernel did not forget in time
        self._lapsed = False
        # Takes what lanes have told: a file that was closed a moment ago is open no longer.
        self.listen: Callable[[], None] = lambda: None

    async def give_up(self, inos: Sequence[int]) -> None:
        """META and DATA of these files, which nobody has asked for."""
        recalls = [RecallProgress(RecallItem(0, ino, LEASE_READER, 0, 0)) for ino in inos]
        async with trio.open_nursery() as nursery:
            await self._work_together(recalls, nursery)

    def tell_open(self, ino: int) -> None:
        """Lanes opened it by its directory's grant, of which the metaserver has heard nothing."""
        self._return([ReturnItem(ino, 0, 0, is_open=True)])

    # ---- recalls ------------------------------------------------------------------------------

    def start(self, items: tuple[RecallItem, ...], nursery: trio.Nursery) -> None:
        """Work on these recalls; those in work already are."""
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
        """All that the metaserver waits for."""
        return tuple(self._in_work.values())

    def _end(self, one: RecallProgress) -> None:
        """Nobody works on it any more."""
        if not one.has_ended:
            one.enter(RecallState.ABANDONED)
        self._in_work.pop(one.item.recall, None)
        self.ended.append(one)

    def _is_light(self, item: RecallItem) -> bool:
        """What is to be given up is only forgotten: nothing is drained for it."""
        held = item.flags | self._leases.table.held(item.ino)
        is_shared = not held & (LEASE_EXCLUSIVE_ALL | LEASE_ENTRIES)
        return bool(item.flags) and is_shared and not self._leases.using.is_open(item.ino)

    async def _work_together(self, recalls: list[RecallProgress], nursery: trio.Nursery) -> None:
        """Those that are light no more when their grants have come are worked on one by one."""
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
        """One after another for each inode: an answer ends every recall that asked for less."""
        if one.item.flags:
            await self._give_up([one])
        else:
            await self._tell_size(one)

    async def _tell_size(self, one: RecallProgress) -> None:
        one.enter(RecallState.TELLING_SIZE)
        try:
            await self._caches.tell_size(one.item.ino)
        except FsError as error:
            self._log(f"a recall of inode {one.item.ino} failed: {error}")
            one.enter(RecallState.FAILED)
        self._return([ReturnItem(one.item.ino, 0, one.item.recall)])
        one.enter(RecallState.RETURNED)

    async def _give_up(self, recalls: Sequence[RecallProgress]) -> None:
        """Of several inodes: shared leases only. Masked from the beginning until the return is
        sent, then up to its id."""
        leases = self._leases
        unsent = _Unsent()
        lost: dict[RecallProgress, int] = {}
        items = [one.item for one in recalls]
        for one, item in zip(recalls, items, strict=True):
            self._caches.single(item.ino)
            leases.leaving.begin(item.ino)
            lost[one] = leases.table.give_up(item.ino, item.flags, unsent)
            if self.former.are_believed:  # a process that was killed told nobody what it held
                lost[one] |= item.flags & LEASE_SHARED_ALL
            leases.table.give_up(item.ino, item.flags, KnownLimit(max(1, item.limit)))
            one.enter(RecallState.MASKED)
        try:
            await self._drop({one: bits for one, bits in lost.items() if bits})
            _enter_all(recalls, RecallState.FORGOTTEN)
        except FsError as error:  # whoever wrote learns of it at fsync or close
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
        passed = [one for one, bits in lost.items() if self._end_recalling(one.item.ino, bits)]
        for ino in written:
            await self._caches.settle(ino)
        if any(lost[one] & LEASE_DATA for one in passed):
            await self._tell_kernel(passed, 0)  # the pages that they left

    async def _publish(self, ino: int) -> None:
        """What fails is told by whoever tries again: settle()."""
        with suppress(FsError):
            await self._caches.publish(ino)

    async def _forget_shared(self, lost: dict[RecallProgress, int]) -> None:
        for facets, recalls in _by_facets(lost).items():
            if facets:
                await self._tell_kernel(recalls, facets)

    def _end_recalling(self, ino: int, lost: int) -> bool:
        """True: reads or writes went on meanwhile."""
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
        """Leases that were not renewed end: the kernel's pages with them, before others change
        them (rule 11). Names and attributes have their times in the kernel."""
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
        """Another metaserver took over: it was told the exclusive leases, is told others before it
        grants anything; what was held by a directory is held by itself. Attributes end: some
        changes of them ask nobody, and tell afterwards, which may not have come to be. Recalls in
        work go on; what they have not returned yet is told as held."""
        self._mark_all(RecallMark.RESTARTED)
        self._caches.single_all()
        self._forget(self._leases.table.end(LEASE_META))

    def restorable(self, opened: Iterable[int]) -> Iterator[LeaseRestore]:
        """The leases to tell it of: all on these inodes, and the youngest others. What is left out
        is held no longer."""
        shared = self._leases.table.shared()
        first = dict.fromkeys(ino for ino in opened if ino in shared)
        others = [ino for ino in shared if ino not in first]
        count = max(0, len(others) - RESTORED_MAX)
        self.lost(others[:count])
        rows = (SharedLease(ino, shared[ino]) for ino in [*first, *others[count:]])
        while batch := tuple(islice(rows, RESTORED_AT_ONCE)):
            yield LeaseRestore(batch)

    def lost(self, inos: Iterable[int] | None) -> None:
        """Nothing is held of these inodes any more; None: of none that is not held exclusively."""
        self._forget(self._leases.table.end(LEASE_SHARED_ALL, inos))

    def evicted(self) -> None:
        """The session is lost, with every lease."""
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
    """Inodes, or their recalls, by the facets that are lost, as the kernel and the lanes are told
    of them."""
    groups = defaultdict(list)
    for one, bits in lost.items():
        groups[bits & LEASE_SHARED_ALL].append(one)
    return groups
