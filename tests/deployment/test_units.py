"""The systemd units and fstab forms under a real systemd: one host with all three programs."""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import silent_fuse
from tests.cluster.process import wait_until
from tests.deployment.conftest import Wheels
from tests.deployment.hosts import Host, HostError, site, why_no_hosts
from tests.dev.steps import ROOT

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(why_no_hosts() is not None, reason=why_no_hosts() or ""),
]
UNITS = ROOT / "packaging" / "systemd"
MOUNT_UNIT = "braidfs-mount@.service"
# This is the exposure level from 0 to 10 of systemd-analyze security. A mount cannot have a mount
# namespace of its own.
EXPOSURE_MAX = {MOUNT_UNIT: 4.6}
EXPOSURE_MAX_OF_SERVERS = 2.0
METASERVER = """
state_directory = "/var/lib/braidfs/metaserver"
key_file = "/etc/braidfs/cluster.key"
"""
STORAGESERVER = """
name = "stor1"
state_directory = "/var/lib/braidfs/storageserver"
key_file = "/etc/braidfs/cluster.key"
[[targets]]
path = "/srv/braidfs/t1"
"""
FSTAB = """
127.0.0.1:/ /data fuse.braidfs _netdev,nofail,x-systemd.automount,config=/etc/braidfs/fstab.toml 0 0
127.0.0.1:/ /also fuse.braidfs _netdev,nofail,config=/etc/braidfs/fstab.toml 0 0
"""
SERVED = "braidfs-mount@served.service"
LOAD = """
until [ -e /run/stop ]; do
  n=$((n + 1))
  head -c 200000 /dev/urandom >/run/wanted
  { cp /run/wanted /served/load && sync /served/load && cmp /run/wanted /served/load
  } 2>>/run/said ||
    echo "round $n: $(cat /run/said)" >>/run/errors
  echo $n >/run/rounds
done
"""


@pytest.fixture(scope="module")
def host(wheels: Wheels) -> Iterator[Host]:
    with site(wheels.wheel.parent, "solo") as made:
        solo = made.hosts["solo"]
        _install(solo, wheels)
        yield solo


def _install(host: Host, wheels: Wheels) -> None:
    bin_ = Path("/opt/braidfs/bin")
    host.run("/usr/bin/python3", "-m", "venv", bin_.parent)
    host.run(bin_ / "pip", "install", *wheels.pip_words(Path("/mnt")))
    for program in ("braidfs", "braidfs-metaserver", "braidfs-storageserver"):
        host.run("ln", "-s", bin_ / program, f"/usr/local/bin/{program}")
    host.run("ln", "-s", bin_ / "mount.fuse.braidfs", "/sbin/mount.fuse.braidfs")
    host.run("useradd", "--system", "--home-dir", "/var/lib/braidfs", "braidfs")
    host.run("install", "-d", "/etc/braidfs/mounts", "/data", "/also", "/served")
    host.run("install", "-d", "-o", "braidfs", "-g", "braidfs", "/srv/braidfs/t1")
    host.run("braidfs", "key", "create", "/etc/braidfs/cluster.key")
    host.run("chown", "braidfs:braidfs", "/etc/braidfs/cluster.key")
    for name, text in (("metaserver", METASERVER), ("storageserver", STORAGESERVER)):
        host.run("tee", f"/etc/braidfs/{name}.toml", stdin=text)
    host.run("tee", "/etc/braidfs/fstab.toml", stdin='log_file = "/run/fstab.log"\n')
    shipped = bin_.parent / "share/braidfs/packaging/systemd"
    host.run("sh", "-c", f"cp {shipped}/* /etc/systemd/system/")
    host.run("tee", "/etc/fstab", stdin=FSTAB)
    served = "SOURCE=127.0.0.1:/\nOPTIONS=timeout=60\n"
    host.run("tee", "/etc/braidfs/mounts/served.conf", stdin=served)
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "start", "braidfs-metaserver", "braidfs-storageserver")


def show(host: Host, unit: str, key: str) -> str:
    return host.text("systemctl", "show", "--value", "-p", key, unit).strip()


