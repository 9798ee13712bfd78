"""`braidfs target add` and `set-state` on a running cluster: where new files go, what is
refused.
"""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
CLIENT_HEARS_S = 30.0


def configuration(cluster: Cluster) -> Path:
    return cluster.plan.config_path(cluster.plan.storageservers[0])


def targets_of(cli: Cli, path: Path) -> set[int]:
    return set(cli.json("layout", "get", path)["targets"])


@pytest.mark.expects_warnings
def test_a_target_is_added_and_drained(
    make_cluster: ClusterMaker, localdir: Path, full: bool
) -> None:
    cli = Cli(make_cluster(storage_servers=2, targets=1, settings=SHORT_SESSIONS))
    mount, config = cli.cluster.mount_path, configuration(cli.cluster)
    folder = mount / "burst"
    folder.mkdir()
    for number in range(50):  # lanes create most of them, in slots that they were given in advance
        (folder / f"before-{number}").write_bytes(b"x")
    (mount / "old").write_bytes(b"x" * 3_000_000)
    both = targets_of(cli, mount / "old")
    fresh = localdir / "nvme1"
    fresh.mkdir()
    words = ("target", "add", fresh, "--config", config, "--shared-device", "--capacity", "1G")
    with (mount / "open").open("wb") as file:  # this file stays open and goes on
        seen = cli.json(*words)
        assert (seen["state"], seen["node_name"]) == ("up", "storageserver-1")
        assert seen["bytes_total"] <= 1 << 30
        file.write(b"y" * 3_000_000)
    new = int(seen["target"])
    assert new not in both and targets_of(cli, mount / "old") == both
    new_files_lie_on(cli, folder, {new, *both})
    (mount / "after").write_bytes(b"z" * 4_000_000)
    assert list((fresh / "objects").glob("*/*")), "bytes came to it"
    assert "already" in cli.run(*words, code=2).stderr
    _is_drained(cli, new)
    if full:
        _servers_start_again(cli, localdir)


def new_files_lie_on(cli: Cli, folder: Path, targets: set[int]) -> None:
    """New files are placed there as soon as the mount knows of it; files that lanes create by
    themselves, too."""
    tries = itertools.count()

    def they_do() -> bool:
        names = [folder / f"{sorted(targets)}-{next(tries)}" for _ in range(10)]
        for name in names:
            name.write_bytes(b"x")
        return all(targets_of(cli, name) == targets for name in names)

    assert wait_until(they_do, CLIENT_HEARS_S)


def _is_drained(cli: Cli, drained: int) -> None:
    mount = cli.cluster.mount_path
    (row,) = cli.json("target", "set-state", "draining", drained)
    assert (row["target"], row["state"]) == (drained, "draining")
    rest = {row["target"] for row in cli.json("target", "list", "--state", "up")}
    new_files_lie_on(cli, mount / "burst", rest)
    with (mount / "after").open("r+b") as old:  # existing files are served as before
        assert old.read() == b"z" * 4_000_000
        old.seek(0)
        old.write(b"more")
        os.fsync(old.fileno())
    os.truncate(mount / "open", 0)
    assert targets_of(cli, mount / "open") == rest, "an emptied file moves away"
    assert [r["target"] for r in cli.json("target", "list", "--state", "draining")] == [drained]
    seen = cli.json("status")
    assert seen["health"] == "healthy" and seen["problems"][0]["severity"] == "note"
    assert f"target {drained} is draining" in cli.text("status")
    free = sum(r["bytes_free"] for r in cli.json("target", "list") if r["target"] in rest)
    assert abs(cli.json("df")["bytes_available"] - free) < 1 << 30
    refused = cli.run("target", "set-state", "draining", *rest, code=1).stderr
    assert "nobody could make a new file. Add a target first" in refused
    log = cli.cluster.metaserver.log_path.read_text()
    assert "op=TARGET_SET outcome=OK" in log and "op=TARGET_SET outcome=EBUSY" in log


