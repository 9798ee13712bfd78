"""Turns native code's events into logs and metrics: its log lines, closed connections, corrupt
blocks.
"""

import logging
from typing import Final

import trio

from fscommon.native import Event, EventKind, reap
from fscommon.native_ports import ChunkServer
from fscommon.observe.log import Log
from fscommon.observe.metrics import Metrics
from storageserver.damage import Damage

BATCH_MAX: Final = 256


class NativeEvents:
    """Handles native events: run() in one task; drain() once more after native code has stopped."""

    def __init__(self, native: ChunkServer, damage: Damage, log: Log, metrics: Metrics) -> None:
        self._native = native
        self._damage = damage
        self._log = log
        self._metrics = metrics

    async def run(self) -> None:
        fd = self._native.events_fd()
        while True:
            await trio.lowlevel.wait_readable(fd)
            self.drain()

    def drain(self) -> None:
        while True:
            batch = reap(self._native, BATCH_MAX)
            for event in batch:
                self._handle(event)
            if len(batch) < BATCH_MAX:
                return

    def _handle(self, event: Event) -> None:
        if event.kind == EventKind.LOG:
            self._native_line(event)
        elif event.kind == EventKind.CLOSED:
            self._log.debug("connection closed", session=event.a, connection=event.b)
        elif event.kind == EventKind.CORRUPT:
            self._corrupt(event)
        else:
            self._log.error("unknown native event", kind=event.kind)

    def _native_line(self, event: Event) -> None:
        level = logging.getLevelName(event.a).lower()
        self._metrics.counter("braidfs_log_events_total", level=level).inc()
        self._log.at(event.a, event.payload.decode("utf-8", "backslashreplace"))

    def _corrupt(self, event: Event) -> None:
        self._metrics.counter("braidfs_corrupt_blocks_total", target=event.token).inc()
        self._damage.met(event.token, event.ino, event.a)
        self._log.error(
            "block fails its checksum: readers get EIO, unless another replica has it",
            target=event.token,
            file_id=event.ino,
            stripe_index=event.a,
            offset=event.b,
        )
