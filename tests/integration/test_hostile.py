"""Every field of every op at its bounds and beyond, as every kind of peer, to servers that run."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.plan import make_plan
from tests.conftest import STATES
from tests.hostile.attack import ALL_OPS, KINDS
from tests.hostile.run import SETTINGS, run

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def servers() -> Iterator[Cluster]:
    """Without a mount. Their state stays if BRAIDFS_TEST_KEEP is set."""
    STATES.mkdir(parents=True, exist_ok=True)
    state = Path(tempfile.mkdtemp(prefix="hostile-", dir=STATES))
    cluster = Cluster(make_plan(state, storage_servers=1, settings=SETTINGS))
    try:
        cluster.start_servers()
        yield cluster
    finally:
        cluster.stop_servers()
    if "BRAIDFS_TEST_KEEP" not in os.environ:
        shutil.rmtree(state)


async def test_no_bytes_end_a_server(servers: Cluster, sized: Callable[[int, int], int]) -> None:
    faults = await run(servers, 31, KINDS, ALL_OPS, sized(24, 600))
    assert faults == []
