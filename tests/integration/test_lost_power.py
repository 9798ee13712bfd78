"""A storage server's host loses power: what the client has written and not synced is sent again."""

import os
import time

import pytest

from tests.cluster.boots import on_another_boot
from tests.cluster.cluster import Cluster
from tests.cluster.mirrors import mirrored
from tests.cluster.process import PATIENCE
from tests.conftest import ClusterMaker

from .test_cli import Cli
from .test_mirrors_under_load import is_whole

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300), pytest.mark.expects_warnings]

READ_S = 10.0 * PATIENCE  # without the right to write it took 20 s, and 60 s with one replica


@pytest.mark.expects_log("lost what was not synced|connection to node")
@pytest.mark.parametrize("replicas", [1, 2])
def test_what_was_closed_is_sent_again_while_the_file_is_read(
    make_cluster: ClusterMaker, replicas: int
) -> None:
    """It is open for reading alone by then, and the bytes lie on one server or on two."""
    cluster = mirrored(make_cluster, replicas=replicas, servers=2)
    path = cluster.mount_path / "file"
    content = os.urandom(3 << 20)
    path.write_bytes(content)
    time.sleep(1.0)  # until the client has forgotten the handle; it syncs the file 5 s later
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        _lose_power(cluster)
        began_s = time.monotonic()
        assert os.pread(fd, len(content), 0) == content
        os.fsync(fd)
        assert time.monotonic() - began_s < READ_S
    finally:
        os.close(fd)
    assert is_whole(Cli(cluster))
    cluster.remount()
    assert path.read_bytes() == content


def _lose_power(cluster: Cluster) -> None:
    server = cluster.storageservers[0]
    server.kill()
    on_another_boot(cluster, server).start()
