"""A group of metaservers over one journal, each program in a network namespace of its own: what
tests break, and what they ask it.

Two metaservers, two storage servers, four mounts, and three members of etcd or one PostgreSQL. A
*fault* does something to the active metaserver and returns how to mend it; all that is asked while
a link is cut is asked from a place that nobody cuts off.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from metaserver.owners import Owner
from metaserver.store.journal import Journal
from metaserver.store.journals.address import parse_journal
from metaserver.store.journals.settings import JournalSettings, open_journal
from tests.cluster import mounts
from tests.cluster.cluster import BIN, Cluster
from tests.cluster.etcd import EtcdCluster, running_etcd
from tests.cluster.networks import Cut, Network, both_ways, network
from tests.cluster.numbers import metrics, requests_answered, requests_shown, samples
from tests.cluster.plan import ETCD, ServerPlan, make_plan
from tests.cluster.postgresql import PostgresqlServer, started_server
from tests.cluster.process import PATIENCE, Program, wait_until
from tests.cluster.workers import Worker, all_go_on, answered

METASERVERS = ("meta1", "meta2")
STORES = ("store1", "store2")
ENGINES = ("engine1", "engine2", "engine3")
CLIENTS = ("client1", "client2", "client3", "client4")
TAKE_OVER_S_MAX = 60.0 * PATIENCE  # a bound of the tests, not what is promised
FOLLOWS_S_MAX = 90.0 * PATIENCE
ASKS_AGAIN = ("OPEN", "LEASE_TAKE")  # what clients would send for each file in use

T = TypeVar("T")
Mend = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Said:
    """`braidfs status`: its exit code, what it says to people, and its problems as JSON."""

    code: int
    text: str
    problems: list[dict[str, str]]

    def sentences(self) -> list[str]:
        return [f"{one['what']}: {one['why']}" for one in self.problems]


@dataclass(frozen=True, slots=True)
class Figure:
    """One fault. pause_s: until the next answer, of the client that waited longest. asked: requests
    of clients that the active metaserver has got since, by op."""

    kind: str
    pause_s: float
    asked: Counter[str]


class Group:
    def __init__(
        self, cluster: Cluster, places: Network, engine: EtcdCluster | PostgresqlServer, url: str
    ) -> None:
        self.cluster = cluster
        self.network = places
        self.engine = engine
        self.mounts = [cluster.mount_path]
        password = engine.password_file if isinstance(engine, PostgresqlServer) else None
        self._settings = JournalSettings(parse_journal(url), password_file=password)
        self._numbers = 0

    @property
    def etcd(self) -> EtcdCluster:
        assert isinstance(self.engine, EtcdCluster)
        return self.engine

    @property
    def postgresql(self) -> PostgresqlServer:
        assert isinstance(self.engine, PostgresqlServer)
        return self.engine

    # ---- what it is asked ----------------------------------------------------------------------

    def _ask(self, question: Callable[[Journal], T]) -> T:
        def ask() -> T:
            with contextlib.closing(open_journal(self._settings)) as door:
                return question(door)

        return self.network.places[ENGINES[0]].call(ask)

    def active_name(self) -> str | None:
        owner = Owner.of(self._ask(lambda door: door.sighting()).head.owner)
        return owner.name if owner else None

    def active_plan(self) -> ServerPlan:
        name = self.active_name()
        return next(one for one in self.cluster.plan.metaservers if one.name == name)

    def active(self) -> Program:
        return self.cluster.program(self.active_plan())

    def place_of(self, server: ServerPlan) -> str:
        """The name of its place."""
        return METASERVERS[self.cluster.plan.metaservers.index(server)]

    def wait_for_standby(self) -> None:
        """Until the active metaserver knows one that could take over now."""

        def has_one() -> bool:
            server = self.active_plan()
            page = metrics(server.metrics_port, server.place)
            return any(samples(page, "braidfs_metaserver_standbys").values())

        assert wait_until(lambda: _quietly(has_one), FOLLOWS_S_MAX), "the standby never followed"

    def braidfs(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command as an administrator does on the host of the first client."""
        plan = self.cluster.plan
        environment = {
            **os.environ,
            "BRAIDFS_METASERVER": plan.metaserver_addresses,
            "BRAIDFS_KEY_FILE": str(plan.key_file),
            "BRAIDFS_ADMIN_CONFIG": "/nonexistent",
            "COLUMNS": "200",
        }
        command = (*self.network.places[CLIENTS[0]].enter, str(BIN / "braidfs"), *words)
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            timeout=120 * PATIENCE,
        )

    def status(self) -> Said:
        ended = self.braidfs("status", "--json")
        assert ended.returncode in (0, 3), ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        return Said(ended.returncode, self.braidfs("status").stdout, found["problems"])

    def wait_until_said(self, *words: str) -> str:
        """Waits until one sentence of `braidfs status` has all these words; returns it."""
        found: list[str] = []
        last: list[str] = []

        def is_said() -> bool:
            last[:] = self.status().sentences()
            found[:] = [one for one in last if all(word in one for word in words)]
            return bool(found)

        assert wait_until(is_said, FOLLOWS_S_MAX), f"no sentence with {words}: {last}"
        return found[0]

    # ---- work and faults -----------------------------------------------------------------------

    @contextlib.contextmanager
    def working(self, folder: Path) -> Iterator[list[Worker]]:
        """One worker on each mount until the end of the block; then what they were answered is
        looked at through another mount each. folder: a local one."""
        self._numbers += 1
        workers = [
            Worker(mount / f"work{self._numbers}-{index}", folder / f"{self._numbers}-{index}")
            for index, mount in enumerate(self.mounts)
        ]
        try:
            assert all_go_on(workers, TAKE_OVER_S_MAX), "the workers do not begin"
            yield workers
        finally:
            outcomes = [worker.stop() for worker in workers]
        assert [one.error for one in outcomes if one.error] == []
        synced = 0
        for index, (worker, outcome) in enumerate(zip(workers, outcomes, strict=True)):
            there = self.mounts[(index + 1) % len(self.mounts)] / worker.folder.name
            names = {one.name for one in there.iterdir()}
            missing = [
                name
                for name, content in outcome.kept.items()
                if name not in names or (there / name).read_bytes() != content
            ]
            assert missing == [], f"synced, and not there: {missing[:10]}"
            synced += outcome.synced
        print(f"{synced} synced changes, none of them is missing")

    def broken(self, fault: "Fault", workers: list[Worker]) -> Figure:
        """Breaks and mends, while the workers go on."""
        self.wait_for_standby()
        former = self.active_name()
        before = {
            server.name: requests_shown(server) if not fault.is_of_engine else Counter[str]()
            for server in self.cluster.plan.metaservers
        }
        since_s = time.monotonic()
        mend = fault.act(self)
        try:
            assert all_go_on(workers, TAKE_OVER_S_MAX), "nobody has taken over"
            pause_s = max(answered(one, since_s, is_sudden=fault.is_sudden) for one in workers)
            if not fault.is_of_engine:
                assert self.active_name() != former, "nobody has taken over"
            server = self.active_plan()
            asked = requests_answered(server, self.cluster.mount_path) - before[server.name]
        finally:
            mend()
        return Figure(fault.name, pause_s, asked)


