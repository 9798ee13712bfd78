"""Two metaservers over one etcd: what `braidfs status` says of them, and `braidfs meta switch`
while a program writes.
"""

import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.plan import HOST, ServerPlan
from tests.cluster.process import PATIENCE, wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

# A metaserver that hands over ends its connections.
pytestmark = [pytest.mark.mount, pytest.mark.timeout(300), pytest.mark.expects_warnings]
SWITCH_S_MAX = 1.5
FOLLOWS_S_MAX = 30.0 * PATIENCE


@pytest.fixture
def cluster(two_metaservers: Cluster) -> Cluster:
    return two_metaservers


class GroupCli(Cli):
    """`braidfs` that knows all metaservers, or one of them."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.reaching(*cluster.plan.metaservers)

    def reaching(self, *servers: ServerPlan) -> None:
        addresses = ",".join(f"{HOST}:{server.port}" for server in servers)
        self.environment["BRAIDFS_METASERVER"] = addresses

    def roles(self) -> dict[str, str]:
        return {row["name"]: row["role"] for row in self.status()["metaservers"]}

    def status(self) -> Any:
        ended = self.end("status", "--json")
        assert ended.code in (0, 3), ended
        return json.loads(ended.stdout)


def metric(server: ServerPlan, name: str) -> float | None:
    """The value of a metric without labels; None: the program does not show it."""
    url = f"http://{HOST}:{server.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)


@contextmanager
def writing(folder: Path) -> Iterator[list[float]]:
    """Another thread makes, syncs and renames files; yields how long each took."""
    folder.mkdir()
    stop, took, errors = threading.Event(), list[float](), list[OSError]()

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            began_s = time.monotonic()
            try:
                with (folder / f"{number}").open("wb") as file:
                    file.write(b"x" * (number % 5000))
                    file.flush()
                    os.fsync(file.fileno())
                (folder / f"{number}").rename(folder / f"renamed {number % 50}")
            except OSError as error:
                errors.append(error)
                return
            took.append(time.monotonic() - began_s)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert wait_until(lambda: len(took) > 20, 30 * PATIENCE)
        yield took
    finally:
        stop.set()
        thread.join()
    assert errors == []


def wait_for_standby(cli: GroupCli) -> None:
    def is_followed() -> bool:
        rows = [row for row in cli.status()["metaservers"] if row["role"] == "standby"]
        return len(rows) == 1 and rows[0]["applied"] > 0

    assert wait_until(is_followed, FOLLOWS_S_MAX)


def switched(cli: GroupCli) -> Any:
    """The result of a hand-over, which is refused until the standby has reported twice."""
    found: list[Any] = []

    def is_done() -> bool:
        ended = cli.end("meta", "switch", "--json")
        if ended.code == 0:
            found.append(json.loads(ended.stdout))
            return True
        assert "no standby could take over now" in ended.stderr, ended
        return False

    assert wait_until(is_done, FOLLOWS_S_MAX)
    return found[0]


def test_a_hand_over_under_a_writer(cluster: Cluster) -> None:
    cli = GroupCli(cluster)
    wait_for_standby(cli)
    before = cli.status()
    assert cli.roles() == {"metaserver": "active", "metaserver-2": "standby"}
    with writing(cluster.mount_path / "d") as took:
        seen = switched(cli)
        assert (seen["active"], seen["before"]) == ("metaserver-2", "metaserver")
        assert seen["seconds"] < SWITCH_S_MAX
        count = len(took)
        assert wait_until(lambda: len(took) > count + 20, 30 * PATIENCE)
    after = cli.status()
    assert after["journal"]["term"] == seen["term"] > before["journal"]["term"]
    assert after["journal"]["index"] > before["journal"]["index"]
    wait_for_standby(cli)
    assert cli.roles() == {"metaserver-2": "active", "metaserver": "standby"}
    # And back: the one that has handed over may be handed over to.
    assert switched(cli)["active"] == "metaserver"


def test_status_shows_the_group(cluster: Cluster) -> None:
    cli = GroupCli(cluster)
    first, second = cluster.plan.metaservers
    wait_for_standby(cli)
    assert wait_until(lambda: cli.end("status").code == 0, FOLLOWS_S_MAX)
    journal = cli.status()["journal"]
    (server,) = journal["servers"]
    assert journal["engine"] == "etcd" and server["reachable"] and server["leader"]
    assert 0 < server["bytes_used"] < server["bytes_max"]
    assert 0 < journal["append_p50_s"] <= journal["append_p99_s"] and journal["silence_s"] < 3
    text = cli.text("status")
    assert "2 metaservers" in text and "standby" in text and "journal  etcd, term" in text

    cli.reaching(second)
    refused = cli.run("status", code=4).stderr
    assert f"the active metaserver is metaserver at {HOST}:{first.port}" in refused
    assert refused.count("\n") == 1 and "Name all metaservers" in refused
    (ping,) = cli.json("node", "ping", code=3)
    assert ping["standby"] and not ping["error"] and ping["connect_us"] > 0
    cli.reaching(second, first)
    assert "healthy" in cli.text("status"), "the next one of the list is asked"
    pings = cli.json("node", "ping")
    assert [one["standby"] for one in pings] == [True, False, False]
    assert not any(one["error"] for one in pings) and "stands by" in cli.text("node", "ping")

    def shows(server: ServerPlan, **values: float) -> bool:
        return all(metric(server, f"braidfs_{name}") == value for name, value in values.items())

    assert wait_until(
        lambda: shows(first, metaserver_active=1, metaserver_standbys=1), FOLLOWS_S_MAX
    )
    assert shows(second, metaserver_active=0) and metric(second, "braidfs_sessions") is None

    cluster.metaservers[1].stop()
    assert wait_until(lambda: cli.end("status").code == 3, FOLLOWS_S_MAX)
    assert "there is no standby metaserver: metaserver-2 has not reported" in cli.text(
        "status", code=3
    ).replace("\n", " ")
    refused = cli.run("meta", "switch", code=1).stderr
    assert "no standby could take over now: metaserver-2 has not reported for" in refused
    assert shows(first, metaserver_standbys=0) or wait_until(
        lambda: shows(first, metaserver_standbys=0), FOLLOWS_S_MAX
    )


def test_one_that_is_alone_refuses_to_hand_over(make_cluster: ClusterMaker) -> None:
    cli = Cli(make_cluster(storage_servers=1))
    assert "this metaserver is alone" in cli.run("meta", "switch", code=1).stderr
    seen = cli.json("status")
    assert (seen["metaservers"], seen["journal"]) == ([], None)
    assert "journal" not in cli.text("status")
