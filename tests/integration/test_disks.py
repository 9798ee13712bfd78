"""The pages of docs/operate on disks and servers that fail or leave: their commands run one
after the other, in a cluster of three storage servers with two targets each.

What is done to a host (unmounting, another file system) is done to the directory of a target here;
tests/deployment/test_disks.py does it to devices of hosts.
"""

import os
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.mirrors import mirrored
from tests.cluster.process import PATIENCE, wait_until
from tests.conftest import ClusterMaker
from tests.dev.guide import commands_of
from tests.threads import running_beside

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600), pytest.mark.expects_warnings]
NOTICED_S = 60 * PATIENCE
FILES = 12
UNSERVED = "was a target and holds no superblock now"


@dataclass
class Site:
    """Storage server 3 and its first target are those of the guide's pages."""

    cli: Cli
    target: int
    contents: dict[Path, bytes]

    @property
    def directory(self) -> Path:
        plan = self.cli.cluster.plan
        return plan.target_path(plan.storageservers[2], 0)

    def follow(self, commands: list[str], others: Mapping[str, Callable[[], object]]) -> None:
        """others: in place of commands that are not ours, by how these begin."""
        for command in commands:
            if command.startswith("braidfs "):
                self._run(command.removeprefix("braidfs "))
            else:
                (do,) = [do for start, do in others.items() if command.startswith(start)]
                do()

    def _run(self, command: str) -> None:
        plan = self.cli.cluster.plan
        config = plan.config_path(plan.storageservers[2])
        words = {
            "3": str(self.target),
            "stor3": "storageserver-3",
            "/srv/braidfs/nvme1": f"{self.directory} --config {config} --shared-device",
        }
        ended = self.cli.end(*shlex.split(" ".join(words.get(w, w) for w in command.split())))
        is_unwell = command == "status" and ended.code == 3  # that is what it is asked for
        assert ended.code == 0 or is_unwell, f"{command}: {ended}"
        if command.startswith("find "):
            assert ended.stdout == "", f"{command}: {ended}"

    def states(self) -> dict[int, str]:
        return {row["target"]: row["state"] for row in self.cli.json("target", "list")}

    def write(self, *, replicas: int, name: str) -> None:
        folder = self.cli.cluster.mount_path / name
        folder.mkdir()
        self.cli.run("layout", "set", folder, "--replicas", replicas, "--stripe-width", 2)
        for number in range(FILES):
            content = os.urandom(300_000 + (number % 3) * 1_000_000)
            (folder / f"file-{number}").write_bytes(content)
            self.contents[folder / f"file-{number}"] = content
        os.sync()

    def check(self) -> None:
        """All bytes are there, also for a client that has cached none."""
        self.cli.cluster.remount()
        for path, content in self.contents.items():
            assert path.read_bytes() == content, path

    def wipe(self) -> None:
        for path in self.directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def kill_disk(self) -> None:
        """The disk is gone, and its server goes on with the other one."""
        server = self.cli.cluster.storageservers[2]
        server.kill()
        self.wipe()
        server.start()
        assert wait_until(lambda: self.states()[self.target] == "down", NOTICED_S)

    def on_host(self) -> dict[str, Callable[[], object]]:
        server = self.cli.cluster.storageservers[2]

        def nothing() -> None:
            assert not list(self.directory.iterdir())

        return {
            "systemctl stop braidfs-storageserver": server.stop,
            "systemctl start braidfs-storageserver": server.start,
            "systemctl disable --now braidfs-storageserver": server.stop,
            "umount ": self.wipe,
            "mkfs.ext4 ": nothing,
            "mount ": nothing,
            "chown ": nothing,
        }


@pytest.fixture
def site(make_cluster: ClusterMaker) -> Site:
    cli = Cli(mirrored(make_cluster, replicas=1, targets=2))
    first = min(row["target"] for row in cli.json("target", "list", "--node", "storageserver-3"))
    return Site(cli, first, {})


@contextmanager
def written_all_the_time(site: Site) -> Iterator[None]:
    """Files with two replicas, and with one, are written and compared in the block."""
    failures: list[Any] = []
    rounds = 0

    def work(is_over: threading.Event) -> None:
        nonlocal rounds
        try:
            while not is_over.is_set():
                for folder in ("two", "one"):
                    path = site.cli.cluster.mount_path / folder / f"busy-{rounds % 5}"
                    content = os.urandom(200_000)
                    with path.open("wb") as file:
                        file.write(content)
                        os.fsync(file)
                    if path.read_bytes() != content:
                        failures.append(path)
                    site.contents[path] = content
                rounds += 1
        except OSError as error:
            failures.append(error)

    with running_beside(work):
        yield
    assert not failures and rounds > 1


def is_whole(site: Site) -> bool:
    return bool(site.cli.json("status")["health"] == "healthy")


