"""Ansible deploys a real cluster on a test host, which is then used; the long form deploys it
again, and removes it.

Five hosts, dry runs, upgrade and extension under I/O are in test_five_hosts.py, in ./dev test
--full and ./dev deployment. So is ansible-lint: its installation takes longer than the rest of this
file. The key never appears in any output.
"""

import json
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.deployment.conftest import Wheels
from tests.deployment.hosts import Host, site, why_no_hosts
from tests.deployment.playbooks import KEY, Playbooks
from tests.dev import ansible

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.skipif(why_no_hosts() is not None, reason=why_no_hosts() or ""),
]
LEFT_OVER = (
    "/opt/braidfs",
    "/etc/braidfs",
    "/var/lib/braidfs",
    "/srv/braidfs",
    "/usr/sbin/mount.fuse.braidfs",
    "/usr/local/bin/braidfs",
)


@pytest.fixture(scope="module")
def small(wheels: Wheels) -> Iterator[tuple[Host, Playbooks]]:
    with site(wheels.wheel.parent, "solo") as made:
        groups = {name: ["solo"] for name in ("metaservers", "storageservers", "clients")}
        playbooks = Playbooks(made, wheels, groups)
        cached = {"path": "/data", "cache_dir": "/srv/braidfs-cache", "cache_size": "64MiB"}
        playbooks.variables = {
            "fsclient_mounts": [cached],
            "fsclient_metrics_listen": "127.0.0.1:9420",
            "fsclient_settings": {"log_level": "debug", "rdma_devices": ["mlx5_0"]},
            "node_http_tls": True,
        }
        yield made.hosts["solo"], playbooks


