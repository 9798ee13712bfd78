"""A cluster whose every server and client has a network namespace of its own, with links that can
be cut.

`Linked` names its clients client1, client2, ... and knows where each is mounted; `LinkCutter` cuts
and restores links while a history is recorded, and counts how many packets were lost.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.networks import Cut, Network, Place, both_ways
from tests.cluster.numbers import metric
from tests.cluster.process import wait_until

META = "meta"
STORES = ("store1", "store2")
BACK_SECONDS_MAX = 60.0
EVICTED_SECONDS_MAX = 40.0


def client_name(number: int) -> str:
    return f"client{number}"


def places_of(network: Network) -> dict[str, Place]:
    """The places where the programs of a plan run, by the names in the plan."""
    stores = {f"storageserver-{n}": network.places[name] for n, name in enumerate(STORES, 1)}
    return {"metaserver": network.places[META], "client": network.places[client_name(1)], **stores}


@dataclass(slots=True)
class Linked:
    cluster: Cluster
    network: Network
    mounts: list[Path]

    @classmethod
    def make(
        cls, cluster: Cluster, network: Network, count: int, folder: Path, stack: ExitStack
    ) -> "Linked":
        """A cluster with `count` clients, of which the first is the cluster's own; the others are
        mounted in `folder`."""
        points = [cluster.mount_path]
        for number in range(2, count + 1):
            name = client_name(number)
            mounted = cluster.second_client(folder / name, place=network.places[name])
            points.append(stack.enter_context(mounted))
        return cls(cluster, network, points)

    def evictions(self) -> int:
        return int(metric(self.cluster.plan.metaserver, "braidfs_sessions_evicted_total"))

    def folder(self, name: str) -> list[Path]:
        """A new folder, as each client sees it."""
        (self.mounts[0] / name).mkdir()
        return [mount / name for mount in self.mounts]


@dataclass(slots=True)
class LinkCutter:
    """Cuts links. `lost`: how many packets each cut lost."""

    linked: Linked
    lost: list[int] = field(default_factory=list)

    def cut(self, cuts: Sequence[Cut], seconds: float) -> None:
        network = self.linked.network
        network.cut(*cuts)
        try:
            time.sleep(seconds)
        finally:
            self.lost.append(network.restore())

    def cut_until_evicted(
        self, number: int, cuts: Sequence[Cut], act: Callable[[], None] = lambda: None
    ) -> None:
        """Cuts a client off, calls the function, waits until the metaserver has evicted the client,
        restores the link, and waits until the client is back."""
        linked, seconds = self.linked, EVICTED_SECONDS_MAX
        before = linked.evictions()
        linked.network.cut(*cuts)
        try:
            act()
            assert wait_until(lambda: linked.evictions() > before, seconds), "nobody was evicted"
        finally:
            self.lost.append(linked.network.restore())
        self.wait_until_back(number)

    def wait_until_back(self, number: int) -> None:
        """Waits until that client is served again."""
        point = self.linked.mounts[number - 1]

        def is_back() -> bool:
            try:
                (point / f"absent-{time.monotonic_ns()}").exists()
            except OSError:
                return False
            return True

        assert wait_until(is_back, BACK_SECONDS_MAX), f"client {number} does not come back"


def directions(name: str) -> dict[str, tuple[Cut, ...]]:
    """The ways in which a client can be cut off."""
    return {"both": both_ways(name), "from it": (Cut(name, ""),), "to it": (Cut("", name),)}
