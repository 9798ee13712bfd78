"""Clusters of storage servers on one host that count as failure domains of their own."""

from collections.abc import Mapping
from typing import Any, Final

from tests.cluster.cluster import Cluster
from tests.cluster.networks import Place
from tests.conftest import ClusterMaker

SERVERS: Final = 3
CAPACITY: Final = 8 << 30  # however full this machine's disk is, copies find room


def mirrored(
    make_cluster: ClusterMaker,
    *,
    replicas: int = 2,
    servers: int = SERVERS,
    targets: int = 1,
    places: Mapping[str, Place] | None = None,
    **of_metaserver: Any,
) -> Cluster:
    """replicas: of each new file; 2 may be asked for in any case. targets: of each server.
    of_metaserver: more settings of the metaserver."""
    settings: dict[str, dict[str, Any]] = {
        f"storageserver-{number}": {"domain": f"rack{number}", "target.capacity_bytes": CAPACITY}
        for number in range(1, servers + 1)
    }
    layout = {"replicas": replicas, "replicas_max": max(replicas, 2)}
    settings["metaserver"] = {"layout": layout, **of_metaserver}
    return make_cluster(storage_servers=servers, targets=targets, settings=settings, places=places)
