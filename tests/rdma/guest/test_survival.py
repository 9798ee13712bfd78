"""Nothing is lost when programs die, ports go down and devices are removed; and what is
reported.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.mounts import kill_client
from tests.cluster.process import wait_until
from tests.rdma.guest.asking import (
    PATIENCE_S,
    braidfs,
    bytes_go_by_rdma,
    client_log,
    mount_by_hand,
    paths_of_status,
    reach,
    told,
)
from tests.rdma.guest.conftest import drop_caches, pattern, servers
from tests.rdma.guest.rails import no_addresses, no_devices, ports_down, set_links

SOURCE = Path("/dev/shm/source")


def write_by_itself(path: Path, wanted: bytes) -> "subprocess.Popen[bytes]":
    """A program of its own that writes and fsyncs: its exit status says whether it got an error.
    (In a thread here, each child that we start would flush the open file as it closes it.)"""
    SOURCE.write_bytes(wanted)
    words = ["dd", f"if={SOURCE}", f"of={path}", "bs=1M", "conv=fsync"]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)


@contextmanager
def writing(path: Path, wanted: bytes) -> Iterator[None]:
    """The block runs while `wanted` is being written; at its end all of it was written without an
    error."""
    writer = write_by_itself(path, wanted)
    try:
        assert wait_until(lambda: path.exists() and path.stat().st_size > 0, PATIENCE_S)
        yield
        assert writer.wait(PATIENCE_S) == 0
    finally:
        writer.kill()
        writer.wait()
    drop_caches()
    assert path.read_bytes() == wanted


def test_a_killed_server_under_load_loses_nothing(rdma_cluster: Cluster) -> None:
    with writing(rdma_cluster.mount_path / "killed", pattern(3)):
        rdma_cluster.storageservers[0].kill()
        rdma_cluster.start_servers()


def test_a_server_of_two_replicas_that_dies_costs_no_error(rdma_cluster: Cluster) -> None:
    """Its files are written and read by RDMA with the other one, and get the replicas that they
    lack when it is back; then the other one may die."""
    folder = rdma_cluster.mount_path / "mirrored"
    folder.mkdir()
    assert braidfs("layout", "set", str(folder), "--replicas", "2").returncode == 0
    assert wait_until(lambda: bytes_go_by_rdma(rdma_cluster, folder / "up"), PATIENCE_S)
    written = folder / "written"
    before = servers(rdma_cluster)[1]["rdma_bytes_fetched"]
    with writing(written, pattern(11)):
        rdma_cluster.storageservers[0].kill()
    assert lack_replicas(rdma_cluster, folder)
    rdma_cluster.start_servers()
    assert servers(rdma_cluster)[1]["rdma_bytes_fetched"] - before >= len(pattern(11))
    assert wait_until(lambda: not lack_replicas(rdma_cluster, folder), PATIENCE_S)
    assert wait_until(lambda: bytes_go_by_rdma(rdma_cluster, folder / "both"), PATIENCE_S)
    rdma_cluster.storageservers[1].kill()
    try:
        drop_caches()
        assert written.read_bytes() == pattern(11)
    finally:
        rdma_cluster.start_servers()


def lack_replicas(cluster: Cluster, folder: Path) -> bool:
    found = braidfs("find", str(folder), "--degraded", *reach(cluster))
    assert found.returncode == 0, found.stderr
    return found.stdout != ""


def test_ports_that_go_down_cost_no_error(rdma_cluster: Cluster) -> None:
    """Both ports down: bytes go by local sockets, which is logged once for each server; ports up:
    by RDMA again."""
    assert wait_until(
        lambda: bytes_go_by_rdma(rdma_cluster, rdma_cluster.mount_path / "up"), PATIENCE_S
    )
    before, by_rdma = told(rdma_cluster, "local socket"), told(rdma_cluster, "RDMA")
    try:
        with writing(rdma_cluster.mount_path / "down", pattern(4)):
            set_links("down")
        assert told(rdma_cluster, "local socket") == before + 2
        assert wait_until(
            lambda: [one["transport"] for one in paths_of_status(rdma_cluster)] == ["local"] * 2,
            PATIENCE_S,
        )
    finally:
        set_links("up")
    path = rdma_cluster.mount_path / "up"
    assert wait_until(lambda: bytes_go_by_rdma(rdma_cluster, path), PATIENCE_S)
    # It is logged more than once for a server whose own port came up a moment later than the
    # client's.
    assert told(rdma_cluster, "RDMA") >= by_rdma + 2
    assert wait_until(
        lambda: [one["transport"] for one in paths_of_status(rdma_cluster)] == ["rdma", "rdma"],
        PATIENCE_S,
    )


def test_a_device_that_is_deleted_costs_no_error(rdma_cluster: Cluster) -> None:
    """Its traffic moves to the other rail; the programs release the device, so that the deletion
    completes."""
    try:
        with writing(rdma_cluster.mount_path / "deleted", pattern(5)):
            subprocess.run(["rdma", "link", "delete", "rxe0"], check=True, timeout=PATIENCE_S)
        links = subprocess.run(["rdma", "link"], check=True, capture_output=True, text=True).stdout
        assert "rxe0" not in links and "rxe1" in links
        assert wait_until(lambda: "RDMA by rxe1:1" in client_log(rdma_cluster), PATIENCE_S)
    finally:
        words = ["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "rail0"]
        subprocess.run(words, check=True)
    log = client_log(rdma_cluster)

    def is_back() -> bool:
        return "RDMA by rxe0:1" in client_log(rdma_cluster)[len(log) :]

    assert wait_until(is_back, PATIENCE_S)
    path = rdma_cluster.mount_path / "deleted-2"
    assert wait_until(lambda: bytes_go_by_rdma(rdma_cluster, path), PATIENCE_S)


def test_addresses_that_go_amid_a_write_cost_no_error(rdma_cluster: Cluster) -> None:
    """Their GIDs are removed with them: bytes go by local sockets, and by RDMA again when there are
    GIDs."""
    path = rdma_cluster.mount_path
    assert wait_until(lambda: bytes_go_by_rdma(rdma_cluster, path / "with"), PATIENCE_S)
    before = told(rdma_cluster, "local socket")
    with ExitStack() as until_then:
        with writing(path / "without", pattern(8)):
            until_then.enter_context(no_addresses())
        assert told(rdma_cluster, "local socket") == before + 2
    assert wait_until(lambda: bytes_go_by_rdma(rdma_cluster, path / "with"), PATIENCE_S)


# Root may pin any amount; without this capability the limit applies.
SMALL_MEMLOCK = (
    "prlimit",
    "--memlock=1048576",
    "setpriv",
    "--bounding-set=-ipc_lock",
    "--inh-caps=-ipc_lock",
)


def hidden(path: str) -> tuple[str, ...]:
    """The words before those of a program that must see this file or folder as empty."""
    script = (
        'if [ -d "$0" ]; then empty=$(mktemp -d); else empty=/dev/null; fi'
        ' && mount --bind "$empty" "$(realpath "$0")" && exec "$@"'
    )
    return ("unshare", "--mount", "bash", "-c", script, path)


LIBRARY = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"
PYVERBS = "/usr/lib/python3/dist-packages/pyverbs"


@pytest.mark.parametrize(
    ("settings", "limits", "reason"),
    [
        ({}, hidden(LIBRARY), "pyverbs cannot be loaded"),
        ({}, hidden(PYVERBS), "install python3-pyverbs"),
        ({"rdma_devices": ["mlx5_0"]}, (), "rxe0:1: not one of the configured devices"),
        ({"rdma_subnets": ["192.168.0.0/16"]}, (), "rxe0:1: no address in the configured subnets"),
        ({"rdma_gid_index": 200}, (), "rxe0:1: it has no GID with index 200"),
        ({}, SMALL_MEMLOCK, "raise the memlock limit"),
    ],
)
def test_a_mount_that_demands_rdma_says_what_is_missing(
    rdma_cluster: Cluster,
    tmp_path: Path,
    settings: dict[str, object],
    limits: tuple[str, ...],
    reason: str,
) -> None:
    demanding = {"transport": "rdma", **settings}
    result = mount_by_hand(rdma_cluster, tmp_path / "none", *limits, settings=demanding)
    assert result.returncode != 0 and reason in result.stderr, result.stderr


def test_with_too_small_a_memlock_limit_bytes_go_by_tcp(
    rdma_cluster: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    result = mount_by_hand(rdma_cluster, folder, *SMALL_MEMLOCK)
    assert result.returncode == 0, result.stderr
    try:
        (folder / "by-tcp").write_bytes(pattern(6)[: 1 << 20])
        assert (rdma_cluster.mount_path / "by-tcp").read_bytes() == pattern(6)[: 1 << 20]
        log = Path(f"{folder}.log").read_text()
        assert log.count("no RDMA: ") == 1 and "raise the memlock limit" in log, log
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def queue_pairs() -> int:
    shown = subprocess.run(["rdma", "resource"], check=True, capture_output=True, text=True).stdout
    return sum(int(line.split(" qp ")[1].split()[0]) for line in shown.splitlines())


def test_who_has_another_key_gets_no_queue_pair(rdma_cluster: Cluster, tmp_path: Path) -> None:
    key = tmp_path / "other.key"
    key.write_text("ab" * 32 + "\n")
    key.chmod(0o600)
    before = queue_pairs()
    server = f"127.0.0.1:{rdma_cluster.plan.storageservers[0].port}"
    result = braidfs("net", "check", server, "-k", str(key))
    assert result.returncode == 1 and "key" in result.stderr, result.stderr
    assert queue_pairs() == before
    result = braidfs("net", "check", server, "-k", str(rdma_cluster.plan.key_file))
    assert result.returncode == 0 and "data would go by RDMA" in result.stdout, result.stderr


def client_of(folder: Path) -> int:
    """The process that serves this mount."""
    for task in Path("/proc").glob("[0-9]*"):
        words = (task / "cmdline").read_bytes().split(b"\0") if (task / "cmdline").exists() else []
        if os.fsencode(folder) in words and any(b"mount.fuse" in word for word in words):
            return int(task.name)
    raise AssertionError(f"nobody serves {folder}")


def test_a_killed_client_leaves_nothing_behind(rdma_cluster: Cluster, tmp_path: Path) -> None:
    """kill -9 during a write: the servers release its queue pairs, and serve the others as
    before."""
    before = queue_pairs()
    folder = tmp_path / "killed"
    result = mount_by_hand(rdma_cluster, folder)
    assert result.returncode == 0, result.stderr
    writer = write_by_itself(folder / "by-the-killed", pattern(7))
    try:
        assert wait_until(lambda: queue_pairs() > before, PATIENCE_S)
        kill_client(client_of(folder))
        writer.wait(PATIENCE_S)
    finally:
        writer.kill()
        writer.wait()
        subprocess.run(["umount", "-l", str(folder)], check=True)
    assert wait_until(lambda: queue_pairs() <= before, PATIENCE_S)
    path = rdma_cluster.mount_path / "after-the-killed"
    assert wait_until(lambda: bytes_go_by_rdma(rdma_cluster, path), PATIENCE_S)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (ports_down, "rxe0:1: the port is down: check the cable"),
        (no_addresses, "rxe0:1: no RoCE v2 GID of an IPv4 or global IPv6 address"),
        (no_devices, "there is no RDMA device"),
    ],
)
def test_a_mount_that_demands_rdma_says_what_is_wrong_with_the_ports(
    rdma_cluster: Cluster,
    tmp_path: Path,
    trouble: Callable[[], AbstractContextManager[None]],
    reason: str,
) -> None:
    with trouble():
        demanding: dict[str, object] = {"transport": "rdma"}
        result = mount_by_hand(rdma_cluster, tmp_path / "none", settings=demanding)
    assert result.returncode != 0 and reason in result.stderr, result.stderr
    path = rdma_cluster.mount_path / "after-the-trouble"
    assert wait_until(lambda: bytes_go_by_rdma(rdma_cluster, path), PATIENCE_S)
