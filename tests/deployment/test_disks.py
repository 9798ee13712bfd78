"""Disks of hosts are replaced, by hand and by playbook, and a storage server is taken away: under
I/O, where files have two replicas.

There are one metaserver, whose host is a client, too, and four storage servers. Devices are loop
devices. It runs in ./dev test --full and ./dev deployment only.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.process import PATIENCE, wait_until
from tests.deployment.conftest import Wheels
from tests.deployment.hosts import Host, Site, site, why_no_hosts
from tests.deployment.playbooks import Playbooks
from tests.deployment.test_five_hosts import LOAD
from tests.dev.guide import commands_of

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(why_no_hosts() is not None, reason=why_no_hosts() or ""),
]
SERVERS = ("stor1", "stor2", "stor3", "stor4")
PLACE = "/srv/braidfs/nvme1"
DEVICES = 5
TARGETS = "{{ targets_of[inventory_hostname] | default([{'path': '/srv/braidfs/t1'}]) }}"
Cluster = tuple[Site, Playbooks]


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Devices of 256 MiB of this machine."""
    made = []
    try:
        for number in range(DEVICES):
            image = tmp_path_factory.mktemp("devices") / str(number)
            subprocess.run(["truncate", "-s", "256M", str(image)], check=True)
            words = ["losetup", "--find", "--show", str(image)]
            said = subprocess.run(words, check=True, capture_output=True, text=True)
            made.append(said.stdout.strip())
        yield made
    finally:
        for name in made:
            subprocess.run(["losetup", "--detach", name], check=True)


@pytest.fixture(scope="module")
def cluster(wheels: Wheels, devices: list[str]) -> Iterator[Cluster]:
    with site(wheels.wheel.parent, "meta1", *SERVERS) as made:
        for name in ("stor2", "stor3"):
            for device in devices:
                number = int(device.removeprefix("/dev/loop"))
                made.hosts[name].run("mknod", device, "b", 7, number)
        groups = {"metaservers": ["meta1"], "storageservers": SERVERS, "clients": ["meta1"]}
        playbooks = Playbooks(made, wheels, groups)
        playbooks.variables = {
            "metaserver_settings": {"layout": {"replicas": 2, "replicas_max": 2}},
            "storageserver_file_system": "ext4",
            "storageserver_format_devices": devices,
            "storageserver_targets": TARGETS,
        }
        place_device(playbooks, "stor2", devices[0])
        place_device(playbooks, "stor3", devices[1])
        playbooks.run("site")
        try:
            yield made, playbooks
        finally:
            for name in ("stor2", "stor3"):
                made.hosts[name].run("systemctl", "stop", "braidfs-storageserver", check=False)
                made.hosts[name].run("umount", PLACE, check=False)


def place_device(playbooks: Playbooks, host: str, device: str) -> None:
    both = [{"path": "/srv/braidfs/t1"}, {"path": PLACE, "device": device}]
    known = playbooks.variables.get("targets_of", {})
    playbooks.variables["targets_of"] = {**known, host: both}


@pytest.fixture
def load(cluster: Cluster) -> Iterator[Host]:
    """I/O for the time of the test; it must have met no error."""
    host = cluster[0].hosts["meta1"]
    host.run("rm", "-f", "/run/stop", "/run/errors", "/run/said", "/run/rounds")
    host.run("systemd-run", "--unit=load", "--collect", "sh", "-c", LOAD)
    yield host
    host.run("touch", "/run/stop")
    host.run("sh", "-c", "while systemctl is-active --quiet load; do sleep 0.2; done")
    assert int(host.text("cat", "/run/rounds")) > 3
    errors = host.run("cat", "/run/errors", check=False)
    assert errors.returncode != 0, f"I/O failed: {errors.stdout}"


def targets(host: Host) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(host.text("braidfs", "target", "list", "--json"))
    return rows


def states(host: Host) -> dict[int, str]:
    return {row["target"]: row["state"] for row in targets(host)}


def target_at(host: Host, path: str) -> int:
    words = ("od", "-An", "-tu4", "-j48", "-N4", f"{path}/superblock")
    return int(host.text(*words))


def is_healthy(host: Host) -> bool:
    return host.run("braidfs", "status", check=False).returncode == 0


def files_on(host: Host, target: int) -> list[str]:
    return host.text("braidfs", "find", ":/", "--target", target, "--type", "f").splitlines()


def test_a_disk_is_replaced_by_hand(cluster: Cluster, load: Host, devices: list[str]) -> None:
    """The commands of the guide, as they stand there."""
    stor2 = cluster[0].hosts["stor2"]
    target = target_at(stor2, PLACE)
    assert wait_until(lambda: bool(files_on(load, target)), 60 * PATIENCE)
    stor2.run("mkdir", "-p", "/dev/disk/by-id")
    stor2.run("ln", "-s", devices[2], "/dev/disk/by-id/nvme-NEW")
    for command in commands_of("operate/replace-disk.md"):
        stor2.run("sh", "-c", re.sub(r"^(braidfs target \w+) 3\b", rf"\1 {target}", command))
    assert target_at(stor2, PLACE) != target
    assert target not in states(stor2)
    assert wait_until(lambda: is_healthy(load), 60 * PATIENCE), load.run("braidfs", "status")


