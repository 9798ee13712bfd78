"""One file, several clients: fsx in turns; caches that answer alone, and the number of leases."""

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cluster.cluster import BIN, Cluster
from tests.cluster.numbers import metric, metrics, requests_answered, samples
from tests.cluster.process import wait_until
from tests.coherence.conftest import MountMaker
from tests.conftest import ClusterMaker
from tests.stress import fsx

pytestmark = [pytest.mark.mount, pytest.mark.timeout(7200)]

Sized = Callable[[int, int], int]


def _here(cluster: Cluster, mount: Path, folder: Path) -> Path:
    return mount / folder.relative_to(cluster.mount_path)


def test_fsx_by_two_clients_in_turns(
    cluster: Cluster, workdir: Path, more_mounts: MountMaker, sized: Sized
) -> None:
    seed = int(os.environ.get("BRAIDFS_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    files = [_here(cluster, mount, workdir) / "fsx" for mount in more_mounts(cluster, 2)]
    assert fsx.run(files, sized(1200, 200_000), seed)


# ---- the cost of a hand-over -------------------------------------------------------------------

HAND_OVERS = 200


def _answered(cluster: Cluster) -> Counter[str]:
    """Requests answered by the metaserver up to now, by op, and recalls."""
    server = cluster.plan.metaserver
    found = requests_answered(server, cluster.mount_path)
    page = metrics(server.metrics_port, server.place)
    found["RECALL"] = int(sum(samples(page, "braidfs_lease_recalls_total").values()))
    return found


def _pass_to_and_fro(paths: Sequence[Path], use: Callable[[int, int], None]) -> None:
    fds = [os.open(path, os.O_RDWR) for path in paths]
    try:
        for number in range(HAND_OVERS):
            use(fds[number % len(fds)], number)
    finally:
        for fd in fds:
            os.close(fd)


def _overwrite(fd: int, number: int) -> None:
    os.pwrite(fd, bytes([number % 256]) * 4096, 0)
    assert os.fstat(fd).st_size == 1 << 16


def _read_and_overwrite(fd: int, number: int) -> None:
    if number:
        assert os.pread(fd, 4096, 0) == bytes([(number - 1) % 256]) * 4096
    _overwrite(fd, number)


def _look_and_overwrite(fd: int, number: int) -> None:
    assert os.fstat(fd).st_size == 1 << 16
    _overwrite(fd, number)


@pytest.mark.parametrize("use", [_overwrite, _read_and_overwrite, _look_and_overwrite])
def test_a_hand_over_takes_one_question_one_recall_and_one_commit(
    cluster: Cluster, workdir: Path, more_mounts: MountMaker, use: Callable[[int, int], None]
) -> None:
    """The test counts requests, not time: two clients write one file in turns."""
    paths = [_here(cluster, mount, workdir) / "f" for mount in more_mounts(cluster, 2)]
    paths[0].write_bytes(bytes(1 << 16))
    _pass_to_and_fro(paths, use)  # this includes what happens only once
    before = _answered(cluster)
    _pass_to_and_fro(paths, use)
    counted = _answered(cluster) - before
    print(dict(counted))
    for op in ("OPEN", "COMMIT", "LEASE_RETURN", "RECALL"):
        assert 0.8 * HAND_OVERS < counted[op] < 1.1 * HAND_OVERS + 10, op
    usual = {"HEARTBEAT", "SESSION_RENEW", "STATFS"}
    others = {"OPEN", "COMMIT", "LEASE_RETURN", "RECALL"} | usual
    assert sum(count for op, count in counted.items() if op not in others) < 0.1 * HAND_OVERS


# ---- leased attributes are answered without the metaserver
# ----------------------------------------


def _requests(cluster: Cluster) -> int:
    """How many requests the sessions of all clients have sent to the metaserver."""
    environment = {
        **os.environ,
        "BRAIDFS_METASERVER": f"127.0.0.1:{cluster.plan.metaserver.port}",
        "BRAIDFS_KEY_FILE": str(cluster.plan.key_file),
    }
    result = subprocess.run(
        [BIN / "braidfs", "client", "list", "--json"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return sum(int(row["requests"]) for row in json.loads(result.stdout))


def _tree(base: Path, folders: int, files: int) -> int:
    for folder in range(folders):
        (base / f"{folder}").mkdir()
        for number in range(files):
            (base / f"{folder}" / f"{number}").touch()
    return folders * (files + 1)


def test_stat_of_leased_files_asks_nobody(cluster: Cluster, workdir: Path) -> None:
    count = _tree(workdir, 5, 60)
    paths = [path for path in workdir.rglob("*")]
    assert len(paths) == count
    before = _requests(cluster)
    for path in paths * 3:
        path.stat()
        assert not (path.parent / f"{path.name}-absent").exists() or path.is_dir()
    asked = _requests(cluster) - before
    print(f"{asked} requests for {len(paths) * 3} stats")
    assert asked < count * 1.2 + 50  # an absent name costs one request, and heartbeats add some


def test_leases_of_a_client_are_bounded(make_cluster: ClusterMaker) -> None:
    bound = 100
    cluster = make_cluster(
        storage_servers=1, settings={"metaserver": {"leases_per_session_max": bound}}
    )
    base = cluster.mount_path / "d"
    base.mkdir()
    _tree(base, 4, 100)
    for path in base.rglob("*"):
        path.stat()

    def leases() -> float:
        return metric(cluster.plan.metaserver, "braidfs_leases")

    assert wait_until(lambda: 0 < leases() <= bound, 20), leases()
    for path in base.rglob("*"):
        assert path.stat().st_nlink
