"""A directory of a million files (in the long form): created, listed and removed, each in time
linear in their number and with bounded memory.

Time is the CPU time of client and metaserver, because the clock says nothing on a busy machine.
"""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.process import stat_of
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(5400)]

Sized = Callable[[int, int], int]
PARTS = 4
SLOWER_MAX = 2.5  # it compares a file of the last part with one of the first
MIB = 1 << 20
# The client's memory has names, attributes and leases, all of which are bounded themselves. The
# metaserver's has leases, and changes that are not in the store yet.
CLIENT_MIB_MAX, METASERVER_MIB_MAX = 700, 500


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds so far, and memory that is not page cache: of the client, of the metaserver."""

    cpu_s: tuple[float, float]
    memory_mib: tuple[float, float]

    @classmethod
    def of(cls, cluster: Cluster) -> "Cost":
        running = cluster.running()
        pids = (running["client"], running["metaserver"])
        return cls((_cpu_s(pids[0]), _cpu_s(pids[1])), (_memory_mib(pids[0]), _memory_mib(pids[1])))

    def since(self, before: "Cost") -> float:
        return sum(self.cpu_s) - sum(before.cpu_s)


def _cpu_s(pid: int) -> float:
    fields = stat_of(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def _checked(cluster: Cluster, what: str, done: int, before: Cost) -> float:
    """Microseconds for each of so many files; the memory is checked."""
    now = Cost.of(cluster)
    each_us = now.since(before) / done * 1e6
    client, metaserver = now.memory_mib
    print(f"{what}: {each_us:.0f} us of CPU a file, memory {client:.0f} and {metaserver:.0f} MiB")
    assert client < CLIENT_MIB_MAX and metaserver < METASERVER_MIB_MAX
    return each_us


def _list(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(1 for entry in entries if entry.stat(follow_symlinks=False).st_size == 0)


def test_made_listed_and_removed(make_cluster: ClusterMaker, sized: Sized) -> None:
    count = sized(20_000, 1_000_000)
    part = count // PARTS
    cluster = make_cluster(storage_servers=1)
    folder = cluster.mount_path / "many"
    folder.mkdir()
    made, listed, removed = [], [], []
    for number in range(PARTS):
        before = Cost.of(cluster)
        for name in range(number * part, (number + 1) * part):
            os.close(os.open(folder / f"{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        made.append(_checked(cluster, f"made {number}", part, before))
        before = Cost.of(cluster)
        assert _list(folder) == (number + 1) * part
        listed.append(_checked(cluster, f"listed {number}", (number + 1) * part, before))
    cluster.remount()
    before = Cost.of(cluster)
    assert _list(folder) == count
    _checked(cluster, "listed by a new client", count, before)
    for number in range(PARTS):
        before = Cost.of(cluster)
        for name in range(number * part, (number + 1) * part):
            os.unlink(folder / f"{name}")
        removed.append(_checked(cluster, f"removed {number}", part, before))
    assert _list(folder) == 0
    subprocess.run(["rmdir", folder], check=True)
    for costs in (made, listed, removed):
        assert costs[-1] < SLOWER_MAX * costs[0], costs