def run(program: str, *words: str) -> str:
    """Runs a program of Ansible in the folder of the playbooks; returns what it printed."""
    path = ansible.program(program)
    result = subprocess.run(
        [path, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ansible.PLAYBOOKS,
        env=ansible.environment(path),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.full
def test_playbooks_are_clean() -> None:
    run("ansible-lint", "-q", "--nocolor", "--offline")


def test_variables_are_documented() -> None:
    """Every default is in the argument specs, which Ansible itself reads, and no default is
    elsewhere."""
    roles = ("node", "etcd", "metaserver", "storageserver", "fsclient")
    words = ("-t", "role", "-r", "roles", "--json", *roles)
    documented = json.loads(run("ansible-doc", *words))
    for role in roles:
        (options,) = [spec["options"] for spec in documented[role]["entry_points"].values()]
        defaults = (ansible.PLAYBOOKS / "roles" / role / "defaults" / "main.yml").read_text()
        named = set(re.findall(r"^(\w+):", defaults, re.M))
        assert named <= set(options), role
        assert all(option["description"] for option in options.values()), role


def test_roles_need_no_defaults_of_another_one() -> None:
    """Each play has one role and only its defaults: all other variables must be in an inventory."""
    roles = ansible.PLAYBOOKS / "roles"
    specs = (roles / "node" / "meta" / "argument_specs.yml").read_text()
    an_option = r"^      (\w+):\n(?:        .*\n)*?        required: true"
    required = set(re.findall(an_option, specs, re.M))
    assert {"node_key", "node_metaservers"} <= required < set(re.findall(r"\b(node_\w+):", specs))
    for role in ("etcd", "metaserver", "storageserver", "fsclient"):
        for path in [*(roles / role).rglob("*.yml"), *(roles / role).rglob("*.j2")]:
            text = path.read_text()
            for name, rest in re.findall(r"\b(node_\w+)( \| default\()?", text):
                known = rest or name in required or f"{name} is defined" in text
                assert known, f"{path.name}: {name} has no default"


def test_one_machine(small: tuple[Host, Playbooks], full: bool) -> None:
    solo, playbooks = small
    first = playbooks.run("site")
    assert first.changed["solo"] > 0
    use(solo)
    assert_options_work(solo)
    if not full:
        return
    for name in ("site", "clients"):
        again = playbooks.run(name, "--diff")
        assert again.changed == {"solo": 0}, again.output
    give_a_client_a_key_of_its_own(solo, playbooks)
    make_the_mount_a_service(solo, playbooks)
    gone = playbooks.run("uninstall", "-e", "remove_bytes=true")
    assert gone.changed["solo"] > 0
    assert_clean(solo)


def use(host: Host) -> None:
    """Bytes go through the mount, with the kernel's cache dropped in between, and the status is
    healthy."""
    make = "head -c 3000000 /dev/urandom > /run/a; cp /run/a /data/a; sync /data/a"
    host.run("sh", "-c", f"{make}; cmp /run/a /data/a")
    assert "healthy" in host.text("braidfs", "status")
    assert "fuse.braidfs" in host.text("findmnt", "/data")
    mode = host.text("stat", "-c", "%U %a", "/etc/braidfs/cluster.key")
    assert mode.strip() == "braidfs 600"
    assert host.text("cat", "/etc/braidfs/cluster.key").strip() == KEY
    assert "tls=" not in host.text("cat", "/etc/fstab")
    assert 'tls = "required"' in host.text("cat", "/etc/braidfs/admin.toml")


def assert_options_work(host: Host) -> None:
    """The local cache is used, and a killed client is started again, below an automount of systemd;
    the configuration of servers has the values of the variables."""
    line = host.text("grep", "fuse.braidfs", "/etc/fstab")
    assert "cache_dir=/srv/braidfs-cache,cache_size=64MiB" in line
    assert host.text("stat", "-c", "%U %a", "/srv/braidfs-cache").strip() == "root 700"
    assert host.text("sh", "-c", "ls -A /srv/braidfs-cache")
    client = host.text("cat", "/etc/braidfs/client.toml")
    assert 'tls = "required"\nmetrics_listen = "127.0.0.1:9420"\n' in client
    assert 'log_level = "debug"\nrdma_devices = ["mlx5_0"]\n' in client
    host.run("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9420")
    for name in ("metaserver", "storageserver"):
        assert "http_tls = true" in host.text("cat", f"/etc/braidfs/{name}.toml")
    (client,) = json.loads(host.text("braidfs", "client", "list", "--json"))
    assert client["client"].endswith(":/data")
    assert host.text("pgrep", "-f", "fsclient.keeper")
    (before,) = host.text("pgrep", "-f", "mount.fuse.braidfs").split()
    host.run("kill", "-9", before)
    host.run("sh", "-c", "cmp /run/a /data/a && echo more > /data/more && sync /data/more")
    assert before not in host.text("pgrep", "-f", "mount.fuse.braidfs").split()
    _assert_backups_are_made(host)


def _assert_backups_are_made(host: Host) -> None:
    assert host.text("systemctl", "is-active", "braidfs-meta-backup.timer").strip() == "active"
    host.run("systemctl", "start", "braidfs-meta-backup.service")
    (backup,) = host.text("ls", "/srv/braidfs/nightly").split()
    host.run("braidfs", "meta", "verify", f"/srv/braidfs/nightly/{backup}")


def give_a_client_a_key_of_its_own(host: Host, playbooks: Playbooks) -> None:
    """From then on the mount uses that key; a server on the host keeps the cluster key
    beside it."""
    host.run("braidfs", "key", "create", "/run/solo.key", "--client", "solo", "--squash-root")
    secret = host.text("cat", "/run/solo.key").strip()
    playbooks.variables["fsclient_key"] = secret
    host.run("umount", "/data")
    changed = playbooks.run("clients", "-e", "clients_batch=1")
    assert changed.changed["solo"] > 0 and secret not in changed.output
    assert "key_file=/etc/braidfs/client.key" in host.text("grep", "fuse.braidfs", "/etc/fstab")
    assert host.text("stat", "-c", "%U %a", "/etc/braidfs/client.key").strip() == "root 600"
    host.run("test", "-e", "/etc/braidfs/cluster.key")
    host.run("ls", "/data")
    (row,) = json.loads(host.text("braidfs", "key", "list", "--json"))
    assert len(row["sessions"]) == 1
    assert playbooks.run("clients", "-e", "clients_batch=1").changed == {"solo": 0}


def make_the_mount_a_service(host: Host, playbooks: Playbooks) -> None:
    """The mount becomes a service instead of a line of fstab; then its unit starts the next release
    while programs use it."""
    (mount,) = playbooks.variables["fsclient_mounts"]
    playbooks.variables["fsclient_mounts"] = [{**mount, "by": "service"}]
    changed = playbooks.run("clients", "-e", "clients_batch=1")
    assert changed.changed["solo"] > 0
    assert "fuse.braidfs" not in host.text("cat", "/etc/fstab")
    unit = "braidfs-mount@data.service"
    assert host.text("systemctl", "is-active", unit) == "active\n"
    assert host.text("systemctl", "is-enabled", unit) == "enabled\n"
    conf = host.text("cat", "/etc/braidfs/mounts/data.conf")
    assert "OPTIONS=key_file=/etc/braidfs/client.key" in conf
    host.run("cmp", "/run/a", "/data/a")
    assert playbooks.run("clients", "-e", "clients_batch=1").changed == {"solo": 0}


def assert_clean(host: Host) -> None:
    for path in LEFT_OVER:
        assert host.run("test", "-e", path, check=False).returncode == 1, f"{host.name}: {path}"
    assert "braidfs" not in host.text("systemctl", "list-unit-files", "--no-pager")
    assert "fuse.braidfs" not in host.text("cat", "/etc/fstab", "/proc/self/mounts")
    assert "/opt/braidfs" not in host.text("ps", "-eo", "args")
