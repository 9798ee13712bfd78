"""copy_file_range from target to target: it gives the same bytes as any copy, and no byte passes
through the client, as the counters of both sides show.
"""

import errno
import json
import os
import random
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsclient.cli.main import cli
from tests.cluster.cluster import Cluster
from tests.cluster.numbers import servers_counted
from tests.cluster.process import wait_until
from tests.conftest import ClusterMaker
from tests.fuse.looks import lanes_counted, seen_from

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]
KIB, MIB = 1 << 10, 1 << 20


def copied_bytes(cluster: Cluster) -> int:
    """How many bytes the storage servers have copied by themselves since they started."""
    return servers_counted(cluster.plan, "copied_bytes")


def copy(source: int, sink: int, length: int, begin: int = 0, sink_begin: int = 0) -> None:
    done = 0
    while done < length:
        count = os.copy_file_range(source, sink, length - done, begin + done, sink_begin + done)
        assert count > 0
        done += count


def reach(cluster: Cluster) -> list[str]:
    """The options of `braidfs` for this cluster."""
    return ["-s", f"127.0.0.1:{cluster.plan.metaserver.port}", "-k", str(cluster.plan.key_file)]


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def test_cp_moves_no_byte_through_the_client(cluster: Cluster, workdir: Path, other: Path) -> None:
    wanted = content(20 * MIB + 5)
    (workdir / "source").write_bytes(wanted)
    servers, client = copied_bytes(cluster), lanes_counted(cluster, "bytes_written")
    subprocess.run(["cp", str(workdir / "source"), str(workdir / "copy")], check=True)
    assert copied_bytes(cluster) - servers >= 20 * MIB
    assert lanes_counted(cluster, "bytes_written") - client < MIB, "but for the odd end"
    assert (workdir / "copy").read_bytes() == wanted
    assert seen_from(other, cluster, workdir / "copy").read_bytes() == wanted
    cluster.remount()
    assert (workdir / "copy").read_bytes() == wanted
    assert (workdir / "source").read_bytes() == wanted


def test_what_was_written_a_moment_ago_is_copied(
    cluster: Cluster, workdir: Path, other: Path
) -> None:
    """The writes are on this client and on another, and both still have the source open."""
    wanted = bytearray(content(4 * MIB))
    source = os.open(workdir / "source", os.O_RDWR | os.O_CREAT)
    os.pwrite(source, wanted, 0)
    there = os.open(seen_from(other, cluster, workdir / "source"), os.O_RDWR)
    wanted[MIB : MIB + 5] = b"other"
    os.pwrite(there, b"other", MIB)
    before = copied_bytes(cluster)
    sink = os.open(workdir / "sink", os.O_RDWR | os.O_CREAT)
    copy(source, sink, 4 * MIB)
    assert copied_bytes(cluster) - before >= 4 * MIB
    assert os.pread(sink, 5 * MIB, 0) == wanted
    wanted[0:4] = b"here"
    os.pwrite(source, b"here", 0)
    copy(source, sink, 4 * MIB)
    assert os.pread(sink, 5 * MIB, 0) == wanted
    for fd in (source, there, sink):
        os.close(fd)
    assert seen_from(other, cluster, workdir / "sink").read_bytes() == wanted


def test_into_the_middle_of_a_file(cluster: Cluster, workdir: Path, other: Path) -> None:
    """The bytes around it stay; both kernels drop their pages of the file."""
    bytes_, old = content(3 * MIB), bytearray(content(8 * MIB, 2))
    (workdir / "source").write_bytes(bytes_)
    (workdir / "sink").write_bytes(old)
    there = seen_from(other, cluster, workdir / "sink")
    assert (workdir / "sink").read_bytes() == there.read_bytes() == old
    with (workdir / "source").open("rb") as source, (workdir / "sink").open("r+b") as sink:
        stamp = os.fstat(sink.fileno())
        copy(source.fileno(), sink.fileno(), 2 * MIB, 512 * KIB, 4 * MIB + 4096)
        old[4 * MIB + 4096 : 6 * MIB + 4096] = bytes_[512 * KIB : 512 * KIB + 2 * MIB]
        assert os.pread(sink.fileno(), 9 * MIB, 0) == old
        seen = os.fstat(sink.fileno())
        assert seen.st_size == stamp.st_size and seen.st_mtime_ns > stamp.st_mtime_ns
    assert there.read_bytes() == old


