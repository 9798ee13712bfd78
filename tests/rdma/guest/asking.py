"""Questions to the programs in the guest, and their answers: logs, status, mounts by hand."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.plan import save_client_config
from tests.dev.steps import tool
from tests.rdma.guest.conftest import drop_caches, pattern, servers

PATIENCE_S = 300.0


def client_log(cluster: Cluster) -> str:
    return (cluster.plan.state / "log" / "client.log").read_text()


def told(cluster: Cluster, transport: str) -> int:
    return client_log(cluster).count(f'event="data goes by {transport}"')


def fetched(cluster: Cluster) -> int:
    """How many written bytes RDMA carried; a server that never had RDMA counts none."""
    return sum(server.get("rdma_bytes_fetched", 0) for server in servers(cluster))


def bytes_go_by_rdma(cluster: Cluster, path: Path) -> bool:
    """Writes a little and checks whether all of it went by RDMA."""
    wanted = pattern(9)[: 4 << 20]
    before = fetched(cluster)
    path.write_bytes(wanted)
    drop_caches()
    assert path.read_bytes() == wanted
    return fetched(cluster) - before >= len(wanted)


def braidfs(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [tool("braidfs"), *words], capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def reach(cluster: Cluster) -> tuple[str, ...]:
    """The options by which a command reaches the cluster's metaserver."""
    metaserver = f"127.0.0.1:{cluster.plan.metaserver.port}"
    return "-s", metaserver, "-k", str(cluster.plan.key_file)


def paths_of_status(cluster: Cluster) -> list[dict[str, object]]:
    """The transports of the cluster's own client, as it reported them to the metaserver."""
    shown = braidfs("status", "--json", *reach(cluster))
    paths: list[dict[str, object]] = json.loads(shown.stdout)["clients"][0]["paths"]
    return paths


def mount_by_hand(
    cluster: Cluster, folder: Path, *limits: str, settings: Mapping[str, object] | None = None
) -> "subprocess.CompletedProcess[str]":
    """limits: words that go before those of the mount. settings: more keys of its client.toml."""
    folder.mkdir()
    keys = {"transport": "auto", "log_file": f"{folder}.log", **(settings or {})}
    file = save_client_config(cluster.plan, "by-hand", keys)
    options = f"key_file={cluster.plan.key_file},config={file}"
    return subprocess.run(
        [*limits, "mount.fuse.braidfs", cluster.plan.source(), str(folder), "-o", options],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
