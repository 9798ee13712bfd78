"""The clock of the metaserver's tasks; the engine and the ops are given times, they read none."""

import time

from fscommon.file_time import file_time_ns
from metaserver.engine import Time


def now() -> Time:
    return Time(file_time_ns(), time.monotonic())
