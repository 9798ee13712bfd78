"""Replicas on the command line: asked for, refused, shown; files that nobody can read are found."""

import errno
import json
import os
from pathlib import Path

import pytest

from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]
DOWN_S = 40


def names(cli: Cli, *conditions: str) -> set[str]:
    lines = cli.text("find", ":/", "--type", "f", *conditions, "--json").splitlines()
    return {Path(json.loads(line)["path"]).name for line in lines}


def test_replicas_are_asked_for_and_shown(make_cluster: ClusterMaker) -> None:
    """One of two failure domains takes nothing new, so there is room for none."""
    domain = {"domain": "rack1"}
    settings = {"metaserver": {"layout": {"replicas_max": 2}}, "storageserver-1": domain}
    cluster = make_cluster(storage_servers=2, targets=1, settings=settings)
    cli, folder = Cli(cluster), cluster.mount_path / "d"
    domains = {node["domain"] for node in cli.json("status")["nodes"]}
    assert domains == {"rack1", "127.0.0.1"}, "its host, unless it is said"
    assert "domain" in cli.text("status") and "127.0.0.1" in cli.text("node", "list")
    folder.mkdir()
    cli.run("layout", "set", folder, "--replicas", 2)
    (folder / "sub").mkdir()
    for path in (folder, folder / "sub"):
        assert cli.json("layout", "get", path)["replicas"] == 2
        assert ", 2 replicas (set here" in cli.text("layout", "get", path)
        assert cli.json("stat", path)["new_files"]["replicas"] == 2
    assert "replicas_max" in cli.run("layout", "set", folder, "--replicas", 3, code=1).stderr
    [target] = [row["target"] for row in cli.json("target", "list", "--node", "storageserver-1")]
    cli.run("target", "set-state", "draining", target)
    with pytest.raises(OSError) as refused:
        (folder / "file").touch()
    assert refused.value.errno in (errno.ENOSPC, errno.EOPNOTSUPP)
    assert os.statvfs(folder).f_bavail == 0 < os.statvfs(cluster.mount_path).f_bavail
    seen = cli.json("df")
    assert seen["fits"]["2"] == seen["fits"]["3"] == 0 < seen["fits"]["1"]
    assert seen["usable"]["bytes_available"] == seen["bytes_available"] == seen["fits"]["1"]
    assert "by number of replicas" in cli.text("df")


@pytest.mark.expects_warnings
def test_files_that_nobody_can_read_now_are_found(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=2, targets=1)
    cli = Cli(cluster)
    refused = cli.run("layout", "set", cluster.mount_path, "--replicas", 2, code=1)
    assert "fewer failure domains" in refused.stderr, "both servers are on one host"
    for name, width in (("wide", 2), ("first", 1), ("second", 1)):
        (cluster.mount_path / name).touch()
        cli.run("layout", "set", cluster.mount_path / name, "--stripe-width", width)
        (cluster.mount_path / name).write_bytes(bytes(2 << 20))
        os.sync()
    assert names(cli) == {"wide", "first", "second"}
    assert names(cli, "--lost") == names(cli, "--degraded") == set()
    [target] = [row["target"] for row in cli.json("target", "list", "--node", "storageserver-2")]
    lost = names(cli, "--target", str(target))
    assert "wide" in lost
    cluster.storageservers[1].kill()
    assert wait_until(lambda: cli.json("node", "list")[1]["state"] == "down", DOWN_S)
    assert names(cli, "--lost") == lost
    assert names(cli, "--degraded") == set()
    states = {row["target"]: row["target_state"] for row in cli.json("stat", ":/wide")["objects"]}
    assert states.pop(target) == "down" and set(states.values()) == {"up"}
    cluster.start_servers()
    assert wait_until(lambda: names(cli, "--lost") == set(), DOWN_S)
