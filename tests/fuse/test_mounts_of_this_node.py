"""The users' package finds real mounts: the mount, a bind mount of a folder, one that is hidden."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import braidfs
from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.mount


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder where the test mounts something; it is unmounted afterwards."""
    folder = tmp_path / "a place"
    folder.mkdir()
    yield folder
    while subprocess.run(["umount", str(folder)], check=False, capture_output=True).returncode == 0:
        pass


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def test_the_mount_has_its_source(cluster: Cluster, workdir: Path) -> None:
    (workdir / "file").write_bytes(b"x")
    mounted = braidfs.where(workdir / "file")
    assert mounted is not None and mounted.mountpoint == str(cluster.mount_path)
    assert mounted.source.endswith(":/") and mounted.options[0] == "rw" and mounted.folder == "/"
    assert braidfs.where(cluster.mount_path.parent) is None
    host = mounted.source.removesuffix(":/")
    url = braidfs.url(workdir / "file").replace("braid:///", f"braid://{host}/")
    assert braidfs.path(url) == str(workdir / "file")


def test_a_bound_folder_and_what_hides_it(workdir: Path, place: Path) -> None:
    folder = workdir / "sets" / "a"
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"x")
    there = braidfs.url(folder / "file")
    mount("--bind", folder, place)
    mounted = braidfs.where(place / "file")
    assert mounted is not None and mounted.mountpoint == str(place)
    assert braidfs.url(place / "file") == there
    host = mounted.source.partition(":/")[0]
    assert braidfs.path(there.replace("braid:///", f"braid://{host}/")) == str(place / "file")
    mount("-t", "tmpfs", "none", place)
    assert braidfs.where(place / "file") is None
    assert braidfs.path(there.replace("braid:///", f"braid://{host}/")) == str(folder / "file")
