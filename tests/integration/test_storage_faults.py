"""Full and damaged disks: ENOSPC for the writer only, EIO instead of wrong bytes."""

import errno
import itertools
import os
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fscommon.errors import ConfigError
from storageserver.targets import check_file_size
from tests.cluster.cluster import Cluster
from tests.cluster.loop_disk import LoopDisk, loop_disk
from tests.cluster.plan import SHORT_SESSIONS
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600), pytest.mark.expects_warnings]


def _fill(path: Path) -> int | None:
    """Writes until an error, at the latest at close; returns the errno, or None after 600 MiB."""
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(600):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno
    return None


def _small_cluster(make_cluster: ClusterMaker, capacity: int) -> Cluster:
    return make_cluster(
        storage_servers=2,
        targets=1,
        settings={"storageserver-1": {"target.capacity_bytes": capacity}},
    )


@pytest.mark.expects_log("written bytes were lost: status 28 ")
def test_full_target_is_told_to_the_writer_only(make_cluster: ClusterMaker) -> None:
    cluster = _small_cluster(make_cluster, 64 << 20)
    mount = cluster.mount_path
    (mount / "before").write_bytes(b"kept" * 1000)
    failures: list[BaseException] = []
    stop = threading.Event()

    def bystander() -> None:
        try:
            while not stop.is_set():
                assert (mount / "before").read_bytes() == b"kept" * 1000
                (mount / "folder").mkdir()
                (mount / "folder").rmdir()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=bystander)
    thread.start()
    try:
        assert _fill(mount / "greedy") == errno.ENOSPC
    finally:
        stop.set()
        thread.join()
    assert failures == []
    (mount / "greedy").unlink()
    assert wait_until(lambda: _writes_again(mount / "after"), 60)
    assert (mount / "before").read_bytes() == b"kept" * 1000


def _writes_again(path: Path) -> bool:
    try:
        path.write_bytes(b"z" * (8 << 20))
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return False
    return path.read_bytes() == b"z" * (8 << 20)


@pytest.fixture
def small_disk(localdir: Path) -> Iterator[LoopDisk]:
    with loop_disk(localdir / "small") as disk:
        yield disk


@pytest.fixture
def disks_of_few_inodes(localdir: Path) -> Iterator[tuple[LoopDisk, LoopDisk]]:
    """A target uses 256 of the inodes for directories."""
    with (
        loop_disk(localdir / "one", "-N", "600") as one,
        loop_disk(localdir / "two", "-N", "2000") as two,
    ):
        yield one, two


@pytest.mark.expects_log("written bytes were lost: status 28 ")
def test_full_disk_under_a_target(make_cluster: ClusterMaker, small_disk: LoopDisk) -> None:
    cluster = make_cluster(storage_servers=1, targets=1)
    cluster.stop()
    small_disk.hold_target(cluster, 0)
    cluster.start()
    try:
        kept = random.Random(1).randbytes(5 << 20)
        (cluster.mount_path / "before").write_bytes(kept)
        assert _fill(cluster.mount_path / "greedy") == errno.ENOSPC
        cluster.remount()
        assert (cluster.mount_path / "before").read_bytes() == kept
        (cluster.mount_path / "greedy").unlink()
        assert wait_until(lambda: _writes_again(cluster.mount_path / "after"), 60)
    finally:
        cluster.stop()


@pytest.mark.expects_log("written bytes were lost: status 28 ")
def test_a_target_without_inodes(
    make_cluster: ClusterMaker, disks_of_few_inodes: tuple[LoopDisk, LoopDisk]
) -> None:
    cluster = make_cluster(storage_servers=2, targets=1, settings=SHORT_SESSIONS)
    cluster.stop()
    for server, disk in enumerate(disks_of_few_inodes):
        disk.hold_target(cluster, server)
    cluster.start()
    try:
        _loses_its_inodes(Cli(cluster), disks_of_few_inodes[0].point)
    finally:
        cluster.stop()


