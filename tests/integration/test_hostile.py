"""Every field of every op at its bounds and beyond, from every kind of peer, sent to running
servers.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.plan import Settings, make_plan
from tests.conftest import STATES
from tests.hostile import data_requests, data_run
from tests.hostile.attack import ALL_OPS, KINDS
from tests.hostile.run import SERVERS, SETTINGS, run

pytestmark = pytest.mark.timeout(900)


@contextmanager
def _servers(settings: Settings, *, servers: int, targets: int) -> Iterator[Cluster]:
    """A cluster without a mount. Its state is kept if BRAIDFS_TEST_KEEP is set."""
    STATES.mkdir(parents=True, exist_ok=True)
    state = Path(tempfile.mkdtemp(prefix="hostile-", dir=STATES))
    cluster = Cluster(make_plan(state, storage_servers=servers, targets=targets, settings=settings))
    try:
        cluster.start_servers()
        yield cluster
    finally:
        cluster.stop_servers()
    if "BRAIDFS_TEST_KEEP" not in os.environ:
        shutil.rmtree(state)


@pytest.fixture
def servers() -> Iterator[Cluster]:
    with _servers(SETTINGS, servers=SERVERS, targets=1) as cluster:
        yield cluster


@pytest.fixture
def storage() -> Iterator[Cluster]:
    with _servers(data_run.SETTINGS, servers=1, targets=data_run.TARGETS) as cluster:
        yield cluster


async def test_no_bytes_end_a_server(servers: Cluster, sized: Callable[[int, int], int]) -> None:
    faults = await run(servers, 31, KINDS, ALL_OPS, sized(12, 600))
    assert faults == []


async def test_no_bytes_end_a_storage_server(
    storage: Cluster, sized: Callable[[int, int], int]
) -> None:
    """Frames do not exhaust the server's memory, create objects of no file, or delay honest
    clients."""
    kinds = data_run.KINDS
    assert await data_run.run(storage, 31, kinds, data_requests.CODES, sized(8, 600)) == []