def test_a_server_is_taken_away_by_hand(cluster: Cluster, load: Host) -> None:
    """The commands of the guide; its host comes out of the inventory."""
    hosts, playbooks = cluster
    for command in commands_of("operate/take-server-away.md"):
        hosts.hosts["stor4"].run("sh", "-c", command.replace("stor3", "stor4"))
    playbooks.groups["storageservers"] = ["stor1", "stor2", "stor3"]
    assert "stor4" not in {row["node_name"] for row in targets(load)}
    assert wait_until(lambda: is_healthy(load), 60 * PATIENCE), load.run("braidfs", "status")


def test_a_disk_is_replaced_by_playbook(cluster: Cluster, load: Host, devices: list[str]) -> None:
    hosts, playbooks = cluster
    stor3 = hosts.hosts["stor3"]
    target = target_at(stor3, PLACE)
    words = ("-e", "server=stor3", "-e", f"target={target}")
    refused = playbooks.run("replace-disk", *words, "-e", "lost=true", fails=True)
    assert f"target {target} is up: leave out lost=true" in refused.output
    refused = playbooks.run("replace-disk", "-e", "server=stor2", *words[2:], fails=True)
    assert f"target {target} is on stor3, not on stor2" in refused.output
    place_device(playbooks, "stor3", "/dev/disk/by-id/nvme-NOT-THERE")
    told = playbooks.run("replace-disk", *words, fails=True)
    assert "take it out, put the new one in" in told.output
    assert target not in states(load)
    assert stor3.run("mountpoint", PLACE, check=False).returncode != 0
    place_device(playbooks, "stor3", devices[3])
    playbooks.run("replace-disk", *words)
    new = target_at(stor3, PLACE)
    assert states(load)[new] == "up"
    again = playbooks.run("replace-disk", *words)
    assert again.changed == {"stor3": 0}, again.output
    again = playbooks.run("site", "--limit", "stor3")
    assert again.changed == {"stor3": 0}, again.output


def test_a_dead_disk_is_replaced_by_playbook(
    cluster: Cluster, load: Host, devices: list[str]
) -> None:
    """Files with one replica are not given up without a word."""
    hosts, playbooks = cluster
    stor3 = hosts.hosts["stor3"]
    target = target_at(stor3, PLACE)
    load.run("mkdir", "-p", "/data/one")
    load.run("braidfs", "layout", "set", "/data/one", "--replicas", 1)
    load.run("sh", "-c", "for n in $(seq 20); do head -c 9000000 /dev/zero >/data/one/$n; done")
    load.run("sync")
    stor3.run("systemctl", "stop", "braidfs-storageserver")
    stor3.run("umount", PLACE)
    stor3.run("wipefs", "--all", playbooks.variables["targets_of"]["stor3"][1]["device"])
    place_device(playbooks, "stor3", devices[4])
    stor3.run("systemctl", "start", "braidfs-storageserver")

    def is_down() -> bool:
        return states(load)[target] == "down"

    assert wait_until(is_down, 60 * PATIENCE)
    words = ("-e", "server=stor3", "-e", f"target={target}", "-e", "lost=true")
    refused = playbooks.run("replace-disk", *words, fails=True)
    assert "would be lost" in refused.output and "nothing was done" in refused.output.lower()
    playbooks.run("replace-disk", *words, "-e", "accept_loss=true")
    lost = load.text("braidfs", "find", ":/", "--lost").splitlines()
    assert lost and all(path.startswith(":/one/") for path in lost)
    load.run("rm", "-r", "/data/one")
    assert wait_until(lambda: is_healthy(load), 120 * PATIENCE), load.run("braidfs", "status")


def test_a_server_is_removed_by_playbook(cluster: Cluster, load: Host) -> None:
    hosts, playbooks = cluster
    words = ("-e", "leaving=stor3")
    refused = playbooks.run("remove-server", *words, "-e", "lost=true", fails=True)
    assert "are served: leave out lost=true" in refused.output
    playbooks.run("remove-server", *words, "-e", "remove_bytes=true")
    assert "stor3" not in {row["node_name"] for row in targets(load)}
    stor3 = hosts.hosts["stor3"]
    shown = stor3.text("systemctl", "list-unit-files", "--no-pager")
    assert "braidfs-storageserver" not in shown and "nvme1" not in shown
    for path in ("/etc/braidfs/storageserver.toml", "/srv/braidfs/t1"):
        assert stor3.run("test", "-e", path, check=False).returncode == 1, path
    again = playbooks.run("remove-server", *words, "-e", "remove_bytes=true")
    assert set(again.changed.values()) == {0}, again.output
    assert wait_until(lambda: is_healthy(load), 120 * PATIENCE), load.run("braidfs", "status")


def test_a_server_that_is_gone_is_removed_by_playbook(cluster: Cluster, load: Host) -> None:
    """Its host does not answer. Files keep one replica: no third failure domain is left."""
    hosts, playbooks = cluster
    playbooks.groups["storageservers"] = ["stor1", "stor2"]
    hosts.hosts["stor2"].stop()
    gone = {row["target"] for row in targets(load) if row["node_name"] == "stor2"}
    assert gone

    def are_down() -> bool:
        return {states(load)[one] for one in gone} == {"down"}

    assert wait_until(are_down, 60 * PATIENCE)
    playbooks.run("remove-server", "-e", "leaving=stor2", "-e", "lost=true")
    assert "stor2" not in {row["node_name"] for row in targets(load)}
