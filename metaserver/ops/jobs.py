"""JOB_LIST, JOB_SET, TARGET_REMOVE: jobs that administrators see, pause and resume, and targets
that leave the cluster (docs/decisions/0065-rebuild-and-drain.md)."""

from itertools import islice
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.layout.layout import unpack_layout
from fscommon.wire.admin import TARGETS_SET_MAX
from fscommon.wire.jobs import JobList, Jobs, JobSet, TargetRemove, TargetRemoved
from fscommon.wire.messages import Empty
from fscommon.wire.ops import Op
from metaserver.context import Context
from metaserver.jobs import DRAIN, REBUILD
from metaserver.membership import Target
from metaserver.ops.cluster import bump_map_epoch, put_job, put_removed, put_target
from metaserver.ops.row import Access, OpRow, always
from metaserver.records import all_of, lone_at
from metaserver.transaction import Transaction

_REMOVALS_MAX: Final = 20_000  # removed files that wait for the reaper, which this looks through


def job_list(tx: Transaction, request: JobList, context: Context) -> Jobs:
    return Jobs(context.services.jobs.rows(context.now_s))


def job_set(tx: Transaction, request: JobSet, context: Context) -> Empty:
    """Answered when durable. Raises ENOENT; EINVAL if the job has ended."""
    context.check_serving()
    job = context.services.jobs.get(request.job)
    if job is None:
        raise FsError(Status.ENOENT, f"there is no job {request.job}")
    if job.has_ended:
        raise FsError(Status.EINVAL, f"job {request.job} has ended")
    if job.is_paused != request.is_paused:
        job.changed(is_paused=request.is_paused)
        put_job(tx, job)
    context.wait_durable = True
    return Empty()


def target_remove(tx: Transaction, request: TargetRemove, context: Context) -> TargetRemoved:
    """Answered when durable. Raises ENOENT, EINVAL; EBUSY while something names a target."""
    context.check_serving()
    services = context.services
    if not 0 < len(request.targets) <= TARGETS_SET_MAX:
        raise FsError(Status.EINVAL, f"name 1 to {TARGETS_SET_MAX} targets")
    chosen: list[Target] = []
    for number in sorted(set(request.targets)):
        known = services.membership.target(number)
        if known is None:
            raise FsError(Status.ENOENT, f"there is no target {number}")
        chosen.append(known)
    jobs = _give_up(tx, chosen, context) if request.is_lost else _remove(tx, chosen, context)
    bump_map_epoch(tx, services)
    services.sessions.outdate_slots()
    context.wait_durable = True
    return TargetRemoved(tuple(jobs))


def _give_up(tx: Transaction, chosen: list[Target], context: Context) -> list[int]:
    """The targets are lost. Returns the jobs that make their replicas again."""
    services = context.services
    services.membership.set_lost([target.id for target in chosen], context.now_s)
    started: list[int] = []
    for target in chosen:
        put_target(tx, target)
        drain = services.jobs.of(DRAIN, target.id)
        if drain is not None:
            services.jobs.end(drain, context.now_ns)
            put_job(tx, drain)
        rebuild = services.jobs.start(REBUILD, target.id, context.now_ns)
        put_job(tx, rebuild)
        started.append(rebuild.id)
    return started


def _remove(tx: Transaction, chosen: list[Target], context: Context) -> list[int]:
    for target in chosen:
        if target.is_lost:
            raise FsError(
                Status.EBUSY, f"target {target.id} is lost: it goes when no file names it any more"
            )
        if not target.is_drained:
            raise FsError(
                Status.EBUSY,
                f"target {target.id} has files, or may get some: drain it first, which moves them",
            )
        _check_unnamed(tx, target)
    for target in chosen:
        put_removed(tx, target, context.services)
    return []


def _check_unnamed(tx: Transaction, target: Target) -> None:
    """Raises EBUSY while objects of removed files are there."""
    found = list(islice(tx.range(*all_of(b"Z")), _REMOVALS_MAX + 1))
    layouts = (unpack_layout(value) for _, value in found)
    is_named = len(found) > _REMOVALS_MAX or any(target.id in one.targets for one in layouts)
    if is_named or next(tx.keys(*lone_at(target.id)), None) is not None:
        raise FsError(
            Status.EBUSY,
            f"objects on target {target.id} are still being deleted: try again in a minute",
        )


ROWS: Final = (
    OpRow(op=Op.JOB_LIST, run=job_list, access=Access.ADMIN),
    OpRow(op=Op.JOB_SET, run=job_set, access=Access.ADMIN, audited=always),
    OpRow(op=Op.TARGET_REMOVE, run=target_remove, access=Access.ADMIN, audited=always),
)
