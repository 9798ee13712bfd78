"""Mounting as people do it: mount(8), fstab, fusermount3, foreground; each error is one line."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fscommon.net.rdma import SYSFS
from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.numbers import metric
from tests.cluster.plan import save_client_config
from tests.cluster.process import is_gone, wait_until

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300)]


@pytest.fixture
def mountpoint(localdir: Path) -> Iterator[Path]:
    point = localdir / "point"
    point.mkdir()
    yield point
    while mounts.is_mounted(point):
        mounts.unmount(point, lazy=True)


def _mount(source: str, point: Path, options: str) -> "subprocess.CompletedProcess[str]":
    command = mounts.mount_command(source, point, options)
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def _refused(source: str, point: Path, options: str) -> str:
    """The one error line of a mount that fails."""
    result = _mount(source, point, options)
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert result.returncode != 0, "it mounted"
    assert not mounts.is_mounted(point)
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return lines[0]


def test_second_client_sees_the_files_of_the_first(
    cluster: Cluster, workdir: Path, mountpoint: Path
) -> None:
    (workdir / "file").write_bytes(b"from the first" * 1000)
    with cluster.second_client(mountpoint) as other:
        mirror = other / workdir.relative_to(cluster.mount_path)
        assert (mirror / "file").read_bytes() == b"from the first" * 1000
        (mirror / "back").write_bytes(b"from the second")
        (mirror / "file").unlink()
    assert (workdir / "back").read_bytes() == b"from the second"
    assert wait_until(lambda: not (workdir / "file").exists(), 5)


def test_close_to_open_between_two_clients(
    cluster: Cluster, workdir: Path, mountpoint: Path
) -> None:
    with cluster.second_client(mountpoint) as other:
        mirror = other / workdir.relative_to(cluster.mount_path)
        for number in range(20):
            wanted = b"%d" % number * (1000 + number)
            (workdir / "file").write_bytes(wanted)
            assert (mirror / "file").read_bytes() == wanted
            wanted = b"back %d" % number
            (mirror / "file").write_bytes(wanted)
            assert (workdir / "file").read_bytes() == wanted


def test_exclusive_create_by_two_clients_has_one_winner(
    cluster: Cluster, workdir: Path, mountpoint: Path
) -> None:
    with cluster.second_client(mountpoint) as other:
        mirror = other / workdir.relative_to(cluster.mount_path)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
        os.close(os.open(workdir / "lock", flags))
        with pytest.raises(FileExistsError):
            os.open(mirror / "lock", flags)


def test_mount_of_a_folder(cluster: Cluster, workdir: Path, mountpoint: Path) -> None:
    (workdir / "sub" / "below").mkdir(parents=True)
    (workdir / "sub" / "file").write_bytes(b"x")
    folder = f"/{workdir.relative_to(cluster.mount_path)}/sub"
    with cluster.second_client(mountpoint, folder=folder) as other:
        assert sorted(os.listdir(other)) == ["below", "file"]
        assert (other / "..").stat().st_ino == mountpoint.parent.stat().st_ino
        (other / "below" / "new").write_bytes(b"y")
    assert (workdir / "sub" / "below" / "new").read_bytes() == b"y"


def test_read_only_mount(cluster: Cluster, workdir: Path, mountpoint: Path) -> None:
    (workdir / "file").write_bytes(b"x")
    with cluster.second_client(mountpoint, options="ro") as other:
        mirror = other / workdir.relative_to(cluster.mount_path)
        assert (mirror / "file").read_bytes() == b"x"
        acts: tuple[Callable[[], None], ...] = (mirror / "new").touch, (mirror / "file").unlink
        for act in acts:
            with pytest.raises(OSError, match="Read-only"):
                act()


def _syncs(cluster: Cluster) -> float:
    servers = cluster.plan.storageservers
    return sum(metric(server, "braidfs_data_requests_total", op="SYNC") for server in servers)


def test_sync_and_nosymfollow(cluster: Cluster, mountpoint: Path) -> None:
    """With `sync` each write is on stable storage when it returns: fsync has nothing left to do."""
    options = f"{cluster.plan.options()},sync,nosymfollow,iversion,x-systemd.idle-timeout=60"
    mounts.mount(cluster.plan.source(), mountpoint, options)
    assert os.statvfs(mountpoint).f_flag & os.ST_SYNCHRONOUS
    (mountpoint / "target").touch()
    (mountpoint / "link").symlink_to("target")
    with pytest.raises(OSError, match="symbolic links") as refused:
        (mountpoint / "link").read_bytes()
    assert refused.value.errno == errno.ELOOP
    for flags in (os.O_RDWR, os.O_WRONLY):
        fd = os.open(mountpoint / f"written {flags}", flags | os.O_CREAT)
        for number in range(3):
            before = _syncs(cluster)
            os.pwrite(fd, b"x" * 100_000, number * 100_000)
            assert _syncs(cluster) > before
        os.close(fd)


def _remount(mountpoint: Path, options: str) -> "subprocess.CompletedProcess[str]":
    words = ["mount", "-o", f"remount,{options}", str(mountpoint)]
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)


def test_remount_read_only_and_back(cluster: Cluster, mountpoint: Path) -> None:
    pid = mounts.mount(cluster.plan.source(), mountpoint, cluster.plan.options() + ",nosuid")
    file = mountpoint / "remounted"
    with file.open("wb") as opened:
        opened.write(b"x" * 3_000_000)
        busy = _remount(mountpoint, "ro")
        assert busy.returncode == 32 and "busy" in busy.stderr, "a file is open for writing"
    assert _remount(mountpoint, "ro").stderr == ""
    flags = os.statvfs(mountpoint).f_flag
    assert flags & os.ST_RDONLY and flags & os.ST_NOSUID
    assert (cluster.mount_path / "remounted").stat().st_size == 3_000_000
    with pytest.raises(OSError, match="Read-only"):
        file.write_bytes(b"y")
    with pytest.raises(OSError, match="Read-only"):
        file.unlink()
    assert file.read_bytes() == b"x" * 3_000_000
    assert _remount(mountpoint, "rw").returncode == 0
    file.write_bytes(b"y")
    assert (cluster.mount_path / "remounted").read_bytes() == b"y"
    file.unlink()
    assert mounts.client_pid(mountpoint) == pid, "the same client all the time"
    unknown = _remount(mountpoint, "ro,timeuot=3")
    assert unknown.returncode == 1 and "did you mean 'timeout'" in unknown.stderr
    mounts.unmount(mountpoint)


def test_remount_of_nothing(cluster: Cluster, mountpoint: Path) -> None:
    words = ["mount.fuse.braidfs", cluster.plan.source(), str(mountpoint), "-o", "remount,ro"]
    words[0] = str(BIN / words[0])
    result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 32 and "no BraidFS is mounted there" in result.stderr


def test_fstab_line(cluster: Cluster, mountpoint: Path, localdir: Path) -> None:
    options = f"{cluster.plan.options()},_netdev,nofail,noatime,nosuid,x-systemd.automount"
    line = f"{cluster.plan.source()} {mountpoint} fuse.braidfs {options} 0 0\n"
    (localdir / "fstab").write_text(line)
    words = ["mount", "-T", str(localdir / "fstab"), str(mountpoint)]
    result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    entry = next(e for e in mounts.mount_entries() if e.mountpoint == str(mountpoint))
    assert entry.fstype == "fuse.braidfs"
    assert entry.source == cluster.plan.source()
    assert os.statvfs(mountpoint).f_flag & os.ST_NOSUID
    mounts.unmount(mountpoint)


@pytest.mark.parametrize("command", [("umount",), ("fusermount3", "-u")])
def test_unmount_ends_the_client(
    cluster: Cluster, mountpoint: Path, command: tuple[str, ...]
) -> None:
    pid = mounts.mount(cluster.plan.source(), mountpoint, cluster.plan.options())
    (mountpoint / f"by-{command[0]}").write_bytes(b"last words")
    mounts.unmount(mountpoint, command=command)
    assert is_gone(pid)
    assert (cluster.mount_path / f"by-{command[0]}").read_bytes() == b"last words"
    (cluster.mount_path / f"by-{command[0]}").unlink()


def test_foreground_until_a_signal(cluster: Cluster, mountpoint: Path) -> None:
    words = [str(BIN / "braidfs"), "mount", "--foreground", cluster.plan.source(), str(mountpoint)]
    client = subprocess.Popen([*words, "-o", cluster.plan.options()], stderr=subprocess.PIPE)
    try:
        assert wait_until(lambda: mounts.is_mounted(mountpoint), 60)
        assert client.poll() is None
        os.listdir(mountpoint)
        client.send_signal(signal.SIGTERM)
        _, said = client.communicate(timeout=30)
        assert client.returncode == 0
        assert all(line.startswith(b"time=") for line in said.splitlines()), said
        assert not mounts.is_mounted(mountpoint)
    finally:
        if client.poll() is None:
            client.kill()
            client.wait()


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A metaserver that accepts connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(60)
        yield server


def _in_group(group: int) -> list[str]:
    """The commands of the processes of a group that have not ended."""
    words = ["ps", "-e", "-o", "pgid=,stat=,args="]
    rows = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    found = [row.split(maxsplit=2) for row in rows]
    return [args for number, state, args in found if int(number) == group and state[0] != "Z"]


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [
        (signal.SIGINT, 130, "braidfs: interrupted"),
        (signal.SIGTERM, 32, "braidfs: cannot mount {}: SIGTERM came before it served"),
    ],
)
@pytest.mark.parametrize("way", ["--foreground", "--fork", "mount(8)"])
def test_a_signal_ends_a_mount_that_waits(
    cluster: Cluster,
    mountpoint: Path,
    silent: socket.socket,
    way: str,
    number: signal.Signals,
    code: int,
    line: str,
) -> None:
    """It would have waited for the metaserver for a minute, and with `hard` without end."""
    source = f"127.0.0.1:{silent.getsockname()[1]}:/"
    words = [str(BIN / "braidfs"), "mount", way]
    if way == "mount(8)":
        words = [str(BIN / "mount.fuse.braidfs")]
    words += [source, str(mountpoint), "-o", f"{cluster.plan.options()},hard"]
    mounting = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        connected, _ = silent.accept()
        os.killpg(mounting.pid, number)  # as a terminal does
        _, said = mounting.communicate(timeout=30)
        assert wait_until(lambda: _in_group(mounting.pid) == [], 30), "it waits on by itself"
        connected.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(mounting.pid, signal.SIGKILL)
        mounting.wait()
    assert "bug" not in said and "Traceback" not in said, said
    if way == "--foreground" or number == signal.SIGINT:  # else the one that would tell was killed
        told = [one for one in said.splitlines() if one and not one.startswith("time=")]
        assert (mounting.returncode, told) == (code, [line.format(source)])
    assert not mounts.is_mounted(mountpoint)


def test_wrong_address(cluster: Cluster, mountpoint: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    started = time.monotonic()
    line = _refused(f"127.0.0.1:{port}:/", mountpoint, cluster.plan.options() + ",timeout=2")
    assert f"127.0.0.1:{port}" in line
    assert time.monotonic() - started < 40


def test_unknown_host(cluster: Cluster, mountpoint: Path) -> None:
    line = _refused("no-such-host.invalid:/", mountpoint, cluster.plan.options() + ",timeout=2")
    assert "no-such-host.invalid" in line


def test_source_without_a_path(cluster: Cluster, mountpoint: Path) -> None:
    _refused("just-words", mountpoint, cluster.plan.options())


@pytest.mark.skipif(SYSFS.is_dir(), reason="this kernel has RDMA: tests/rdma has the other reasons")
def test_transport_rdma_without_rdma(cluster: Cluster, mountpoint: Path) -> None:
    file = save_client_config(cluster.plan, "by-rdma", {"transport": "rdma"})
    options = f"{cluster.plan.options()},config={file}"
    line = _refused(cluster.plan.source(), mountpoint, options)
    assert "transport=rdma, but the kernel has no RDMA" in line and "rdma_rxe" in line


@pytest.mark.expects_log("connection refused.*handshake failed")
def test_wrong_key(cluster: Cluster, mountpoint: Path, localdir: Path) -> None:
    wrong = localdir / "wrong.key"
    wrong.touch(mode=0o600)
    wrong.write_text("00" * 32 + "\n")
    line = _refused(cluster.plan.source(), mountpoint, f"key_file={wrong},timeout=2")
    assert "key" in line.lower()


def test_missing_key_file(cluster: Cluster, mountpoint: Path, localdir: Path) -> None:
    line = _refused(cluster.plan.source(), mountpoint, f"key_file={localdir}/none")
    assert f"{localdir}/none" in line


def test_missing_folder(cluster: Cluster, mountpoint: Path) -> None:
    line = _refused(cluster.plan.source("/no/such"), mountpoint, cluster.plan.options())
    assert "/no" in line


def test_missing_mountpoint(cluster: Cluster, localdir: Path) -> None:
    result = _mount(cluster.plan.source(), localdir / "nowhere", cluster.plan.options())
    assert result.returncode != 0
    assert "nowhere" in result.stderr and len(result.stderr.strip().splitlines()) == 1


def test_mountpoint_that_is_a_file(cluster: Cluster, localdir: Path) -> None:
    (localdir / "file").touch()
    result = _mount(cluster.plan.source(), localdir / "file", cluster.plan.options())
    assert result.returncode != 0
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


def test_busy_mountpoint(cluster: Cluster, mountpoint: Path) -> None:
    mounts.mount(cluster.plan.source(), mountpoint, cluster.plan.options())
    result = _mount(cluster.plan.source(), mountpoint, cluster.plan.options())
    assert result.returncode != 0
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert sum(e.mountpoint == str(mountpoint) for e in mounts.mount_entries()) == 1
    mounts.unmount(mountpoint)


def test_unknown_option_names_the_nearest(cluster: Cluster, mountpoint: Path) -> None:
    line = _refused(cluster.plan.source(), mountpoint, cluster.plan.options() + ",timeuot=3")
    assert "timeuot" in line and "timeout" in line


def test_option_that_is_no_number(cluster: Cluster, mountpoint: Path) -> None:
    line = _refused(cluster.plan.source(), mountpoint, cluster.plan.options() + ",lanes=many")
    assert "lanes" in line
