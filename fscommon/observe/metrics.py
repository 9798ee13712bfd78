"""Metrics: the one table of their names, and the door to prometheus-client.

A program makes one Metrics and gives it to its parts; nothing is registered globally. Counters and
gauges are ANY THREAD. Native counters are not copied: a scrape reads them from native code. The
endpoint is prometheus-client's own HTTP thread, off unless configured.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from fscommon.observe.endpoint import CONNECTION_SECONDS_MAX, HttpCertificate, HttpEndpoint
from fscommon.observe.native_counters import DATA_SECONDS, NativeReader, latencies

__all__ = [
    "COUNTS",
    "LATENCY_S",
    "TABLE",
    "Counter",
    "Gauge",
    "Histogram",
    "Kind",
    "Metric",
    "Metrics",
    "MetricsEndpoint",
]


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. `buckets` are those of a histogram, in the unit of the name."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


LATENCY_S: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    5,
    30,
)
DATA_S: Final = (
    0.000025,
    0.00005,
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.5,
    1,
    10,
)
COUNTS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

TABLE: Final[tuple[Metric, ...]] = (
    # every program
    Metric("braidfs_up", _G, "1 while the program serves", ("program",)),
    Metric("braidfs_native", _G, "Other counters of the native data path", ("counter",)),
    Metric("braidfs_log_events_total", _C, "Log lines of the native data path", ("level",)),
    Metric(
        "braidfs_certificate_expiry_timestamp_seconds",
        _G,
        "Unix time when the certificate of a server with TLS ends",
    ),
    # metadata requests, at the metaserver
    Metric("braidfs_requests_total", _C, "Metadata requests answered", ("op", "status")),
    Metric("braidfs_request_seconds", _H, "Time to answer a metadata request", ("op",), LATENCY_S),
    Metric("braidfs_connections", _G, "Authenticated connections", ("purpose",)),
    # metaserver
    Metric("braidfs_commits_total", _C, "Batches committed to the store"),
    Metric("braidfs_commit_seconds", _H, "Time of a commit to the store", (), LATENCY_S),
    Metric("braidfs_commit_transactions", _H, "Transactions in a commit", (), COUNTS),
    Metric("braidfs_transaction", _G, "Number of the last transaction applied"),
    Metric("braidfs_transaction_durable", _G, "Number of the last durable transaction"),
    Metric("braidfs_sessions", _G, "Live sessions of clients"),
    Metric("braidfs_sessions_evicted_total", _C, "Sessions that expired and were fenced"),
    Metric("braidfs_leases", _G, "Leases held by clients"),
    Metric("braidfs_files_by_directory", _G, "Files that clients hold by their directories"),
    Metric("braidfs_leases_recalled", _G, "Recalls that clients have not answered yet"),
    Metric("braidfs_lease_recalls_total", _C, "Recalls that ended, by outcome", ("outcome",)),
    Metric("braidfs_lease_recall_seconds", _H, "From a recall to its end", (), LATENCY_S),
    Metric("braidfs_requests_waiting", _G, "Requests that wait for leases of other clients"),
    Metric("braidfs_replays_total", _C, "Mutations replayed by clients", ("outcome",)),
    Metric("braidfs_reaped_total", _C, "Objects and orphans removed by the reaper", ("kind",)),
    Metric("braidfs_reaper_queue", _G, "Removals that wait for the reaper"),
    Metric("braidfs_inodes", _G, "Inodes in the namespace"),
    Metric("braidfs_store_bytes_used", _G, "Bytes that the metadata store's records take"),
    Metric(
        "braidfs_store_bytes",
        _G,
        "Bytes that these records may take, by store_size_max and the disk",
    ),
    Metric("braidfs_trash_inodes", _G, "Inodes in the trash, which braidfs_inodes counts too"),
    Metric("braidfs_trash_total", _C, "Names that went to the trash or left it", ("outcome",)),
    Metric("braidfs_targets", _G, "Targets in the cluster map", ("state",)),
    Metric(
        "braidfs_files_lacking_replicas", _G, "Files that have fewer replicas than they are to have"
    ),
    Metric(
        "braidfs_files_with_one_replica_left",
        _G,
        "Of these, files of which a stripe has one replica left",
    ),
    Metric("braidfs_jobs", _G, "Jobs that have something to do, by state", ("kind", "state")),
    Metric("braidfs_job_bytes_left", _G, "Bytes that jobs still have to copy", ("kind",)),
    Metric(
        "braidfs_job_bytes_per_second",
        _G,
        "Bytes a second that jobs have copied in the last minute",
        ("kind",),
    ),
    Metric(
        "braidfs_job_files_failed",
        _G,
        "Tries of jobs that came to nothing, and are repeated",
        ("kind",),
    ),
    # metaserver that is one of several
    Metric("braidfs_metaserver_active", _G, "1 while it is active, 0 while it stands by"),
    Metric("braidfs_metaserver_standbys", _G, "Standbys that could take over, at the active one"),
    Metric("braidfs_take_overs_total", _C, "How often this metaserver has become active"),
    Metric("braidfs_journal_term", _G, "Term of the journal, which each take-over raises"),
    Metric("braidfs_journal_index", _G, "Index of the newest entry of the journal"),
    Metric("braidfs_journal_applied", _G, "Index of the newest entry that the own store has"),
    Metric("braidfs_journal_silence_seconds", _G, "Since the journal has last answered"),
    Metric(
        "braidfs_journal_append_seconds",
        _H,
        "From the first attempt of an append until its outcome is known",
        (),
        LATENCY_S,
    ),
    Metric(
        "braidfs_journal_engine_reachable",
        _G,
        "1 if the active metaserver reaches this server of the journal's engine",
        ("endpoint",),
    ),
    Metric(
        "braidfs_journal_engine_bytes",
        _G,
        "Size of the store of a server of the journal's engine",
        ("endpoint",),
    ),
    Metric(
        "braidfs_journal_engine_bytes_max",
        _G,
        "Size at which that server refuses changes; 0: it has no such bound",
        ("endpoint",),
    ),
    # storage server
    Metric("braidfs_targets_unserved", _G, "Configured targets that could not be opened"),
    Metric("braidfs_target_bytes", _G, "Size of a target", ("target",)),
    Metric("braidfs_target_bytes_free", _G, "Free bytes of a target", ("target",)),
    Metric(
        "braidfs_target_files",
        _G,
        "Inodes of the file system of a target; 0: only bytes limit them",
        ("target",),
    ),
    Metric("braidfs_target_files_free", _G, "Inodes left for objects of a target", ("target",)),
    Metric("braidfs_target_objects", _G, "Objects on a target", ("target",)),
    Metric("braidfs_target_errors", _G, "I/O and checksum errors of a target", ("target",)),
    Metric("braidfs_corrupt_blocks_total", _C, "Blocks that failed their checksum", ("target",)),
    Metric("braidfs_scrubbed_bytes_total", _C, "Bytes that scrubs have read", ("target",)),
    Metric(
        "braidfs_scrub_damaged_blocks_total", _C, "Damaged blocks that scrubs found", ("target",)
    ),
    Metric(
        "braidfs_mended_blocks_total", _C, "Damaged blocks that were mended in place", ("target",)
    ),
    Metric(
        "braidfs_records_renewed_total",
        _C,
        "Damaged record pages that were written again from memory",
        ("target",),
    ),
    Metric("braidfs_heartbeats_total", _C, "Heartbeats to the metaserver", ("outcome",)),
    Metric(
        "braidfs_target_device_written_bytes_total",
        _C,
        "Bytes written to a target's device since the host started, by any program",
        ("target",),
    ),
    Metric("braidfs_data_request_seconds", _H, "Time of a data request", ("op",), DATA_S),
    Metric("braidfs_data_requests_in_flight", _G, "Data requests that are being served"),
    Metric("braidfs_data_connections", _G, "Connections for data"),
    Metric("braidfs_scrub_files_total", _C, "Files that were scrubbed"),
    Metric(
        "braidfs_scrub_findings_total",
        _C,
        "Objects of which a scrub found damage",
        ("outcome", "what"),
    ),
    Metric("braidfs_scrub_damage_left", _G, "Objects with damage that nothing has mended"),
    Metric(
        "braidfs_scrub_pass_age", _G, "Time since the last whole scrub, as a part of scrub_days"
    ),
    Metric("braidfs_objects_deleted_total", _C, "Objects that the metaserver had deleted"),
    Metric(
        "braidfs_fetched_ahead_bytes_total",
        _C,
        "Bytes read into the page cache before a client asked",
    ),
    Metric(
        "braidfs_fetched_ahead_objects_total",
        _C,
        "Objects read before a client asked: used by one afterwards, or not",
        ("outcome",),
    ),
    Metric(
        "braidfs_transport_bytes_total",
        _C,
        "File bytes moved, by transport (tcp includes local sockets)",
        ("transport",),
    ),
    # storage server and client
    Metric(
        "braidfs_data_requests_total", _C, "Data requests; at a client: those of programs", ("op",)
    ),
    Metric(
        "braidfs_data_bytes_total",
        _C,
        "File bytes moved; at a client: for programs",
        ("direction",),
    ),
    # client
    Metric(
        "braidfs_kernel_requests_total", _C, "Requests of the kernel, by what answered", ("by",)
    ),
    Metric("braidfs_upcalls_waiting", _G, "Requests of the kernel that Python has not answered"),
    Metric("braidfs_dirty_bytes", _G, "Written bytes that are not at the servers yet"),
    Metric("braidfs_held_bytes", _G, "Written bytes kept until they are durable"),
    Metric("braidfs_open_handles", _G, "Open files"),
    Metric("braidfs_cache_bytes", _G, "Bytes in the local cache"),
    Metric("braidfs_cache_lookups_total", _C, "Pieces looked up in the local cache", ("outcome",)),
    Metric("braidfs_upcalls_total", _C, "Requests of the kernel answered in Python", ("op",)),
    Metric("braidfs_upcall_seconds", _H, "Time of a Python handler", ("op",), LATENCY_S),
    Metric("braidfs_upcall_failures_total", _C, "Handlers that ended with a bug", ("op",)),
    Metric("braidfs_reconnects_total", _C, "Connections made again after a failure", ("server",)),
    Metric("braidfs_mutations_held", _G, "Mutations kept until they are durable"),
)


class Metrics:
    """The metrics of one program. A name that is not in the table is a KeyError."""

    def __init__(self, program: str) -> None:
        self.registry = CollectorRegistry()
        self._made: dict[str, Counter | Gauge | Histogram] = {}
        self._rows = {row.name: row for row in TABLE}
        self.gauge("braidfs_up", program=program).set(0)
        self._program = program

    def up(self, serving: bool) -> None:
        self.gauge("braidfs_up", program=self._program).set(int(serving))

    def counter(self, name: str, **labels: object) -> Counter:
        made = self._metric(name, Kind.COUNTER)
        assert isinstance(made, Counter)
        return made.labels(**labels) if labels else made

    def gauge(self, name: str, **labels: object) -> Gauge:
        made = self._metric(name, Kind.GAUGE)
        assert isinstance(made, Gauge)
        return made.labels(**labels) if labels else made

    def histogram(self, name: str, **labels: object) -> Histogram:
        made = self._metric(name, Kind.HISTOGRAM)
        assert isinstance(made, Histogram)
        return made.labels(**labels) if labels else made

    def forget(self, *names: str) -> None:
        """Shows these no more, until they are set again."""
        for name in names:
            made = self._made.pop(name, None)
            if made is not None:
                self.registry.unregister(made)

    def collect_native(self, counters: Callable[[], Mapping[str, int]]) -> None:
        """Shows what counters() returns at the time of each scrape."""
        self.registry.register(_NativeCollector(counters, self._rows))

    def _metric(self, name: str, kind: Kind) -> Counter | Gauge | Histogram:
        row = self._rows[name]
        if row.kind is not kind:
            raise KeyError(f"{name} is a {row.kind.value}")
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._make(row)
        return made

    def _make(self, row: Metric) -> Counter | Gauge | Histogram:
        if row.kind is Kind.COUNTER:
            return Counter(row.name, row.help, row.labels, registry=self.registry)
        if row.kind is Kind.GAUGE:
            return Gauge(row.name, row.help, row.labels, registry=self.registry)
        return Histogram(
            row.name, row.help, row.labels, buckets=row.buckets, registry=self.registry
        )


class _NativeCollector(Collector):
    def __init__(
        self, counters: Callable[[], Mapping[str, int]], rows: Mapping[str, Metric]
    ) -> None:
        self._counters = counters
        self._rows = rows
        self._reader = NativeReader()

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterator[Family]:
        counters = self._counters()
        for name, samples in self._reader.samples(counters).items():
            row = self._rows[name]
            make = CounterMetricFamily if row.kind is Kind.COUNTER else GaugeMetricFamily
            family = make(name.removesuffix("_total"), row.help, labels=row.labels)
            for labels, value in samples:
                family.add_metric([labels[label] for label in row.labels], value)
            yield family
        times = latencies(counters)
        if times:
            row = self._rows[DATA_SECONDS]
            histogram = HistogramMetricFamily(row.name, row.help, labels=row.labels)
            for op, latency in sorted(times.items()):
                histogram.add_metric([op], latency.buckets, sum_value=latency.sum_s)
            yield histogram


class MetricsEndpoint(HttpEndpoint):
    """The endpoint that Prometheus scrapes."""

    def __init__(
        self, metrics: Metrics, host: str, port: int, certificate: HttpCertificate | None = None
    ) -> None:
        handler = MetricsHandler.factory(metrics.registry)
        bounded = type("Handler", (handler,), {"timeout": CONNECTION_SECONDS_MAX})
        super().__init__("metrics_listen", host, port, bounded, certificate)
