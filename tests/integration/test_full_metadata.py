"""The metadata store is full, by its limit or by its disk: only operations that add records fail
with ENOSPC.
"""

import contextlib
import errno
import functools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

VALUE = bytes(30_000)


@pytest.fixture
def state_disk(localdir: Path) -> Iterator[Path]:
    disk = localdir / "state"
    disk.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk), check=True)
    yield disk
    subprocess.run(("umount", "-l", disk), check=True)


def is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        return True
    return False


def set_value(path: Path) -> None:
    os.setxattr(path, "user.x", VALUE)


def grow(folder: Path) -> list[Path]:
    """Creates files with large xattrs until the store is full; returns their paths."""
    made: list[Path] = []
    for number in range(2000):
        path = folder / f"{number}"
        if is_refused(path.touch) or is_refused(functools.partial(set_value, path)):
            return made
        made.append(path)
    raise AssertionError("the store is never full")


def store_problem(cluster: Cluster) -> str:
    seen = json.loads(Cli(cluster).end("status", "--json").stdout)
    problems = [problem["what"] for problem in seen["problems"]]
    return next((what for what in problems if "metadata store" in what), "")


def check_full(cluster: Cluster, made: list[Path]) -> None:
    """Operations that add records are refused, and all others go on."""
    top = cluster.mount_path
    assert is_refused((top / "directory").mkdir)
    assert is_refused(lambda: (top / "link").symlink_to("x"))
    assert is_refused(lambda: (top / "hard").hardlink_to(top / "kept"))
    assert is_refused(lambda: os.setxattr(top / "kept", "user.y", b"1"))
    assert wait_until(lambda: store_problem(cluster) == "the metadata store is full", 10)
    assert os.statvfs(top).f_ffree == 0
    assert (top / "kept").read_bytes() == b"kept"
    (top / "kept").write_bytes(b"else")
    (top / "kept").write_bytes(b"kept")
    (top / "kept").rename(top / "renamed")
    (top / "renamed").rename(top / "kept")
    assert os.getxattr(made[0], "user.x") == VALUE
    for path in made[:5]:
        path.unlink()
    del made[:5]


def check_room_again(cluster: Cluster, made: list[Path]) -> None:
    for path in made:
        path.unlink()
    subprocess.run(("sync", "-f", cluster.mount_path), check=True)
    fresh = cluster.mount_path / "fresh"
    assert wait_until(lambda: not is_refused(fresh.mkdir), 10)
    (fresh / "file").write_bytes(b"fresh")
    assert store_problem(cluster) == ""


def restart(cluster: Cluster) -> None:
    cluster.metaserver.kill()
    cluster.metaserver.start()


@pytest.mark.expects_warnings
def test_a_disk_that_is_full(state_disk: Path, make_cluster: ClusterMaker) -> None:
    """Other programs fill the disk too; the state lasts through kills, a start, and a mount."""
    settings = {"metaserver": {"state_directory": str(state_disk)}}
    cluster = make_cluster(storage_servers=1, targets=1, settings=settings)
    (cluster.mount_path / "kept").write_bytes(b"kept")
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    filled = state_disk / "filled"
    with filled.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    made = grow(folder)
    check_full(cluster, made)
    for is_mounted_anew in (False, True):
        restart(cluster)
        if is_mounted_anew:
            cluster.remount()
        for path in made[:10]:
            path.unlink()
        del made[:10]
        assert os.getxattr(made[0], "user.x") == VALUE
    filled.unlink()
    check_room_again(cluster, made)
    restart(cluster)
    assert (cluster.mount_path / "fresh" / "file").read_bytes() == b"fresh"


@pytest.mark.expects_warnings
def test_a_bound_that_is_reached(make_cluster: ClusterMaker) -> None:
    """`braidfs status` warns at 90 %."""
    settings = {"metaserver": {"store_size_max": 8 << 20}}
    cluster = make_cluster(storage_servers=1, targets=1, settings=settings)
    (cluster.mount_path / "kept").write_bytes(b"kept")
    folder = cluster.mount_path / "folder"
    folder.mkdir()
    made = grow(folder)
    check_full(cluster, made)
    while store_problem(cluster) == "the metadata store is full":
        made.pop().unlink()
        subprocess.run(("sync", "-f", cluster.mount_path), check=True)
    assert "% full" in store_problem(cluster)
    restart(cluster)
    assert os.getxattr(made[0], "user.x") == VALUE
    check_room_again(cluster, made)
