"""Jobs of the metaserver as people and JSON have them: what is done, what is left, why one waits.
Pure."""

from collections.abc import Iterable
from typing import Any, Final

from fscommon.observe.words import duration, size
from fscommon.wire.jobs import ARE_LOST, UNKNOWN_S, JobRow

ENDED: Final = "done"
_WORDS: Final = {
    "repair": "replicas that files lack are made",
    "scrub": "what lies on targets is checked",
}


def job_json(row: JobRow) -> dict[str, Any]:
    share = share_done(row)
    return {
        "job": row.job,
        "kind": row.kind,
        "target": row.target or None,
        "state": row.state,
        "because": row.because or None,
        "files": row.files,
        "bytes": row.bytes,
        "files_left": row.files_left,
        "bytes_left": row.bytes_left,
        "estimated": row.is_estimated,
        "share_done": None if share is None else round(share, 4),
        "files_failed": row.files_failed,
        "last_failure": row.last_failure or None,
        "bytes_per_s": round(row.rate, 1),
        "seconds_left": None if row.seconds_left == UNKNOWN_S else round(row.seconds_left, 1),
        "started_ns": row.started_ns or None,
        "ended_ns": row.ended_ns or None,
        "at_work": is_at_work(row),
        "sentence": job_sentence(row),
    }


def share_done(row: JobRow) -> float | None:
    """What part of the job is done; None: nobody knows, or it has no end."""
    if row.state == ENDED:
        return 1.0
    for done, left in ((row.bytes, row.bytes_left), (row.files, row.files_left)):
        if done + left:
            return done / (done + left)
    return None


def is_idle(row: JobRow) -> bool:
    """Whether a job that never ends has nothing to do."""
    return row.state == ENDED and not row.ended_ns


def is_at_work(row: JobRow) -> bool:
    """Whether it has something to do, or is kept from it."""
    if row.state == ENDED:
        return False
    return row.state != "running" or bool(row.files_left or row.bytes_left) or row.target != 0


def has_lost_files(row: JobRow) -> bool:
    """Whether all that can be made again was, and files are left that nobody can read."""
    return row.kind == "rebuild" and row.state == "waiting" and ARE_LOST in row.because


def job_of(rows: Iterable[JobRow], kind: str, target: int) -> JobRow | None:
    """The newest job of this kind with this target."""
    found = [row for row in rows if row.kind == kind and row.target == target]
    return max(found, key=lambda row: row.job, default=None)


def job_what(row: JobRow) -> str:
    """Half a sentence: what the job does."""
    if row.kind == "drain":
        return f"what target {row.target} has is moved to others"
    if row.kind == "rebuild":
        return f"what target {row.target} had is made again from other replicas"
    return _WORDS.get(row.kind, row.kind)


def job_sentence(row: JobRow) -> str:
    """What the job does, how far it is, and when it will be done."""
    said = f"{job_what(row)}: {job_progress(row)}"
    return said[:1].upper() + said[1:]


def job_progress(row: JobRow) -> str:
    if is_idle(row):
        return "there is nothing to do"
    if row.state == ENDED:
        return f"done, {_files(row.files)} and {size(row.bytes)}"
    said = f"{_files(row.files_left)} and {size(row.bytes_left)} are left"
    if row.is_estimated:
        said = f"about {said}"
    share = share_done(row)
    if share is not None and row.target:
        said = f"{share:.0%} is done, {said}"
    if row.state == "paused":
        return f"it is paused, {said}"
    if row.state == "waiting":
        return f"it waits ({row.because}), {said}"
    if row.rate > 0:
        said += f", {size(row.rate)}/s"
    if row.seconds_left != UNKNOWN_S:
        said += f", {duration(row.seconds_left)} to go"
    return said


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"