def test_units_verify(host: Host) -> None:
    units = [f"/etc/systemd/system/{unit.name}" for unit in UNITS.iterdir()]
    seen = host.run("systemd-analyze", "verify", "--man=no", *units)
    assert "braidfs" not in seen.stderr + seen.stdout


@pytest.mark.parametrize("unit", sorted(unit.name for unit in UNITS.glob("*.service")))
def test_units_expose_little(unit: str) -> None:
    words = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNITS / unit)]
    seen = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    (level,) = re.findall(r"Overall exposure level for .*: ([\d.]+)", seen)
    assert float(level) <= EXPOSURE_MAX.get(unit, EXPOSURE_MAX_OF_SERVERS), seen


def test_programs_run_without_rights(host: Host) -> None:
    for unit in ("braidfs-metaserver", "braidfs-storageserver"):
        assert show(host, unit, "ActiveState") == "active"
        pid = show(host, unit, "MainPID")
        status = host.text("cat", f"/proc/{pid}/status")
        assert re.search(r"^CapBnd:\s0{16}$", status, re.M) and "Seccomp:\t2" in status
        assert host.text("ps", "-o", "user=", "-p", pid).strip() == "braidfs"
    log = host.text("journalctl", "-u", "braidfs-storageserver", "--no-pager")
    assert "io_engine=uring" in log or "io_engine=syscall" in log


@pytest.mark.full
def test_a_target_is_added_by_reloading_the_unit(host: Host) -> None:
    host.run("install", "-d", "-o", "root", "/srv/braidfs/t2")
    add = ("braidfs", "target", "add", "/srv/braidfs/t2", "--shared-device")
    refused = host.run(*add, check=False)
    assert refused.returncode == 2 and "chown" in refused.stderr
    host.run("chown", "braidfs:braidfs", "/srv/braidfs/t2")
    pid = show(host, "braidfs-storageserver", "MainPID")
    assert "target 2 of stor1" in host.text(*add)
    host.run("systemctl", "reload", "braidfs-storageserver")
    assert show(host, "braidfs-storageserver", "MainPID") == pid
    assert host.text("stat", "-c", "%U %a", "/etc/braidfs/storageserver.toml") == "root 644\n"


def test_the_timer_of_backups(host: Host) -> None:
    folder = "/var/lib/braidfs/backups"
    assert show(host, "braidfs-meta-backup.timer", "UnitFileState") == "disabled"
    host.run("systemctl", "enable", "--now", "braidfs-meta-backup.timer")
    host.run("systemctl", "start", "braidfs-meta-backup.service")
    (name,) = host.text("ls", folder).split()
    host.run("braidfs", "meta", "verify", f"{folder}/{name}")
    assert host.text("stat", "-c", "%U %a", f"{folder}/{name}") == "braidfs 600\n"
    host.run("systemctl", "disable", "--now", "braidfs-meta-backup.timer")


def test_fstab_mounts_on_demand_and_with_mount_a(host: Host) -> None:
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "start", "data.automount")
    assert "fuse.braidfs" not in host.text("cat", "/proc/self/mounts")
    host.run("bash", "-c", "echo text > /data/file")  # the first access mounts it
    assert "/data fuse.braidfs" in host.text("cat", "/proc/self/mounts")
    host.run("mount", "-a", "-t", "fuse.braidfs")
    assert host.text("cat", "/also/file") == "text\n"
    log = host.text("cat", "/run/fstab.log")
    for point in ("/data", "/also"):
        assert f"event=mounted source=127.0.0.1:/ mountpoint={point}" in log
    host.run("umount", "/also")
    assert "/also" not in host.text("cat", "/proc/self/mounts")


def test_watchdog_restarts_a_metaserver_that_hangs(host: Host) -> None:
    host.run("systemctl", "start", "data.automount")
    drop_in = "/run/systemd/system/braidfs-metaserver.service.d/quick.conf"
    host.run("install", "-D", "/dev/stdin", drop_in, stdin="[Service]\nWatchdogSec=2\n")
    host.run("systemctl", "daemon-reload")
    host.run("systemctl", "restart", "braidfs-metaserver")
    host.run("bash", "-c", "echo before > /data/hang")
    before = int(show(host, "braidfs-metaserver", "NRestarts"))
    host.run("kill", "-STOP", show(host, "braidfs-metaserver", "MainPID"))
    assert wait_until(lambda: int(show(host, "braidfs-metaserver", "NRestarts")) > before, 60)
    assert host.text("cat", "/data/hang") == "before\n"
    host.run("bash", "-c", "echo after > /data/hang2; sync /data/hang2")


