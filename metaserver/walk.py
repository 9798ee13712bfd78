"""Walks over all inodes, for jobs that take files away from one target: a drain moves what a target
has to others; a rebuild drops the replicas of one that is lost, and repair makes others.

A walk goes in steps of some inodes, each a transaction. It ends when a whole pass has found no file
on the target; else another pass begins, since files may have come meanwhile. The record of the job
keeps how far the pass has come, so a job goes on after a restart.

A drain waits until all clients know that the target gets no new files: until then files may be born
there behind the walk. A rebuild drops only what another target has that answers, and only while the
target does not: then nobody can read there what is older than what a writer writes. It goes no
further than repair can follow. If a lost target is served again, its files are moved, like those of
a target that is drained. A target that was not given up by an administrator and comes back ends the
rebuild.
"""

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from fscommon.layout.layout import Layout, is_inline, packed_places
from fscommon.types import Ino, TargetId
from fscommon.wire.jobs import ARE_LOST
from metaserver.context import Context
from metaserver.jobs import DRAIN, Job
from metaserver.membership import Target
from metaserver.namespace.inode import Inode
from metaserver.namespace.places import RESENT_S, reachable
from metaserver.namespace.replicas import droppable, name_of, not_the_last, remove_replicas
from metaserver.ops.cluster import bump_map_epoch, put_job, put_removed, put_target
from metaserver.records import all_of, inode_key, lone_at, number_of
from metaserver.transaction import Transaction

STEP: Final = 512  # inodes of one transaction
QUEUE_MAX: Final = 64  # files that wait to be copied
LOOK_AHEAD: Final = 512  # files that wait for repair
REST_S: Final = 5.0  # before another pass, if one came to nothing
_LOST_REST_S: Final = 60.0
_BIRTHS_S: Final = 2.0  # births are told so much later than the files were made
_REMOVALS_MAX: Final = 20_000
_WORD: Final = struct.Struct("<I")


@dataclass(slots=True)
class Found:
    """What a pass has found: files on the target; of these, `later`: left for a later pass, and
    `stuck`: what cannot be taken away."""

    files: int = 0
    later: int = 0
    stuck: int = 0