def _loses_its_inodes(cli: Cli, disk: Path) -> None:
    mount = cli.cluster.mount_path
    (lost,) = (r["target"] for r in cli.json("target", "list", "--node", "storageserver-1"))
    early = [mount / f"early-{number}" for number in range(16)]
    for path in early:
        path.touch()  # its target is chosen, and there is no object yet
    kept = next(path for path in early if cli.json("layout", "get", path)["targets"][0] == lost)
    early.remove(kept)
    _write_durably(kept, b"kept")
    _take_all_inodes(disk)
    of_first = {p: cli.json("layout", "get", p)["targets"][0] for p in early}
    for path, first in of_first.items():
        assert _first_bytes(path) == (errno.ENOSPC if first == lost else None), path
    assert set(of_first.values()) > {lost}
    tries = itertools.count()
    assert wait_until(
        lambda: {_first_bytes(mount / f"new-{next(tries)}") for _ in range(16)} == {None}, 60
    )
    assert wait_until(lambda: cli.json("target", "list", "--state", "full"), 30)
    _says_so(cli, lost)
    with kept.open("ab") as file:  # an existing object needs no new inode
        file.write(b"k" * 500_000)
        file.flush()
        os.fsync(file.fileno())
    assert kept.read_bytes() == b"kept" + b"k" * 500_000
    shutil.rmtree(disk / "taken")
    assert wait_until(lambda: not cli.json("target", "list", "--state", "full"), 30)
    assert wait_until(lambda: {_first_bytes(path) for path in early} == {None}, 30)


def _take_all_inodes(disk: Path) -> None:
    (disk / "taken").mkdir()
    with pytest.raises(OSError) as caught:
        for number in range(1000):
            (disk / "taken" / f"{number}").touch()
    assert caught.value.errno == errno.ENOSPC


def _first_bytes(path: Path) -> int | None:
    """The errno of a write of the first bytes, if it fails. The file is not truncated, because an
    empty file would move to another target."""
    try:
        _write_durably(path, b"x" * 100, "r+b" if path.exists() else "wb")
    except OSError as error:
        return error.errno
    return None


def _says_so(cli: Cli, lost: int) -> None:
    assert f"target {lost} is full: it has no inodes left" in cli.run("status", code=3).stdout
    rows = {row["target"]: row for row in cli.json("target", "list")}
    row, other = rows.pop(lost), next(iter(rows.values()))
    assert (row["state"], row["files_free"], other["state"]) == ("full", 0, "up")
    assert row["errors"] == 0 and row["bytes_free"] > row["bytes_total"] // 4
    free = os.statvfs(cli.cluster.mount_path).f_ffree
    assert 0 < free <= other["files_total"] and abs(free - other["files_free"]) < 64
    assert abs(cli.json("df")["inodes_free"] - free) < 64


def _write_durably(path: Path, content: bytes, mode: str = "wb") -> None:
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _stored_file(cluster: Cluster, mark: bytes) -> tuple[Path, int]:
    """The object file that contains `mark`, and the offset in it."""
    for path in sorted((cluster.plan.state / "targets").rglob("*")):
        if path.is_file() and "objects" in path.parts:
            at = path.read_bytes().find(mark)
            if at >= 0:
                return path, at
    raise AssertionError("the bytes are in no object file")


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.expects_log("block fails its checksum")
def test_flipped_bit_is_eio_and_never_wrong_bytes(
    make_cluster: ClusterMaker, restart: bool
) -> None:
    cluster = make_cluster(storage_servers=1, targets=1)
    wanted = random.Random(3).randbytes(1 << 20)
    _write_durably(cluster.mount_path / "victim", wanted)
    _write_durably(cluster.mount_path / "other", wanted[::-1])
    cluster.unmount()
    if restart:
        cluster.stop_servers()
    path, at = _stored_file(cluster, wanted[700_000:700_064])
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))
    cluster.start()
    with (cluster.mount_path / "victim").open("rb", buffering=0) as file:
        with pytest.raises(OSError) as caught:
            os.pread(file.fileno(), 4096, 700_000)
        assert caught.value.errno == errno.EIO
        assert os.pread(file.fileno(), 4096, 0) == wanted[:4096]
    assert (cluster.mount_path / "other").read_bytes() == wanted[::-1]
    log = cluster.storageservers[0].log_path
    assert wait_until(lambda: _names_the_block(log.read_text()), 10), log.read_text()[-2000:]


