"""How soon a client goes on when a link is back whose packets were dropped for a while.

TCP alone would retry at growing intervals, and an old connection may be dead for good: the client
sends a probe after 2 s, and has another connection after 3 s more of silence.
"""

import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from tests.cluster.networks import both_ways
from tests.cluster.numbers import metric
from tests.cluster.process import wait_until
from tests.coherence.conftest import LinkedMaker
from tests.coherence.links import META, STORES, Linked

pytestmark = [pytest.mark.mount, pytest.mark.timeout(300), pytest.mark.expects_warnings]

CUT_S = 6.5  # TCP sends a segment again 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s after the first time
BACK_S = 4.5
SESSION_S = 60.0


def _after_a_cut(linked: Linked, name: str, act: Callable[[], object]) -> float:
    """The time from the return of the link to the end of the call, which began while the link was
    cut."""
    ended: list[float] = []

    def work() -> None:
        act()
        ended.append(time.monotonic())

    network = linked.network
    network.cut(*both_ways(name))
    try:
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(CUT_S)
        assert not ended, "it was not cut off"
    finally:
        assert network.restore() > 0
    back = time.monotonic()
    thread.join(120)
    return ended[0] - back


def test_a_metaserver_that_is_back_is_met_soon(linked: LinkedMaker) -> None:
    world = linked(1, SESSION_S)
    base = world.mounts[0]
    after_s = _after_a_cut(world, META, (base / "never-seen").exists)
    assert after_s < BACK_S


def test_a_storage_server_that_is_back_is_met_soon(linked: LinkedMaker) -> None:
    world = linked(1, SESSION_S)
    path = world.mounts[0] / "file"
    content = random.Random(4).randbytes(8 << 20)
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        read: list[bytes] = []
        after_s = _after_a_cut(world, STORES[0], lambda: read.append(os.pread(fd, len(content), 0)))
        assert read == [content]
        assert after_s < BACK_S
    finally:
        os.close(fd)


def test_a_client_hears_of_a_new_map_at_once(linked: LinkedMaker) -> None:
    """It does not wait for the next heartbeat, which is due every 20 s."""
    world = linked(1, SESSION_S)
    server = world.cluster.plan.metaserver

    def renewals() -> float:
        return metric(server, "braidfs_requests_total", op="SESSION_RENEW")

    def down() -> float:
        return metric(server, "braidfs_targets", state="down")

    world.cluster.storageservers[1].kill()
    before = renewals()
    assert wait_until(lambda: down() == 1 or renewals() > before, 30)
    assert wait_until(lambda: renewals() > before, 2), "it was not told"
