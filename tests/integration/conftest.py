"""Fixtures of integration: figures that tests measured, which pytest's summary shows, and clusters
with two metaservers."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.etcd import EtcdCluster, running_etcd
from tests.conftest import ClusterMaker

_FIGURES: pytest.StashKey[list[str]] = pytest.StashKey()


@pytest.fixture
def show_figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """show_figure(text): a line of the summary."""
    lines = request.config.stash.setdefault(_FIGURES, [])
    return lambda text: lines.append(f"{request.node.name}: {text}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if lines := config.stash.get(_FIGURES, []):
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path) as running:
        yield running


@pytest.fixture
def two_metaservers(etcd: EtcdCluster, make_cluster: ClusterMaker) -> Cluster:
    """Their journal is in etcd. The cluster ends before etcd does: an unmount waits for a
    metaserver that has no journal."""
    journal = f"etcd://{etcd.endpoints[0]}/braidfs"
    return make_cluster(
        storage_servers=1, metaservers=2, settings={"metaserver": {"journal": journal}}
    )
