"""Makes replicas again that files lack: the files of the index `H`, the most endangered first, some
at the same time. It also carries out the other jobs that copy: those that empty a target, and those
that make again what a lost one had (metaserver.walk).

All files that are being copied are of one pool. A file whose copy has failed rests for a while; if
it was being written, the next copy makes its writers wait a little.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

import trio

from fscommon.layout.attributes import LEASE_DATA_EXCLUSIVE
from fscommon.observe.log import Log, RateLimit
from fscommon.types import Ino
from metaserver.background import Background
from metaserver.context import Context
from metaserver.copier import Choose, Copied, Copier
from metaserver.dropping import Dropping
from metaserver.faults import Faults
from metaserver.jobs import DRAIN, REBUILD, Job
from metaserver.namespace.inode import Inode
from metaserver.namespace.places import GivenUpError, Wanted, of_lacking, of_moving
from metaserver.namespace.replicas import note_lack
from metaserver.ops.cluster import put_job
from metaserver.records import (
    LACKING_KEY,
    all_of,
    dropped_at,
    dropped_name,
    dropped_of_file_key,
    inode_key,
    job_key,
    lacking_place,
    lone_at,
    number_of,
)
from metaserver.repair_policy import DEFAULT_REPAIR, RepairPolicy
from metaserver.store.waist import RecordError
from metaserver.transaction import Transaction
from metaserver.walk import LOOK_AHEAD, STEP, Walk

TURN_S: Final = 1.0
WORKING_TURN_S: Final = 0.1  # while files are being copied
BUSY_TURN_S: Final = 0.02
LOOK_S: Final = 5.0  # until the metaserver is asked again whether its recovery has ended
# A file whose job has failed rests for a second, then for twice as long after each failure, up to
# this: a job is in its writers' way.
RETRY_S: Final = 30.0
WRITTEN_S: Final = 5.0  # the same, if it was being written
# A file that somebody writes is left alone for so long: the writer may still wait for the target
# whose replica was dropped, and could not give the file up at once.
LEFT_ALONE_S: Final = 6.0
HOLD_S: Final = 2.0  # a writer waits so long, when a job has failed before because of writers
NOTE_S: Final = 5.0  # between two records of a job
_FOUND_MAX: Final = 512  # records of one look
_BEGUN_MAX: Final = 64  # files of one look that are begun before the next one
_COUNTED_MAX: Final = 4096  # records counted at once
_RESTING_MAX: Final = 1 << 16
_PURGED_MAX: Final = 512
_LOG_S: Final = 60.0


_Work = Callable[[Ino], Awaitable[object]]


class Repair:
    def __init__(
        self,
        background: Background,
        dropping: Dropping | None = None,
        policy: RepairPolicy = DEFAULT_REPAIR,
    ) -> None:
        self._engine = background.engine
        self._change = background.change
        self._committer = background.committer
        self._now = background.clock
        self._policy = policy
        self._jobs = background.engine.services.jobs
        self._copier = Copier(background, dropping, policy)
        self._log = Log("repair")
        self._faults = Faults(self._log)
        self._failures = RateLimit(_LOG_S)
        self._without_place = RateLimit(_LOG_S)
        self._after = b""  # the record with which the last look ended
        self._resting: dict[Ino, float] = {}  # files whose jobs have failed, until these times
        self._written: set[Ino] = set()  # of these, files that were being written
        self._left_alone: dict[Ino, float] = {}  # files that are being written, since these times
        self._under_way: set[Ino] = set()
        self._found: deque[Ino] = deque()  # files that lack replicas, to be begun next
        self._walks: dict[int, Walk] = {}
        self._rebuilds: dict[Ino, Job] = {}  # which job has dropped replicas of a file
        self._rebuilt: set[int] = set()  # targets that are down, and have had their rebuild
        self._freed = trio.Event()
        self._noted_s = -NOTE_S
        self._count = (b"", 0, 0)  # of the index: the last key, all, and those with one replica
        self._indexed_at = 0  # the last inode that is in the index, while that is made

    async def run(self) -> None:
        await self._until_recovered()
        unsettled = self._copier.begin()
        async with trio.open_nursery() as tasks:
            for ino in unsettled:
                self._under_way.add(ino)
                tasks.start_soon(self._settle, ino)
            while True:
                is_busy = False
                with self._faults.contained("the repair of files"):
                    is_busy = self._turn(tasks)
                await self._fill_until_next_turn(tasks, is_busy=is_busy)

    async def _fill_until_next_turn(self, tasks: trio.Nursery, *, is_busy: bool) -> None:
        """A turn looks at much, so not every file that is done makes one."""
        rest_s = WORKING_TURN_S if self._under_way else TURN_S
        with trio.move_on_after(BUSY_TURN_S if is_busy else rest_s):
            while True:
                self._freed = trio.Event()
                await self._freed.wait()
                with self._faults.contained("the repair of files"):
                    self._fill(tasks)
                    self._committer.changed()
                if not self._under_way:
                    return

    async def _until_recovered(self) -> None:
        while self._engine.progress.recovering:  # noqa: ASYNC110 - the end has no event
            await trio.sleep(LOOK_S)

    async def _settle(self, ino: Ino) -> None:
        """A metaserver of before has moved replicas of the file."""
        with self._faults.contained("the end of a move", ino=ino):
            await self._copier.settle(ino)
            self._under_way.discard(ino)

    def _turn(self, tasks: trio.Nursery) -> bool:
        """Returns whether there is more to be done at once."""
        is_busy = False
        with self._faults.contained("the index of files that lack replicas"):
            is_busy = self._index()
        with self._faults.contained("the jobs on targets"):
            self._look_at_targets()
            self._change(self._purge)
            is_busy |= self._walk()
        self._found = deque(self.candidates())
        self._fill(tasks)
        self._change(self._count_lacking)
        self._note()
        self._committer.changed()
        return is_busy

    # ---- the files that lack replicas ----------------------------------------------------

    def candidates(self) -> list[Ino]:
        """Returns some files that lack replicas and can get some now, the most endangered first."""
        found: list[Ino] = []
        whys: list[str] = []
        for times in (self._resting, self._left_alone):
            if len(times) > _RESTING_MAX:
                times.clear()

        def look(tx: Transaction, context: Context) -> None:
            for key in self._lacking_files(tx):
                _, ino = lacking_place(key)
                if len(found) >= _BEGUN_MAX:
                    break
                if ino in found or not self._may_begin(context, ino):
                    continue
                try:
                    if self._lacks(tx, context, key):
                        found.append(ino)
                except (GivenUpError, RecordError) as error:
                    whys.append(str(error))

        self._change(look)
        self._jobs.repair.because = whys[0] if whys and not found and not self._under_way else ""
        if whys and not found and self._without_place.permit() is not None:
            self._log.warning("files lack replicas", files=len(whys), because=whys[0])
        return found

    def _lacks(self, tx: Transaction, context: Context, key: bytes) -> bool:
        """Whether the file of a record of the index lacks replicas. If not, that is wrong, and
        another file may lack its record: the index is made anew. Raises GivenUpError,
        RecordError."""
        if of_lacking(tx, context, lacking_place(key)[1], self._copier.receiving) is not None:
            return True
        self._log.error("the index of files that lack replicas is made anew", wrong=str(key))
        tx.delete(key)
        tx.delete(LACKING_KEY)
        self._indexed_at = 0
        return False

    def _lacking_files(self, tx: Transaction) -> list[bytes]:
        """Returns the first records of the index, and some behind those of the last look."""
        start, end = all_of(b"H")
        keys = list(islice(tx.keys(start, end), _FOUND_MAX))
        if len(keys) == _FOUND_MAX:
            after = max(self._after, keys[-1] + b"\0")
            others = list(islice(tx.keys(after, end), _FOUND_MAX))
            self._after = others[-1] + b"\0" if len(others) == _FOUND_MAX else b""
            keys += others
        return keys

    async def repair(self, ino: Ino) -> bool:
        """Gives the file the replicas that it lacks. Returns False if that is not possible now."""

        def choose(tx: Transaction, context: Context, ino: Ino) -> Wanted | None:
            return of_lacking(tx, context, ino, self._copier.receiving)

        copied = await self._copy(self._jobs.repair, ino, choose)
        rebuild = self._rebuilds.pop(ino, None)
        if rebuild is not None and not copied.why:
            rebuild.has_done(self._now().now_s, files=1, moved=copied.moved)
        if not copied.why:
            self._log.info("a file has its replicas again", ino=ino)
        return not copied.why

    def _is_resting(self, ino: Ino) -> bool:
        return self._resting.get(ino, 0.0) > trio.current_time()

    def _may_begin(self, context: Context, ino: Ino) -> bool:
        if ino in self._under_way or self._is_resting(ino):
            return False
        return not self._is_left_alone(context, ino)

    def _is_left_alone(self, context: Context, ino: Ino) -> bool:
        if not context.services.leases.is_held(ino, LEASE_DATA_EXCLUSIVE):
            self._left_alone.pop(ino, None)
            return False
        now_s = trio.current_time()
        return now_s < self._left_alone.setdefault(ino, now_s) + LEFT_ALONE_S

    async def _copy(self, job: Job, ino: Ino, choose: Choose) -> Copied:
        self._under_way.add(ino)
        try:
            hold_s = HOLD_S if ino in self._written else 0.0
            copied = await self._copier.copy(ino, choose, hold_s)
        finally:
            self._under_way.discard(ino)
        now_s = self._now().now_s
        self._written.discard(ino)
        self._left_alone.pop(ino, None)
        if not copied.why:
            self._resting.pop(ino, None)
            job.has_done(now_s, files=0 if copied.is_needless else 1, moved=copied.moved)
            return copied
        rest_s = WRITTEN_S if copied.is_written else min(RETRY_S, 2.0 ** min(copied.tries - 1, 5))
        self._resting[ino] = trio.current_time() + rest_s
        if copied.is_written:
            self._written.add(ino)
        job.has_failed(copied.why)
        suppressed = self._failures.permit()
        if suppressed is not None:
            what = "a file gets its replicas later" if job.target == 0 else "a file is moved later"
            self._log.warning(what, ino=ino, error=copied.why, suppressed=suppressed or None)
        return copied

    # ---- the pool ------------------------------------------------------------------------

    def _fill(self, tasks: trio.Nursery) -> None:
        """Repair comes first, but leaves one place to those that move files."""
        moving = [walk for walk in self._walks.values() if walk.queue and not walk.job.is_paused]
        free = self._policy.parallel - len(self._under_way)
        share = free - bool(moving and self._policy.parallel > 1)
        while share > 0 and self._found and not self._jobs.repair.is_paused:
            ino = self._found.popleft()
            if ino not in self._under_way and not self._is_resting(ino):
                self._start(tasks, self._jobs.repair, ino, self.repair)
                share -= 1
        free = self._policy.parallel - len(self._under_way)
        while free > 0 and moving:
            walk = moving.pop(0)
            ino = walk.queue.popleft()
            if ino in self._under_way:  # one job at a time: the next pass finds it again
                walk.done(ino)
            else:
                self._start(tasks, walk.job, ino, self._move_of(walk))
                free -= 1
            if walk.queue:
                moving.append(walk)

    def _start(self, tasks: trio.Nursery, job: Job, ino: Ino, work: _Work) -> None:
        self._under_way.add(ino)
        tasks.start_soon(self._carry_out, job, ino, work)

    async def _carry_out(self, job: Job, ino: Ino, work: _Work) -> None:
        self._resting[ino] = trio.current_time() + RETRY_S  # if it fails in an unforeseen way
        try:
            with self._faults.contained("the copy of a file", ino=ino, job=job.id):
                await work(ino)
        finally:
            self._under_way.discard(ino)
            self._freed.set()

    def _move_of(self, walk: Walk) -> _Work:
        def choose(tx: Transaction, context: Context, ino: Ino) -> Wanted | None:
            return of_moving(tx, context, ino, walk.target, self._copier.receiving)

        async def move(ino: Ino) -> None:
            try:
                await self._copy(walk.job, ino, choose)
            finally:
                walk.done(ino)

        return move

    # ---- walks ---------------------------------------------------------------------------

    def _look_at_targets(self) -> None:
        """A target that is down for too long is taken for lost. One that was, and is back, is not,
        unless an administrator has given it up."""
        membership, now = self._engine.services.membership, self._now()
        for target in membership.targets():
            down_s = membership.down_s(target.id, now.now_s)
            rebuild = self._jobs.of(REBUILD, target.id)
            if down_s == 0.0 and membership.is_heard(target.id):
                self._rebuilt.discard(target.id)
                if rebuild is not None and not target.is_lost:
                    self._jobs.end(rebuild, now.now_ns)
                    self._log.info("a target is back, and not rebuilt", target=target.id)
            is_late = down_s >= self._policy.rebuild_after_s and target.id not in self._rebuilt
            if rebuild is None and (target.is_lost or (is_late and self._has_replicas())):
                self._rebuilt.add(target.id)
                self._jobs.start(REBUILD, target.id, now.now_ns)
                self._log.warning("the replicas of a target are made again", target=target.id)

    def _has_replicas(self) -> bool:
        """Whether files may have several."""
        return self._engine.services.membership.policy.replicas_max > 1

    def _walk(self) -> bool:
        """Takes each walk some steps further. Returns whether there is more to be done at once."""
        jobs = [*self._jobs.under_way(DRAIN), *self._jobs.under_way(REBUILD)]
        self._walks = {job.id: self._walks.get(job.id) or self._new_walk(job) for job in jobs}
        is_busy: list[bool] = []
        for walk in self._walks.values():
            if not walk.job.is_paused:
                self._change(lambda tx, context, walk=walk: is_busy.append(walk.turn(tx, context)))  # type: ignore[misc]
        return any(is_busy)

    def _new_walk(self, job: Job) -> Walk:
        return Walk(
            job,
            self._is_resting,
            self._under_way,
            lambda target: self._copier.receiving[target] > 0,
            _lacking,
            self._rebuilds.__setitem__,
            self._engine.services.membership.epoch,
        )

    def _purge(self, tx: Transaction, context: Context) -> None:
        """Forgets dropped names and doomed objects of targets that are out of the cluster."""
        for number in context.services.membership.all_removed():
            keys = list(islice(tx.keys(*dropped_at(number, (0, 0))), _PURGED_MAX))
            keys += [dropped_of_file_key(dropped_name(key)) for key in keys]
            keys += islice(tx.keys(*lone_at(number)), _PURGED_MAX)
            for key in keys:
                tx.delete(key)

    # ---- what is written down ------------------------------------------------------------

    def _index(self) -> bool:
        """Makes the index for a store that has none. Returns whether there is more to be done."""
        more: list[bool] = []

        def step(tx: Transaction, context: Context) -> None:
            if tx.get(LACKING_KEY) is not None:
                return
            start, end = inode_key(self._indexed_at + 1), all_of(b"I")[1]
            rows = list(islice(tx.readable(start, end), STEP))
            for key, value in rows:
                self._indexed_at = number_of(key)
                inode = Inode.parse(value)
                if inode.is_file:
                    note_lack(tx, inode.ino, b"", inode.tail)
            if len(rows) < STEP:
                tx.put(LACKING_KEY, b"")
            else:
                more.append(True)

        self._change(step)
        return bool(more)

    def _count_lacking(self, tx: Transaction, context: Context) -> None:
        """Counts the index, some of it at a time."""
        after, count, endangered = self._count
        start, end = all_of(b"H")
        keys = list(islice(tx.keys(max(start, after), end), _COUNTED_MAX))
        count += len(keys)
        endangered += sum(lacking_place(key)[0] == 1 for key in keys)
        if len(keys) == _COUNTED_MAX:
            self._count = keys[-1] + b"\0", count, endangered
            return
        self._count = b"", 0, 0
        jobs = self._jobs
        jobs.files_lacking, jobs.files_endangered, jobs.is_counted = count, endangered, True
        repair = jobs.repair
        was_idle, repair.is_idle = repair.is_idle, count == 0
        if not repair.is_idle and (was_idle or not repair.record.started_ns):
            repair.changed(started_ns=context.now_ns)
        repair.files_left, repair.is_estimated = count, True
        if repair.record.files:
            repair.bytes_left = count * repair.record.bytes // repair.record.files

    def _note(self) -> None:
        now_s = self._now().now_s
        if now_s - self._noted_s < NOTE_S:
            return
        self._noted_s = now_s

        def change(tx: Transaction, context: Context) -> None:
            lacking = Counter(job.id for job in self._rebuilds.values())
            for walk in self._walks.values():
                walk.note(context, lacking[walk.job.id])
            changed, forgotten = self._jobs.take_changed()
            for job in changed:
                put_job(tx, job)
            for number in forgotten:
                tx.delete(job_key(number))

        self._change(change)


def _lacking(tx: Transaction) -> int:
    """How many files lack replicas, up to LOOK_AHEAD."""
    return sum(1 for _ in islice(tx.keys(*all_of(b"H")), LOOK_AHEAD))