@pytest.mark.expects_log(UNSERVED)
def test_a_disk_dies(site: Site) -> None:
    """Then another one takes its place."""
    site.write(replicas=2, name="two")
    site.kill_disk()
    site.follow(commands_of("operate/disk-dies.md"), {})
    assert site.target not in site.states()
    site.check()
    host = [
        one for one in commands_of("operate/replace-disk.md") if not re.search("drain|remove", one)
    ]
    site.follow(host, site.on_host())
    new = max(site.states())
    assert wait_until(lambda: site.states()[new] == "up", NOTICED_S) and new > 6
    assert wait_until(lambda: is_whole(site), NOTICED_S), site.cli.text("status", code=3)
    site.check()


def test_a_server_dies(site: Site) -> None:
    site.write(replicas=2, name="two")
    site.cli.cluster.storageservers[2].kill()
    gone = {row["target"] for row in site.cli.json("target", "list", "--node", "storageserver-3")}
    assert wait_until(lambda: {site.states()[one] for one in gone} == {"down"}, NOTICED_S)
    site.follow(commands_of("operate/server-dies.md"), {})
    assert not gone & set(site.states())
    assert wait_until(lambda: is_whole(site), NOTICED_S), site.cli.text("status", code=3)
    assert "storageserver-3" not in site.cli.text("node", "list")
    site.check()


@pytest.mark.expects_log("a target is in use no more")
def test_a_disk_is_replaced(site: Site) -> None:
    site.write(replicas=2, name="two")
    site.write(replicas=1, name="one")
    with written_all_the_time(site):
        site.follow(commands_of("operate/replace-disk.md"), site.on_host())
    assert site.target not in site.states()
    new = max(site.states())
    assert wait_until(lambda: site.states()[new] == "up", NOTICED_S) and new > 6
    site.check()
    assert wait_until(lambda: is_whole(site), NOTICED_S), site.cli.text("status", code=3)


@pytest.mark.expects_log("a target is in use no more")
def test_a_server_is_taken_away(site: Site) -> None:
    site.write(replicas=2, name="two")
    site.write(replicas=1, name="one")
    with written_all_the_time(site):
        site.follow(commands_of("operate/take-server-away.md"), site.on_host())
    assert len(site.states()) == 4
    assert wait_until(lambda: "storageserver-3" not in site.cli.text("node", "list"), NOTICED_S)
    site.check()
    assert wait_until(lambda: is_whole(site), NOTICED_S), site.cli.text("status", code=3)


def test_a_drain_that_has_no_room_waits_and_says_so(site: Site) -> None:
    """One failure domain is left for two replicas."""
    site.write(replicas=2, name="two")
    cli = site.cli
    two = [row["target"] for row in cli.json("target", "list") if row["node"] > 1]
    ended = cli.run("target", "drain", *two, "--wait", "--timeout", 15, code=1)
    assert "the time is over, and it goes on" in ended.stderr
    assert ended.stderr.count(f"target {two[0]}: ") > 1, "it said how far it was"
    waiting = [row for row in cli.json("job", "list") if row["state"] == "waiting"]
    assert waiting and all(row["because"] for row in waiting), cli.text("job", "list")
    assert "waits" in cli.end("status").stdout and "waits: " in cli.text("job", "list")
    cli.run("target", "set-state", "up", *two)
    assert set(site.states().values()) == {"up"}
    assert wait_until(lambda: is_whole(site), NOTICED_S), cli.text("status", code=3)
    site.check()


@pytest.mark.expects_log(UNSERVED)
@pytest.mark.full
def test_files_that_are_lost_are_counted_before(site: Site) -> None:
    site.write(replicas=1, name="one")
    cli, mount = site.cli, site.cli.cluster.mount_path
    listed = cli.text("find", ":/", "--target", site.target, "--type", "f").splitlines()
    assert listed
    words = ("target", "remove", site.target, "--lost")
    refused = cli.run(*words, code=1).stderr
    assert f"{len(listed)} file" in refused and f"find :/ --target {site.target}" in refused
    site.kill_disk()
    refused = cli.run(*words, code=1).stderr
    assert f"{len(listed)} file" in refused and "find :/ --lost" in refused and "--yes" in refused
    assert site.states()[site.target] == "down", "nothing was done"
    ended = cli.run(*words, "--wait", "--yes")
    assert "stays in the list as lost" in ended.stderr
    assert site.states()[site.target] == "lost"
    lost = cli.text("find", ":/", "--lost").splitlines()
    assert sorted(lost) == sorted(listed)
    assert "is lost" in cli.text("status", code=3)
    for path in lost:
        (mount / path.removeprefix(":/")).unlink()
    assert wait_until(lambda: site.target not in site.states(), NOTICED_S)
