"""The parts of a loopback cluster: names, ports and paths, kept in STATE/cluster.json.

Ports are chosen once per state (tests/cluster/ports.py), so several clusters can run side by side.
A later plan for the same state keeps every recorded port and may only grow, because servers and
targets hold bytes. The module is pure but for `save`, `recorded` and the choice of ports; nothing
here starts a program.
"""

import json
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from tests.cluster.networks import Place
from tests.cluster.ports import free_port

HERE = Place()
HOST = HERE.address
Settings = dict[str, dict[str, object]]  # it maps a program, or "client", to its extra keys
# Settings for tests that wait until a dead client's session and leases expire, which takes 30 s by
# default.
SHORT_SESSIONS: Settings = {"metaserver": {"session_timeout_s": 4, "lease_duration_s": 4}}


ETCD = "etcd"
POSTGRESQL = "postgresql"
ETCD_MEMBERS = 3


class PlanError(Exception):
    """A request that this state cannot meet; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class ServerPlan:
    name: str
    port: int
    metrics_port: int
    targets: int = 0
    place: Place = HERE


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """The engine that keeps the journal of this cluster's metaservers. Each member of etcd has a
    port in both tuples; PostgreSQL is one server with one port."""

    engine: str
    ports: tuple[int, ...]
    peer_ports: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        if self.engine == POSTGRESQL:
            return (POSTGRESQL,)
        return tuple(f"{ETCD}-{number}" for number, _ in enumerate(self.ports, 1))

    @property
    def address(self) -> str:
        hosts = ",".join(f"{HOST}:{port}" for port in self.ports)
        if self.engine == POSTGRESQL:
            return f"postgresql://postgres@{hosts}/postgres"
        return f"etcd://{hosts}/braidfs"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    state: Path
    mount: Path
    metaserver: ServerPlan
    storageservers: tuple[ServerPlan, ...]
    client_metrics_port: int
    settings: Settings = field(default_factory=dict)
    client_options: tuple[str, ...] = ()
    client_place: Place = HERE
    standbys: tuple[ServerPlan, ...] = ()  # more metaservers, over one journal
    journal: JournalPlan | None = None  # None: there is none, or the settings name one

    @property
    def key_file(self) -> Path:
        return self.state / "cluster.key"

    @property
    def file(self) -> Path:
        return self.state / "cluster.json"

    @property
    def servers(self) -> tuple[ServerPlan, ...]:
        return (*self.metaservers, *self.storageservers)

    @property
    def metaservers(self) -> tuple[ServerPlan, ...]:
        return (self.metaserver, *self.standbys)

    @property
    def metaserver_addresses(self) -> str:
        return ",".join(map(_address, self.metaservers))

    def source(self, folder: str = "/") -> str:
        return f"{self.metaserver_addresses}:{folder}"

    @property
    def metaserver_address(self) -> str:
        return _address(self.metaserver)

    def options(self) -> str:
        """The options that every client of this cluster needs."""
        file = self.client_config_path("client")
        return ",".join((f"key_file={self.key_file}", f"config={file}", *self.client_options))

    def mount_options(self) -> str:
        """The options of the client that `up` mounts, whose file has the places of its log and
        metrics."""
        return f"{self.options()},config={self.client_config_path('client-mount')}"

    def client_config_path(self, name: str) -> Path:
        return self.state / "config" / f"{name}.toml"

    @property
    def engine_folder(self) -> Path:
        """What the journal's engine stores."""
        return self.state / "journal"

    @property
    def password_file(self) -> Path:
        """The password of PostgreSQL's user."""
        return self.engine_folder / "password"

    def config_path(self, server: ServerPlan) -> Path:
        return self.state / "config" / f"{server.name}.toml"

    def target_path(self, server: ServerPlan, index: int) -> Path:
        return self.state / "targets" / f"{server.name}-{index}"


def _address(server: ServerPlan) -> str:
    return f"{server.place.address}:{server.port}"


class PlanWishes(TypedDict, total=False):
    """What may be given to make_plan() beside the state."""

    mount: Path | None
    storage_servers: int | None
    targets: int | None
    settings: Settings | None
    client_options: Sequence[str]
    places: Mapping[str, Place] | None
    metaservers: int | None
    journal: str | None