def test_killed_storage_server_comes_back(host: Host) -> None:
    host.run("systemctl", "start", "data.automount")
    host.run("bash", "-c", "echo kept > /data/kept; sync /data/kept")
    pid = show(host, "braidfs-storageserver", "MainPID")
    host.run("kill", "-KILL", pid)
    assert wait_until(lambda: show(host, "braidfs-storageserver", "MainPID") not in ("0", pid), 60)
    host.run("sh", "-c", "echo 3 > /proc/sys/vm/drop_caches || true")
    assert host.text("cat", "/data/kept") == "kept\n"


def test_a_mount_that_is_a_service(host: Host) -> None:
    """The whole host sees it although its process has few rights, and it ends with its unit."""
    host.run("systemctl", "enable", "--now", SERVED)
    assert "fuse.braidfs" in host.text("findmnt", "/served")
    pid = show(host, SERVED, "MainPID")
    status = host.text("cat", f"/proc/{pid}/status")
    rights = (1 << 21) | (1 << 2) | (1 << 12)  # these are SYS_ADMIN, DAC_READ_SEARCH and NET_ADMIN
    assert re.search(rf"^CapBnd:\s{rights:016x}$", status, re.M) and "Seccomp:\t2" in status
    namespaces = host.text("readlink", f"/proc/{pid}/ns/mnt", "/proc/1/ns/mnt").split()
    assert namespaces[0] == namespaces[1], "a mount namespace of its own"
    wanted = host.text("systemctl", "show", "--value", "-p", "Wants", "remote-fs.target")
    assert SERVED in wanted
    host.run("bash", "-c", "echo text > /served/of-a-service")
    host.run("systemctl", "disable", "--now", SERVED)
    assert "/served" not in host.text("cat", "/proc/self/mounts")
    assert show(host, SERVED, "Result") == "success"


@contextlib.contextmanager
def load(host: Host) -> Iterator[None]:
    """A program that writes, syncs and reads back meanwhile meets no error."""
    host.run("rm", "-f", "/run/stop", "/run/errors", "/run/said", "/run/rounds")
    host.run("systemd-run", "--unit=load", "--collect", "bash", "-c", LOAD)
    yield
    done = int(host.text("cat", "/run/rounds"))
    assert wait_until(lambda: int(host.text("cat", "/run/rounds")) > done + 2, 60)
    host.run("touch", "/run/stop")
    host.run("bash", "-c", "while systemctl is-active --quiet load; do sleep 0.2; done")
    errors = host.run("cat", "/run/errors", check=False)
    assert errors.returncode != 0, errors.stdout


def test_a_service_is_reloaded_and_restarted_under_its_users(host: Host) -> None:
    host.run("systemctl", "start", SERVED)
    device = host.text("stat", "-c", "%d", "/served")
    with load(host):
        assert wait_until(
            lambda: host.run("test", "-e", "/run/rounds", check=False).returncode == 0, 30
        )
        before = show(host, SERVED, "MainPID")
        host.run("systemctl", "reload", SERVED)
        assert show(host, SERVED, "MainPID") == before
        host.run("systemctl", "restart", SERVED)
        after = show(host, SERVED, "MainPID")
        assert after not in ("0", before) and show(host, SERVED, "ActiveState") == "active"
    log = host.text("journalctl", "-u", SERVED, "--no-pager")
    assert log.count("taken over") == 2 and "unmounted" not in log.partition("taken over")[2]
    assert host.text("stat", "-c", "%d", "/served") == device, "another mount"