def _names_the_block(log: str) -> bool:
    offset = 700_000 // 4096 * 4096
    lines = [line for line in log.splitlines() if re.search(r"corrupt|checksum", line, re.I)]
    return any("target" in line and str(offset) in line for line in lines)


def test_damaged_block_can_be_overwritten(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=1, targets=1)
    wanted = bytearray(random.Random(4).randbytes(1 << 20))
    path = cluster.mount_path / "victim"
    _write_durably(path, bytes(wanted))
    cluster.unmount()
    stored, at = _stored_file(cluster, bytes(wanted[409_600:409_664]))
    with stored.open("r+b") as file:
        file.seek(at)
        file.write(b"damage")
    cluster.mount()
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"n" * 4096, 409_600)
        wanted[409_600 : 409_600 + 4096] = b"n" * 4096
    cluster.remount()
    assert path.read_bytes() == wanted


@pytest.mark.expects_log("cannot be opened: .*belongs to another cluster")
def test_foreign_target_directory_is_refused(make_cluster: ClusterMaker) -> None:
    one = make_cluster(storage_servers=1, targets=1)
    other = make_cluster(storage_servers=1, targets=1)
    one.stop()
    other.stop()
    mine = one.plan.target_path(one.plan.storageservers[0], 0)
    foreign = other.plan.target_path(other.plan.storageservers[0], 0)
    subprocess.run(["rm", "-r", mine], check=True)
    subprocess.run(["cp", "-a", foreign, mine], check=True)
    one.metaserver.start()
    program = one.storageservers[0]
    with pytest.raises(Exception, match="storageserver-1"):
        program.start()
    assert str(mine) in program.log_path.read_text()


@pytest.mark.expects_log("cannot be opened: .*superblock is damaged")
def test_damaged_superblock_is_refused(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=1, targets=1)
    cluster.stop()
    superblock = cluster.plan.target_path(cluster.plan.storageservers[0], 0) / "superblock"
    with superblock.open("r+b") as file:
        file.seek(20)
        file.write(b"\xff\xff")
    cluster.metaserver.start()
    with pytest.raises(Exception, match="storageserver-1"):
        cluster.storageservers[0].start()


@pytest.mark.expects_log("written bytes were lost: status 5 ")
def test_an_error_that_only_a_child_was_told_is_told_to_fsync(make_cluster: ClusterMaker) -> None:
    """A child closes inherited descriptors when it calls exec: that close gets the error, and no
    program looks at it."""
    cluster = make_cluster(storage_servers=1, targets=1, client_options=("timeout=3",))
    with (cluster.mount_path / "shared").open("wb", buffering=0) as file:
        file.write(b"x" * 8192)
        os.fsync(file.fileno())
        cluster.storageservers[0].kill()
        file.write(b"y" * 8192)
        subprocess.run(["true"], check=True)
        with pytest.raises(OSError) as caught:
            os.fsync(file.fileno())
        assert caught.value.errno == errno.EIO
        cluster.start_servers()


def test_a_file_system_with_small_blocks_is_refused(localdir: Path) -> None:
    """Files on ext4 with blocks of 1 KiB end at 4 TiB, where the second slot of an object
    begins."""
    for size, refused in ((1024, True), (4096, False)):
        image, root = localdir / f"image-{size}", localdir / f"target-{size}"
        root.mkdir()
        with image.open("wb") as file:
            file.truncate(64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-b", f"{size}", image], check=True, timeout=60)
        subprocess.run(["mount", "-o", "loop", image, root], check=True, timeout=60)
        try:
            if refused:
                with pytest.raises(ConfigError, match="4 KiB"):
                    check_file_size(root)
            else:
                check_file_size(root)
            assert [path.name for path in root.iterdir()] == ["lost+found"]
        finally:
            subprocess.run(["umount", root], check=True, timeout=60)