def _server(
    name: str, targets: int, known: ServerPlan | None, port: Callable[[], int], place: Place
) -> ServerPlan:
    if known is None:
        return ServerPlan(name, port(), port(), targets, place)
    if targets < known.targets:
        raise PlanError(f"{name} has {known.targets} targets with data: {targets} would lose some")
    return ServerPlan(name, known.port, known.metrics_port, targets, known.place)


def _journal(
    state: Path, engine: str | None, known: JournalPlan | None, port: Callable[[], int]
) -> JournalPlan | None:
    if known is not None:
        if engine not in (None, known.engine):
            raise PlanError(
                f"{state} has its journal in {known.engine}: with {engine} it would be lost"
            )
        return known
    if engine is None:
        return None
    if engine == POSTGRESQL:
        return JournalPlan(engine, (port(),))
    members = range(ETCD_MEMBERS)
    return JournalPlan(ETCD, tuple(port() for _ in members), tuple(port() for _ in members))


def make_plan(
    state: Path,
    *,
    mount: Path | None = None,
    storage_servers: int | None = None,
    targets: int | None = None,
    settings: Settings | None = None,
    client_options: Sequence[str] = (),
    places: Mapping[str, Place] | None = None,
    metaservers: int | None = None,
    journal: str | None = None,
) -> ClusterPlan:
    """The plan for `state`: the recorded one, extended to what is requested. `places`: where each
    server and the "client" run, by name; without it, all run on this machine's loopback.
    `journal`: the engine that the cluster starts for its metaservers, etcd or postgresql; several
    metaservers get etcd, unless the settings of "metaserver" name a journal that is elsewhere."""
    old = recorded(state)
    known = {server.name: server for server in old.servers} if old else {}
    count = storage_servers or (len(old.storageservers) if old else 2)
    if old and count < len(old.storageservers):
        raise PlanError(
            f"{state} has {len(old.storageservers)} storage servers with data:"
            f" {count} would lose some"
        )
    places = places or {}
    taken = {port for server in known.values() for port in (server.port, server.metrics_port)}
    if old and old.journal:
        taken |= {*old.journal.ports, *old.journal.peer_ports}

    def port() -> int:
        return free_port(taken)

    def storage(index: int) -> ServerPlan:
        name = f"storageserver-{index}"
        before = known.get(name)
        return _server(
            name, targets or (before.targets if before else 1), before, port, places.get(name, HERE)
        )

    def standby(number: int) -> ServerPlan:
        name = f"metaserver-{number}"
        return _server(name, 0, known.get(name), port, places.get(name, HERE))

    metaserver_count = metaservers or (len(old.metaservers) if old else 1)
    if old and metaserver_count < len(old.metaservers):
        raise PlanError(
            f"{state} has {len(old.metaservers)} metaservers: {metaserver_count} would leave one"
            f" out that clients and storage servers know"
        )
    settings = settings if settings is not None else (old.settings if old else {})
    is_elsewhere = "journal" in settings.get("metaserver", {})
    if journal is None and not (old and old.journal) and metaserver_count > 1 and not is_elsewhere:
        journal = ETCD
    return ClusterPlan(
        state=state,
        mount=mount or (old.mount if old else state / "mnt"),
        metaserver=_server(
            "metaserver", 0, known.get("metaserver"), port, places.get("metaserver", HERE)
        ),
        standbys=tuple(standby(number) for number in range(2, metaserver_count + 1)),
        storageservers=tuple(storage(index) for index in range(1, count + 1)),
        client_metrics_port=old.client_metrics_port if old else port(),
        settings=settings,
        client_options=tuple(client_options) or (old.client_options if old else ()),
        client_place=places.get("client", HERE),
        journal=_journal(state, journal, old.journal if old else None, port),
    )


def recorded(state: Path) -> ClusterPlan | None:
    """The plan that an earlier `save` left in `state`; None when there is none."""
    try:
        raw = json.loads((state / "cluster.json").read_text())
    except FileNotFoundError:
        return None
    return ClusterPlan(
        state=state,
        mount=Path(raw["mount"]),
        metaserver=_recorded_server(raw["metaserver"]),
        storageservers=tuple(map(_recorded_server, raw["storageservers"])),
        client_metrics_port=raw["client_metrics_port"],
        settings=raw["settings"],
        client_options=tuple(raw["client_options"]),
        standbys=tuple(map(_recorded_server, raw.get("standbys", ()))),
        journal=_recorded_journal(raw.get("journal")),
    )


