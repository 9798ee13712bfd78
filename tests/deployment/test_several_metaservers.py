"""Two metaservers over an etcd of three members: deployed, cut off and upgraded under I/O, removed.

There are two storage servers and two clients, too. At the end a cluster that has one metaserver and
no journal is extended, with a journal in PostgreSQL. It runs in ./dev test --full and ./dev
deployment only.
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.process import PATIENCE, wait_until
from tests.deployment.conftest import Wheels
from tests.deployment.hosts import Host, Site, site, why_no_hosts
from tests.deployment.playbooks import Playbooks
from tests.deployment.test_five_hosts import LOAD, mounted_release, newer, release
from tests.deployment.test_playbooks import assert_clean, use

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(why_no_hosts() is not None, reason=why_no_hosts() or ""),
]
METASERVERS = ("meta1", "meta2")
MEMBERS = ("etcd1", "etcd2", "etcd3")
GROUPS = ("metaservers", "storageservers", "clients")
STORAGE_SERVERS = ("stor1", "stor2")
CLIENTS = ("gpu1", "gpu2")
# fio writes 16 files, reads them back and checks every block, and removes them: again and again.
FIO = """
n=0
while [ ! -e /run/stop ]; do
  n=$((n + 1))
  fio --name=verified --directory=/data --ioengine=psync --rw=randwrite --bs=16k --filesize=256k \
    --nrfiles=16 --fsync=4 --verify=crc32c --verify_fatal=1 --unlink=1 >/run/said 2>&1 ||
    echo "round $n of fio: $(cat /run/said)" >>/run/errors
  echo $n >/run/rounds
  sleep 0.5
done
"""
PROGRAMS = {"gpu1": FIO, "gpu2": LOAD}
Nine = tuple[Site, Playbooks]


@pytest.fixture(scope="module")
def nine(wheels: Wheels) -> Iterator[Nine]:
    names = (*METASERVERS, *MEMBERS, *STORAGE_SERVERS, *CLIENTS)
    with site(wheels.wheel.parent, *names) as made:
        groups = {
            "metaservers": METASERVERS,
            "etcd": MEMBERS,
            "storageservers": STORAGE_SERVERS,
            "clients": CLIENTS,
        }
        yield made, Playbooks(made, wheels, groups)


@contextlib.contextmanager
def load(nine: Nine) -> Iterator[None]:
    """fio on one client and a program that writes and compares on the other one, for the time of
    the block: neither may meet an error."""
    hosts = {name: nine[0].hosts[name] for name in PROGRAMS}
    for name, host in hosts.items():
        host.run("rm", "-f", "/run/stop", "/run/errors", "/run/said", "/run/rounds")
        host.run("systemd-run", "--unit=load", "--nice=10", "--collect", "sh", "-c", PROGRAMS[name])
    goes_on(nine)
    yield
    goes_on(nine)
    for host in hosts.values():
        host.run("touch", "/run/stop")
    for host in hosts.values():
        host.run("sh", "-c", "while systemctl is-active --quiet load; do sleep 0.2; done")
        errors = host.run("cat", "/run/errors", check=False)
        log = host.run("journalctl", "-t", "braidfs", "-n", "50", "--no-pager", check=False).stdout
        assert errors.returncode != 0, f"{host.name}: I/O failed: {errors.stdout}\n{log}"


def goes_on(nine: Nine, rounds: int = 2) -> None:
    """Waits until both programs have ended some more rounds."""
    hosts = [nine[0].hosts[name] for name in PROGRAMS]
    wanted = [rounds_of(host) + rounds for host in hosts]
    for host, number in zip(hosts, wanted, strict=True):
        assert wait_until(lambda: rounds_of(host) >= number, 60 * PATIENCE), host.name  # noqa: B023


def rounds_of(host: Host) -> int:
    return int(host.run("cat", "/run/rounds", check=False).stdout.strip() or 0)


def status(host: Host) -> dict[str, Any]:
    """What `braidfs status` says there; empty while no metaserver is active."""
    said = host.run("braidfs", "status", "--json", check=False)
    with contextlib.suppress(ValueError):
        shown: dict[str, Any] = json.loads(said.stdout)
        return shown
    return {}


def roles(host: Host) -> dict[str, str]:
    """Name of a metaserver → active or standby; those that have not reported of late are absent."""
    rows = status(host).get("metaservers", [])
    return {row["name"]: row["role"] for row in rows if row["seconds_since_report"] < 8}


def is_healthy(host: Host) -> bool:
    return len(roles(host)) == len(METASERVERS) and status(host).get("health") == "healthy"


def test_deploy(nine: Nine) -> None:
    made, playbooks = nine
    dry = playbooks.run("site", "--check", "--diff", "--limit", "etcd")
    assert set(dry.changed) == set(MEMBERS) and min(dry.changed.values()) > 0
    for name in MEMBERS:
        assert "braidfs" not in made.hosts[name].text("ls", "/etc", "/var/lib/etcd")
    first = playbooks.run("site")
    assert min(first.changed.values()) > 0
    again = playbooks.run("site", "--diff")
    assert set(again.changed.values()) == {0}, again.output
    for name in CLIENTS:
        use(made.hosts[name])
        sources = ",".join(made.hosts[meta].address for meta in METASERVERS)
        assert f"{sources}:/ /data" in made.hosts[name].text("cat", "/etc/fstab")
    assert roles(made.hosts["gpu1"]) == {"meta1": "active", "meta2": "standby"}
    journal = status(made.hosts["gpu2"])["journal"]
    assert journal["engine"] == "etcd"
    assert [row["bytes_max"] for row in journal["servers"]] == [4 << 30] * len(MEMBERS)
    assert all(row["reachable"] and not row["alarms"] for row in journal["servers"])


def test_who_may_use_the_journal(nine: Nine) -> None:
    """A metaserver may; a storage server has a certificate of the same authority, which is no
    client's; and nobody may without a certificate, or without TLS."""
    made, _ = nine
    meta1, stor1 = made.hosts["meta1"], made.hosts["stor1"]
    address = f"{made.hosts['etcd1'].address}:2379"
    folder = "/etc/braidfs/tls"
    authority = f"--cacert={folder}/ca.crt"
    own = (f"--cert={folder}/server.crt", f"--key={folder}/server.key")
    words = ("env", "ETCDCTL_API=3", "etcdctl", "--command-timeout=3s")
    secure = (*words, f"--endpoints=https://{address}", authority)
    asked = ("get", "/braidfs/head")
    assert meta1.run(*secure, *own, *asked).returncode == 0
    assert stor1.run(*secure, *own, *asked, check=False).returncode != 0
    assert stor1.run(*secure, *asked, check=False).returncode != 0
    assert stor1.run(*words, f"--endpoints=http://{address}", *asked, check=False).returncode != 0
    for name in MEMBERS:
        host = made.hosts[name]
        assert host.run("test", "-e", "/etc/braidfs/cluster.key", check=False).returncode == 1
        mode = host.text("stat", "-c", "%U %a", "/etc/braidfs/etcd/server.key").strip()
        assert mode == "etcd 600"


