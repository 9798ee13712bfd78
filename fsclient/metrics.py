"""The client's metrics: filled once a second from what its parts count anyway.

The handlers' latencies are observed as they happen, and only if an endpoint is configured.
"""

import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Final

import trio

from fscommon.errors import ConfigError
from fscommon.native import Datapath
from fscommon.net.address import parse_address
from fscommon.observe.endpoint import HttpCertificate
from fscommon.observe.log import Log, RateLimit
from fscommon.observe.metrics import Counter, Histogram, Metrics, MetricsEndpoint
from fscommon.wire.admin import Traffic

from .data_connections import DataConnections
from .fuse.operations import Operations
from .meta.client import MetaClient

Run = Callable[[MetaClient, DataConnections], Awaitable[None]]
PERIOD_S: Final = 1.0
PATIENT_S: Final = 0.2  # between attempts to listen


class ClientMetrics:
    def __init__(
        self, listen: str, certificate: HttpCertificate | None = None, *, is_patient: bool = False
    ) -> None:
        """is_patient: a killed process may have the address for a while (the kernel may keep a
        thread of it, and all its sockets, until this process answers); run() listens when it is
        free. Raises ConfigError."""
        self.metrics = Metrics("client")
        address = parse_address(listen)
        self._open = partial(MetricsEndpoint, self.metrics, address.host, address.port, certificate)
        self._endpoint: MetricsEndpoint | None = None
        self._is_patient = is_patient
        self._log = Log("metrics")
        self._refusals = RateLimit(60.0)
        self._listen()

    def _listen(self) -> None:
        try:
            self._endpoint = self._open()
        except ConfigError as error:
            if not self._is_patient:
                raise _with_remedy(error) from error.__cause__
            if self._refusals.permit() is not None:
                self._log.warning("no metrics yet", error=error)

    def watch(self, operations: Operations) -> None:
        """Counts and times every handler."""
        metrics = self.metrics
        made: dict[str, tuple[Counter, Histogram]] = {}  # by handler: searching them costs too much

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

    @contextmanager
    def watching(self, operations: Operations, datapath: Datapath) -> Iterator["Run"]:
        """Counts what these do until the end of the block, while run() runs."""
        self.watch(operations)
        self.metrics.collect_native(datapath.mounting.counters)
        with closing(self):
            yield self.run

    async def run(self, meta: MetaClient, data: DataConnections) -> None:
        """Runs until cancelled."""
        self.metrics.up(True)
        held = self.metrics.gauge("braidfs_mutations_held")
        told_meta = told_data = 0
        while True:
            if self._endpoint is None:
                self._listen()
            held.set(len(meta.core.journal))
            self._reconnects("metaserver", meta.connection_count - told_meta)
            self._reconnects("storageserver", data.made_count - told_data)
            told_meta, told_data = meta.connection_count, data.made_count
            await trio.sleep(PERIOD_S if self._endpoint is not None else PATIENT_S)

    def close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.stop()

    def _reconnects(self, server: str, count: int) -> None:
        if count:
            self.metrics.counter("braidfs_reconnects_total", server=server).inc(count)


def _with_remedy(error: ConfigError) -> ConfigError:
    """Mounts of a host share a file, but not an address."""
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return error
    return ConfigError(f"{error}: give a second mount its own file, by -o config=FILE")


async def run_without_metrics(meta: MetaClient, data: DataConnections) -> None:
    """Takes the place of ClientMetrics.run when there are no metrics."""


def traffic_of(datapath: Datapath) -> Traffic:
    counters = datapath.mounting.counters()
    return Traffic(
        read_bytes=counters.get("bytes_read", 0),
        written_bytes=counters.get("bytes_written", 0),
        reads=counters.get("reads", 0),
        writes=counters.get("writes", 0),
    )
