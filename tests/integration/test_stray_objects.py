"""`braidfs fsck --stray` on a cluster that was restored: objects of files that are newer than the
backup are listed, nothing deletes them, and then a word does.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.process import PATIENCE, wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300), pytest.mark.expects_warnings]
DAY_S = 86_400
SIZE = 3_000_000  # several objects each


def write_all(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        with (folder / f"f{number}").open("wb") as file:
            file.write(b"%d" % number * SIZE)
            file.flush()
            os.fsync(file.fileno())


def has_all(folder: Path, count: int) -> bool:
    return all(
        (folder / f"f{number}").read_bytes() == b"%d" % number * SIZE for number in range(count)
    )


def object_files(cluster: Cluster) -> set[Path]:
    folder = cluster.plan.state / "targets"
    return {path for path in folder.glob("*/objects/*/*") if path.is_file()}


def age(files: set[Path]) -> None:
    """Lets them look as old as a clock says that was set back for a moment."""
    past_s = time.time() - 3 * DAY_S
    for path in files:
        os.utime(path, (past_s, past_s))


def strays(cli: Cli, *words: str, code: int = 0) -> Any:
    """What the command has found."""
    ended = cli.end("fsck", "--stray", *words, "--json")
    assert ended.code == code, ended
    return json.loads(ended.stdout)


def deletes_all(cli: Cli) -> bool:
    """Once the server that was away is there again."""
    ended = cli.end("fsck", "--stray", "--delete", "--json")
    return ended.code == 0


def test_objects_newer_than_the_backup(make_cluster: ClusterMaker, localdir: Path) -> None:
    cluster = make_cluster(storage_servers=2)
    cli = Cli(cluster)
    write_all(cluster.mount_path / "before", 4)
    os.sync()
    backup = localdir / "names.backup"
    cli.run("meta", "backup", backup)
    old = object_files(cluster)
    write_all(cluster.mount_path / "after", 4)
    os.sync()
    new = object_files(cluster) - old
    assert len(old) >= 4 and len(new) >= 4

    cluster.unmount()
    cluster.metaserver.stop()
    state = cluster.plan.state / "meta"
    (state / "store").rename(localdir / "former")
    cli.run("meta", "restore", backup, state)
    cluster.metaserver.start()
    cluster.mount()
    assert has_all(cluster.mount_path / "before", 4)
    assert sorted(os.listdir(cluster.mount_path)) == ["before"]

    found = strays(cli)
    assert found["objects"] == len(old | new) and found["stray"] == [], "all are younger"
    refused = cli.run("fsck", "--stray", "--older", "9m", code=2).stderr
    assert "--older is an age of 10 min at least" in refused
    assert "--stray" in cli.run("fsck", "--delete", code=2).stderr
    check_strays(cluster, cli, old, new)
    cluster.remount()
    assert has_all(cluster.mount_path / "before", 4)


def check_strays(cluster: Cluster, cli: Cli, old: set[Path], new: set[Path]) -> None:
    """new: what no file has; afterwards they are gone, and the others are there."""
    age(old | new)
    found = strays(cli)
    assert len(found["stray"]) == len(new) and found["unread"] == {}
    assert found["stray_bytes"] >= 4 * SIZE
    assert {f"{row['file_id']:016x}.{row['stripe']:x}" for row in found["stray"]} == {
        path.name for path in new
    }
    assert strays(cli, "--older", "4d")["stray"] == []
    assert f"{len(old | new)} objects, {len(new)} stray" in cli.text("fsck", "--stray")
    assert object_files(cluster) == old | new, "listing deletes nothing"

    cluster.storageservers[0].stop()
    found = strays(cli, "--delete", code=3)
    assert len(found["unread"]) == 1 and 0 < found["deleted"] == len(found["stray"]) < len(new)
    cluster.storageservers[0].start()
    age(object_files(cluster))  # its stop has written their pages back
    assert wait_until(lambda: deletes_all(cli), 30 * PATIENCE)
    assert wait_until(lambda: object_files(cluster) == old, 30 * PATIENCE)
    assert strays(cli)["stray"] == []
