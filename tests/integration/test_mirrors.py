"""Files with two replicas: a storage server that is killed costs no byte and no error."""

import os
import time

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.mirrors import mirrored
from tests.cluster.process import PATIENCE, wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300), pytest.mark.expects_warnings]

PART = 3 << 20
STALL_S = 20  # a writer stands still for no longer while a replica is dropped


def _mirrored(make_cluster: ClusterMaker, width: int = 1) -> tuple[Cluster, Cli]:
    cluster = mirrored(make_cluster, replicas=1)
    cli = Cli(cluster)
    (cluster.mount_path / "d").mkdir()
    cli.run("layout", "set", cluster.mount_path / "d", "--replicas", 2, "--stripe-width", width)
    return cluster, cli


def _servers_of(cli: Cli, path: str) -> set[int]:
    """The indices of the storage servers that have a replica."""
    objects = [row for row in cli.json("stat", path)["objects"] if row["target"]]
    return {int(row["node"].rpartition("-")[2]) - 1 for row in objects}


@pytest.mark.parametrize("width", [1, 3])
def test_a_killed_server_costs_no_error(make_cluster: ClusterMaker, width: int) -> None:
    cluster, cli = _mirrored(make_cluster, width)
    path = cluster.mount_path / "d" / "file"
    parts = [os.urandom(PART) for _ in range(4)]
    with path.open("wb", buffering=0) as file:
        file.write(parts[0])
        os.fsync(file)
        file.write(parts[1])
        servers = _servers_of(cli, ":/d/file")
        assert len(servers) == min(width + 1, 3)
        killed = min(servers)
        cluster.storageservers[killed].kill()
        began_s = time.monotonic()
        file.write(parts[2])
        os.fsync(file)
        assert time.monotonic() - began_s < STALL_S * PATIENCE
        file.write(parts[3])
    assert _servers_of(cli, ":/d/file") == servers - {killed}
    cluster.remount()
    assert path.read_bytes() == b"".join(parts)
    (cluster.mount_path / "d" / "other").write_bytes(parts[0])
    cluster.start_servers()
    assert wait_until(
        lambda: all(row["state"] == "up" for row in cli.json("node", "list")), 40 * PATIENCE
    )
    cluster.remount()
    assert path.read_bytes() == b"".join(parts), "the dropped replica answers nobody"


def test_holes_are_read_while_a_replica_is_away(make_cluster: ClusterMaker) -> None:
    cluster, _ = _mirrored(make_cluster, width=3)
    path = cluster.mount_path / "d" / "file"
    end = 8 << 20  # eight chunks, of which the last one is written: stripes without an object
    with path.open("wb") as file:
        file.seek(end)
        file.write(b"x" * 4096)
    os.sync()
    cluster.remount()
    killed = cluster.storageservers[0]
    killed.kill()
    began_s = time.monotonic()
    assert path.read_bytes() == bytes(end) + b"x" * 4096
    with path.open("rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == end
    assert time.monotonic() - began_s < 5 * PATIENCE


def test_reads_go_on_at_once(make_cluster: ClusterMaker) -> None:
    cluster, cli = _mirrored(make_cluster)
    path = cluster.mount_path / "d" / "file"
    content = os.urandom(PART)
    path.write_bytes(content)
    os.sync()
    for killed in sorted(_servers_of(cli, ":/d/file")):
        cluster.remount()
        cluster.storageservers[killed].kill()
        began_s = time.monotonic()
        assert path.read_bytes() == content
        assert time.monotonic() - began_s < 5 * PATIENCE
        cluster.start_servers()
        assert wait_until(
            lambda: all(row["state"] == "up" for row in cli.json("node", "list")), 40 * PATIENCE
        )
