"""Mounts whose requests come by io_uring (docs/decisions/0036), and what happens without it."""

import errno
import hashlib
import mmap
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from random import Random

import pytest

from fsclient.cli.restart import client_pid
from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.process import is_gone, wait_until

from ..integration.test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]

SWITCH = Path("/sys/module/fuse/parameters/enable_uring")
MIB = 1 << 20


@pytest.fixture
def switch() -> Iterator[None]:
    """The kernel offers it, for the time of the test."""
    if not SWITCH.exists():
        pytest.skip("this kernel has no FUSE over io_uring (Linux 6.14)")
    before = SWITCH.read_text()
    try:
        SWITCH.write_text("Y")
    except OSError as error:
        pytest.skip(f"{SWITCH}: {error}")
    yield
    SWITCH.write_text(before)


@pytest.fixture
def mounted(cluster: Cluster, localdir: Path, switch: None) -> Iterator[Path]:
    point = localdir / "rings"
    with cluster.second_client(point, options="io_uring") as there:
        yield there
    log = (cluster.plan.state / "log" / "client-rings.log").read_text()
    assert "requests come by /dev/fuse" not in log


def test_files_of_all_sizes(cluster: Cluster, workdir: Path, mounted: Path) -> None:
    """Written by one mount and read by both, by eight threads at once, with names and lists."""
    here = mounted / workdir.relative_to(cluster.mount_path)
    random = Random(5)
    sizes = [random.choice((0, 1, 4095, 70_000, 300_000, 3 * MIB + 7)) for _ in range(48)]
    content = {f"{number:03}": random.randbytes(size) for number, size in enumerate(sizes)}

    def write(name: str) -> None:
        with (here / name).open("wb") as file:
            file.write(content[name])
            os.fsync(file.fileno())
        (here / name).rename(here / f"{name}.done")

    def check(place: tuple[Path, str]) -> bool:
        top, name = place
        return (top / f"{name}.done").read_bytes() == content[name]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, content))
        assert sorted(os.listdir(here)) == [f"{name}.done" for name in sorted(content)]
        assert all(pool.map(check, product((workdir, here), content)))
    with (here / "000.done").open("r+b") as file:
        file.truncate(MIB)
        with mmap.mmap(file.fileno(), 0) as mapped:
            mapped[:] = b"m" * MIB
            mapped.flush()
    assert (workdir / "000.done").read_bytes() == b"m" * MIB


def test_a_large_file_both_ways(cluster: Cluster, workdir: Path, mounted: Path) -> None:
    here = mounted / workdir.relative_to(cluster.mount_path)
    content = Random(6).randbytes(24 * MIB)
    (here / "large").write_bytes(content)
    shutil.copyfile(workdir / "large", workdir / "copy")
    digest = hashlib.sha256(content).digest()
    assert hashlib.sha256((here / "copy").read_bytes()).digest() == digest
    fd = os.open(here / "copy", os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, MIB) as place:
            assert os.preadv(fd, [place], 5 * MIB) == MIB
            assert place[:] == content[5 * MIB : 6 * MIB]
    finally:
        os.close(fd)


def test_a_killed_reader(cluster: Cluster, workdir: Path, mounted: Path) -> None:
    """Its requests are answered to nobody, and their places in the rings are free again."""
    here = mounted / workdir.relative_to(cluster.mount_path)
    (workdir / "file").write_bytes(b"x" * (8 * MIB))
    with cluster.paused(*cluster.storageservers):
        reader = subprocess.Popen(["cat", here / "file"], stdout=subprocess.DEVNULL)
        assert not wait_until(lambda: reader.poll() is not None, 1)
        reader.kill()
        assert reader.wait(20) != 0
    assert (here / "file").stat().st_size == 8 * MIB
    assert (here / "file").read_bytes() == b"x" * (8 * MIB)


@pytest.mark.full  # the cluster waits 30 s for the client
@pytest.mark.expects_log("connection ended.*reset", "client is evicted")
def test_a_killed_client(cluster: Cluster, mounted: Path) -> None:
    """An error, not a hang."""
    pid = client_pid(str(mounted))
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: is_gone(pid), 20)
    with pytest.raises(OSError) as failure:
        (mounted / "file").stat()
    assert failure.value.errno in (errno.ENOTCONN, errno.ECANCELED)  # the latter: it is ending
    mounts.unmount(mounted, lazy=True)


@pytest.mark.expects_log("this process goes on.*io_uring")
def test_a_restart_is_refused(cluster: Cluster, mounted: Path) -> None:
    pid = client_pid(str(mounted))
    Cli(cluster).run("client", "restart", mounted, "--timeout", 3, code=1)
    assert client_pid(str(mounted)) == pid
    assert os.listdir(mounted) is not None
    log = (cluster.plan.state / "log" / "client-rings.log").read_text()
    assert "requests come by io_uring" in log


@pytest.mark.expects_log("the kernel offers no FUSE over io_uring")
def test_without_the_kernel(cluster: Cluster, workdir: Path, localdir: Path) -> None:
    if SWITCH.exists() and SWITCH.read_text().strip() == "Y":
        pytest.skip("here the kernel offers FUSE over io_uring")
    point = localdir / "none"
    with cluster.second_client(point, options="io_uring") as there:
        (workdir / "file").write_bytes(b"bytes")
        assert (there / workdir.relative_to(cluster.mount_path) / "file").read_bytes() == b"bytes"
    log = (cluster.plan.state / "log" / "client-none.log").read_text()
    assert "enable_uring" in log
