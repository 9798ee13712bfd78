"""A cluster of hosts from beginning to end: deployed, upgraded and extended under I/O, removed.

There are one metaserver, two storage servers and two clients; a third storage server joins. It runs
in ./dev test --full and ./dev deployment only; its short form is test_playbooks.py.
"""

import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployment.conftest import Wheels
from tests.deployment.hosts import Host, Site, site, why_no_hosts
from tests.deployment.playbooks import KEY, Playbooks
from tests.deployment.test_playbooks import assert_clean, use

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(why_no_hosts() is not None, reason=why_no_hosts() or ""),
]
LOAD = """
n=0
while [ ! -e /run/stop ]; do
  n=$((n + 1))
  file=/data/load-$((n % 20))
  head -c 300000 /dev/urandom >/run/wanted
  { cp /run/wanted $file && sync $file && cmp /run/wanted $file; } 2>>/run/said ||
    echo "round $n of $file: $(cat /run/said)" >>/run/errors
  echo $n >/run/rounds
done
"""


@pytest.fixture(scope="module")
def five(wheels: Wheels) -> Iterator[tuple[Site, Playbooks]]:
    with site(wheels.wheel.parent, "meta1", "stor1", "stor2", "gpu1", "gpu2", "stor3") as made:
        groups = {
            "metaservers": ["meta1"],
            "storageservers": ["stor1", "stor2"],
            "clients": ["gpu1", "gpu2"],
        }
        yield made, Playbooks(made, wheels, groups)


@pytest.fixture
def load(five: tuple[Site, Playbooks]) -> Iterator[Host]:
    """I/O on gpu1 for the time of the test; it must have met no error."""
    host = five[0].hosts["gpu1"]
    host.run("rm", "-f", "/run/stop", "/run/errors", "/run/said", "/run/rounds")
    host.run("systemd-run", "--unit=load", "--collect", "sh", "-c", LOAD)
    yield host
    host.run("touch", "/run/stop")
    host.run("sh", "-c", "while systemctl is-active --quiet load; do sleep 0.2; done")
    assert int(host.text("cat", "/run/rounds")) > 3
    errors = host.run("cat", "/run/errors", check=False)
    log = host.run("journalctl", "-t", "braidfs", "-n", "50", "--no-pager", check=False).stdout
    assert errors.returncode != 0, f"I/O failed: {errors.stdout}\n{log}"


def test_dry_run_changes_nothing(five: tuple[Site, Playbooks]) -> None:
    hosts, playbooks = five
    dry = playbooks.run("site", "--check", "--diff")
    assert min(dry.changed.values()) > 0
    for host in hosts.hosts.values():
        assert "braidfs" not in host.text("ls", "/opt", "/etc", "/usr/local/bin")


def test_deploy(five: tuple[Site, Playbooks]) -> None:
    hosts, playbooks = five
    first = playbooks.run("site")
    assert min(first.changed.values()) > 0
    again = playbooks.run("site", "--diff")
    assert set(again.changed.values()) == {0}, again.output
    use(hosts.hosts["gpu1"])
    assert hosts.hosts["gpu2"].run("cmp", "/data/a", "/data/a").returncode == 0


def test_a_host_that_only_mounts_gives_the_cluster_key_back(five: tuple[Site, Playbooks]) -> None:
    """Hosts that only mount have a client's key instead, as long as the variable is set."""
    hosts, playbooks = five
    meta1, gpu1 = hosts.hosts["meta1"], hosts.hosts["gpu1"]
    meta1.run("braidfs", "key", "create", "/run/gpu.key", "--client", "gpu")
    playbooks.variables["fsclient_key"] = meta1.text("cat", "/run/gpu.key").strip()
    for name in ("gpu1", "gpu2"):
        hosts.hosts[name].run("umount", "/data", check=False)
    given = playbooks.run("site")
    assert playbooks.variables["fsclient_key"] not in given.output
    for name in ("gpu1", "gpu2"):
        host = hosts.hosts[name]
        assert host.run("test", "-e", "/etc/braidfs/cluster.key", check=False).returncode == 1
        assert host.text("stat", "-c", "%U %a", "/etc/braidfs/client.key").strip() == "root 600"
        host.run("sh", "-c", f"echo mine > /data/{name}; sync /data/{name}")
        refused = host.run("braidfs", "status", check=False)
        assert refused.returncode == 2 and "/etc/braidfs/cluster.key" in refused.stderr
    for name in ("meta1", "stor1", "stor2"):
        hosts.hosts[name].run("test", "-e", "/etc/braidfs/cluster.key")
    (row,) = json.loads(meta1.text("braidfs", "key", "list", "--json"))
    assert len(row["sessions"]) == 2
    again = playbooks.run("site")
    assert set(again.changed.values()) == {0}, again.output
    del playbooks.variables["fsclient_key"]  # the cluster key comes back
    for name in ("gpu1", "gpu2"):
        hosts.hosts[name].run("umount", "/data")
    playbooks.run("site")
    assert gpu1.text("cat", "/etc/braidfs/cluster.key").strip() == KEY
    assert "client.key" not in gpu1.text("cat", "/etc/fstab")
    assert gpu1.text("cat", "/data/gpu2") == "mine\n"
    assert "healthy" in gpu1.text("braidfs", "status")


