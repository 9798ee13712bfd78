"""The client's metrics: filled from what its parts count anyway, once a second.

The handlers' latencies are observed as they happen, and only when an endpoint is configured.
"""

import trio

from fscommon.native import Datapath
from fscommon.net.address import parse_address
from fscommon.observe.endpoint import HttpCertificate
from fscommon.observe.metrics import Counter, Histogram, Metrics, MetricsEndpoint
from fscommon.wire.admin import Traffic

from .data_connections import DataConnections
from .fuse.operations import Operations
from .meta.client import MetaClient

PERIOD_S = 1.0


class ClientMetrics:
    def __init__(self, listen: str, certificate: HttpCertificate | None = None) -> None:
        """Raises ConfigError."""
        self.metrics = Metrics("client")
        address = parse_address(listen)
        self._endpoint = MetricsEndpoint(self.metrics, address.host, address.port, certificate)

    def watch(self, operations: Operations) -> None:
        """Count and time every handler."""
        metrics = self.metrics
        made: dict[str, tuple[Counter, Histogram]] = {}  # by handler: finding them costs as much

        def observe(handler: str, seconds: float, failed: bool) -> None:
            count, latency = made.get(handler) or made.setdefault(
                handler,
                (
                    metrics.counter("braidfs_upcalls_total", op=handler),
                    metrics.histogram("braidfs_upcall_seconds", op=handler),
                ),
            )
            count.inc()
            latency.observe(seconds)
            if failed:
                metrics.counter("braidfs_upcall_failures_total", op=handler).inc()

        operations.observe = observe

    async def run(self, meta: MetaClient, data: DataConnections) -> None:
        """Until cancelled."""
        self.metrics.up(True)
        held = self.metrics.gauge("braidfs_mutations_held")
        told_meta = told_data = 0
        while True:
            held.set(len(meta.core.journal))
            self._reconnects("metaserver", meta.connection_count - told_meta)
            self._reconnects("storageserver", data.made_count - told_data)
            told_meta, told_data = meta.connection_count, data.made_count
            await trio.sleep(PERIOD_S)

    def stop(self) -> None:
        self._endpoint.stop()

    def _reconnects(self, server: str, count: int) -> None:
        if count:
            self.metrics.counter("braidfs_reconnects_total", server=server).inc(count)


def traffic_of(datapath: Datapath) -> Traffic:
    counters = datapath.counters()
    return Traffic(
        read_bytes=counters.get("bytes_read", 0),
        written_bytes=counters.get("bytes_written", 0),
        reads=counters.get("reads", 0),
        writes=counters.get("writes", 0),
    )
