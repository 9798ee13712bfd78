"""Bytes that a disk has lost stay lost: no write, truncate or hole creates the object again, full
of zeros.
"""

import errno
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.cluster import Cluster
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [
    pytest.mark.mount,
    pytest.mark.timeout(300),
    pytest.mark.expects_log("has lost"),
    pytest.mark.expects_log("written bytes were lost"),
]

MIB: Final = 1 << 20
NAMES: Final = ("written", "cut", "removed", "replaced")
CONTENT: Final = os.urandom(4 * MIB)


@pytest.fixture
def damaged(make_cluster: ClusterMaker) -> Cluster:
    """Files on two targets; each file of NAMES has lost its object on the first one."""
    cluster = make_cluster(storage_servers=1, targets=2)
    for name in (*NAMES, "whole"):
        with (cluster.mount_path / name).open("wb") as file:
            file.write(CONTENT)
            file.flush()
            os.fsync(file.fileno())
    inos = [(cluster.mount_path / name).stat().st_ino for name in NAMES]
    cluster.unmount()
    cluster.storageservers[0].stop()
    for ino in inos:
        _object_of(cluster, ino).unlink()
    cluster.storageservers[0].start()
    cluster.mount()
    return cluster


@pytest.fixture
def folder(damaged: Cluster) -> Path:
    return damaged.mount_path


def _object_of(cluster: Cluster, ino: int) -> Path:
    """The object of stripe 0 of a file that was never truncated."""
    server = cluster.plan.storageservers[0]
    (path,) = (
        path
        for index in range(2)
        for path in cluster.plan.target_path(server, index).glob(f"objects/*/{ino:016x}.0")
    )
    return path


def _error_of(call: Callable[[], object]) -> int:
    try:
        call()
    except OSError as error:
        return error.errno or 0
    return 0


def _is_lost(path: Path) -> bool:
    """Whether all of the file's first MiB gives EIO, and its second one is unchanged."""
    with path.open("rb", buffering=0) as file:
        pages = range(0, MIB, MIB // 4)
        errors = [_error_of(partial(os.pread, file.fileno(), 4096, at)) for at in pages]
        assert os.pread(file.fileno(), 4096, MIB) == CONTENT[MIB : MIB + 4096]
    assert set(errors) <= {0, errno.EIO}
    return set(errors) == {errno.EIO}


def test_nothing_makes_it_anew(damaged: Cluster, folder: Path) -> None:
    path = folder / "written"
    with path.open("r+b", buffering=0) as file:
        # It writes whole pages, so that the kernel reads none.
        os.pwrite(file.fileno(), b"x" * 8192, 0)
        os.pwrite(file.fileno(), CONTENT[MIB : MIB + 10], MIB)
        assert _error_of(lambda: os.fsync(file.fileno())) == errno.EIO
        os.fsync(file.fileno())  # the error is reported once
    assert _is_lost(path)
    with open(os.open(path, os.O_RDWR | os.O_DSYNC), "r+b", buffering=0) as file:
        assert _error_of(lambda: os.pwrite(file.fileno(), b"y" * 4096, 0)) == errno.EIO
        os.pwrite(file.fileno(), CONTENT[MIB : MIB + 4096], MIB)
    assert _is_lost(path)
    punched = subprocess.run(
        ["fallocate", "--punch-hole", "--offset", "8192", "--length", "4096", path],
        check=False,
        capture_output=True,
    )
    assert b"Input/output error" in punched.stderr
    copied = _error_of(lambda: _copy_range(folder / "whole", path, MIB // 2))
    assert copied == errno.EIO
    assert _is_lost(path)
    states = [one["state"] for one in Cli(damaged).json("stat", str(path))["objects"]]
    assert states == ["lost", "present"]
    assert (folder / "whole").read_bytes() == CONTENT


def _copy_range(source: Path, sink: Path, length: int) -> None:
    with source.open("rb") as reader, sink.open("r+b") as writer:
        os.copy_file_range(reader.fileno(), writer.fileno(), length, 0, 0)
        os.fsync(writer.fileno())


def test_a_cut_leaves_it_lost_as_far_as_it_has_bytes(folder: Path) -> None:
    path = folder / "cut"
    os.truncate(path, 4 * MIB - 1)
    os.truncate(path, 4 * MIB)
    assert _is_lost(path)
    os.truncate(path, 0)
    path.write_bytes(CONTENT[::-1])
    with path.open("rb") as file:
        os.fsync(file.fileno())
    assert path.read_bytes() == CONTENT[::-1]


def test_the_file_can_be_removed_and_replaced(folder: Path) -> None:
    (folder / "removed").unlink()
    (folder / "removed").write_bytes(CONTENT)
    assert (folder / "removed").read_bytes() == CONTENT
    (folder / "new").write_bytes(CONTENT)
    (folder / "new").replace(folder / "replaced")
    assert (folder / "replaced").read_bytes() == CONTENT
