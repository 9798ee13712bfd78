"""Several mounts of one cluster, each with a client process of its own.

For tests that cut links, each program is in a network namespace of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.cluster import Cluster
from tests.cluster.networks import Network, network, why_no_networks
from tests.coherence.links import META, STORES, Linked, client_name, places_of
from tests.conftest import ClusterMaker

MountMaker = Callable[[Cluster, int], list[Path]]
LinkedMaker = Callable[[int, float], Linked]


@pytest.fixture
def more_mounts(localdir: Path) -> Iterator[MountMaker]:
    """more_mounts(cluster, count): that many mounts, of which the first is the cluster's own."""
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
    """Unmounts what a failed test left mounted."""
    while mounts.is_mounted(point):
        mounts.unmount(point, lazy=True)


@pytest.fixture(scope="session")
def networks_work() -> None:
    if unable := why_no_networks():
        pytest.skip(unable)


@pytest.fixture
def places(networks_work: None) -> Iterator[Callable[[int], Network]]:
    """places(count): those of the servers and of that many clients. They outlive the cluster in
    them."""
    with ExitStack() as stack:
        yield lambda count: stack.enter_context(
            network(META, *STORES, *(client_name(number) for number in range(1, count + 1)))
        )


@pytest.fixture
def linked(
    places: Callable[[int], Network], make_cluster: ClusterMaker, localdir: Path
) -> Iterator[LinkedMaker]:
    """linked(clients, session_s): a cluster with that many clients, whose sessions expire after so
    many seconds of silence."""
    with ExitStack() as stack:

        def make(count: int, session_s: float) -> Linked:
            network = places(count)
            cluster = make_cluster(
                storage_servers=len(STORES),
                targets=1,
                places=places_of(network),
                settings={
                    "metaserver": {"session_timeout_s": session_s, "lease_duration_s": session_s}
                },
            )
            for number in range(2, count + 1):
                stack.callback(_leave, localdir / client_name(number))
            return Linked.make(cluster, network, count, localdir, stack)

        yield make
