"""The pages of docs/start, followed to the letter on fresh hosts: each command, each file.

Only packages and keys reach a host in another way than there: hosts have no registry and no ssh.
They know each other by name. It runs in ./dev test --full and ./dev deployment only.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployment.hosts import Host, Site, site, why_no_hosts
from tests.dev.guide import Step, steps_of

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(why_no_hosts() is not None, reason=why_no_hosts() or ""),
]
ONE_MACHINE = "start/one-machine.md"
CLUSTER = "start/cluster.md"
CLUSTER_HOSTS = ("meta1", "stor1", "stor2", "gpu1")


@pytest.fixture(scope="module")
def packages(debs: dict[str, Path]) -> Path:
    return debs["braidfs"].parent


def follow(step: Step, host: Host, hosts: dict[str, Host]) -> None:
    """Does on the host what the step says. The page writes stor1 for either storage server."""
    if step.path:
        host.run("tee", step.path, stdin=step.content.replace("stor1", host.name))
    for command in step.commands:
        if command.startswith("apt install "):
            host.install_packages(*re.findall(r"\./(\S+)", command))
        elif command.startswith("scp "):
            source, path, place = re.fullmatch(r"scp (\w+):(\S+) (\S+)", command).groups()  # type: ignore[union-attr]
            content = hosts[source].text("cat", path)
            host.run("install", "-m", "600", "/dev/stdin", place, stdin=content)
        else:
            host.run("sh", "-c", command)


@pytest.fixture
def made(packages: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with site(packages, *request.param) as hosts:
        names = "".join(f"{host.address} {host.name}\n" for host in hosts.hosts.values())
        for host in hosts.hosts.values():
            host.let_services_start()
            host.run("tee", "-a", "/etc/hosts", stdin=names)
        yield hosts


@pytest.mark.parametrize("made", [("solo",)], indirect=True)
def test_one_machine(made: Site) -> None:
    (host,) = made.hosts.values()
    for step in steps_of(ONE_MACHINE):
        if step.path:
            host.run("tee", step.path, stdin=step.content)
        follow(Step(step.section, step.commands), host, made.hosts)
    assert host.text("cat", "/data/first") == "hello\n"
    assert "healthy" in host.text("braidfs", "status")
    host.run("umount", "/data")


@pytest.mark.parametrize("made", [CLUSTER_HOSTS], indirect=True)
def test_a_cluster(made: Site) -> None:
    for step in steps_of(CLUSTER):
        named = [host for host in made.hosts.values() if host.name in step.section]
        assert named, f"no host is named in {step.section}"
        for host in named:
            follow(step, host, made.hosts)
    meta1 = made.hosts["meta1"]
    assert "healthy" in meta1.text("braidfs", "status")
    shown = meta1.text("braidfs", "stat", ":/safe/first", "--json")
    assert {"stor1", "stor2"} <= set(re.findall(r"\bstor[12]\b", shown)), shown
    made.hosts["gpu1"].run("umount", "/data")
