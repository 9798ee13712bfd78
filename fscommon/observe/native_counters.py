"""Metrics from the counters of native code, by one table; read with each scrape.

Native code counts under names of its own, the same in every lane (`Datapath.counters`,
`StorageServer.counters`). `ROWS` says which metric each one is; a counter that is not in ROWS is a
value of `braidfs_native`. Times come as `seconds/OP/BOUND`: the number of requests that took at
most so many microseconds, and more than the bound before; `seconds/OP/sum` is the sum in
microseconds. Pure; fscommon.observe.metrics shows it.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Row(NamedTuple):
    metric: str
    labels: dict[str, str] = {}  # noqa: RUF012 - nobody writes to it


def _op(name: str) -> Row:
    return Row("braidfs_data_requests_total", {"op": name})


def _moved(direction: str) -> Row:
    return Row("braidfs_data_bytes_total", {"direction": direction})


ROWS: Final[Mapping[str, Row]] = {
    "reads": _op("READ"),
    "writes": _op("WRITE"),
    "syncs": _op("SYNC"),
    "truncates": _op("TRUNCATE"),
    "punches": _op("PUNCH"),
    "stats": _op("STAT"),
    "deletes": _op("DELETE"),
    "deletes_all": _op("DELETE_ALL"),
    "deleted_objects": Row("braidfs_objects_deleted_total"),
    "fetches": _op("FETCH"),
    "epoch_raises": _op("RAISE_EPOCH"),
    "name_drops": _op("DROP_NAMES"),
    "fetched_bytes": Row("braidfs_fetched_ahead_bytes_total"),
    "fetched_used": Row("braidfs_fetched_ahead_objects_total", {"outcome": "used"}),
    "fetched_unused": Row("braidfs_fetched_ahead_objects_total", {"outcome": "unused"}),
    "seeks": _op("SEEK"),
    "copies": _op("COPY"),
    "read_bytes": _moved("read"),
    "bytes_read": _moved("read"),
    "written_bytes": _moved("written"),
    "bytes_written": _moved("written"),
    "copied_bytes": _moved("copied"),
    "in_flight": Row("braidfs_data_requests_in_flight"),
    "connections": Row("braidfs_data_connections"),
    "bytes_dirty": Row("braidfs_dirty_bytes"),
    "bytes_held": Row("braidfs_held_bytes"),
    "upcalls_waiting": Row("braidfs_upcalls_waiting"),
    "handles": Row("braidfs_open_handles"),
    "cache_bytes": Row("braidfs_cache_bytes"),
    "cache_hits": Row("braidfs_cache_lookups_total", {"outcome": "hit"}),
    "cache_misses": Row("braidfs_cache_lookups_total", {"outcome": "miss"}),
}
_LATENCY: Final = "seconds/"
DATA_SECONDS: Final = "braidfs_data_request_seconds"
_ANSWERED: Final = "braidfs_kernel_requests_total"
_TRANSPORT: Final = "braidfs_transport_bytes_total"
_RDMA: Final = ("rdma_bytes_written", "rdma_bytes_fetched", "rdma_bytes_short")
_NATIVE: Final = "braidfs_native"
Samples = dict[str, list[tuple[dict[str, str], float]]]


class Latency(NamedTuple):
    """Latencies of one op. buckets: upper bounds in seconds, and how many requests took no longer;
    the last one is +Inf."""

    buckets: list[tuple[str, float]]
    sum_s: float


class NativeReader:
    """One program's counters as metrics, which never decrease."""

    def __init__(self) -> None:
        self._by_tcp = 0  # as last shown

    def samples(self, counters: Mapping[str, int]) -> Samples:
        """By metric: the values, and the labels of each."""
        found: Samples = {}
        for counter, value in sorted(counters.items()):
            if counter.startswith(_LATENCY):
                continue
            row = ROWS.get(counter) or Row(_NATIVE, {"counter": counter})
            found.setdefault(row.metric, []).append((row.labels, value))
        if "fuse_answers" in counters:
            found[_ANSWERED] = _answered(counters)
        elif "read_bytes" in counters:
            found[_TRANSPORT] = self._transports(counters)
        return found

    def _transports(self, counters: Mapping[str, int]) -> list[tuple[dict[str, str], float]]:
        """For a storage server. Bytes that did not go over RDMA went over TCP, with or without TLS,
        or over a local socket."""
        by_rdma = sum(counters.get(name, 0) for name in _RDMA)
        moved = counters["read_bytes"] + counters.get("written_bytes", 0)
        self._by_tcp = max(self._by_tcp, moved - by_rdma)
        return [({"transport": "rdma"}, by_rdma), ({"transport": "tcp"}, self._by_tcp)]


def _answered(counters: Mapping[str, int]) -> list[tuple[dict[str, str], float]]:
    by_python = counters.get("upcalls_answered", 0)
    by_tables = max(counters["fuse_answers"] - by_python, 0)
    return [({"by": "native"}, by_tables), ({"by": "python"}, by_python)]


def latencies(counters: Mapping[str, int]) -> dict[str, Latency]:
    """Latencies by op."""
    by_op: dict[str, dict[str, int]] = {}
    for counter, value in counters.items():
        if counter.startswith(_LATENCY):
            _, op, bound = counter.split("/")
            by_op.setdefault(op, {})[bound] = value
    return {op: Latency(_buckets(spans), spans["sum"] / 1e6) for op, spans in by_op.items()}


def _buckets(spans: Mapping[str, int]) -> list[tuple[str, float]]:
    bounds = sorted(int(bound) for bound in spans if bound.isdigit())
    buckets, total = [], 0
    for bound in bounds:
        total += spans[str(bound)]
        buckets.append((f"{bound / 1e6:g}", float(total)))
    return [*buckets, ("+Inf", float(total + spans["more"]))]
