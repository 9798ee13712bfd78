"""Debian packages: what is in them, and how they work on a host with a systemd of its own.

The long form builds them; the quick one only checks that every program is in one of them.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsclient.config import ClientConfig, load_config
from tests.cluster.process import wait_until
from tests.deployment.hosts import Host, HostError, site, why_no_hosts
from tests.deployment.postgresql import PASSWORD, start_postgresql
from tests.dev.build import project_version
from tests.dev.steps import ROOT

pytestmark = pytest.mark.timeout(1500)
PACKAGING = ROOT / "packaging" / "debian"
SERVERS = ("braidfs-metaserver", "braidfs-storageserver")
POSTGRESQL = "braidfs-postgresql"  # of metaservers with a journal there
NAMES = ("braidfs", "braidfs-metaserver", POSTGRESQL, "braidfs-storageserver")
IMPORTED = "/usr/lib/python3/dist-packages/braidfs"  # by Debian's python3: the users' package
CONFFILES = ("/etc/braidfs/admin.toml", "/etc/braidfs/client.toml")
MOUNT_UNIT = "braidfs-mount@.service"
TIMER = "braidfs-meta-backup.timer"
BACKUP_UNITS = {"braidfs-meta-backup.service", TIMER}


def output(*words: object) -> str:
    return subprocess.run(
        [*map(str, words)], check=True, capture_output=True, text=True, timeout=300
    ).stdout


def test_every_program_and_unit_has_a_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    links = "".join(path.read_text() for path in PACKAGING.glob("*.links"))
    assert {f"usr/lib/braidfs/bin/{name}" for name in project["scripts"]} == {
        line.split()[0] for line in links.splitlines()
    }
    packages = re.findall(r"^Package: (.+)$", (PACKAGING / "control").read_text(), re.M)
    assert tuple(packages) == NAMES
    units = {unit.name for unit in (ROOT / "packaging" / "systemd").iterdir()}
    assert units == {f"{name}.service" for name in SERVERS} | {MOUNT_UNIT} | BACKUP_UNITS
    held = (PACKAGING / "braidfs-metaserver.install").read_text()
    assert all(f"debian/{unit} lib/systemd/system" in held for unit in BACKUP_UNITS)
    assert f"debian/{MOUNT_UNIT} lib/systemd/system" in (PACKAGING / "braidfs.install").read_text()


def test_the_client_file_of_the_package_is_valid(tmp_path: Path) -> None:
    """As it is shipped, and with the keys that it shows."""
    shipped = PACKAGING / "client.toml"
    assert load_config(shipped) == ClientConfig()
    shown = tmp_path / "client.toml"
    shown.write_text(re.sub(r"^# (\w+ = )", r"\1", shipped.read_text(), flags=re.M))
    config = load_config(shown)
    assert config.tls == "required" and config.metrics_listen and config.log_file
    assert "client.toml etc/braidfs\n" in (PACKAGING / "braidfs.install").read_text()


def field(package: Path, name: str) -> str:
    return output("dpkg-deb", "-f", package, name).strip()


@pytest.mark.full
def test_what_they_need_and_hold(debs: dict[str, Path]) -> None:
    assert tuple(sorted(debs)) == NAMES
    needs = field(debs["braidfs"], "Depends")
    for library in ("libfuse3-3", "libssl3", "liburing2", "libc6", "libstdc++6", "fuse3"):
        assert re.search(rf"(^|, ){re.escape(library)}\b", needs), needs
    assert re.search(r"python3 \(>= 3\.\d+\), python3 \(<< 3\.\d+\)", needs)
    for name in SERVERS:
        held = output("dpkg-deb", "-c", debs[name])
        assert f"lib/systemd/system/{name}.service" in held and f"man8/{name}.8.gz" in held
        assert f"braidfs (= {field(debs['braidfs'], 'Version')})" in field(debs[name], "Depends")
    held = output("dpkg-deb", "-c", debs["braidfs"])
    unit = f"lib/systemd/system/{MOUNT_UNIT}"
    programs = ("usr/bin/braidfs", "sbin/mount.fuse.braidfs")
    for path in (*programs, "man1/braidfs-target.1.gz", *CONFFILES, unit, IMPORTED):
        assert path in held
    assert str(ROOT) not in held and "psycopg" not in held
    extra = output("dpkg-deb", "-c", debs[POSTGRESQL])
    assert f"/usr/lib/braidfs/lib/python3.{sys.version_info.minor}/site-packages/psycopg/" in extra
    assert f"braidfs (= {field(debs['braidfs'], 'Version')})" in field(debs[POSTGRESQL], "Depends")


@pytest.mark.full
def test_lintian_finds_no_error(debs: dict[str, Path]) -> None:
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed")
    # The project has no mail address.
    known = "bogus-mail-host,bogus-mail-host-in-debian-changelog"
    words = ["lintian", "--fail-on", "error", "--suppress-tags", known, *map(str, debs.values())]
    seen = subprocess.run(words, check=False, capture_output=True, text=True, timeout=600)
    assert seen.returncode == 0, seen.stdout


@pytest.fixture(scope="module")
def host(debs: dict[str, Path]) -> Iterator[Host]:
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    _newer(debs)
    with site(debs["braidfs"].parent, "debian") as made:
        made.hosts["debian"].let_services_start()
        yield made.hosts["debian"]


def _newer(debs: dict[str, Path]) -> None:
    """The same packages as version 9, in the folder newer."""
    folder = debs["braidfs"].parent / "newer"
    folder.mkdir()
    for name, package in debs.items():
        output("dpkg-deb", "-R", package, folder / name)
        control = folder / name / "DEBIAN" / "control"
        version = field(package, "Version")
        control.write_text(control.read_text().replace(version, "9"))
        output("dpkg-deb", "-Zgzip", "-z1", "-b", folder / name, folder / f"{name}.deb")
        shutil.rmtree(folder / name)


@pytest.mark.full
def test_nothing_starts_before_it_is_configured(host: Host) -> None:
    seen = host.install_packages("*.deb")
    assert "warning" not in seen.stderr.lower().replace("debconf", "")
    for name in SERVERS:
        shown = host.text("systemctl", "show", "-p", "ActiveState,Result,ConditionTimestamp", name)
        assert "ActiveState=inactive" in shown and "Result=success" in shown
        assert not shown.rstrip().endswith("ConditionTimestamp="), "it was asked to start"
    assert host.run("systemctl", "is-enabled", TIMER, check=False).stdout == "disabled\n"
    assert "braidfs" in host.text("getent", "passwd", "braidfs")
    found = host.run("find", "/var/lib/braidfs", "/srv/braidfs", "-type", "f", check=False)
    assert not found.stdout
    assert project_version() in host.text("braidfs", "--version")
    asked = (
        "import braidfs, importlib.metadata as m; print(braidfs.where('/'), m.version('braidfs'))"
    )
    assert host.text("/usr/bin/python3", "-c", asked) == f"None {project_version()}\n"


@pytest.mark.full
def test_the_installed_programs_work(host: Host) -> None:
    host.run("install", "-d", "-o", "braidfs", "-g", "braidfs", "/srv/braidfs/t1")
    host.run("install", "-d", "/data")
    host.run("braidfs", "key", "create", "/etc/braidfs/cluster.key")
    host.run("chown", "braidfs:braidfs", "/etc/braidfs/cluster.key")
    for name in ("metaserver", "storageserver"):
        example = f"/usr/share/doc/braidfs-{name}/examples/{name}.toml"
        local = {
            "0.0.0.0": "127.0.0.1",
            "stor1:": "127.0.0.1:",
            "meta1": "127.0.0.1",
            "nvme0": "t1",
        }
        text = host.text("cat", example)
        for shipped, here in local.items():
            text = text.replace(shipped, here)
        host.run("tee", f"/etc/braidfs/{name}.toml", stdin=text)
        host.run("systemctl", "start", f"braidfs-{name}")
    assert "healthy" in host.text("braidfs", "status")
    assert "enabled" in host.text("systemctl", "is-enabled", *SERVERS)
    host.run("mount", "-t", "fuse.braidfs", "127.0.0.1:/", "/data")
    host.run("sh", "-c", "echo kept > /data/file; sync /data/file")
    assert host.text("readlink", "-f", "/usr/bin/braidfs") == "/usr/lib/braidfs/bin/braidfs\n"


@pytest.mark.full
def test_an_upgrade_keeps_configuration_bytes_and_mounts(host: Host) -> None:
    for path, text in zip(
        CONFFILES, ('metaservers = ["127.0.0.1"]\n', 'log_level = "debug"\n'), strict=True
    ):
        host.run("tee", "-a", path, stdin=text)
    before = host.text("cat", *CONFFILES)
    pid = host.text("systemctl", "show", "--value", "-p", "MainPID", "braidfs-storageserver")
    host.run("systemctl", "enable", "--now", TIMER)
    host.install_packages("newer/*.deb")
    assert host.text("cat", *CONFFILES) == before
    after = host.text("systemctl", "show", "--value", "-p", "MainPID", "braidfs-storageserver")
    assert after not in (pid, "0"), "it runs the new release"
    assert host.text("systemctl", "is-active", TIMER) == "active\n"
    healthy = lambda: host.run("braidfs", "status", check=False).returncode == 0  # noqa: E731
    assert wait_until(healthy, 60)
    host.run("sh", "-c", "echo more >> /data/file; sync /data/file")
    assert host.text("cat", "/data/file") == "kept\nmore\n"


@pytest.mark.full
def test_a_journal_in_postgresql(host: Host) -> None:
    """The metaserver begins it with its names, within the rights of its unit."""
    journal = start_postgresql(host)
    password = "/etc/braidfs/journal.password"
    host.run("install", "-m", "600", "-o", "braidfs", "/dev/stdin", password, stdin=PASSWORD)
    keys = {"journal": journal, "address": "127.0.0.1:7400", "journal_password_file": password}
    lines = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
    host.run("tee", "-a", "/etc/braidfs/metaserver.toml", stdin=lines)
    host.run("systemctl", "restart", "braidfs-metaserver")
    shown = lambda: host.run("braidfs", "status", check=False)  # noqa: E731
    assert wait_until(lambda: "postgresql, term" in shown().stdout, 60)
    assert host.text("cat", "/data/file") == "kept\nmore\n"
    host.run("dpkg", "-r", POSTGRESQL)
    assert host.run("/usr/lib/braidfs/bin/python3", "-c", "import psycopg", check=False).returncode
    assert not host.run("find", "/usr/lib/braidfs", "-path", "*psycopg*").stdout


@pytest.mark.full
def test_removing_leaves_what_is_the_administrators(host: Host) -> None:
    host.run("umount", "/data")
    host.run("dpkg", "-r", *NAMES)
    assert host.run("systemctl", "is-active", "braidfs-metaserver", check=False).returncode != 0
    assert host.text("cat", *CONFFILES)
    assert host.run("systemctl", "is-active", TIMER, check=False).stdout == "inactive\n"
    host.run("dpkg", "-P", *NAMES)
    assert "braidfs" not in host.text("ls", "-R", "/etc/systemd/system")
    for path in CONFFILES:
        with pytest.raises(HostError):
            host.run("test", "-e", path)
    assert not host.run("find", "/usr/lib/braidfs", check=False).stdout
    assert not host.run("find", "/usr/lib/python3/dist-packages", "-name", "*braidfs*").stdout
    assert host.text("find", "/var/lib/braidfs/metaserver", "-name", "data.mdb")
    assert host.text("cat", "/etc/braidfs/cluster.key")
