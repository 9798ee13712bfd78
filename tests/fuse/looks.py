"""How tests observe what a client did: through another mount, and by the counters of its lanes."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.numbers import native_counters


def seen_from(other: Path, cluster: Cluster, path: Path) -> Path:
    """The path on another mount of a path below the cluster's mount."""
    return other / path.relative_to(cluster.mount_path)


def may_read(path: Path, uid: int) -> bool:
    """Whether a process of that user can read the file, or is refused."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setuid(uid)
            path.read_bytes()
            code = 0
        except PermissionError:
            code = 1
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 1)
    return code == 0


def lanes_counted(cluster: Cluster, counter: str) -> int:
    """A counter of the native lanes since the mount."""
    return native_counters(cluster.plan.client_metrics_port)[counter]


def wait_delegated(cluster: Cluster, counter: str, change: Callable[[int], object]) -> None:
    """Repeats a change of names, with another number each time, until lanes perform it."""
    before = lanes_counted(cluster, counter)
    for number in range(200):
        change(number)
        if lanes_counted(cluster, counter) > before:
            return
        time.sleep(0.02)
    pytest.fail("the directory was not delegated")
