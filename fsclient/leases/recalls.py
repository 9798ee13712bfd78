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
Touched by the client's trio thread only. The connection that recalls come by is
fsclient.leases.connection.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

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
from .spans import Turns
from .table import KnownLimit, Limit

NAMES_WAIT_S = 0.2
ATTRIBUTES_WAIT_S = 0.5
PAGES_WAIT_S = 2.0
RECALLS_MAX = 4096
RESTORED_MAX = 4096  # leases on files that nobody has open
RESTORED_AT_ONCE = 16384
LAPSE_TICK_S = 0.25


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
        self._working: set[int] = set()
        self._turns = Turns()
        self.former = FormerNames(names, meta, log)
        self.recall_count = 0
        self.late_count = 0  # recalls whose names the kernel did not forget in time
        self._lapsed = False
        # Takes what lanes have told: a file that was closed a moment ago is open no longer.
        self.listen: Callable[[], None] = lambda: None

    async def give_up(self, inos: Sequence[int]) -> None:
        """META and DATA of these files, which nobody has asked for."""
        items = [RecallItem(0, ino, LEASE_READER, 0, 0) for ino in inos]
        async with trio.open_nursery() as nursery:
            await self._work_together(items, nursery)

    def tell_open(self, ino: int) -> None:
        """Lanes opened it by its directory's grant, of which the metaserver has heard nothing."""
        self._return([ReturnItem(ino, 0, 0, is_open=True)])

    # ---- recalls ------------------------------------------------------------------------------

    def start(self, items: tuple[RecallItem, ...], nursery: trio.Nursery) -> None:
        """Work on these recalls; those in work already are."""
        self.listen()
        together: list[RecallItem] = []
        for item in items:
            if item.recall in self._working or len(self._working) >= RECALLS_MAX:
                continue
            self._working.add(item.recall)
            self.recall_count += 1
            if self._is_light(item):
                together.append(item)
            else:
                nursery.start_soon(self._work, item)
        if together:
            nursery.start_soon(self._work_together, together, nursery)

    def _is_light(self, item: RecallItem) -> bool:
        """What is to be given up is only forgotten: nothing is drained for it."""
        held = item.flags | self._leases.table.held(item.ino)
        is_shared = not held & (LEASE_EXCLUSIVE_ALL | LEASE_ENTRIES)
        return bool(item.flags) and is_shared and not self._leases.using.is_open(item.ino)

    async def _work_together(self, items: list[RecallItem], nursery: trio.Nursery) -> None:
        """Those that are light no more when their grants have come are worked on one by one."""
        for item in items:
            await self._meta.answered(item.granted_by)
        mine: list[RecallItem] = []
        for item in items:
            if self._is_light(item) and self._turns.take_now(item.ino):
                mine.append(item)
            else:
                nursery.start_soon(self._work, item)
        try:
            if mine:
                await self._give_up(mine)
        finally:
            for item in mine:
                self._turns.give_back(item.ino)
                self._working.discard(item.recall)

    async def _work(self, item: RecallItem) -> None:
        try:
            await self._meta.answered(item.granted_by)
            await self._leases.using.wait(item.ino)
            async with self._turns.of(item.ino):
                await self._answer(item)
        finally:
            self._working.discard(item.recall)

    async def _answer(self, item: RecallItem) -> None:
        """One after another for each inode: an answer ends every recall that asked for less."""
        try:
            if item.flags:
                await self._give_up([item])
            else:
                await self._caches.tell_size(item.ino)
                self._return([ReturnItem(item.ino, 0, item.recall)])
        except FsError as error:
            self._log(f"a recall of inode {item.ino} failed: {error}")
            self._return([ReturnItem(item.ino, item.flags, item.recall)])

    async def _give_up(self, items: Sequence[RecallItem]) -> None:
        """Of several inodes: shared leases only. Masked from the beginning until the return is
        sent, then up to its id."""
        leases = self._leases
        unsent = _Unsent()
        lost: dict[int, int] = {}
        for item in items:
            self._caches.single(item.ino)
            leases.leaving.begin(item.ino)
            lost[item.ino] = leases.table.give_up(item.ino, item.flags, unsent)
            if self.former.are_believed:  # a process that was killed told nobody what it held
                lost[item.ino] |= item.flags & LEASE_SHARED_ALL
            leases.table.give_up(item.ino, item.flags, KnownLimit(max(1, item.limit)))
        try:
            asked = {item.ino for item in items if item.recall}
            await self._drop({ino: bits for ino, bits in lost.items() if bits}, asked)
        except FsError as error:  # whoever wrote learns of it at fsync or close
            self._log(f"what was written to inode {items[0].ino} is lost: {error}")
        finally:
            for item in items:
                self._finish_passing(item.ino, lost[item.ino])
                self._caches.close(item.ino)
            limit = self._return(ReturnItem(item.ino, item.flags, item.recall) for item in items)
            unsent.request_id = max([1, *(item.limit for item in items)])
            for item in items:
                leases.table.give_up(item.ino, item.flags, limit)
                leases.leaving.end(item.ino)

    async def _drop(self, lost: dict[int, int], asked: set[int]) -> None:
        leases = self._leases
        for ino, bits in lost.items():
            leases.recalling[ino] = leases.recalling.get(ino, 0) | bits
            if bits & LEASE_DATA and ino in asked:
                leases.bytes_recalled(ino)
            leases.tell_lanes(ino)
            self._caches.forget(ino, bits)
        for ino, bits in lost.items():
            if bits & LEASE_ENTRIES_EXCLUSIVE:
                await self._caches.give_back(ino)
            if bits & LEASE_ENTRIES:
                await self.former.expire(ino)
        written = [ino for ino, bits in lost.items() if bits & LEASE_DATA_EXCLUSIVE]
        async with open_tasks() as tasks:
            for ino in written:
                tasks.start_soon(self._publish, ino)
            await self._forget_shared(lost)
        passed = [ino for ino, bits in lost.items() if self._finish_passing(ino, bits)]
        for ino in written:
            await self._caches.settle(ino)
        if any(lost[ino] & LEASE_DATA for ino in passed):
            await self._tell_kernel(passed, 0)  # the pages that they left

    async def _publish(self, ino: int) -> None:
        """What fails is told by whoever tries again: settle()."""
        with suppress(FsError):
            await self._caches.publish(ino)

    async def _forget_shared(self, lost: dict[int, int]) -> None:
        for facets, inos in _by_facets(lost).items():
            if facets:
                await self._tell_kernel(inos, facets)

    def _finish_passing(self, ino: int, lost: int) -> bool:
        """True: something passed."""
        left = self._leases.recalling.get(ino, 0) & ~lost
        if left:
            self._leases.recalling[ino] = left
        else:
            self._leases.recalling.pop(ino, None)
        return self._leases.tell_lanes(ino)

    async def _tell_kernel(self, inos: list[int], facets: int) -> None:
        wait_s = ATTRIBUTES_WAIT_S if facets & LEASE_META else NAMES_WAIT_S
        wait_s = PAGES_WAIT_S if facets & LEASE_DATA else wait_s
        in_time = await self._tokens.notified(
            lambda token: self._names.lease_drop(token, inos, facets), wait_s
        )
        if not in_time:
            self.late_count += 1

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
        changes of them ask nobody, and tell afterwards, which may not have come to be."""
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
        self._caches.single_all()
        self._forget(self._leases.table.clear())
        self._names.leases_clear()

    def _forget(self, held: dict[int, int]) -> None:
        for ino, bits in held.items():
            self._leases.tell_lanes(ino)
            self._caches.forget(ino, bits)
        for facets, inos in _by_facets(held).items():
            self._names.lease_drop(0, inos, facets)


def _by_facets(lost: dict[int, int]) -> dict[int, list[int]]:
    """Inodes by the facets that are lost, as the kernel and the lanes are told of them."""
    groups = defaultdict(list)
    for ino, bits in lost.items():
        groups[bits & LEASE_SHARED_ALL].append(ino)
    return groups
