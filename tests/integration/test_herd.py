"""Changes of the cluster cause no requests from clients that use files.

Files that are open and read cause no OPEN after a change of the cluster map, nor after a start of
the metaserver. The metaserver counts the requests; all programs are real processes. Both events
once cost one OPEN for each file in use: minutes, for a thousand clients that use a thousand files
each.
"""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.numbers import metrics, requests_answered, samples
from tests.cluster.process import Program, wait_until
from tests.conftest import ClusterMaker

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300), pytest.mark.expects_warnings]

FILES = 60
SIZE = 300_000


def _answered(cluster: Cluster) -> Counter[str]:
    return requests_answered(cluster.plan.metaserver, cluster.mount_path)


def _asked(cluster: Cluster) -> int:
    """The number of OPENs and of other requests for leases on a file's bytes."""
    counted = _answered(cluster)
    return counted["OPEN"] + counted["LEASE_TAKE"]


@contextmanager
def _files_in_use(base: Path) -> Iterator[list[tuple[int, bytes]]]:
    """The files, each read once from its storage servers."""
    files: list[tuple[int, bytes]] = []
    try:
        for number in range(FILES):
            path, content = base / f"{number}", os.urandom(SIZE)
            path.write_bytes(content)
            files.append((os.open(path, os.O_RDONLY), content))
        _read_from_servers(files)
        yield files
    finally:
        for fd, _ in files:
            os.close(fd)


def _read_from_servers(files: list[tuple[int, bytes]]) -> None:
    for fd, content in files:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, SIZE, 0) == content


def _targets_up(cluster: Cluster) -> int:
    server = cluster.plan.metaserver
    page = metrics(server.metrics_port, server.place)
    return int(sum(samples(page, "braidfs_targets", state="up").values()))


def _goes_down_and_comes_back(cluster: Cluster, program: Program, targets: int) -> None:
    program.kill()
    assert wait_until(lambda: _targets_up(cluster) < targets, 60), "it was not taken down"
    program.start()
    assert wait_until(lambda: _targets_up(cluster) == targets, 60)


def test_no_file_is_opened_again_when_a_storage_server_goes_and_comes_back(
    make_cluster: ClusterMaker,
) -> None:
    cluster = make_cluster(storage_servers=2, targets=1)
    with _files_in_use(cluster.mount_path) as files:
        before = _asked(cluster)
        _goes_down_and_comes_back(cluster, cluster.storageservers[0], 2)
        _read_from_servers(files)
        assert _asked(cluster) == before, _answered(cluster)


def test_no_file_is_opened_again_when_the_metaserver_comes_back(make_cluster: ClusterMaker) -> None:
    cluster = make_cluster(storage_servers=2, targets=1)
    with _files_in_use(cluster.mount_path) as files:
        for _ in range(2):
            cluster.metaserver.kill()
            cluster.metaserver.start()
            _read_from_servers(files)
            assert _asked(cluster) == 0, _answered(cluster)
        # The client noticed the restart through the leases that it still held.
        with cluster.second_client(cluster.plan.state / "other") as other:
            for number in (0, FILES - 1):
                (other / f"{number}").write_bytes(b"new")
                fd, _ = files[number]
                assert os.pread(fd, SIZE, 0) == b"new"
