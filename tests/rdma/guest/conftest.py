"""A cluster inside the guest: two storage servers on two addresses, both rails, all bytes by RDMA.

TCP uses the loopback, whose addresses stay when tests take links down.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.networks import Place
from tests.cluster.numbers import native_counters
from tests.cluster.plan import ClusterPlan, make_plan

STATE = Path("/var/tmp/braidfs-guest")
IMAGE = Path("/dev/shm/targets.ext4")
# The registered memory of six programs and rails must fit into the guest.
MEMORY_MIB = 32
BIG_BYTES = 24 << 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if Path("/run/guest/guest.sh").exists():
        return
    for item in items:
        if "tests/rdma/guest" in str(item.path):
            item.add_marker(pytest.mark.skip(reason="runs in the guest: ./dev rdma"))


def addresses_of(server: int) -> list[str]:
    """The addresses at which this storage server (1 or 2) is reached by RDMA, on either rail."""
    return [f"10.77.{rail}.{server}" for rail in (0, 1)]


def plan_of(state: Path, transport: str) -> ClusterPlan:
    rdma: dict[str, object] = {"transport": transport, "rdma_memory_mib": MEMORY_MIB}
    settings: dict[str, dict[str, object]] = {
        "storageserver": rdma,
        "client": rdma,
        "metaserver": {"layout": {"replicas_max": 2}},
    }
    places = {}
    for server in (1, 2):
        name = f"storageserver-{server}"
        settings[name] = {"rdma_subnets": [f"{one}/32" for one in addresses_of(server)]}
        places[name] = Place(f"127.0.0.{server}")
    # With inline=0 no file is stored in its record: the metaserver has no RDMA, and bytes that it
    # moves out of records when a tiny file is written again (decision 0037) would count as payload
    # bytes that went by TCP.
    options = ("timeout=900", "inline=0")
    return make_plan(
        state, storage_servers=2, settings=settings, client_options=options, places=places
    )


@pytest.fixture(scope="session")
def disk() -> Iterator[Path]:
    """ext4 in a file in memory: the overlay of the guest has no O_DIRECT."""
    with IMAGE.open("wb") as image:
        image.truncate(400 << 20)
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=1", str(IMAGE)], check=True
    )
    STATE.mkdir(parents=True)
    subprocess.run(["mount", "-o", "loop", str(IMAGE), str(STATE)], check=True)
    yield STATE
    subprocess.run(["umount", "-l", str(STATE)], check=False)


@pytest.fixture(scope="session")
def rdma_cluster(disk: Path) -> Iterator[Cluster]:
    """The session's cluster, with transport=auto on both ends (the tests check what was used)."""
    cluster = Cluster(plan_of(disk / "cluster", "auto"), report=print)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(autouse=True)
def logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """The logs of the programs, shown when the test fails."""
    yield
    for path in sorted(STATE.glob("*/log/*.log")):
        print(f"---- {path.name}\n{path.read_text(errors='replace')[-3000:]}")


def servers(cluster: Cluster) -> list[dict[str, int]]:
    """The counters of each storage server."""
    return [native_counters(server.metrics_port) for server in cluster.plan.storageservers]


def pattern(seed: int) -> bytes:
    """BIG_BYTES, in which no two chunks are equal."""
    block = hashlib.shake_128(bytes([seed])).digest(1 << 16)
    return b"".join(block[at:] + block[:at] for at in range(BIG_BYTES >> 16))


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