def test_ranges_of_any_kind(cluster: Cluster, workdir: Path) -> None:
    """Compared with a copy in memory: whole blocks or not, longer or not, in one chunk or over
    many."""
    chance = random.Random(7)
    bytes_ = content(6 * MIB)
    (workdir / "source").write_bytes(bytes_)
    model = bytearray()
    before = copied_bytes(cluster)
    with (workdir / "source").open("rb") as source, (workdir / "sink").open("w+b") as sink:
        for round_ in range(40):
            unit = 4096 if round_ % 4 else 1
            begin = chance.randrange(5 * MIB // unit) * unit
            at = chance.randrange(5 * MIB // unit) * unit
            length = min(chance.randrange(1, 3 * MIB), len(bytes_) - begin)
            copy(source.fileno(), sink.fileno(), length, begin, at)
            model.extend(bytes(max(0, at + length - len(model))))
            model[at : at + length] = bytes_[begin : begin + length]
            if round_ % 8 == 0:
                os.pwrite(sink.fileno(), b"written", at)
                model[at : at + 7] = b"written"
                model.extend(bytes(max(0, at + 7 - len(model))))
            assert os.fstat(sink.fileno()).st_size == len(model)
        assert os.pread(sink.fileno(), 12 * MIB, 0) == model
    assert copied_bytes(cluster) > before
    cluster.remount()
    assert (workdir / "sink").read_bytes() == model


def test_holes_stay_holes(workdir: Path) -> None:
    with (workdir / "source").open("w+b") as source, (workdir / "sink").open("w+b") as sink:
        os.pwrite(source.fileno(), b"x" * 8192, 0)
        os.pwrite(source.fileno(), b"y" * 8192, 3 * MIB)
        os.ftruncate(source.fileno(), 8 * MIB)
        copy(source.fileno(), sink.fileno(), 8 * MIB)
        assert os.lseek(sink.fileno(), 8192, os.SEEK_DATA) == 3 * MIB
        assert os.lseek(sink.fileno(), 3 * MIB, os.SEEK_HOLE) == 3 * MIB + 8192
        assert os.pread(sink.fileno(), 9 * MIB, 0) == os.pread(source.fileno(), 9 * MIB, 0)


def test_a_directory_with_a_layout_of_its_own_keeps_it(cluster: Cluster, workdir: Path) -> None:
    (workdir / "wide").mkdir()
    os.setxattr(workdir / "wide", b"braidfs.layout", b"chunk_size=128KiB,stripe_width=3")
    wanted = content(5 * MIB)
    (workdir / "source").write_bytes(wanted)
    subprocess.run(["cp", str(workdir / "source"), str(workdir / "wide" / "copy")], check=True)
    layout = os.getxattr(workdir / "wide" / "copy", b"braidfs.layout")
    assert layout.startswith(b"chunk_size=131072,stripe_width=3,")
    cluster.remount()
    assert (workdir / "wide" / "copy").read_bytes() == wanted


def test_a_quota_speaks_before_anything_is_copied(cluster: Cluster, workdir: Path) -> None:
    (workdir / "source").write_bytes(content(4 * MIB))
    (workdir / "tree").mkdir()
    words = [
        "quota",
        "set",
        "--tree",
        str(workdir / "tree"),
        "--bytes",
        "2M",
        "--json",
        *reach(cluster),
    ]
    assert json.loads(CliRunner().invoke(cli, words).stdout)[0]["bytes_hard"] == 2 * MIB
    with (workdir / "source").open("rb") as source:
        sink = os.open(workdir / "tree" / "sink", os.O_RDWR | os.O_CREAT)
        with pytest.raises(OSError) as caught:
            os.copy_file_range(source.fileno(), sink, 4 * MIB, 0, 0)
        assert caught.value.errno == errno.EDQUOT
        assert os.fstat(sink).st_size == 0
        os.close(sink)
    CliRunner().invoke(cli, ["quota", "remove", "--tree", str(workdir / "tree"), *reach(cluster)])


def test_set_id_bits_go_as_with_a_write(workdir: Path) -> None:
    (workdir / "source").write_bytes(content(MIB))
    (workdir / "sink").touch()
    os.chown(workdir / "sink", 12345, 12345)
    os.chmod(workdir / "sink", 0o6755)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            source = os.open(workdir / "source", os.O_RDONLY)
            os.setuid(12345)
            sink = os.open(workdir / "sink", os.O_WRONLY)
            copy(source, sink, MIB)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (workdir / "sink").stat().st_mode & 0o7000 == 0


@pytest.mark.full
@pytest.mark.expects_warnings
def test_a_copy_is_durable_and_survives_killed_servers(make_cluster: ClusterMaker) -> None:
    """Each storage server is killed while a copy waits for it, and all are killed again when it is
    done."""
    cluster = make_cluster(storage_servers=2, targets=1)
    wanted = content(24 * MIB)
    (cluster.mount_path / "source").write_bytes(wanted)
    command = ["cp", str(cluster.mount_path / "source"), str(cluster.mount_path / "copy")]
    for server in cluster.storageservers:
        pid = server.pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        copying = subprocess.Popen(command)
        assert wait_until(lambda: told_size(cluster, ":/copy") == 24 * MIB, 30), "it grows first"
        server.kill()
        assert copying.poll() is None
        server.start()
        assert copying.wait(60) == 0
        assert (cluster.mount_path / "copy").read_bytes() == wanted
        (cluster.mount_path / "copy").unlink()
    assert subprocess.run(command, check=True).returncode == 0
    assert copied_bytes(cluster) >= 24 * MIB
    for program in cluster.programs:
        program.kill()
    for program in cluster.programs:
        program.start()
    cluster.remount()
    assert (cluster.mount_path / "copy").read_bytes() == wanted


def told_size(cluster: Cluster, path: str) -> int:
    """The size that the metaserver has; -1 if there is no such file."""
    words = ["stat", path, "--no-objects", "--json", *reach(cluster)]
    done = CliRunner().invoke(cli, words)
    return int(json.loads(done.stdout)["size"]) if done.exit_code == 0 else -1


@pytest.mark.full
def test_a_full_target_is_told_and_nothing_is_left(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(
        storage_servers=1,
        targets=1,
        settings={"storageserver-1": {"target.capacity_bytes": 64 << 20}},
    )
    wanted = content(40 * MIB)
    (cluster.mount_path / "source").write_bytes(wanted)
    with (cluster.mount_path / "source").open("rb") as source:
        sink = os.open(cluster.mount_path / "sink", os.O_RDWR | os.O_CREAT)
        os.write(sink, b"before")
        with pytest.raises(OSError) as caught:
            copy(source.fileno(), sink, 40 * MIB, 0, 4096)
        assert caught.value.errno == errno.ENOSPC
        assert os.fstat(sink).st_size == 6 and os.pread(sink, 100, 0) == b"before"
        os.ftruncate(sink, 30 * MIB)
        assert os.pread(sink, 30 * MIB, 6) == bytes(30 * MIB - 6), "no byte of the copy is left"
        os.close(sink)
    assert (cluster.mount_path / "source").read_bytes() == wanted


@pytest.mark.parametrize("width", [1, 4])
def test_copies_of_holes_are_read(cluster: Cluster, workdir: Path, other: Path, width: int) -> None:
    """Stripes without bytes are read, whether the file has holes there or space was allocated."""
    os.setxattr(workdir, "braidfs.layout", f"chunk_size=64KiB,stripe_width={width}".encode())
    source, sink = workdir / "source", workdir / "sink"
    for size, data in ((200 * KIB, ()), (5 * MIB, ()), (3 * MIB, (0,)), (3 * MIB, (2 * MIB,))):
        with source.open("w+b") as file:
            if data:
                os.posix_fallocate(file.fileno(), 0, size)
            os.ftruncate(file.fileno(), size)
            for at in data:
                os.pwrite(file.fileno(), b"data", at)
            wanted = os.pread(file.fileno(), size, 0)
        with source.open("rb") as file, sink.open("w+b") as copied:
            copy(file.fileno(), copied.fileno(), size)
        assert sink.read_bytes() == wanted
        assert seen_from(other, cluster, sink).read_bytes() == wanted
        subprocess.run(["cp", "--reflink=never", str(sink), str(sink) + "2"], check=True)
        assert Path(str(sink) + "2").read_bytes() == wanted
    cluster.remount()
    assert sink.read_bytes() == wanted


def test_a_file_emptied_during_its_copy_has_holes_only(workdir: Path, cluster: Cluster) -> None:
    """The copied bytes belong to the old objects: nothing of the new objects is durable."""
    source, sink = workdir / "source", workdir / "sink"
    with source.open("w+b") as file:
        os.pwrite(file.fileno(), content(16 * MIB), 0)
    for _ in range(5):
        with source.open("rb") as file, sink.open("w+b") as copied:
            copier = threading.Thread(
                target=os.copy_file_range, args=(file.fileno(), copied.fileno(), 16 * MIB, 0, 0)
            )
            copier.start()
            os.close(os.open(sink, os.O_WRONLY | os.O_TRUNC))
            copier.join()
            size = os.fstat(copied.fileno()).st_size
            os.ftruncate(copied.fileno(), 16 * MIB)
            assert len(os.pread(copied.fileno(), 16 * MIB, 0)) == 16 * MIB, size