@dataclass(slots=True)
class Walk:
    """is_resting: whether a file has to rest before it is tried again; under_way: files that are
    being copied; lacking: how many files lack replicas, up to a bound. queue: files to be moved."""

    job: Job
    is_resting: Callable[[Ino], bool]
    under_way: set[Ino]
    receives: Callable[[int], bool]
    lacking: Callable[[Transaction], int]
    has_dropped: Callable[[Ino, Job], None]
    known_epoch: int = 0  # of the cluster map, which all clients must have
    queue: deque[Ino] = field(default_factory=deque)
    mine: set[Ino] = field(default_factory=set)  # in the queue, or being copied
    found: Found = field(default_factory=Found)
    at: int = 0
    seen: int = 0  # inodes in this pass
    is_whole: bool = False  # this pass began at its beginning, when all was ready
    is_at_end: bool = False
    is_over: bool = False  # nothing is left to be found
    rests_until_s: float = 0.0
    began_s: float = 0.0
    lasted_s: float = 0.0  # the last pass
    ready_s: float | None = None  # since when clients know

    def __post_init__(self) -> None:
        self.at = self.job.record.cursor

    @property
    def target(self) -> int:
        return self.job.target

    # ---- one turn ------------------------------------------------------------------------

    def turn(self, tx: Transaction, context: Context) -> bool:
        """Does a bounded part of the work. Returns whether there is more to be done at once."""
        target = context.services.membership.target(self.target)
        if target is None:
            self._end(tx, context)
            return False
        why = self._why_not(target, context)
        if not why and self.rests_until_s > context.now_s:
            return False
        self.job.because = why
        if why:
            return False
        if self.is_over:
            return self._finish(tx, target, context)
        if self.is_at_end:
            return self._end_pass(context)
        return self._step(tx, target, context)

    def _why_not(self, target: Target, context: Context) -> str:
        """Why the walk cannot go on now, and whether it can go on at all."""
        membership = context.services.membership
        if not membership.is_heard(self.target):
            return "its storage server has not come back since the metaserver has started"
        if self.job.kind != DRAIN:
            return ""
        since_s = (context.now_ns - target.risen_ns) / 1e9
        if target.risen_ns and since_s < RESENT_S:
            return "the target lost power a moment ago: clients may send again what it lost"
        if context.services.sessions.map_epoch_min() < self.known_epoch:
            self.ready_s = None
            return "not all clients know yet that the target gets no new files"
        if self.ready_s is None:
            self.ready_s = context.now_s
        return ""

    def _moves(self, context: Context) -> bool:
        """Whether files are moved, and not dropped."""
        return self.job.kind == DRAIN or not context.services.membership.serves_no_more(self.target)

    def _step(self, tx: Transaction, target: Target, context: Context) -> bool:
        if self.at == 0:
            self._begin_pass(context)
        moves = self._moves(context)
        if len(self.queue) >= QUEUE_MAX or (not moves and self.lacking(tx) >= LOOK_AHEAD):
            return False
        left_out: list[bytes] = []
        inodes = tx.readable(inode_key(self.at + 1), all_of(b"I")[1], left_out)
        rows = list(islice(inodes, STEP))
        if left_out:  # they may be on the target, too
            self.found.files += len(left_out)
            self.found.later += len(left_out)
            self.job.has_failed(f"{len(left_out)} records of inodes cannot be read")
        word = _WORD.pack(self.target)
        for key, value in rows:
            self.at = number_of(key)
            self.seen += 1
            inode = Inode.parse(value)
            if not inode.is_file or is_inline(inode.tail) or not _names(inode.tail, word):
                continue
            self.found.files += 1
            if moves:
                self._want(inode.ino)
            else:
                self._drop(tx, inode.ino, inode.layout(), context)
            if len(self.queue) >= QUEUE_MAX:
                return True
        self.is_at_end = len(rows) < STEP
        return True

    def _begin_pass(self, context: Context) -> None:
        self.found, self.seen, self.began_s = Found(), 0, context.now_s
        ready_s = context.now_s if self.ready_s is None else self.ready_s
        self.is_whole = self.job.kind != DRAIN or (
            context.now_s - ready_s >= _BIRTHS_S and not self.receives(self.target)
        )

    def _want(self, ino: Ino) -> None:
        if self.is_resting(ino) or ino in self.under_way or ino in self.mine:
            self.found.later += 1
        else:
            self.queue.append(ino)
            self.mine.add(ino)

    def _drop(self, tx: Transaction, ino: Ino, layout: Layout, context: Context) -> None:
        membership, now_s = context.services.membership, context.now_s
        names = [name_of(layout, one) for one in layout.replicas() if one.target == self.target]
        gone = droppable(layout, names, lambda one: membership.is_answering(one, now_s))
        if not gone and not not_the_last(layout, self.target):
            self.found.stuck += 1
        elif not gone or self._goes_later(layout, context):
            self.found.later += 1
        else:
            remove_replicas(tx, ino, layout, gone)
            self.has_dropped(ino, self.job)

    def _goes_later(self, layout: Layout, context: Context) -> bool:
        """In the first pass, files that have several other replicas wait for those that have one,
        if there can be any with several."""
        is_first = self.job.record.passes == 0
        many = context.services.membership.policy.replicas_max > 2
        return is_first and many and reachable(context, layout, self.target) > 1

    # ---- ends ----------------------------------------------------------------------------

    def _end_pass(self, context: Context) -> bool:
        if self.mine:
            return False
        found, is_whole = self.found, self.is_whole
        left = found.files - found.stuck if self.job.kind != DRAIN else found.files
        is_clean = is_whole and left == 0 and not (self._moves(context) and found.files)
        self.lasted_s = context.now_s - self.began_s
        self.job.changed(passes=self.job.record.passes + 1, cursor=0)
        self.at, self.is_at_end = 0, False
        if is_clean:
            self.is_over = True
        elif found.files == found.later + found.stuck and (is_whole or found.files):
            self.rests_until_s = context.now_s + REST_S
            self.job.because = self.job.last_failure if found.files else ""
        return True

    def _finish(self, tx: Transaction, target: Target, context: Context) -> bool:
        if self.job.kind == DRAIN:
            self._finish_drain(tx, target, context)
            return False
        lacking = self.lacking(tx)
        if lacking:
            self.job.because = context.services.jobs.repair.because
            return False
        if not target.is_lost:
            self._end(tx, context)
        elif self.found.stuck:
            self.job.because = (
                f"{self.found.stuck} files have their only replica there: {ARE_LOST} (braidfs find "
                ":/ --lost), and the target stays in the map until they are removed"
            )
            seconds = max(_LOST_REST_S, 10 * self.lasted_s)
            self.rests_until_s, self.is_over = context.now_s + seconds, False
        else:
            put_removed(tx, target, context.services)
            bump_map_epoch(tx, context.services)
            self._end(tx, context)
        return False

    def _finish_drain(self, tx: Transaction, target: Target, context: Context) -> None:
        """The objects of removed files, and those that have moved, must be deleted by then."""
        left_out: list[bytes] = []
        removed = list(islice(tx.readable(*all_of(b"Z"), left_out), _REMOVALS_MAX + 1))
        word = _WORD.pack(self.target)
        is_named = len(removed) > _REMOVALS_MAX or any(_names(raw, word) for _, raw in removed)
        if left_out or is_named or next(tx.keys(*lone_at(self.target)), None) is not None:
            self.job.because = "objects on the target are still being deleted"
            return
        target.is_drained = True
        put_target(tx, target)
        self._end(tx, context)

    def _end(self, tx: Transaction, context: Context) -> None:
        context.services.jobs.end(self.job, context.now_ns)
        put_job(tx, self.job)

    # ---- what is seen of it --------------------------------------------------------------

    def done(self, ino: Ino) -> None:
        """A file of the queue is done with, for this pass."""
        self.mine.discard(ino)

    def note(self, context: Context, lacking: int) -> None:
        """Writes down how far it has come, and estimates what is left. lacking: files of which it
        has dropped replicas that were not made again yet."""
        cursor = min(self.mine, default=self.at + 1) - 1
        if cursor != self.job.record.cursor:
            self.job.changed(cursor=max(0, cursor))
        record = self.job.record
        left = max(0, context.services.progress.inodes - self.seen)
        share = self.found.files / self.seen if self.seen else 0.0
        self.job.is_estimated = True
        self.job.files_left = len(self.mine) + int(left * share)
        if record.passes:
            self.job.files_left = len(self.mine) + self.found.later
        self.job.files_left += lacking
        target = context.services.membership.target(TargetId(self.target))
        if record.files:
            self.job.bytes_left = self.job.files_left * record.bytes // record.files
        elif target is not None and self.job.kind == DRAIN:
            self.job.bytes_left = target.bytes_total - target.bytes_free


def _names(tail: bytes, word: bytes) -> bool:
    """Whether a packed layout names this packed target."""
    places, _ = packed_places(tail)
    return word in places and any(places[at : at + 4] == word for at in range(0, len(places), 4))
