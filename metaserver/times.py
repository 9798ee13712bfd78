"""The clock of the metaserver. The engine and the ops get its times, and read no other clock.

Its seconds do not count while this program did not run. When the program was stopped, or its event
loop was blocked, it could hear nobody, so silence during that time means nothing. All timeouts of
silence use this clock: storage servers, sessions, and leases that are recalled. To wait longer than
promised is always safe: clients and storage servers use their own clocks to stop what they must not
go on with.
"""

import time
from collections.abc import Callable
from typing import Final

import trio

from fscommon.file_time import file_time_ns
from metaserver.engine import Time

BEAT_S: Final = 0.25
LATE_S: Final = 1.0  # time beyond this without a beat does not count


class Clock:
    """Call it for the time. run() beats as long as the event loop runs and may_answer() holds: who
    answers nobody has no connections, and hears nobody either."""

    def __init__(
        self,
        seconds: Callable[[], float] = time.monotonic,
        may_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        self._may_answer = may_answer
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
            if self._may_answer():
                self.beat()
            await trio.sleep(BEAT_S)
