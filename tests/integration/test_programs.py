"""The server programs from outside: endpoints, unauthenticated peers, configuration, `./dev up` and
`down`.
"""

import os
import re
import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.plan import ServerPlan
from tests.cluster.process import is_gone, wait_until
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
DEV = str(ROOT / "dev")


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_every_program_has_metrics(cluster: Cluster, workdir: Path) -> None:
    (workdir / "file").write_bytes(b"x" * 100_000)
    ports = [server.metrics_port for server in cluster.plan.servers]
    for port in (*ports, cluster.plan.client_metrics_port):
        text = _metrics(port)
        ours = [line for line in text.splitlines() if line.startswith("braidfs_")]
        assert ours, text[:500]


def _value(text: str, name: str) -> float:
    found = re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.M)
    assert found, f"{name} is missing"
    return sum(map(float, found))


def test_data_requests_are_counted_and_timed(cluster: Cluster, workdir: Path) -> None:
    """Bytes of files by transport, and the time that storage servers took for them."""
    size = 5_000_000
    ports = [server.metrics_port for server in cluster.plan.storageservers]

    def sums(name: str) -> float:
        texts = [_metrics(port) for port in ports]
        return sum(_value(text, name) for text in texts)

    names = ("braidfs_transport_bytes_total", "braidfs_data_request_seconds_count")
    before = [sums(name) for name in names]
    (workdir / "file").write_bytes(os.urandom(size))
    descriptor = os.open(workdir / "file", os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    moved, answered = (sums(name) - old for name, old in zip(names, before, strict=True))
    assert moved >= size and answered >= 3
    text = _metrics(ports[0])
    for op in ("READ", "WRITE", "SYNC", "OTHER"):
        spans = re.findall(rf'_seconds_bucket\{{le="[^"]+",op="{op}"\}} (\S+)', text)
        assert len(spans) == 16 and sorted(spans, key=float) == spans
    client = _metrics(cluster.plan.client_metrics_port)
    assert _value(client, "braidfs_kernel_requests_total") > 0
    assert _value(client, "braidfs_data_bytes_total") >= size


def test_commit_batches_are_measured(cluster: Cluster, workdir: Path) -> None:
    for number in range(50):
        (workdir / f"{number}").touch()
    text = _metrics(cluster.plan.metaserver.metrics_port)
    assert re.search(r"^braidfs_\w*commit\w*_(count|total) [1-9]", text, re.M), text[:3000]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.expects_log("connection refused")
def test_stranger_gets_a_closed_connection_and_nothing_else(cluster: Cluster, which: int) -> None:
    server: ServerPlan = cluster.plan.servers[which]
    for words in (
        b"GET / HTTP/1.0\r\nHost: x\r\n\r\n" * 4,
        b"\0" * 200,
        os.urandom(4096),
        b"DIRB" + b"\xff" * 76,
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=15) as stranger:
            got = b"never closed"
            try:
                stranger.sendall(words)
                got = stranger.recv(4096)
            except ConnectionError:
                got = b""
            assert got == b""
    assert cluster.programs[which].pid() is not None


def test_silent_stranger_is_dropped(cluster: Cluster) -> None:
    port = cluster.plan.metaserver.port
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        assert stranger.recv(10) == b""


@pytest.mark.expects_log("connection refused")
def test_many_strangers_do_not_keep_clients_out(cluster: Cluster, localdir: Path) -> None:
    port = cluster.plan.metaserver.port
    crowd = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(300)]
    try:
        (localdir / "point").mkdir()
        (cluster.mount_path / "crowd").write_bytes(b"served")
        (cluster.mount_path / "crowd").unlink()
    finally:
        for stranger in crowd:
            stranger.close()


@pytest.mark.parametrize("program", ["braidfs-metaserver", "braidfs-storageserver"])
def test_unknown_key_names_the_nearest(program: str, localdir: Path) -> None:
    (localdir / "config.toml").write_text('lisen = "127.0.0.1:1"\n')
    words = [str(BIN / program), "--config", str(localdir / "config.toml")]
    result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert "lisen" in result.stderr and "listen" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("program", ["braidfs-metaserver", "braidfs-storageserver"])