def _recorded_journal(raw: dict[str, Any] | None) -> JournalPlan | None:
    if raw is None:
        return None
    return JournalPlan(raw["engine"], tuple(raw["ports"]), tuple(raw["peer_ports"]))


def _recorded_server(raw: dict[str, Any]) -> ServerPlan:
    place = Place(**raw.pop("place", {}))
    return ServerPlan(**raw, place=place)


def save(plan: ClusterPlan) -> None:
    """Writes cluster.json, the key, every program's TOML, and cluster.env for scripts."""
    for folder in ("run", "log", "config", "targets", "meta"):
        (plan.state / folder).mkdir(parents=True, exist_ok=True)
    if plan.journal:
        plan.engine_folder.mkdir(exist_ok=True)
    _make_key(plan.key_file)
    plan.file.write_text(json.dumps(asdict(plan), default=str, indent=1) + "\n")
    for server in plan.metaservers:
        plan.config_path(server).write_text(_toml(_metaserver_config(plan, server)))
    for server in plan.storageservers:
        plan.config_path(server).write_text(_storageserver_config(plan, server))
    save_client_config(plan, "client", {})
    listen = f"{HOST}:{plan.client_metrics_port}"
    of_mount = {"log_file": str(plan.state / "log" / "client.log"), "metrics_listen": listen}
    save_client_config(plan, "client-mount", of_mount)
    (plan.state / "cluster.env").write_text(_environment(plan))


def save_client_config(plan: ClusterPlan, name: str, keys: Mapping[str, object]) -> Path:
    """Writes a client.toml with these keys and those of all clients; returns its path."""
    path = plan.client_config_path(name)
    path.write_text(_toml({**plan.settings.get("client", {}), **keys}))
    return path


def _make_key(path: Path) -> None:
    if path.exists():
        return
    path.touch(mode=0o600)
    path.write_text(f"{secrets.token_hex(32)}\n")


def _metaserver_config(plan: ClusterPlan, server: ServerPlan) -> dict[str, object]:
    is_first = server is plan.metaserver
    is_alone = is_first and not plan.standbys and not plan.journal
    return {
        **({} if is_alone else {"name": server.name}),
        **_journal_config(plan),
        "listen": _address(server),
        "state_directory": str(plan.state / ("meta" if is_first else server.name)),
        "key_file": str(plan.key_file),
        "metrics_listen": f"{HOST}:{server.metrics_port}",
        **plan.settings.get("metaserver", {}),
    }


def _journal_config(plan: ClusterPlan) -> dict[str, object]:
    if plan.journal is None:
        return {}
    is_postgresql = plan.journal.engine == POSTGRESQL
    password = {"journal_password_file": str(plan.password_file)} if is_postgresql else {}
    return {"journal": plan.journal.address, **password}


def _storageserver_config(plan: ClusterPlan, server: ServerPlan) -> str:
    settings = {**plan.settings.get("storageserver", {}), **plan.settings.get(server.name, {})}
    target = {key[7:]: settings.pop(key) for key in list(settings) if key.startswith("target.")}
    program = {
        "name": server.name,
        "listen": f"{server.place.address}:{server.port}",
        "metaservers": list(map(_address, plan.metaservers)),
        "key_file": str(plan.key_file),
        "state_directory": str(plan.state / "config" / server.name),
        "metrics_listen": f"{HOST}:{server.metrics_port}",
        **settings,
    }
    blocks = [_toml(program)]
    for index in range(server.targets):
        path = plan.target_path(server, index)
        path.mkdir(parents=True, exist_ok=True)
        blocks.append("[[targets]]\n" + _toml({"path": str(path), **target}))
    (plan.state / "config" / server.name).mkdir(exist_ok=True)
    return "\n".join(blocks)


def _toml(table: dict[str, object]) -> str:
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in table.items())


def _toml_value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml_value(one)}" for key, one in value.items()) + "}"
    return json.dumps(value)  # strings, numbers, booleans and arrays of them are valid TOML too


def _environment(plan: ClusterPlan) -> str:
    values = {
        # The command line `braidfs` reads these two.
        "BRAIDFS_METASERVER": plan.metaserver_addresses,
        "BRAIDFS_KEY_FILE": str(plan.key_file),
        "BRAIDFS_SOURCE": plan.source(),
        "BRAIDFS_OPTIONS": plan.options(),
        "BRAIDFS_MOUNT": str(plan.mount),
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
