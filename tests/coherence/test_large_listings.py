"""A tree with many more files than a client may hold leases on: listings, and Index.scan."""

import importlib
import os
from pathlib import Path

import pytest

from braidfs.data import Index, scan
from braidfs.data.listing import python_lister, telling_device
from tests.cluster.cluster import Cluster
from tests.cluster.numbers import requests_shown
from tests.coherence.conftest import MountMaker
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600)]

BOUND = 40  # leases of a client
FOLDERS, FILES = 4, 700


@pytest.fixture
def tree(make_cluster: ClusterMaker) -> tuple[Cluster, Path]:
    settings = {"metaserver": {"leases_per_session_max": BOUND}}
    cluster = make_cluster(storage_servers=1, settings=settings)
    base = cluster.mount_path / "tree"
    for folder in range(FOLDERS):
        (base / f"{folder}").mkdir(parents=True)
        for number in range(FILES):
            (base / f"{folder}" / f"{number:04}.jpg").write_bytes(b"x" * (number % 9))
    cluster.remount()
    return cluster, base


def _asked(cluster: Cluster, op: str) -> int:
    return int(requests_shown(cluster.plan.metaserver).get(op, 0))


def _sizes(index: Index) -> list[tuple[bytes, int, int]]:
    return [(index.name(row), index.size(row), index.inodes[row]) for row in range(len(index))]


def _told(base: Path) -> list[tuple[bytes, int, int]]:
    """What stat(2) says."""
    found = []
    for path in base.rglob("*.jpg"):
        seen = path.stat()
        found.append((os.fsencode(path.relative_to(base)), seen.st_size, seen.st_ino))
    return sorted(found)


def test_a_scan_asks_for_no_file_by_itself(tree: tuple[Cluster, Path]) -> None:
    importlib.import_module("_braidfs_reader")
    cluster, base = tree
    assert telling_device(os.fsencode(base)) == base.stat().st_dev
    before = _asked(cluster, "GETATTR") + _asked(cluster, "LOOKUP")
    index = Index.scan(base)
    asked = _asked(cluster, "GETATTR") + _asked(cluster, "LOOKUP") - before
    assert asked < FILES / 10, f"{asked} requests for {FOLDERS * FILES} files"
    assert _sizes(index) == _told(base)


def test_both_listers_find_the_same(
    tree: tuple[Cluster, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, base = tree
    native = Index.scan(base)
    monkeypatch.setattr(scan, "new_lister", lambda: python_lister)
    assert bytes(Index.scan(base)._image) == bytes(native._image)


def test_what_another_client_did_is_seen(
    tree: tuple[Cluster, Path], more_mounts: MountMaker
) -> None:
    cluster, base = tree
    here, there = (m / base.relative_to(cluster.mount_path) for m in more_mounts(cluster, 2))
    for round_ in range(4):
        assert _sizes(Index.scan(here)) == _sizes(Index.scan(there)) == _told(there)
        for folder in range(FOLDERS):
            place = here / f"{folder}"
            (place / f"new{round_}.jpg").write_bytes(b"x" * 100)
            (place / f"{100 + round_:04}.jpg").unlink()
            (place / f"{200 + round_:04}.jpg").rename(place / f"moved{round_}.jpg")
            with (place / f"{300 + round_:04}.jpg").open("ab") as file:
                file.write(b"y" * 1000)
                file.flush()
                os.fsync(file.fileno())
                size = (there / f"{folder}" / f"{300 + round_:04}.jpg").stat().st_size
                assert size == 1000 + (300 + round_) % 9