def _servers_start_again(cli: Cli, localdir: Path) -> None:
    """The servers forget nothing; a target that is added meanwhile is served by its server."""
    config = configuration(cli.cluster)
    cli.cluster.storageservers[0].stop()
    fresh = localdir / "nvme2"
    fresh.mkdir()
    text = cli.text("target", "add", fresh, "--config", config, "--shared-device")
    assert "when it starts" in text and str(fresh) in config.read_text()
    cli.cluster.metaserver.stop()
    cli.cluster.metaserver.start()
    cli.cluster.storageservers[0].start()

    def states() -> list[str]:
        return sorted(row["state"] for row in cli.json("target", "list"))

    assert states()[0] == "draining"
    assert wait_until(lambda: states() == ["draining", "up", "up", "up"], CLIENT_HEARS_S)
    content = (cli.cluster.mount_path / "after").read_bytes()
    assert content == b"more" + b"z" * 3_999_996

    def has_ended() -> bool:
        return cli.end("target", "set-state", "up", 1, 2, 3, 4).code == 0

    assert wait_until(has_ended, 30), "once the recovery has ended"
    assert {row["state"] for row in cli.json("target", "list")} == {"up"}


@pytest.mark.expects_warnings
@pytest.mark.expects_log("was a target and holds no superblock now")
def test_another_disk_in_the_place_of_a_target(make_cluster: ClusterMaker) -> None:
    """The server makes no target in a directory that was one before, until it is told so: running
    or not."""
    cli = Cli(make_cluster(storage_servers=1, targets=2, settings=SHORT_SESSIONS))
    (server,) = cli.cluster.storageservers
    (planned,) = cli.cluster.plan.storageservers
    directory = cli.cluster.plan.target_path(planned, 0)
    config = configuration(cli.cluster)
    words = ("target", "add", directory, "--config", config, "--shared-device")
    before = config.read_text()
    assert "--replaced" in cli.run(*words, code=2).stderr
    assert "still has the target" in cli.run(*words, "--replaced", code=2).stderr
    elsewhere = (*words[:2], directory.parent, *words[3:], "--replaced")
    assert "is no target of" in cli.run(*elsewhere, code=2).stderr

    def change_disk() -> None:
        server.stop()
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def up() -> list[int]:
        return [row["target"] for row in cli.json("target", "list", "--state", "up")]

    change_disk()
    assert "when it starts" in cli.text(*words, "--replaced")
    server.start()
    assert wait_until(lambda: up() == [2, 3], CLIENT_HEARS_S)
    change_disk()
    server.start()
    assert wait_until(lambda: up() == [2], CLIENT_HEARS_S)
    seen = cli.json(*words, "--replaced")
    assert (seen["target"], seen["state"]) == (4, "up")
    server.stop()
    server.start()
    assert wait_until(lambda: up() == [2, 4], CLIENT_HEARS_S)
    assert config.read_text() == before


def test_wrong_arguments_of_set_state(cluster: Cluster) -> None:
    cli = Cli(cluster)
    assert "there is no target 99" in cli.run("target", "set-state", "draining", 99, code=1).stderr
    assert "full" in cli.run("target", "set-state", "full", 1, code=2).stderr
    assert "TARGET" in cli.run("target", "set-state", "up", code=2).stderr
    assert "'first'" in cli.run("target", "set-state", "up", "first", code=2).stderr


@pytest.fixture
def read_only(localdir: Path) -> Iterator[Path]:
    """A directory in which only the server notices the fault."""
    path = localdir / "read-only"
    path.mkdir()
    subprocess.run(["mount", "--bind", path, path], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


@pytest.mark.expects_log("a target is not served.*[Rr]ead-only")
def test_what_target_add_refuses(cluster: Cluster, localdir: Path, read_only: Path) -> None:
    cli, config = Cli(cluster), configuration(cluster)
    before = config.read_text()
    full, empty = localdir / "full", localdir / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "file").touch()

    def refusal(directory: Path, *words: object, code: int = 2) -> str:
        ended = cli.run("target", "add", directory, "--config", config, *words, code=code)
        assert config.read_text() == before
        return ended.stderr

    assert "is not a directory" in refusal(localdir / "none")
    assert "is not empty (file)" in refusal(full, "--shared-device")
    assert "--shared-device, if so meant" in refusal(empty)
    assert "not a size" in refusal(empty, "--capacity", "much")
    wrong = cli.run("target", "add", empty, "--config", localdir / "none.toml", code=2)
    assert "none.toml" in wrong.stderr
    existing = cluster.plan.target_path(cluster.plan.storageservers[1], 0)
    assert "was made a target already" in refusal(existing, "--shared-device")
    unserved = refusal(read_only, "--shared-device", "--wait", "1", code=1)
    assert "its log says why" in unserved and "is unchanged" in unserved
    assert len(cli.json("target", "list")) == 4
