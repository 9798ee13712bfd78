"""Which transport is used for which server, as people request it and as it is reported."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.rdma.guest.asking import (
    PATIENCE_S,
    braidfs,
    bytes_go_by_rdma,
    mount_by_hand,
    paths_of_status,
)

NO_PORT = 3  # they are exit codes of `braidfs net`
BY_TCP = 3


def test_net_devices_shows_what_is_used_and_why_not() -> None:
    shown = braidfs("net", "devices", "--json")
    ports = {one["port"]: one for one in json.loads(shown.stdout)}
    assert shown.returncode == 0 and list(ports) == ["rxe0:1", "rxe1:1"], shown.stderr
    assert ports["rxe1:1"]["used"] and ports["rxe1:1"]["state"] == "active"
    assert ports["rxe1:1"]["gid"].startswith("10.77.1.1 (RoCE v2 IPv4, index ")
    chosen = braidfs("net", "devices", "-d", "rxe1:*").stdout
    assert "not one of the configured" in re.sub(r"\s+", " ", chosen), chosen
    none = braidfs("net", "devices", "--subnet", "192.168.0.0/16")
    assert none.returncode == NO_PORT and "subnets" in none.stdout, none.stdout + none.stderr


def check(cluster: Cluster, number: int) -> tuple[int, dict[str, str | None]]:
    server = cluster.plan.storageservers[number - 1]
    address = f"{server.place.address}:{server.port}"
    asked = braidfs("net", "check", address, "-k", str(cluster.plan.key_file), "--json")
    found: dict[str, str | None] = json.loads(asked.stdout)
    return asked.returncode, found


def test_net_check_says_what_a_server_would_use(rdma_cluster: Cluster) -> None:
    for number in (1, 2):
        code, found = check(rdma_cluster, number)
        assert code == 0 and found["transport"] == "rdma", found
        assert f"10.77.0.{number} " in str(found["server"]), found
        assert "10.77.1.1 " in str(found["client"]), found


@contextmanager
def second_server_by_tcp(cluster: Cluster) -> Iterator[None]:
    """Restarts it with transport = "tcp", and afterwards as it was."""
    plan, name = cluster.plan, "storageserver-2"
    settings = {**plan.settings, name: {**plan.settings[name], "transport": "tcp"}}
    try:
        cluster.storageservers[1].stop()
        cluster.plan = replace(plan, settings=settings)
        cluster.start_servers()
        yield
    finally:
        cluster.storageservers[1].stop()
        cluster.plan = plan
        cluster.start_servers()


def transports(cluster: Cluster) -> list[object]:
    return [path["transport"] for path in paths_of_status(cluster)]


def test_each_server_is_reached_as_both_ends_can(rdma_cluster: Cluster, tmp_path: Path) -> None:
    """One server has no RDMA: its bytes go by TCP, those of the other by RDMA; a client that
    demands RDMA gets an error that says which server has none, and why."""
    path = rdma_cluster.mount_path / "each"

    def bytes_go() -> bool:
        bytes_go_by_rdma(rdma_cluster, path)  # bytes go in both directions, and are right
        return transports(rdma_cluster) == ["rdma", "tcp"]

    with second_server_by_tcp(rdma_cluster):
        assert wait_until(bytes_go, PATIENCE_S)
        code, found = check(rdma_cluster, 2)
        assert (code, found["transport"], found["server"]) == (BY_TCP, "tcp", None), found
        assert found["server_reason"] == "transport=tcp", found
        demanding: dict[str, object] = {"transport": "rdma"}
        refused = mount_by_hand(rdma_cluster, tmp_path / "none", settings=demanding)
        assert refused.returncode != 0 and "127.0.0.2" in refused.stderr, refused.stderr
        assert "the server has no RDMA for us: transport=tcp" in refused.stderr, refused.stderr
    rdma_cluster.remount()  # the client would return by itself, but not before a pause
    assert wait_until(lambda: bytes_go_by_rdma(rdma_cluster, path), PATIENCE_S)
    assert wait_until(lambda: transports(rdma_cluster) == ["rdma", "rdma"], PATIENCE_S)