def test_the_active_host_is_cut_off_under_io(nine: Nine) -> None:
    made, _ = nine
    gpu1 = made.hosts["gpu1"]
    seconds = 30 * PATIENCE
    with load(nine):
        made.cut("meta1")
        assert wait_until(lambda: roles(gpu1).get("meta2") == "active", seconds), status(gpu1)
        goes_on(nine)
        assert wait_until(lambda: "meta1" not in roles(gpu1), seconds)
        assert status(gpu1)["health"] == "degraded"
        made.restore("meta1")
        assert wait_until(lambda: is_healthy(gpu1), 60 * PATIENCE), status(gpu1)
    assert roles(gpu1) == {"meta1": "standby", "meta2": "active"}


def test_upgrade_under_io(
    nine: Nine, wheels: Wheels, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Members of etcd are restarted for a changed setting, one at a time; servers for the new
    release."""
    made, playbooks = nine
    gpu1 = made.hosts["gpu1"]
    playbooks.wheels = newer(wheels, tmp_path_factory)
    playbooks.variables["etcd_snapshot_count"] = 2000
    servers = {name: "braidfs-metaserver" for name in METASERVERS}
    servers |= {name: "braidfs-storageserver" for name in STORAGE_SERVERS}
    before = {name: release(made.hosts[name], unit) for name, unit in servers.items()}
    was_active = {name for name, role in roles(gpu1).items() if role == "active"}
    with load(nine):
        upgraded = playbooks.run("upgrade", "-e", "clients_batch=100%")
    for name, unit in servers.items():
        after = release(made.hosts[name], unit)
        assert after != before[name], f"{name} runs the old release"
    assert [mounted_release(made.hosts[name]) for name in CLIENTS] == [after, after]
    for name in MEMBERS:
        pid = made.hosts[name].text("systemctl", "show", "--value", "-p", "MainPID", "etcd").strip()
        environment = made.hosts[name].text("cat", f"/proc/{pid}/environ")
        assert "ETCD_SNAPSHOT_COUNT=2000" in environment.split("\0")
    assert is_healthy(gpu1)
    active = {name for name, role in roles(gpu1).items() if role == "active"}
    assert len(active) == 1 and active != was_active, upgraded.output


def test_uninstall(nine: Nine) -> None:
    made, playbooks = nine
    playbooks.run("uninstall")
    etcd1 = made.hosts["etcd1"]
    assert etcd1.run("systemctl", "is-active", "etcd", check=False).stdout == "inactive\n"
    etcd1.run("test", "-d", "/var/lib/etcd/braidfs/member")
    playbooks.run("uninstall", "-e", "remove_bytes=true")
    etcd1.run("test", "!", "-e", "/var/lib/etcd/braidfs")
    for host in made.hosts.values():
        assert_clean(host)


def test_one_metaserver_becomes_one_of_two(wheels: Wheels) -> None:
    """The other one copies its names. The only member of etcd is on the storage server's host."""
    with site(wheels.wheel.parent, "meta1", "meta2", "stor1", "gpu1") as made:
        groups = {"metaservers": ["meta1"], "storageservers": ["stor1"], "clients": ["gpu1"]}
        playbooks = Playbooks(made, wheels, groups)
        playbooks.run("site")
        meta1, gpu1 = made.hosts["meta1"], made.hosts["gpu1"]
        assert "journal" not in meta1.text("cat", "/etc/braidfs/metaserver.toml")
        use(gpu1)
        gpu1.run("umount", "/data")
        playbooks.groups["metaservers"].append("meta2")
        refused = playbooks.run("site", fails=True)
        assert "they need a journal" in refused.output
        playbooks.groups["etcd"] = ["stor1"]
        playbooks.run("site")
        again = playbooks.run("site", "--diff")
        assert set(again.changed.values()) == {0}, again.output
        assert roles(gpu1) == {"meta1": "active", "meta2": "standby"}
        gpu1.run("cmp", "/run/a", "/data/a")
        meta1.run("systemctl", "stop", "braidfs-metaserver")
        gpu1.run("sh", "-c", "cmp /run/a /data/a && cp /run/a /data/b && sync /data/b")
        assert roles(gpu1)["meta2"] == "active"


def members_of(host: Host) -> set[str]:
    """Addresses of the servers of the journal that answer the active metaserver."""
    servers = (status(host).get("journal") or {}).get("servers", [])
    return {row["endpoint"].partition(":")[0] for row in servers if row["reachable"]}


def test_members_of_etcd_are_added_and_taken_out(wheels: Wheels) -> None:
    """One becomes three while a client writes, and one again, which is not the first one. A host
    that has lost what it stored is refused until it is taken out."""
    with site(wheels.wheel.parent, "meta1", "stor1", "gpu1") as made:
        groups = {name: [host] for name, host in zip(GROUPS, made.hosts, strict=True)}
        playbooks = Playbooks(made, wheels, groups | {"etcd": ["stor1"]})
        playbooks.run("site")
        gpu1, stor1 = made.hosts["gpu1"], made.hosts["stor1"]
        use(gpu1)
        gpu1.run("systemd-run", "--unit=load", "--collect", "sh", "-c", LOAD)

        playbooks.groups["etcd"] = ["stor1", "meta1", "gpu1"]
        playbooks.run("site")
        again = playbooks.run("site", "--diff")
        assert set(again.changed.values()) == {0}, again.output
        addresses = {host.address for host in made.hosts.values()}
        assert wait_until(lambda: members_of(gpu1) == addresses, 60 * PATIENCE), status(gpu1)

        stor1.run("systemctl", "stop", "etcd")
        stor1.run("rm", "-r", "/var/lib/etcd/braidfs/member")
        refused = playbooks.run("site", fails=True)
        assert "stor1 is a member of etcd and has lost what it stored" in refused.output
        playbooks.run("remove-etcd", "-e", "leaving=stor1")
        playbooks.run("site")
        assert wait_until(lambda: members_of(gpu1) == addresses, 60 * PATIENCE), status(gpu1)

        for name in ("stor1", "meta1", "meta1"):  # the last one changes nothing
            told = playbooks.run("remove-etcd", "-e", f"leaving={name}")
            state = made.hosts[name].run("systemctl", "is-active", "etcd", check=False).stdout
            assert state == "inactive\n"
        assert set(told.changed.values()) == {0}, told.output
        playbooks.groups["etcd"] = ["gpu1"]
        playbooks.run("site")
        assert wait_until(lambda: members_of(gpu1) == {gpu1.address}, 60 * PATIENCE)
        alone = playbooks.run("remove-etcd", "-e", "leaving=gpu1", fails=True)
        assert "gpu1 was not taken out: it is the only member" in alone.output
        assert members_of(gpu1) == {gpu1.address}
        gpu1.run("touch", "/run/stop")
        gpu1.run("sh", "-c", "while systemctl is-active --quiet load; do sleep 0.2; done")
        assert gpu1.run("cat", "/run/errors", check=False).returncode != 0
        gpu1.run("cmp", "/run/a", "/data/a")
