"""Jobs: work on replicas and targets that lasts, and that goes on after a restart or a take-over.

This is what the tasks which do the work, the ops and the metrics share, in memory. `J` records keep
what must survive (metaserver.records.JobRecord); whoever changes a record marks its job as changed,
and metaserver.repair writes the changed ones every few seconds. Pure.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from fscommon.wire.jobs import REPAIR, SCRUB, UNKNOWN_S, JobRow
from metaserver.records import JobRecord

RATE_S: Final = 60.0  # a rate is that of so many seconds
_COUNT_MAX: Final = (1 << 62) - 1
ENDED_MAX: Final = 32  # jobs that have ended are shown, so many of them
REBUILD: Final = "rebuild"
DRAIN: Final = "drain"
_ALWAYS: Final = {REPAIR: "repair", SCRUB: "scrub"}


@dataclass(slots=True)
class Job:
    """because: why it waits; "": it does not. is_idle: there is nothing to be done for a job that
    never ends. files_left, bytes_left: what is left, by an estimate if is_estimated."""

    id: int
    record: JobRecord
    because: str = ""
    is_idle: bool = False
    files_left: int = 0
    bytes_left: int = 0
    is_estimated: bool = False
    last_failure: str = ""
    is_changed: bool = False
    began_s: float | None = None  # when this process saw its first bytes
    _moved: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def kind(self) -> str:
        return self.record.kind

    @property
    def target(self) -> int:
        return self.record.target

    @property
    def has_ended(self) -> bool:
        return self.record.ended_ns != 0

    @property
    def is_paused(self) -> bool:
        return self.record.is_paused

    def changed(self, **fields: int | bool) -> None:
        """Changes the record."""
        self.record = replace(self.record, **fields)  # type: ignore[arg-type]
        self.is_changed = True

    def has_done(self, now_s: float, *, files: int = 0, moved: int = 0) -> None:
        """So many more files, and bytes, are done."""
        self.began_s = now_s if self.began_s is None else self.began_s
        if moved:
            self._moved.append((now_s, moved))
        record = self.record
        self.changed(
            files=min(record.files + files, _COUNT_MAX), bytes=min(record.bytes + moved, _COUNT_MAX)
        )

    def has_failed(self, why: str) -> None:
        self.last_failure = why
        self.changed(files_failed=self.record.files_failed + 1)

    def rate(self, now_s: float) -> float:
        """Bytes a second over the last minute, or since it has begun if that is less."""
        while self._moved and self._moved[0][0] < now_s - RATE_S:
            self._moved.popleft()
        if not self._moved:
            return 0.0
        seconds = min(RATE_S, now_s - (self.began_s or 0.0))
        return sum(moved for _, moved in self._moved) / max(1.0, seconds)

    @property
    def state(self) -> str:
        if self.has_ended or (self.is_idle and not self.is_paused):
            return "done"
        if self.is_paused:
            return "paused"
        return "waiting" if self.because else "running"

    def row(self, now_s: float) -> JobRow:
        record, rate, state = self.record, self.rate(now_s), self.state
        seconds_left = UNKNOWN_S
        if state == "done":
            seconds_left = 0.0
        elif state == "running" and rate > 0 and self.bytes_left:
            seconds_left = self.bytes_left / rate
        return JobRow(
            job=self.id,
            kind=record.kind,
            target=record.target,
            state=state,
            because=self.because if state == "waiting" else "",
            files=record.files,
            bytes=record.bytes,
            files_left=0 if state == "done" else self.files_left,
            bytes_left=0 if state == "done" else self.bytes_left,
            is_estimated=self.is_estimated,
            files_failed=record.files_failed,
            last_failure=self.last_failure,
            rate=rate,
            seconds_left=seconds_left,
            started_ns=record.started_ns,
            ended_ns=record.ended_ns,
        )


class JobTable:
    """files_lacking, files_endangered: as in STATUS."""

    def __init__(self, records: Iterable[tuple[int, JobRecord]] = ()) -> None:
        always = ((number, JobRecord(kind, 0, 0, 0)) for number, kind in _ALWAYS.items())
        self._jobs = {number: Job(number, record) for number, record in always}
        for number, record in records:
            self._jobs[number] = Job(number, record)
        self._forgotten: list[int] = []
        self.files_lacking = 0
        self.files_endangered = 0
        self.is_counted = False  # these two are right

    def __iter__(self) -> Iterator[Job]:
        return iter([job for _, job in sorted(self._jobs.items())])

    def get(self, number: int) -> Job | None:
        return self._jobs.get(number)

    @property
    def repair(self) -> Job:
        return self._jobs[REPAIR]

    @property
    def scrub(self) -> Job:
        return self._jobs[SCRUB]

    def of(self, kind: str, target: int) -> Job | None:
        """Returns the job of this kind for the target that has not ended."""
        mine = (job for job in self if (job.kind, job.target) == (kind, target))
        return next((job for job in mine if not job.has_ended), None)

    def under_way(self, kind: str) -> list[Job]:
        return [job for job in self if job.kind == kind and not job.has_ended]

    def start(self, kind: str, target: int, now_ns: int) -> Job:
        """Returns the job of this kind for the target, a new one if there is none."""
        known = self.of(kind, target)
        if known is not None:
            return known
        number = max(self._jobs) + 1
        job = self._jobs[number] = Job(number, JobRecord(kind, target, 0, now_ns), is_changed=True)
        return job

    def end(self, job: Job, now_ns: int) -> None:
        """The job is done. Of those that have ended, the newest ones stay."""
        job.because = ""
        job.changed(ended_ns=max(1, now_ns))
        ended = [one for one in self if one.has_ended]
        for one in ended[: max(0, len(ended) - ENDED_MAX)]:
            del self._jobs[one.id]
            self._forgotten.append(one.id)

    def take_changed(self) -> tuple[list[Job], list[int]]:
        """Returns the jobs whose records have changed, and the numbers of those that are gone."""
        changed = [job for job in self if job.is_changed]
        for job in changed:
            job.is_changed = False
        forgotten, self._forgotten = self._forgotten, []
        return changed, forgotten

    def rows(self, now_s: float) -> tuple[JobRow, ...]:
        return tuple([job.row(now_s) for job in self])
