"""The clock of the metaserver; the engine and the ops are given its times, they read none.

Its seconds do not count while this program did not run: when it was stopped, or its event loop was
held up, nobody could be heard, so silence in that time is nobody's. Everything that is given up
after a while of silence is measured by it: storage servers, sessions, leases that are recalled.
To wait longer than was said is always right: clients and storage servers end by their own clocks
what they must not go on with.
"""

import time
from collections.abc import Callable
from typing import Final

import trio

from fscommon.file_time import file_time_ns
from metaserver.engine import Time

BEAT_S: Final = 0.25
LATE_S: Final = 1.0  # without a beat: what is more did not count


class Clock:
    """Call it for the time; run() beats while the event loop turns."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._beat_s = seconds()
        self._lost_s = 0.0

    def __call__(self) -> Time:
        return Time(file_time_ns(), self._now_s())

    def _now_s(self) -> float:
        now_s = self._seconds()
        late_s = now_s - self._beat_s - LATE_S
        if late_s > 0:
            self._lost_s += late_s
            self._beat_s += late_s
        return now_s - self._lost_s

    def beat(self) -> None:
        self._now_s()
        self._beat_s = self._seconds()

    async def run(self) -> None:
        while True:
            self.beat()
            await trio.sleep(BEAT_S)
