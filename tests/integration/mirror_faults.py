"""What befalls one of four storage servers, each with two targets, while programs work: faults that
test_mirror_faults.py injects.

A fault does something to the *victim* and returns how to mend it. Each server may have a network
namespace of its own, and its targets disks of their own, for faults that need them.
"""

import json
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.cluster.boots import on_another_boot
from tests.cluster.cluster import Cluster
from tests.cluster.loop_disk import LoopDisk, loop_disk
from tests.cluster.mirrors import mirrored
from tests.cluster.networks import Network, both_ways, network
from tests.cluster.process import PATIENCE, Program, wait_until
from tests.conftest import ClusterMaker

from .test_cli import Cli
from .test_mirrors_under_load import degraded

Mend = Callable[[], None]

TARGETS: Final = 2
REBUILD_AFTER_S: Final = 25.0  # of a server that stays away
SILENCE_S: Final = 20.0
DISK: Final = 16 << 30
RESERVE: Final = 64 << 20  # which a storage server leaves free (reserve_bytes)
NEARLY_FULL: Final = RESERVE + (75 << 20)  # less than 1 % of CAPACITY is left
NOTICED_S: Final = 60.0 * PATIENCE
WHOLE_S: Final = 120.0 * PATIENCE
CLIENT, META = "client", "metaserver"
STORES: Final = ("store1", "store2", "store3", "store4")
SERVERS: Final = len(STORES)


@dataclass
class Site:
    """disks: of the victim's targets."""

    cluster: Cluster
    chance: random.Random
    network: Network | None = None
    victim: int = 0
    disks: list[LoopDisk] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cli = Cli(self.cluster)

    @property
    def server(self) -> Program:
        return self.cluster.storageservers[self.victim]

    @property
    def place(self) -> str:
        """The name of the victim's place."""
        return STORES[self.victim]

    def directory(self, index: int) -> Path:
        return self.cluster.plan.target_path(self.cluster.plan.storageservers[self.victim], index)

    def targets(self) -> dict[int, dict[str, Any]]:
        return {row["target"]: row for row in self.cli.json("target", "list")}

    def of_victim(self) -> list[int]:
        rows = self.targets().values()
        return sorted(row["target"] for row in rows if row["node_name"] == self.server.name)

    def are_up(self) -> bool:
        return all(row["state"] == "up" for row in self.targets().values())

    def end_jobs(self) -> None:
        """Waits until all files have all their replicas, and nothing is in work."""

        def are_done() -> bool:
            return self.are_up() and not degraded(self.cli) and not self.unfinished()

        assert wait_until(are_done, WHOLE_S), (self.targets(), self.unfinished())
        assert self.cli.text("find", ":/", "--type", "f", "--lost") == ""

    def unfinished(self) -> list[Any]:
        return [one for one in self.cli.json("job", "list") if one["state"] != "done"]

    def check_objects(self) -> None:
        """Nothing is missing on disks, and nothing is left over."""
        assert wait_until(lambda: self._fsck()["clean"], WHOLE_S), self._fsck()
        assert wait_until(lambda: not self._fsck()["unread"], WHOLE_S), self._fsck()

    def _fsck(self) -> Any:
        return json.loads(self.cli.end("fsck", "--older-than", "0s", "--json").stdout)


@contextmanager
def running_site(
    make_cluster: ClusterMaker,
    local: Path,
    chance: random.Random,
    *,
    replicas: int = 2,
    has_network: bool = False,
    disks: int = 0,
) -> Iterator[Site]:
    """disks: so many of the victim's targets get a disk of their own."""
    with ExitStack() as stack:
        net, places = None, {}
        if has_network:
            net = stack.enter_context(network(META, CLIENT, *STORES))
            places = {CLIENT: net.places[CLIENT], META: net.places[META]}
            places |= {f"storageserver-{n}": net.places[s] for n, s in enumerate(STORES, 1)}
        layout = {"replicas": replicas, "replicas_max": replicas, "degraded_ok": replicas > 2}
        cluster = mirrored(
            make_cluster,
            servers=SERVERS,
            targets=TARGETS,
            places=places,
            layout=layout,
            repair={"rebuild_after_s": REBUILD_AFTER_S, "scrub_days": 0},
        )
        site = Site(cluster, chance, net, chance.randrange(SERVERS))
        made = [
            stack.enter_context(loop_disk(local / f"disk{index}", "-m", "0", size=DISK))
            for index in range(disks)
        ]
        stack.callback(cluster.stop)  # before its disks and its network go
        if made:
            site.server.stop()
            for index, disk in enumerate(made):
                disk.hold_target(cluster, site.victim, index)
            site.server.start()
        stack.callback(_mend_all, site)
        site.disks = made
        assert wait_until(site.are_up, NOTICED_S)
        yield site


