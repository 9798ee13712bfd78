"""Small files that storage servers read before anybody asks, because others of their directories
were read whole (docs/decisions/0049-fetched-ahead.md)."""

import time
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.numbers import native_counters
from tests.cluster.process import wait_until

from .looks import lanes_counted, seen_from

pytestmark = pytest.mark.mount

FOLDERS = 4
COUNT = 60
REST_S = 2.0  # longer than what was refused rests


def content(folder: int, number: int) -> bytes:
    """Of several times what the kernel reads ahead of a first read(2)."""
    return b"%d of %d\n" % (number, folder) * (16_000 + 13 * number)


@pytest.fixture
def folders(cluster: Cluster, workdir: Path) -> list[Path]:
    """Of a client that has not seen them."""
    made = [workdir / f"{folder}" for folder in range(FOLDERS)]
    for folder, path in enumerate(made):
        path.mkdir()
        for number in range(COUNT):
            (path / f"{number}").write_bytes(content(folder, number))
    cluster.remount()
    return made


def counted(cluster: Cluster, counter: str) -> int:
    servers = cluster.plan.storageservers
    return sum(native_counters(server.metrics_port)[counter] for server in servers)


def read_whole(path: Path, folder: int, numbers: range) -> None:
    for number in numbers:
        assert (path / f"{number}").read_bytes() == content(folder, number)


def test_files_of_a_directory_are_fetched_before_they_are_read(
    cluster: Cluster, folders: list[Path]
) -> None:
    read_whole(folders[0], 0, range(COUNT))  # files are read whole, then
    before = {name: counted(cluster, name) for name in ("fetched_bytes", "fetched_used")}
    told = lanes_counted(cluster, "fetch_ahead_files")
    for folder in range(1, FOLDERS):
        read_whole(folders[folder], folder, range(COUNT // 4))
    wanted = COUNT // 2 * (FOLDERS - 1)
    assert wait_until(lambda: lanes_counted(cluster, "fetch_ahead_files") >= told + wanted, 20)
    sizes = wanted * len(content(1, 0))
    assert wait_until(
        lambda: counted(cluster, "fetched_bytes") >= before["fetched_bytes"] + sizes, 20
    )
    for folder in range(1, FOLDERS):
        read_whole(folders[folder], folder, range(COUNT // 4, COUNT))
    assert counted(cluster, "fetched_used") >= before["fetched_used"] + wanted


def test_nothing_is_fetched_for_who_reads_beginnings(cluster: Cluster, folders: list[Path]) -> None:
    before = counted(cluster, "fetches")
    for folder in range(FOLDERS):
        for number in range(COUNT):
            with (folders[folder] / f"{number}").open("rb", buffering=0) as file:
                assert file.read(100) == content(folder, number)[:100]
    assert lanes_counted(cluster, "children_used") > 0
    assert lanes_counted(cluster, "fetch_ahead_files") == 0
    assert counted(cluster, "fetches") == before


def test_fetch_ahead_can_be_off(cluster: Cluster, folders: list[Path], tmp_path: Path) -> None:
    before = counted(cluster, "fetches")
    with cluster.second_client(tmp_path / "off", options="fetch_ahead=0") as off:
        for folder in range(FOLDERS):
            read_whole(seen_from(off, cluster, folders[folder]), folder, range(COUNT))
        time.sleep(REST_S)
    assert counted(cluster, "fetches") == before
