"""The clock of the metaserver's tasks; the engine and the ops are given times, they read none."""

import time

from metaserver.engine import Time


def now() -> Time:
    return Time(time.time_ns(), time.monotonic())
