"""Fixtures of the recipes' tests: nodes of one mount, and of two."""

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.fuse.conftest import other
from tests.recipes.recipe import Node, make_nodes

__all__ = ["node", "other", "two_nodes"]


@pytest.fixture
def node(workdir: Path, localdir: Path) -> Node:
    return make_nodes([workdir], localdir)[0]


@pytest.fixture
def two_nodes(cluster: Cluster, workdir: Path, other: Path, localdir: Path) -> list[Node]:
    """Two that see the same folder, each by a client process of its own."""
    return make_nodes([workdir, other / workdir.relative_to(cluster.mount_path)], localdir)