def test_upgrade_under_io(
    five: tuple[Site, Playbooks],
    load: Host,
    wheels: Wheels,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    hosts, playbooks = five
    playbooks.wheels = newer(wheels, tmp_path_factory)
    before = {name: release(hosts.hosts[name], unit) for name, unit in SERVERS}
    playbooks.run("upgrade")
    for name, unit in SERVERS:
        after = release(hosts.hosts[name], unit)
        assert after != before[name], f"{name} runs the old release"
    assert mounted_release(load) == after, "a mount in use runs the old release"
    assert "healthy" in load.text("braidfs", "status")


SERVERS = (
    ("meta1", "braidfs-metaserver"),
    ("stor1", "braidfs-storageserver"),
    ("stor2", "braidfs-storageserver"),
)


def release(host: Host, unit: str) -> str:
    """The folder of the release that a unit's process runs."""
    shown = host.text("systemctl", "show", "--value", "-p", "MainPID", unit)
    return release_of(host, shown.strip())


def mounted_release(host: Host) -> str:
    """The folder of the release that serves /data."""
    return release_of(host, host.text("pgrep", "-f", "mount.fuse.braidfs").split()[0])


def release_of(host: Host, pid: str) -> str:
    maps = host.text("cat", f"/proc/{pid}/maps")
    (line, *_) = [line for line in maps.splitlines() if "_braidfs_native" in line or "lmdb" in line]
    return line.split("/opt/braidfs/")[1].partition("/")[0]


def newer(wheels: Wheels, factory: pytest.TempPathFactory) -> Wheels:
    """The same programs as another release: the archive has one more comment. Its folder stays for
    the tests that follow."""
    wheel = Path(shutil.copy(wheels.wheel, factory.mktemp("newer")))
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.comment = b"another release"
    return Wheels(wheel, wheels.dependencies)


def test_add_a_server_under_io(five: tuple[Site, Playbooks], load: Host) -> None:
    hosts, playbooks = five
    playbooks.groups["storageservers"].append("stor3")
    playbooks.run("add-server", "-e", "new=stor3")
    script = "for n in $(seq 12); do head -c 4000000 /dev/zero >/data/wide-$n; done"
    hosts.hosts["gpu2"].run("sh", "-c", script)
    found = hosts.hosts["gpu2"].text("braidfs", "find", "/data", "--name", "wide-*", "--target", 3)
    assert len(found.splitlines()) == 12, "new files use it at once"


@pytest.fixture
def device(five: tuple[Site, Playbooks], tmp_path: Path) -> Iterator[str]:
    """A device of 128 MiB on stor3."""
    image = tmp_path / "device"
    image.write_bytes(b"")
    subprocess.run(["truncate", "-s", "128M", str(image)], check=True)
    words = ["losetup", "--find", "--show", str(image)]
    made = subprocess.run(words, check=False, capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no loop device: {made.stderr}")
    name = made.stdout.strip()
    host = five[0].hosts["stor3"]
    host.run("mknod", name, "b", 7, int(name.removeprefix("/dev/loop")))
    yield name
    host.run("umount", "/srv/braidfs/t2", check=False)
    subprocess.run(["losetup", "--detach", name], check=True)


def test_devices_are_formatted_when_listed_and_empty(
    five: tuple[Site, Playbooks], device: str
) -> None:
    hosts, playbooks = five
    stor3 = hosts.hosts["stor3"]
    playbooks.variables = {
        "storageserver_file_system": "ext4",
        "storageserver_targets": [
            {"path": "/srv/braidfs/t1"},
            {"path": "/srv/braidfs/t2", "device": device},
        ],
    }
    only = ("-e", "new=stor3")
    refused = playbooks.run("add-server", *only, fails=True)
    assert "storageserver_format_devices" in refused.output
    stor3.run("sh", "-c", f"echo kept | dd of={device} bs=1 seek=100000 conv=notrunc,fsync")
    playbooks.variables["storageserver_format_devices"] = [device]
    refused = playbooks.run("add-server", *only, fails=True)
    assert "is not empty" in refused.output
    assert "kept" in stor3.text("dd", f"if={device}", "bs=1", "skip=100000", "count=5")
    stor3.run("dd", "if=/dev/zero", f"of={device}", "bs=1M", "count=1", "conv=notrunc,fsync")
    playbooks.run("add-server", *only)
    assert stor3.run("mountpoint", "/srv/braidfs/t2").returncode == 0
    assert stor3.text("braidfs", "target", "list", "--node", "stor3").count(" up ") == 2
    again = playbooks.run("add-server", *only)
    assert again.changed["stor3"] == 0


def test_uninstall_keeps_what_was_stored_unless_told(five: tuple[Site, Playbooks]) -> None:
    hosts, playbooks = five
    playbooks.run("uninstall")
    meta1 = hosts.hosts["meta1"]
    assert meta1.run("test", "-d", "/var/lib/braidfs/metaserver/store").returncode == 0
    playbooks.run("uninstall", "-e", "remove_bytes=true")
    for name in ("meta1", "stor1", "stor2", "gpu1", "gpu2"):
        assert_clean(hosts.hosts[name])
