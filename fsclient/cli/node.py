"""braidfs node: lists the storage servers, and measures round trips to them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click
import trio
from rich.console import Console

from fscommon.auth.handshake import HelloFields
from fscommon.errors import AuthenticationError, BraidError, RefusedError
from fscommon.observe.status import node_json
from fscommon.wire.group import STANDS_BY
from fscommon.wire.messages import StatusReply
from fscommon.wire.ops import Op

from .cluster import ask_status, status_of
from .frame import (
    EXIT_DONE,
    EXIT_UNHEALTHY,
    Command,
    Group,
    Reach,
    UnreachableError,
    json_option,
    reaching,
    run_trio,
    show,
)
from .terminal import table
from .words import duration, size

PINGS_MAX = 100
_TIMES = ("connect_us", "fastest_us", "median_us")


@click.group(cls=Group)
def node() -> None:
    """Storage servers: list them, measure round trips to them."""


@node.command(
    "list",
    cls=Command,
    examples=[
        ("braidfs node list", "All storage servers."),
        (
            "braidfs node list --json | jq -r '.[] | select(.state != \"up\") | .name'",
            "The names of servers that are down.",
        ),
    ],
)
@reaching
@json_option
def node_list(reach: Reach, as_json: bool) -> None:
    """List the storage servers: failure domain, state, last heartbeat, bytes moved."""
    reply = ask_status(reach)
    found = [node_json(one) for one in reply.nodes]
    show(found, as_json, lambda console: _print_nodes(console, reply))


def _print_nodes(console: Console, reply: StatusReply) -> None:
    rows = []
    for one in reply.nodes:
        targets = [str(row.target) for row in reply.map.targets if row.node == one.node]
        state = "[green]up[/]" if one.is_up else "[red]down[/]"
        rows.append(
            (
                str(one.node),
                one.name,
                one.address,
                one.domain,
                state,
                ",".join(targets),
                f"{duration(one.seconds_since_heartbeat)} ago",
                size(one.traffic.read_bytes),
                size(one.traffic.written_bytes),
            )
        )
    columns = (
        *("node", "name", "address", "domain", "state", "targets"),
        *("heartbeat", "read", "written"),
    )
    console.print(table(columns, rows, right="node,heartbeat,read,written"))


@dataclass(frozen=True, slots=True)
class Ping:
    """A server's round trips. seconds: of each, after the handshake. error: empty after success.
    is_standby: a metaserver that has proved itself, and answers nothing more."""

    kind: str
    name: str
    address: str
    connect_s: float
    seconds: tuple[float, ...]
    error: str
    is_standby: bool = False

    def as_json(self) -> dict[str, Any]:
        times = [round(s * 1e6, 1) for s in sorted(self.seconds)]
        return {
            "kind": self.kind,
            "name": self.name,
            "address": self.address,
            "connect_us": round(self.connect_s * 1e6, 1),
            "fastest_us": times[0] if times else None,
            "median_us": times[len(times) // 2] if times else None,
            "slowest_us": times[-1] if times else None,
            "error": self.error,
            "standby": self.is_standby,
        }


@node.command(
    "ping",
    cls=Command,
    examples=[
        ("braidfs node ping", "The metaservers and every storage server."),
        ("braidfs node ping stor1 --count 50", "One storage server, thoroughly."),
    ],
    exits={EXIT_UNHEALTHY: "a server did not answer, or no metaserver is active"},
)
@click.argument("names", nargs=-1)
@click.option(
    "--count",
    type=click.IntRange(1, PINGS_MAX),
    default=5,
    show_default=True,
    help="Round trips to each.",
)
@reaching
@json_option
def node_ping(reach: Reach, names: tuple[str, ...], count: int, as_json: bool) -> int:
    """Connect to servers from this machine, prove the key, and time round trips.

    NAMES are names or addresses of storage servers, as node list shows them; without any, all
    servers are tried, including the metaservers. A standby metaserver proves the key and answers
    no more.
    """
    pings = run_trio(_ping_all, reach, names, count)
    show([one.as_json() for one in pings], as_json, lambda console: _print_pings(console, pings))
    metaservers = [one for one in pings if one.kind == "metaserver"]
    is_idle = bool(metaservers) and all(one.is_standby for one in metaservers)
    return EXIT_UNHEALTHY if is_idle or any(one.error for one in pings) else EXIT_DONE


async def _ping_all(reach: Reach, names: Sequence[str], count: int) -> list[Ping]:
    places: list[tuple[str, str, str]] = []
    if not names:
        places = [("metaserver", str(a), str(a)) for a in reach.metaservers]
    places += await _storage_servers(reach, names)
    pings: list[Ping | None] = [None] * len(places)

    async def one(index: int) -> None:
        pings[index] = await _ping(reach, places[index], count)

    async with trio.open_nursery() as nursery:
        for index in range(len(places)):
            nursery.start_soon(one, index)
    return [ping for ping in pings if ping is not None]


async def _storage_servers(reach: Reach, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """The storage servers with these names. Raises BadParameter for an unknown name."""
    try:
        reply = await reach.run(lambda c: status_of(c, reach))
    except UnreachableError:
        if names:
            raise
        return []
    known = [("storageserver", one.name, one.address) for one in reply.nodes]
    for name in names:
        if not any(name in place for place in known):
            raise click.BadParameter(f"there is no storage server {name}: see braidfs node list")
    return [p for p in known if not names or p[1] in names or p[2] in names]


async def _ping(reach: Reach, place: tuple[str, str, str], count: int) -> Ping:
    kind, name, address = place
    purpose = "admin" if kind == "metaserver" else "server"
    seconds: list[float] = []
    started = time.perf_counter()
    try:
        async with reach.open_caller(address, HelloFields(purpose, "braidfs ping")) as caller:
            connect_s = time.perf_counter() - started
            for _ in range(count):
                sent = time.perf_counter()
                await caller.exchange(Op.PING, timeout_s=reach.timeout_s, body=_body(kind))
                seconds.append(time.perf_counter() - sent)
    except AuthenticationError:
        raise
    except RefusedError as error:
        connect_s = time.perf_counter() - started
        is_standby = STANDS_BY in str(error)
        said = "" if is_standby else str(error)
        return Ping(kind, name, address, connect_s, (), said, is_standby)
    except BraidError as error:
        return Ping(kind, name, address, 0.0, tuple(seconds), str(error))
    return Ping(kind, name, address, connect_s, tuple(seconds), "")


def _body(kind: str) -> bytes:
    """The body of a PING: an array for the metaserver; a data frame of PING has none."""
    return b"\x90" if kind == "metaserver" else b""


def _print_pings(console: Console, pings: list[Ping]) -> None:
    rows = []
    for one in pings:
        seen = one.as_json()
        if one.error:
            rows.append((one.kind, one.name, one.address, "[red]no answer[/]", "", "", one.error))
            continue
        if one.is_standby:
            connect = f"{seen['connect_us']:.0f} µs"
            rows.append((one.kind, one.name, one.address, connect, "", "", "stands by"))
            continue
        connect, fastest, median = (f"{seen[key]:.0f} µs" for key in _TIMES)
        rows.append((one.kind, one.name, one.address, connect, fastest, median, ""))
    columns = ("kind", "name", "address", "connect", "fastest", "median", "")
    console.print(table(columns, rows, right="connect,fastest,median"))
