"""Storage servers read small files before they are requested, because other files of their
directories were read whole (docs/decisions/0049-fetched-ahead.md).
"""

import time
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.numbers import servers_counted
from tests.cluster.process import wait_until

from .looks import lanes_counted, seen_from

pytestmark = pytest.mark.mount

FOLDERS = 4
COUNT = 60
REST_S = 2.0  # this is longer than the pause after a refusal


def content(folder: int, number: int) -> bytes:
    """Content several times as long as the kernel's read-ahead of a first read(2)."""
    return b"%d of %d\n" % (number, folder) * (16_000 + 13 * number)


@pytest.fixture
def folders(cluster: Cluster, workdir: Path) -> list[Path]:
    """Folders for a client that has not seen them."""
    made = [workdir / f"{folder}" for folder in range(FOLDERS)]
    for folder, path in enumerate(made):
        path.mkdir()
        for number in range(COUNT):
            (path / f"{number}").write_bytes(content(folder, number))
    cluster.remount()
    return made


def read_whole(path: Path, folder: int, numbers: range) -> None:
    for number in numbers:
        assert (path / f"{number}").read_bytes() == content(folder, number)


def test_files_of_a_directory_are_fetched_before_they_are_read(
    cluster: Cluster, folders: list[Path]
) -> None:
    read_whole(folders[0], 0, range(COUNT))  # from now on files count as read whole
    before = {
        name: servers_counted(cluster.plan, name) for name in ("fetched_bytes", "fetched_used")
    }
    told = lanes_counted(cluster, "fetch_ahead_files")
    for folder in range(1, FOLDERS):
        read_whole(folders[folder], folder, range(COUNT // 4))
    wanted = COUNT // 2 * (FOLDERS - 1)
    assert wait_until(lambda: lanes_counted(cluster, "fetch_ahead_files") >= told + wanted, 20)
    sizes = wanted * len(content(1, 0))
    assert wait_until(
        lambda: servers_counted(cluster.plan, "fetched_bytes") >= before["fetched_bytes"] + sizes,
        20,
    )
    for folder in range(1, FOLDERS):
        read_whole(folders[folder], folder, range(COUNT // 4, COUNT))
    assert servers_counted(cluster.plan, "fetched_used") >= before["fetched_used"] + wanted


def test_nothing_is_fetched_for_who_reads_beginnings(cluster: Cluster, folders: list[Path]) -> None:
    before = servers_counted(cluster.plan, "fetches")
    for folder in range(FOLDERS):
        for number in range(COUNT):
            with (folders[folder] / f"{number}").open("rb", buffering=0) as file:
                assert file.read(100) == content(folder, number)[:100]
    assert lanes_counted(cluster, "children_used") > 0
    assert lanes_counted(cluster, "fetch_ahead_files") == 0
    assert servers_counted(cluster.plan, "fetches") == before


def test_fetch_ahead_can_be_off(cluster: Cluster, folders: list[Path], tmp_path: Path) -> None:
    before = servers_counted(cluster.plan, "fetches")
    with cluster.second_client(tmp_path / "off", options="prefetch=off") as off:
        for folder in range(FOLDERS):
            read_whole(seen_from(off, cluster, folders[folder]), folder, range(COUNT))
        time.sleep(REST_S)
    assert servers_counted(cluster.plan, "fetches") == before
