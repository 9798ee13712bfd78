"""The whole mount over RDMA: what is written reads back, and by which transport it went."""

import filecmp
import mmap
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.numbers import native_counters
from tests.dev.steps import ROOT
from tests.rdma.guest.conftest import BIG_BYTES, STATE, addresses_of, drop_caches, pattern, servers
from tests.rdma.guest.counters import loopback_bytes

TREE = Path("/usr/lib/python3.11/json")
MODEL = "tests/model/test_mount_model.py"
MODEL_EXAMPLES = "120"
MODEL_SECONDS_MAX = 400.0


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of payloads, as the storage servers counted them, and how many of them RDMA carried: in
    messages, in either direction, or by READ and WRITE."""

    payload: int
    by_rdma: int


def moved(cluster: Cluster) -> Moved:
    each = servers(cluster)
    client = native_counters(cluster.plan.client_metrics_port)
    keys = ("rdma_bytes_fetched", "rdma_bytes_written", "rdma_bytes_short")
    return Moved(
        sum(server["read_bytes"] + server["written_bytes"] for server in each),
        sum(server[key] for server in each for key in keys) + client["rdma_bytes_short"],
    )


def test_no_payload_byte_goes_by_tcp(rdma_cluster: Cluster) -> None:
    """Exactly: all bytes that servers wrote and returned are those that RDMA has carried."""
    mount = rdma_cluster.mount_path
    wanted = pattern(1)
    tcp_before, before = loopback_bytes(), moved(rdma_cluster)
    subprocess.run(["cp", "-r", str(TREE), str(mount / "tree")], check=True)
    with (mount / "big").open("wb") as file:
        file.write(wanted)
        os.fsync(file.fileno())
    drop_caches()
    assert (mount / "big").read_bytes() == wanted
    same = filecmp.dircmp(TREE, mount / "tree")
    assert not (same.diff_files or same.left_only or same.right_only or same.funny_files)
    for key in ("rdma_bytes_fetched", "rdma_bytes_written"):
        each = [server[key] for server in servers(rdma_cluster)]
        assert min(each) > 0 and sum(each) >= BIG_BYTES, (key, each)
    after = moved(rdma_cluster)
    assert after.payload - before.payload >= 2 * BIG_BYTES
    assert after.payload - before.payload == after.by_rdma - before.by_rdma
    by_tcp = loopback_bytes() - tcp_before
    assert by_tcp < BIG_BYTES // 4, f"{by_tcp} bytes went by TCP: that is more than metadata"


def test_two_servers_answer_on_two_addresses(rdma_cluster: Cluster) -> None:
    for number, server in enumerate(rdma_cluster.plan.storageservers, 1):
        log = (rdma_cluster.plan.state / "log" / f"{server.name}.log").read_text()
        first, second = (f"{address} (" for address in addresses_of(number))
        assert f"RDMA by rxe0:1 {first}" in log and f"rxe1:1 {second}" in log, log
        assert not any(f"{address} (" in log for address in addresses_of(3 - number)), log


def test_small_reads_travel_in_messages(rdma_cluster: Cluster) -> None:
    path = rdma_cluster.mount_path / "small"
    path.write_bytes(pattern(2)[: 1 << 20])
    with path.open("rb") as file:
        os.fsync(file.fileno())
    drop_caches()
    before = sum(server["rdma_bytes_short"] for server in servers(rdma_cluster))
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with os.fdopen(os.dup(fd), "rb", buffering=0) as file:
            page = mmap.mmap(-1, 4096)  # it is aligned, as O_DIRECT requires
            for _ in range(32):
                assert file.readinto(page) == 4096
    finally:
        os.close(fd)
    after = sum(server["rdma_bytes_short"] for server in servers(rdma_cluster))
    assert after - before >= 32 * 4096


def test_lanes_use_both_rails_at_once(rdma_cluster: Cluster) -> None:
    """Two lanes, two rails: queue pairs that are ready to send on each of the client's devices."""
    pid = rdma_cluster.client_pid()
    shown = subprocess.run(
        ["rdma", "resource", "show", "qp", "pid", str(pid)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ready = {line.split()[1] for line in shown.splitlines() if "state RTS" in line}
    assert ready == {"rxe0/1", "rxe1/1"}, shown


def test_the_mount_behaves_like_a_local_folder(rdma_cluster: Cluster) -> None:
    """The model test of tests/model, with fewer examples.

    Its oracle is on ext4, because the guest's own root is in a tmpfs, which in this kernel has no
    user xattrs: each one set would differ. Each write is durable when it returns; otherwise few of
    these bytes would ever be sent.
    """
    folder = rdma_cluster.mount_path / "model"
    folder.mkdir()
    environment = {
        **os.environ,
        "BRAIDFS_TEST_DIR": str(folder),
        "BRAIDFS_TEST_LOCAL_DIR": str(STATE / "oracle"),
        "BRAIDFS_MODEL_EXAMPLES": MODEL_EXAMPLES,
        "BRAIDFS_MODEL_DSYNC": "1",
    }
    before = moved(rdma_cluster)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", MODEL],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=MODEL_SECONDS_MAX,
    )
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert "1 passed" in result.stdout
    after = moved(rdma_cluster)
    assert after.by_rdma - before.by_rdma > 0
    assert after.by_rdma - before.by_rdma == after.payload - before.payload
