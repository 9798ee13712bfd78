"""Scrubs all files within scrub_days, and at once what is asked for or reported.

The walk goes through the inodes in steps; its cursor is in the job's record (J), so it goes on
after a restart or a take-over. Beside it, files that administrators name are scrubbed
(`braidfs scrub`), and files in which readers have met damage, which storage servers report by the
numbers of their objects. Damage that is left is tried again from time to time, as long as its file
has other replicas. After a restore, files with replicas are compared first (by records alone, which
is fast); until then repair does not trust them.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

import trio

from fscommon.layout.layout import is_replicated, unpack_layout
from fscommon.observe.log import Log
from fscommon.tasks import open_tasks
from fscommon.types import Ino
from fscommon.wire.codec import encode
from fscommon.wire.servers import DamagedObject
from metaserver.background import Background
from metaserver.context import Context
from metaserver.dropping import Dropping
from metaserver.faults import Faults
from metaserver.namespace.inode import Inode
from metaserver.namespace.replicas import counts_of, names_of
from metaserver.records import (
    COMPARED_KEY,
    SCRUB_KEY,
    ObjectName,
    all_of,
    finding_key,
    inode_at,
    inode_key,
    job_key,
    number_of,
    pack_number,
)
from metaserver.repair_policy import RepairPolicy
from metaserver.scrub_file import FileScrub, Scrubbed
from metaserver.scrubs import Place
from metaserver.store.waist import RecordError
from metaserver.transaction import Transaction

LOOK_S: Final = 1.0
SAVE_S: Final = 2.0
RETRY_S: Final = 30.0  # of what could not be compared after a restore
LEFT_S: Final = 600.0  # damage that is left is tried again so often, if it may be mended
STEP_INODES: Final = 256
STEP_BYTES: Final = 4 << 30
PARALLEL_MIN: Final = 4
PARALLEL_MAX: Final = 64
OBJECT_COST: Final = 64 << 10  # what an object costs beside its bytes, in bytes
EARLY: Final = 0.9  # a pass is to take this part of scrub_days
_DAY_S: Final = 86400
_BYTES_MAX: Final = 1 << 62


class Scrub:
    def __init__(self, background: Background, dropping: Dropping, policy: RepairPolicy) -> None:
        self._engine = background.engine
        self._change = background.change
        self._metrics = background.metrics
        self._now = background.clock
        self._scrubs = background.engine.services.scrubs
        self._job = background.engine.services.jobs.scrub
        self._file = FileScrub(background, dropping)
        self._log = Log("scrub")
        self._faults = Faults(self._log)
        self._work, self._asked, self._reported = (trio.Event() for _ in range(3))
        self._under_way: set[Ino] = set()
        self._scrubs.days = policy.scrub_days
        self._scrubs.wake = self._wake

    def _wake(self) -> None:
        for event in (self._work, self._asked, self._reported):
            event.set()

    async def run(self) -> None:
        while self._engine.progress.recovering:  # noqa: ASYNC110 - the end has no event
            await trio.sleep(LOOK_S)
        async with open_tasks() as tasks:
            tasks.start_soon(self._walk)
            tasks.start_soon(self._serve_asked)
            tasks.start_soon(self._serve_reports)
            tasks.start_soon(self._compare_all)
            tasks.start_soon(self._look_after_findings)
            await self._save_on()

    async def _scrub(self, ino: Ino, *, reads: bool = True) -> Scrubbed:
        done = Scrubbed(is_whole=False)
        if ino in self._under_way:
            return done
        self._under_way.add(ino)
        try:
            with self._faults.contained("the scrub of a file", ino=ino):
                done = await self._file.scrub(ino, reads=reads)
        finally:
            self._under_way.discard(ino)
        self._metrics.counter("braidfs_scrub_files_total").inc()
        return done

    # ---- the walk ------------------------------------------------------------------------

    async def _walk(self) -> None:
        while True:
            self._measure()
            if not self._is_due():
                with trio.move_on_after(LOOK_S):
                    await self._work.wait()
                    self._work = trio.Event()
                continue
            is_done = False
            with self._faults.contained("the walk of scrubs"):
                if self._is_between_passes() or self._scrubs.begins_anew:
                    self._begin()
                await self._step()
                is_done = True
            await trio.sleep(0 if is_done else RETRY_S)

    def _is_due(self) -> bool:
        scrubs, job = self._scrubs, self._job
        job.is_idle = not scrubs.days and not scrubs.record.is_fast
        if job.is_paused or job.is_idle:
            return False
        if scrubs.record.is_fast or not job.record.started_ns:
            return True
        elapsed_s = max(0.0, (self._now().now_ns - job.record.started_ns) / 1e9)
        due = elapsed_s / (scrubs.days * _DAY_S * EARLY)
        if self._is_between_passes():
            return due >= 1
        return scrubs.record.bytes <= due * scrubs.bytes_all

    def _is_between_passes(self) -> bool:
        return self._scrubs.record.ended_ns >= self._job.record.started_ns

    def _begin(self) -> None:
        self._scrubs.begins_anew = False
        self._scrubs.changed(files=0, bytes=0)
        started_ns = max(self._now().now_ns, self._scrubs.record.ended_ns + 1)
        self._job.changed(cursor=0, started_ns=started_ns)

    def _measure(self) -> None:
        """Finds out what there is to be read, and shows it."""
        targets = self._engine.services.membership.targets()
        used = sum(one.bytes_total - one.bytes_free for one in targets)
        scrubs, job = self._scrubs, self._job
        scrubs.bytes_all = used + OBJECT_COST * sum(one.objects for one in targets)
        scrubs.files_all = self._engine.progress.inodes
        job.is_estimated = True
        job.bytes_left = max(0, scrubs.bytes_all - scrubs.record.bytes)
        job.files_left = max(0, scrubs.files_all - scrubs.record.files)

    async def _step(self) -> None:
        """Scrubs the files of the next inodes."""
        inodes, is_end = self._next(self._job.record.cursor)
        begun_ns = self._job.record.started_ns
        files = [inode.ino for inode in inodes if _has_objects(inode)]
        await self._each(files, self._scrub_of_walk)
        if self._job.record.started_ns != begun_ns or self._scrubs.begins_anew:
            return  # the walk has begun anew meanwhile
        self._scrubs.changed(files=self._scrubs.record.files + len(inodes) - len(files))
        if not is_end:
            self._job.changed(cursor=inodes[-1].ino)
            return
        now_ns = self._now().now_ns
        self._log.info("all files were scrubbed", files=self._scrubs.record.files)
        self._scrubs.changed(is_fast=False, ended_ns=max(now_ns, self._job.record.started_ns))
        self._job.changed(cursor=0, passes=self._job.record.passes + 1)

    async def _scrub_of_walk(self, ino: Ino) -> None:
        done = await self._scrub(ino)
        cost = done.bytes + OBJECT_COST * done.objects
        record = self._scrubs.record
        read = min(record.bytes + cost, _BYTES_MAX)
        self._scrubs.changed(files=record.files + 1, bytes=read)
        self._job.has_done(self._now().now_s, files=1, moved=done.bytes)

    def _next(self, after: int) -> tuple[list[Inode], bool]:
        """Returns the inodes behind this one, and whether they are the last ones."""
        keys = inode_key(after + 1), all_of(b"I")[1]
        found: list[Inode] = []
        size = 0
        rows = self._engine.stored(keys, STEP_INODES)
        for key, value in rows:
            inode = Inode.parse(value)
            assert inode.ino == number_of(key)
            found.append(inode)
            size += inode.attributes.size if inode.is_file else 0
            if size > STEP_BYTES:
                break
        return found, len(rows) < STEP_INODES and len(found) == len(rows)

    async def _each(self, inos: Iterable[Ino], work: Callable[[Ino], Awaitable[object]]) -> None:
        targets = len(self._engine.services.membership.targets())
        parallel = trio.CapacityLimiter(min(max(PARALLEL_MIN, targets), PARALLEL_MAX))

        async def one(ino: Ino) -> None:
            async with parallel:
                await work(ino)

        async with trio.open_nursery() as nursery:
            for ino in inos:
                nursery.start_soon(one, ino)

    # ---- what is asked for or reported ---------------------------------------------------

    async def _serve_asked(self) -> None:
        while True:
            inos: list[Ino] = []
            while len(inos) < STEP_INODES and (ino := self._scrubs.next_asked()) is not None:
                inos.append(ino)
            await self._each(inos, self._scrub_asked)
            if not inos:
                await self._asked.wait()
                self._asked = trio.Event()

    async def _scrub_asked(self, ino: Ino) -> None:
        while ino in self._under_way:  # noqa: ASYNC110 - a file of the walk: it may take hours
            await trio.sleep(LOOK_S)
        await self._scrub(ino)
        self._scrubs.files_done += 1

    async def _serve_reports(self) -> None:
        while True:
            await self._reported.wait()
            self._reported = trio.Event()
            with self._faults.contained("the search for damaged files"):
                wanted = {one.file_id for one in self._scrubs.take_reports() if self._is_news(one)}
                await self._each(await self._files_of(wanted), self._scrub)

    def _is_news(self, one: DamagedObject) -> bool:
        """Whether it was not found a moment ago that the object is damaged, and stays so."""
        name = ObjectName(one.target, one.file_id, one.object)
        newest_ns = max(
            (self._scrubs.findings[place].found_ns for place in self._scrubs.left(name)), default=0
        )
        return newest_ns < self._now().now_ns - int(LEFT_S * 1e9)

    async def _files_of(self, file_ids: set[int]) -> list[Ino]:
        """The inodes whose files have these ids. Most have that of their inode; who was emptied has
        another one."""
        left = set(file_ids)
        inos: list[Ino] = []

        def look(inodes: Iterable[Inode]) -> None:
            for inode in inodes:
                if inode.is_file and (file_id := inode.layout().file_id) in left:
                    left.discard(file_id)
                    inos.append(inode.ino)

        for file_id in file_ids:
            stored = self._engine.stored(inode_at(file_id), 1)
            look(Inode.parse(value) for _, value in stored)
        after, is_end = 0, not left
        while not is_end and left:
            inodes, is_end = self._next(after)
            look(inodes)
            after = inodes[-1].ino if inodes else after
            await trio.lowlevel.checkpoint()
        return inos

    # ---- after a restore -----------------------------------------------------------------

    async def _compare_all(self) -> None:
        if self._scrubs.compared is None:
            return
        self._log.info("files with replicas are compared, as the names were restored")
        cursor = self._scrubs.compared
        is_end = False
        while not is_end:
            inodes, is_end = self._next(cursor)
            files = [inode.ino for inode in inodes if is_replicated(inode.tail)]
            await self._each(files, self._compare)
            cursor = inodes[-1].ino if inodes else cursor
            self._scrubs.compared = cursor
            self._keep_compared()
            await trio.lowlevel.checkpoint()
        while uncompared := self._scrubs.uncompared():
            await trio.sleep(RETRY_S)
            await self._each(uncompared, self._compare)
            self._keep_compared()
        self._scrubs.compared = None
        self._change(lambda tx, context: tx.delete(COMPARED_KEY))
        self._log.info("all files with replicas were compared")

    async def _compare(self, ino: Ino) -> None:
        if (await self._scrub(ino, reads=False)).is_whole:
            self._scrubs.was_compared(ino)
            return
        while not self._scrubs.compare_later(ino):
            await trio.sleep(RETRY_S)
            if (await self._scrub(ino, reads=False)).is_whole:
                return

    def _keep_compared(self) -> None:
        first = min(self._scrubs.uncompared(), default=0)
        compared = first - 1 if first else self._scrubs.compared or 0
        self._change(lambda tx, context: tx.put(COMPARED_KEY, pack_number(compared)))

    # ---- findings ------------------------------------------------------------------------

    async def _look_after_findings(self) -> None:
        """Forgets damage of what is gone, and tries again to mend what may be mended."""
        while True:
            await trio.sleep(LEFT_S)
            with self._faults.contained("what scrubs have found"):
                files: dict[Ino, None] = {}
                for place in self._scrubs.left():
                    with suppress(RecordError):  # of a file that cannot be read it stays
                        if not self._is_named(place):
                            self._scrubs.forget(place)
                        elif self._has_others(place):
                            files[place.ino] = None
                await self._each(files, self._scrub)

    def _inode(self, ino: Ino) -> Inode | None:
        raw = self._engine.stored_record(inode_key(ino))
        inode = Inode.parse(raw) if raw is not None else None
        return inode if inode is not None and inode.is_file else None

    def _is_named(self, place: Place) -> bool:
        inode = self._inode(place.ino)
        return inode is not None and place.name in names_of(inode.layout())

    def _has_others(self, place: Place) -> bool:
        inode = self._inode(place.ino)
        return inode is not None and max(counts_of(inode.layout()).values(), default=0) > 1

    # ---- the store -----------------------------------------------------------------------

    async def _save_on(self) -> None:
        while True:
            await trio.sleep(SAVE_S)
            with self._faults.contained("keeping what scrubs have found"):
                self._save()
                self._show()

    def _save(self) -> None:
        findings = self._scrubs.take_findings()
        is_changed = self._scrubs.take_changed()
        if not findings and not is_changed and not self._job.is_changed:
            return
        self._job.is_changed = False

        def change(tx: Transaction, context: Context) -> None:
            for place, record in findings:
                key = finding_key(place.ino, place.name)
                if record is None:
                    tx.delete(key)
                else:
                    tx.put(key, encode(record))
            tx.put(SCRUB_KEY, encode(self._scrubs.record))
            tx.put(job_key(self._job.id), encode(self._job.record))

        self._change(change)

    def _show(self) -> None:
        scrubs, metrics = self._scrubs, self._metrics
        for (outcome, what), count in scrubs.counts.items():
            metrics.counter("braidfs_scrub_findings_total", outcome=outcome, what=what).inc(count)
        scrubs.counts.clear()
        metrics.gauge("braidfs_scrub_damage_left").set(len(scrubs.left()))
        ended_ns = scrubs.record.ended_ns or self._job.record.started_ns
        age_s = (self._now().now_ns - ended_ns) / 1e9 if ended_ns and scrubs.days else 0.0
        metrics.gauge("braidfs_scrub_pass_age").set(age_s / (max(1e-6, scrubs.days) * _DAY_S))


def _has_objects(inode: Inode) -> bool:
    return inode.is_file and not unpack_layout(inode.tail).inline
