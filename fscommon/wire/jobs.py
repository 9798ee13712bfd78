"""Bodies of JOB_LIST, JOB_SET and TARGET_REMOVE: work that the metaserver does in the background on
replicas and targets (docs/decisions/0065-rebuild-and-drain.md).

The kinds of jobs: `repair` makes replicas that files lack, and is always there; `rebuild` drops the
replicas of a target that is lost, so that repair makes others; `drain` moves what a target has to
others; `scrub` is always there, too.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from fscommon.ranges import I64, U64, Many, Message, Text, U64s
from fscommon.wire.ops import Op
from fscommon.wire.scrub import SCRUB_BODIES

REPAIR: Final = 1  # the ids of the jobs that are always there
SCRUB: Final = 2
UNKNOWN_S: Final = -1.0
# In `because` of a rebuild that waits for the removal of files that nobody can read any more.
ARE_LOST: Final = "they are lost"


@dataclass(frozen=True, slots=True)
class JobList:
    """Asks for all jobs, and for the last ones that have ended."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job. target: of which it takes files away; 0: none. state: "running"; "paused";
    "waiting", and `because` says why; "done": it has ended, or has nothing to do. files, bytes:
    done. files_left, bytes_left: left, by an estimate if is_estimated. files_failed:
    tries that came to nothing, of files that are tried again; last_failure: why the last one did.
    rate: bytes per second over the last minute. seconds_left: UNKNOWN_S if nobody knows. ended_ns:
    0 until the job has ended."""

    job: U64
    kind: Text
    target: U64
    state: Text
    because: Message
    files: U64
    bytes: U64
    files_left: U64
    bytes_left: U64
    is_estimated: bool
    files_failed: U64
    last_failure: Message
    rate: float
    seconds_left: float
    started_ns: I64
    ended_ns: I64


@dataclass(frozen=True, slots=True)
class Jobs:
    """In order of their ids."""

    rows: Annotated[tuple[JobRow, ...], Many]


@dataclass(frozen=True, slots=True)
class JobSet:
    """Pauses a job, or lets it go on. Files that are under way are finished in any case."""

    job: U64
    is_paused: bool


@dataclass(frozen=True, slots=True)
class TargetRemove:
    """Takes targets out of the cluster: all of them, or the request fails. Each has been drained,
    and nothing names it any more. is_lost: they are gone, with all that they had: they get the
    state "lost" at once, the replicas that were there are made again, and each target goes when no
    file names it any more."""

    targets: U64s
    is_lost: bool


@dataclass(frozen=True, slots=True)
class TargetRemoved:
    """jobs: of each target that is lost, the job that makes its replicas again."""

    jobs: U64s


JOB_BODIES: Final[dict[Op, tuple[type, type]]] = {
    Op.JOB_LIST: (JobList, Jobs),
    Op.TARGET_REMOVE: (TargetRemove, TargetRemoved),
    **SCRUB_BODIES,
}