def _mend_all(site: Site) -> None:
    """After a failure: nothing hangs."""
    if site.network:
        site.network.restore()
    for disk in site.disks:
        disk.thaw()
    for server in site.cluster.storageservers:
        if server.pid() is not None:
            server.signal(signal.SIGCONT)


# ---- faults --------------------------------------------------------------------------------------


class Waits(NamedTuple):
    """No program waits for longer."""

    read_s: float
    write_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """act: returns how to mend it. hold_s: so long it lasts, at least and at most. may_be_full: a
    write may be told that there is no room."""

    name: str
    act: Callable[[Site], Mend]
    hold_s: tuple[float, float]
    waits: Waits
    has_network: bool = False
    disks: int = 0
    may_be_full: bool = False


def _kill(site: Site) -> Mend:
    server = site.server
    server.kill()
    return lambda: print(f"{server.name} is started again: {server.start()}")


def _stop(site: Site) -> Mend:
    site.server.signal(signal.SIGSTOP)
    return lambda: site.server.signal(signal.SIGCONT)


def _network_of(site: Site) -> Network:
    assert site.network is not None
    return site.network


def _cut(site: Site) -> Mend:
    net = _network_of(site)
    net.cut(*both_ways(site.place))

    def mend() -> None:
        assert net.restore(), "the cut cost no packet"

    return mend


def _vanish(site: Site) -> Mend:
    """Nobody hears of its end, and its place is taken by copies elsewhere."""
    restore = _cut(site)
    site.server.kill()

    def mend() -> None:
        def is_rebuilt() -> bool:
            jobs = site.cli.json("job", "list")
            return any(one["kind"] == "rebuild" and one["state"] == "done" for one in jobs)

        assert wait_until(is_rebuilt, WHOLE_S), site.cli.json("job", "list")
        restore()
        site.server.start()

    return mend


def _fill(site: Site) -> Mend:
    """It counts as full, and takes no new files. What is there may go on growing for a while."""
    (disk,) = site.disks
    disk.fill(NEARLY_FULL)
    target = site.of_victim()[0]
    assert wait_until(lambda: site.targets()[target]["state"] == "full", NOTICED_S)
    return disk.clear


def _fill_up(site: Site) -> Mend:
    (disk,) = site.disks
    disk.fill(RESERVE)
    return disk.clear


def _remove_directory(site: Site) -> Mend:
    """One of its targets is gone. Then its server starts without it, and it is given up."""
    gone = site.of_victim()[0]
    shutil.rmtree(site.directory(0))

    def mend() -> None:
        site.server.kill()
        site.directory(0).mkdir()
        site.server.start()
        assert wait_until(lambda: site.targets()[gone]["state"] == "down", NOTICED_S)
        site.cli.run("target", "remove", gone, "--lost", "--wait", "--yes")
        assert gone not in site.targets()

    return mend


def _hang(site: Site) -> Mend:
    """The other disks of the server go on, and so does its process."""
    (disk,) = site.disks
    disk.freeze()
    return disk.thaw


def _cut_power(site: Site) -> Mend:
    """What its disks had not been told to keep may be lost, and the host's next boot is another
    one."""
    site.server.kill()
    for disk in site.disks:
        disk.cut_power()
    server = on_another_boot(site.cluster, site.server)
    time.sleep(site.chance.uniform(0.0, 3.0))
    server.start()
    return lambda: None


DIES = Waits(1.0, 6.0)
IS_SILENT = Waits(12.0, 12.0)
# Its server answers: nobody reads elsewhere because of a slow disk, and a writer waits for 30 s.
HANGS = Waits(SILENCE_S + 4.0, SILENCE_S + 4.0)
FAULTS: Final = {
    one.name: one
    for one in (
        Fault("kill", _kill, (1.0, 8.0), DIES),
        Fault("stop", _stop, (SILENCE_S, SILENCE_S), IS_SILENT),
        Fault("cut", _cut, (SILENCE_S, SILENCE_S), IS_SILENT, has_network=True),
        Fault("vanish", _vanish, (REBUILD_AFTER_S, REBUILD_AFTER_S), IS_SILENT, has_network=True),
        Fault("full", _fill, (5.0, 10.0), DIES, disks=1),
        Fault("filled-up", _fill_up, (5.0, 10.0), DIES, disks=1, may_be_full=True),
        Fault("removed", _remove_directory, (3.0, 8.0), DIES),
        Fault("hang", _hang, (SILENCE_S, SILENCE_S), HANGS, disks=1),
        Fault("power", _cut_power, (3.0, 8.0), DIES, disks=TARGETS),
    )
}
