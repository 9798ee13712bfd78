"""What a metaserver that is one of several shows to Prometheus, whichever role it has."""

from typing import Final

from fscommon.observe.metrics import Metrics
from metaserver.group_status import GroupView
from metaserver.job_metrics import OF_JOBS
from metaserver.standby import Standby

# Only an active metaserver keeps these gauges up to date; a standby shows none of them.
_OF_ACTIVE: Final = (
    "braidfs_connections",
    "braidfs_files_by_directory",
    "braidfs_inodes",
    "braidfs_journal_engine_bytes",
    "braidfs_journal_engine_bytes_max",
    "braidfs_journal_engine_reachable",
    "braidfs_leases",
    "braidfs_leases_recalled",
    "braidfs_metaserver_standbys",
    "braidfs_reaper_queue",
    "braidfs_requests_waiting",
    "braidfs_sessions",
    "braidfs_store_bytes",
    "braidfs_store_bytes_used",
    "braidfs_targets",
    "braidfs_transaction",
    "braidfs_transaction_durable",
    "braidfs_trash_inodes",
    *OF_JOBS,
)


def show_active(metrics: Metrics, view: GroupView) -> None:
    head = view.head
    metrics.gauge("braidfs_metaserver_active").set(1)
    metrics.gauge("braidfs_metaserver_standbys").set(view.standbys())
    metrics.gauge("braidfs_journal_term").set(head.term)
    metrics.gauge("braidfs_journal_index").set(head.index)
    metrics.gauge("braidfs_journal_applied").set(head.index)
    metrics.gauge("braidfs_journal_silence_seconds").set(view.silence_s)
    for server in view.servers:
        labels = {"endpoint": server.endpoint}
        metrics.gauge("braidfs_journal_engine_reachable", **labels).set(server.is_reachable)
        if server.is_reachable:
            metrics.gauge("braidfs_journal_engine_bytes", **labels).set(server.bytes_used)
            metrics.gauge("braidfs_journal_engine_bytes_max", **labels).set(server.bytes_max)


def show_standby(metrics: Metrics, standby: Standby, now_s: float) -> None:
    metrics.gauge("braidfs_metaserver_active").set(0)
    metrics.gauge("braidfs_journal_applied").set(standby.applied)
    metrics.gauge("braidfs_journal_silence_seconds").set(max(0.0, now_s - standby.asked_s))
    if standby.seen is not None:
        metrics.gauge("braidfs_journal_term").set(standby.seen.head.term)
        metrics.gauge("braidfs_journal_index").set(standby.seen.head.index)


def forget_active(metrics: Metrics) -> None:
    """This metaserver is not active any more."""
    metrics.forget(*_OF_ACTIVE)