def test_missing_configuration(program: str, localdir: Path) -> None:
    words = [str(BIN / program), "--config", str(localdir / "none.toml")]
    result = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode != 0
    assert "none.toml" in result.stderr and "Traceback" not in result.stderr


def test_servers_stop_on_sigterm(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=1)
    (cluster.mount_path / "file").write_bytes(b"x")
    cluster.unmount()
    assert all(program.stop() for program in (*cluster.storageservers, cluster.metaserver))


def _dev(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [DEV, *words], check=False, capture_output=True, text=True, timeout=300, cwd="/"
    )


def test_dev_up_status_and_down(localdir: Path) -> None:
    state, point = localdir / "state with space", localdir / "mnt"
    where = ("--state", str(state))
    result = _dev("up", *where, "--mount", str(point), "--storage-servers", "3", "--targets", "2")
    try:
        assert result.returncode == 0, result.stderr
        assert str(point) in result.stdout
        assert mounts.is_mounted(point)
        (point / "file").write_bytes(b"stored")
        pids = {path.name: int(path.read_text()) for path in (state / "run").glob("*.pid")}
        assert len(pids) == 5  # three storage servers, the metaserver and the client
        assert (state / "cluster.key").stat().st_mode & 0o777 == 0o600
        status = _dev("status", *where)
        assert status.returncode == 0, status.stdout
        _mount_by_environment(state, localdir / "second")
        again = _dev("up", *where)
        assert again.returncode == 0, again.stderr
        assert {p.name: int(p.read_text()) for p in (state / "run").glob("*.pid")} == pids
    finally:
        down = _dev("down", *where)
    assert down.returncode == 0, down.stderr
    assert not mounts.is_mounted(point)
    assert all(is_gone(pid) for pid in pids.values())
    assert _dev("status", *where).returncode == 1
    _finds_everything_again(where, point)
    shutil.rmtree(state)


def _mount_by_environment(state: Path, point: Path) -> None:
    point.mkdir()
    script = (
        f". '{state}/cluster.env' && "
        f'mount -t fuse.braidfs "$BRAIDFS_SOURCE" {point} -o "$BRAIDFS_OPTIONS" && '
        f'cmp {point}/file "$BRAIDFS_MOUNT/file" && umount {point}'
    )
    result = subprocess.run(["sh", "-c", script], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def _finds_everything_again(where: tuple[str, ...], point: Path) -> None:
    try:
        assert _dev("up", *where).returncode == 0
        assert (point / "file").read_bytes() == b"stored"
    finally:
        assert _dev("down", *where).returncode == 0


def test_dev_refuses_to_lose_servers(localdir: Path) -> None:
    where = ("--state", str(localdir / "state"))
    try:
        assert _dev("up", *where, "--storage-servers", "2").returncode == 0
        result = _dev("up", *where, "--storage-servers", "1")
        assert result.returncode == 1
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    finally:
        _dev("down", *where)


def test_dev_says_what_it_needs_without_rights(localdir: Path) -> None:
    localdir.chmod(0o777)
    result = subprocess.run(
        [DEV, "down", "--state", str(localdir / "none")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert result.stderr.strip().startswith("dev: there is no cluster in")


def test_lanes_forget_closed_files(cluster: Cluster, workdir: Path) -> None:
    """The table of closed files is bounded: a client that writes millions of files must not fill
    it.

    Files that were read stay until others replace them (fsclient.fs.inodes.KEPT_MAX), or until they
    are removed.
    """

    def known() -> float:
        text = _metrics(cluster.plan.client_metrics_port)
        found = re.search(r'^braidfs_native\{counter="inodes"\} (\S+)$', text, re.M)
        assert found, text[:3000]
        return float(found.group(1))

    files = [(workdir / f"{number}").open("w+b") for number in range(200)]
    for file in files:
        file.write(b"x" * 100)
    open_count = known()
    assert open_count >= 200
    for file in files:
        file.flush()
        os.fsync(file)
        file.close()
    assert wait_until(lambda: known() <= open_count - 190, 20)
    for number in range(200):
        assert (workdir / f"{number}").read_bytes() == b"x" * 100
        (workdir / f"{number}").unlink()
    assert wait_until(lambda: known() <= open_count - 190, 20)
