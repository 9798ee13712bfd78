"""The three file systems of a benchmark: BraidFS on loopback, the disk under it, null FUSE."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.cases import LARGE_SIZE, SMALL_COUNT
from tests.bench.scratch import scratch_folder
from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.plan import make_plan
from tests.cluster.process import Program
from tests.dev.build import NATIVE_BUILD
from tests.dev.steps import console

NULLFS = NATIVE_BUILD / "bench" / "braidfs-nullfs"
CLIENT_OPTIONS = ("dirty_mib=256",)
CLIENT_BUDGET_MIB = 256 + 256  # it is the sum of both


@dataclass(frozen=True, slots=True)
class Systems:
    braid: Path
    local: Path
    null: Path
    cluster: Cluster

    def folders(self) -> dict[str, Path]:
        return {"braidfs": self.braid, "ext4": self.local, "nullfs": self.null}

    def client_rss_mib(self) -> float:
        """The peak resident memory of the client."""
        pid = self.cluster.client_pid()
        status = Path(f"/proc/{pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024


@contextlib.contextmanager
def running() -> Iterator[Systems]:
    """All three, on one disk, removed afterwards."""
    with scratch_folder() as scratch:
        plan = make_plan(scratch / "cluster", storage_servers=2, client_options=CLIENT_OPTIONS)
        cluster = Cluster(plan)
        local, null = scratch / "local", scratch / "null"
        local.mkdir()
        nullfs = _nullfs(scratch, null)
        try:
            console.print("starting a cluster of two storage servers, and null FUSE")
            cluster.start()
            nullfs.start()
            yield Systems(cluster.mount_path, local, null, cluster)
        finally:
            cluster.stop()
            if mounts.is_mounted(null):
                mounts.unmount(null, lazy=True)
            nullfs.stop()


def _nullfs(scratch: Path, mountpoint: Path) -> Program:
    mountpoint.mkdir()
    words = ("--files", str(SMALL_COUNT + 1), "--size", str(LARGE_SIZE), str(mountpoint))
    return Program("nullfs", (str(NULLFS), *words), scratch)
