"""The section Install of README.md: its lines and files, followed to the letter on fresh hosts.

Hosts have no registry: the folder dist and what apt installs from Debian are there already. The
long form runs the lines; the quick one checks that they are as the long one takes them, and that
what they name exists.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fscommon.config import load
from metaserver.config import MetaserverConfig
from storageserver.config import StorageServerConfig
from tests.cluster.process import wait_until
from tests.deployment.conftest import Wheels
from tests.deployment.hosts import Host, site, why_no_hosts
from tests.dev.__main__ import cli
from tests.dev.guide import DOCS, steps_of
from tests.dev.steps import ROOT

pytestmark = pytest.mark.timeout(1500)
PAGE = "../README.md"
PLACES = ("/etc/braidfs/metaserver.toml", "/etc/braidfs/storageserver.toml")
UNITS = ROOT / "packaging" / "systemd"
LINES_MAX = 6  # what the page promises somebody who has little time


@dataclass(frozen=True)
class Readme:
    packages: tuple[str, ...]
    wheel: tuple[str, ...]
    common: tuple[str, ...]
    files: dict[str, str]
    start: tuple[str, ...]


@pytest.fixture(scope="module")
def readme() -> Readme:
    steps = [step for step in steps_of(PAGE) if step.section == "Install"]
    packages, wheel, common, *files, start = steps
    assert all(step.path for step in files)
    return Readme(
        packages.commands,
        wheel.commands,
        common.commands,
        {step.path: step.content for step in files},
        start.commands,
    )


def test_the_lines_are_few(readme: Readme) -> None:
    assert 0 < len(readme.wheel) <= LINES_MAX
    assert 0 < len(readme.packages) + len(readme.common) <= LINES_MAX
    start, mount = readme.start
    assert start.startswith("systemctl ") and mount.startswith("mount -t fuse.braidfs ")


def test_what_builds_them_is_there(readme: Readme) -> None:
    for line in (readme.packages[0], readme.wheel[0]):
        built = re.fullmatch(r"\./dev (\w+)(?: (--\w+))? && cd dist", line)
        assert built is not None, line
        options = {name for one in cli.commands[built[1]].params for name in one.opts}
        assert built[2] is None or built[2] in options


def test_the_lines_name_packages_programs_and_units_that_exist(readme: Readme) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    control = (ROOT / "packaging" / "debian" / "control").read_text()
    packages = set(re.findall(r"^Package: (.+)$", control, re.M))
    named = re.findall(r"\./(\S+?)_\*\.deb", readme.packages[1])
    assert named and set(named) <= packages
    assert any("/opt/braidfs/bin/mount.fuse.braidfs" in line for line in readme.wheel)
    assert "mount.fuse.braidfs" in project["scripts"]
    units = {unit.stem for unit in UNITS.glob("*.service")}
    assert set(re.findall(r"braidfs-\w+", readme.start[0])) <= units
    assert any("packaging/systemd/*" in line for line in readme.wheel)


def test_the_files_are_valid(readme: Readme, tmp_path: Path) -> None:
    assert tuple(readme.files) == PLACES
    file = tmp_path / "file"
    file.write_text(readme.files[PLACES[0]])
    metaserver = load(MetaserverConfig, file)
    file.write_text(readme.files[PLACES[1]])
    storageserver = load(StorageServerConfig, file)
    assert metaserver.key_file == storageserver.key_file
    assert f"braidfs key create {metaserver.key_file}" in readme.common
    (target,) = storageserver.targets
    assert any(line.endswith(f" {target.path}") for line in readme.common)


def test_the_pictures_are_there_and_true() -> None:
    text = (ROOT / "README.md").read_text()
    pictures = re.findall(r"!\[[^]]+\]\((\S+\.svg)\)", text)
    assert len(pictures) == 2 and all((ROOT / picture).is_file() for picture in pictures)
    drawn = re.findall(r">([\d,]{3,})</text>", (ROOT / "docs/images/beside-others.svg").read_text())
    rows = (DOCS / "measurements/2026-11-25-every-case.md").read_text().splitlines()
    measured = {cell.strip() for row in rows if row.startswith("| ") for cell in row.split("|")}
    assert len(drawn) == 4 * 6 and set(drawn) <= measured


@pytest.fixture(params=["packages", "wheel"])
def host(request: pytest.FixtureRequest) -> Iterator[tuple[Host, str]]:
    """A fresh host, and how BraidFS is to be installed there."""
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    if request.param == "packages":
        debs: dict[str, Path] = request.getfixturevalue("debs")
        dist = debs["braidfs"].parent
    else:
        wheels: Wheels = request.getfixturevalue("wheels")
        dist = wheels.wheel.parent
    with site(dist, "readme") as made:
        made.hosts["readme"].let_services_start()
        yield made.hosts["readme"], request.param


def follow(host: Host, lines: tuple[str, ...]) -> None:
    """Runs the lines in the folder dist of the machine, which is /mnt of the host."""
    for line in lines:
        if files := re.findall(r"\./(\S+_\*\.deb)", line):
            host.install_packages(*files)
        elif not line.startswith("./dev "):  # the fixtures have done that, by the same code
            command = re.sub("^apt install", "dpkg -s", line)  # they are installed, by their names
            host.run("sh", "-c", f"cd /mnt && {command}")


@pytest.mark.full
def test_the_lines_lead_to_a_mount(readme: Readme, host: tuple[Host, str]) -> None:
    machine, way = host
    follow(machine, readme.packages if way == "packages" else readme.wheel)
    follow(machine, readme.common)
    for path, content in readme.files.items():
        machine.run("tee", path, stdin=content)
    follow(machine, readme.start)
    healthy = lambda: machine.run("braidfs", "status", check=False).returncode == 0  # noqa: E731
    assert wait_until(healthy, 60)
    machine.run("sh", "-c", "seq 100000 >/data/file && sync /data/file")
    machine.run("umount", "/data")
    machine.run("sh", "-c", readme.start[1])
    assert machine.text("tail", "-n", "1", "/data/file") == "100000\n"
    enabled = machine.text("systemctl", "is-enabled", "braidfs-metaserver", "braidfs-storageserver")
    assert enabled == "enabled\nenabled\n"
    machine.run("umount", "/data")