@contextlib.contextmanager
def running_group(folder: Path, engine: str = ETCD) -> Iterator[Group]:
    with ExitStack() as stack:
        net = stack.enter_context(network(*METASERVERS, *STORES, *ENGINES, *CLIENTS))
        started: EtcdCluster | PostgresqlServer
        if engine == ETCD:
            places = [net.places[name] for name in ENGINES]
            started = stack.enter_context(running_etcd(folder / "etcd", places=places))
            url = f"etcd://{','.join(started.endpoints)}/braidfs"
            settings: dict[str, object] = {"journal": url}
        else:
            started = stack.enter_context(started_server(place=net.places[ENGINES[0]]))
            url = started.url()
            settings = {"journal": url, "journal_password_file": str(started.password_file)}
        named = {
            "metaserver": METASERVERS[0],
            "metaserver-2": METASERVERS[1],
            "storageserver-1": STORES[0],
            "storageserver-2": STORES[1],
            "client": CLIENTS[0],
        }
        plan = make_plan(
            folder / "cluster",
            storage_servers=len(STORES),
            metaservers=len(METASERVERS),
            settings={"metaserver": settings},
            places={name: net.places[place] for name, place in named.items()},
        )
        cluster = Cluster(plan)
        stack.callback(cluster.stop)
        cluster.start()
        group = Group(cluster, net, started, url)
        for name in CLIENTS[1:]:
            stack.callback(_leave, folder / name)
            mounted = cluster.second_client(folder / name, place=net.places[name])
            group.mounts.append(stack.enter_context(mounted))
        try:
            yield group
        finally:
            net.restore()


def _leave(point: Path) -> None:
    """Unmounts what a failed test left mounted, and ends its client."""
    pid = mounts.client_pid(point)
    while mounts.is_mounted(point):
        mounts.unmount(point, lazy=True)
    if pid is not None:
        mounts.kill_client(pid)


def _quietly(question: Callable[[], bool]) -> bool:
    """False while nobody answers."""
    try:
        return question()
    except (OSError, StopIteration):
        return False


# ---- faults of the active metaserver -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fault:
    """act: returns how to mend it. is_sudden: clients are cut off at once, so that their wait
    begins with the fault."""

    name: str
    act: Callable[[Group], Mend]
    is_sudden: bool = True
    is_of_engine: bool = False


def _kill(group: Group) -> Mend:
    active = group.active()
    active.kill()
    return lambda: print(f"{active.name} is started again as {active.start()}")


def _pause(group: Group) -> Mend:
    """It is stopped for longer than its lease, and goes on as if nothing had happened."""
    active = group.active()
    active.signal(signal.SIGSTOP)
    return lambda: active.signal(signal.SIGCONT)


def _cut(group: Group) -> Mend:
    """Its host is cut off from everybody."""
    group.network.cut(*both_ways(group.place_of(group.active_plan())))
    return lambda: _restore(group)


def _cut_from_engine(group: Group) -> Mend:
    """Clients still reach it, so that it must not answer them."""
    place = group.place_of(group.active_plan())
    links = ((place, engine) for engine in ENGINES)
    group.network.cut(*(cut for a, b in links for cut in (Cut(a, b), Cut(b, a))))
    return lambda: _restore(group)


def _restore(group: Group) -> None:
    assert group.network.restore(), "the cut cost no packet"


def _stop(group: Group) -> Mend:
    active = group.active()
    active.stop()
    return lambda: print(f"{active.name} is started again as {active.start()}")


def _switch(group: Group) -> Mend:
    ended = group.braidfs("meta", "switch")
    assert ended.returncode == 0, ended.stderr
    return lambda: None


CRASHES = {
    "kill": Fault("kill", _kill),
    "pause": Fault("pause", _pause),
    "cut": Fault("cut", _cut),
    "cut-from-engine": Fault("cut-from-engine", _cut_from_engine),
}
PLANNED = {
    "stop": Fault("stop", _stop, is_sudden=False),
    "switch": Fault("switch", _switch, is_sudden=False),
}
FAULTS = {**CRASHES, **PLANNED}
