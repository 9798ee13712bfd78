"""What jobs on replicas and targets show to Prometheus."""

from collections import Counter
from typing import Final

from fscommon.observe.jobs import ENDED
from fscommon.observe.metrics import Metrics
from metaserver.jobs import JobTable

# Only an active metaserver keeps these gauges up to date.
OF_JOBS: Final = (
    "braidfs_files_lacking_replicas",
    "braidfs_files_with_one_replica_left",
    "braidfs_job_bytes_left",
    "braidfs_job_bytes_per_second",
    "braidfs_job_files_failed",
    "braidfs_jobs",
)
_KINDS: Final = ("repair", "rebuild", "drain", "scrub")
_STATES: Final = ("running", "waiting", "paused")


def show_jobs(metrics: Metrics, jobs: JobTable, now_s: float) -> None:
    metrics.gauge("braidfs_files_lacking_replicas").set(jobs.files_lacking)
    metrics.gauge("braidfs_files_with_one_replica_left").set(jobs.files_endangered)
    rows = [row for row in jobs.rows(now_s) if row.state != ENDED]
    counts = Counter((row.kind, row.state) for row in rows)
    for kind in _KINDS:
        for state in _STATES:
            metrics.gauge("braidfs_jobs", kind=kind, state=state).set(counts[kind, state])
        mine = [row for row in rows if row.kind == kind]
        left, failed = sum(row.bytes_left for row in mine), sum(row.files_failed for row in mine)
        metrics.gauge("braidfs_job_bytes_left", kind=kind).set(left)
        metrics.gauge("braidfs_job_bytes_per_second", kind=kind).set(sum(r.rate for r in mine))
        metrics.gauge("braidfs_job_files_failed", kind=kind).set(failed)