def test_a_service_that_is_killed_or_hangs_comes_back_with_its_mount(host: Host) -> None:
    host.run("systemctl", "start", SERVED)
    host.run("bash", "-c", "echo kept > /served/kept; sync /served/kept")
    device = host.text("stat", "-c", "%d", "/served")
    for number in ("KILL", "ABRT"):  # the watchdog sends ABRT
        pid = show(host, SERVED, "MainPID")
        reader = ["bash", "-c", f"exec 3</served/kept; kill -{number} {pid}; cat <&3"]
        assert host.text(*reader) == "kept\n"
        assert wait_until(lambda before=pid: show(host, SERVED, "MainPID") not in ("0", before), 60)
        assert host.text("cat", "/served/kept") == "kept\n"
    assert host.text("stat", "-c", "%d", "/served") == device, "another mount"
    host.run("umount", "/served")
    assert wait_until(lambda: show(host, SERVED, "ActiveState") == "inactive", 30)
    assert "/served" not in host.text("cat", "/proc/self/mounts"), "umount is the last word"


def test_a_dead_process_that_cannot_end_holds_up_no_next_one(host: Host) -> None:
    """The mount's unit has systemd start the next process though the kernel keeps a thread of the
    killed one."""
    unit = (UNITS / MOUNT_UNIT).read_text()
    keys = ("NotifyAccess", "KillMode", "Restart", "RestartSec", "TimeoutStopSec")
    settings = [f"-p{key}={re.findall(rf'^{key}=(.*)$', unit, re.M)[0]}" for key in keys]
    python = "/opt/braidfs/bin/python"
    host.run("install", "-d", "/silent")
    host.run("tee", "/run/silent.py", stdin=Path(silent_fuse.__file__).read_text())
    host.run("systemd-run", "--unit=silent", python, "/run/silent.py", "/silent")
    assert wait_until(lambda: "/silent fuse" in host.text("cat", "/proc/self/mounts"), 30)
    start = ("systemd-run", "--unit=stuck", "--service-type=notify", *settings)
    host.run(*start, python, "-c", silent_fuse.SERVICE, "/silent")
    pid = show(host, "stuck", "MainPID")
    waits = ("sh", "-c", f"cat /proc/{pid}/task/*/wchan")
    assert wait_until(lambda: "request_wait_answer" in host.text(*waits), 30)
    host.run("kill", "-KILL", pid)
    assert wait_until(lambda: show(host, "stuck", "MainPID") not in ("0", pid), 30)
    assert wait_until(lambda: show(host, "stuck", "ActiveState") == "active", 30)
    assert "State:\tZ" in host.text("cat", f"/proc/{pid}/status")
    host.run("systemctl", "stop", "silent", "stuck")
    gone = ("test", "!", "-e", f"/proc/{pid}")
    assert wait_until(lambda: host.run(*gone, check=False).returncode == 0, 30)


def test_configuration_that_is_wrong_fails_the_unit_with_a_reason(host: Host) -> None:
    host.run("cp", "/etc/braidfs/metaserver.toml", "/run/good.toml")
    host.run("tee", "-a", "/etc/braidfs/metaserver.toml", stdin='lisen = "x"\n')
    try:
        with pytest.raises(HostError):
            host.run("systemctl", "restart", "braidfs-metaserver")
        log = host.text("journalctl", "-u", "braidfs-metaserver", "-n", "20", "--no-pager")
        assert "did you mean 'listen'" in log
    finally:
        host.run("cp", "/run/good.toml", "/etc/braidfs/metaserver.toml")
        host.run("systemctl", "reset-failed", "braidfs-metaserver")
        host.run("systemctl", "restart", "braidfs-metaserver")


def test_power_off_stops_clients_first_and_the_metaserver_last(host: Host) -> None:
    """This ends the host: it is the last test of this file."""
    # Only this target orders our units against mounts, and only while it is active.
    assert show(host, "remote-fs-pre.target", "ActiveState") == "active"
    host.run("systemctl", "start", "data.automount", SERVED)
    host.run("bash", "-c", "echo last > /data/last; echo last > /served/last2")
    host.power_off()
    log = host.log.read_text(errors="replace")
    served = log.find(f"Stopped {SERVED}")
    assert 0 <= served < log.find("Stopped braidfs-storageserver.service"), log[-3000:]
    units = ["data.mount", "braidfs-storageserver.service", "braidfs-metaserver.service"]
    ends = [re.search(rf"(?:Unmounted|Stopped) \S*{re.escape(unit)}", log) for unit in units]
    places = [end.start() if end else -1 for end in ends]
    assert -1 not in places and places == sorted(places), log[-3000:]
