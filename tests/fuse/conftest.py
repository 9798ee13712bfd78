"""Fixtures of tests that use a second mount."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster


@pytest.fixture
def other(shared_cluster: Cluster, localdir: Path) -> Iterator[Path]:
    """The root of a second mount, with a client process of its own."""
    point = localdir / "other"
    with shared_cluster.second_client(point) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def lasting(shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root of a second mount, for all tests of a module."""
    point = tmp_path_factory.mktemp("lasting") / "other"
    with shared_cluster.second_client(point) as mounted:
        yield mounted
