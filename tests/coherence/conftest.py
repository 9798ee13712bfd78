"""Several mounts of one cluster, each with a client process of its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import Cluster

MountMaker = Callable[[Cluster, int], list[Path]]


@pytest.fixture
def more_mounts(localdir: Path) -> Iterator[MountMaker]:
    """more_mounts(cluster, count): that many mounts, the cluster's own the first of them."""
    with ExitStack() as stack:

        def make(cluster: Cluster, count: int) -> list[Path]:
            made = [cluster.mount_path]
            for number in range(1, count):
                point = localdir / f"client-{number}"
                stack.callback(_leave, point)
                made.append(stack.enter_context(cluster.second_client(point)))
            return made

        yield make


def _leave(point: Path) -> None:
    """Nothing of a failed test stays mounted."""
    while mounts.is_mounted(point):
        mounts.unmount(point, lazy=True)
