"""braidfs net: shows which RDMA ports this machine would use, and asks a storage server."""

from collections.abc import Sequence
from typing import Any

import click
import trio
from rich.console import Console

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import load_key
from fscommon.errors import TransportError
from fscommon.net.address import STORAGESERVER_PORT, parse_address
from fscommon.net.rails import ask
from fscommon.net.rdma import Choice, NoRdmaError, Wishes, choose, find_ports
from fscommon.net.stream import connect
from fscommon.net.tls import transport_of
from fscommon.wire.rdma import RdmaOffer

from .frame import EXIT_DONE, Command, Group, Reach, json_option, reaching, run_trio, show
from .terminal import table

EXIT_NO_RDMA = 3


@click.group(cls=Group)
def net() -> None:
    """RDMA: what this machine would use, and whether a storage server has it."""


@net.command(
    "devices",
    cls=Command,
    examples=[
        ("braidfs net devices", "All ports, with the reason if one is not used."),
        ("braidfs net devices -d 'mlx5_*' --subnet 10.1.0.0/16", "What a choice would use."),
        ("braidfs net devices --json | jq '.[] | select(.used)'", "For programs."),
    ],
    exits={EXIT_NO_RDMA: "no port can be used"},
)
@click.option(
    "-d",
    "--device",
    "devices",
    multiple=True,
    metavar="PATTERN",
    help="As the key rdma_devices of client.toml: mlx5_0:1, mlx5_bond_*.",
)
@click.option("--subnet", "subnets", multiple=True, metavar="NET", help="As rdma_subnets.")
@click.option("--gid-index", type=int, default=-1, metavar="INDEX", help="As rdma_gid_index.")
@json_option
def devices(
    devices: tuple[str, ...], subnets: tuple[str, ...], gid_index: int, as_json: bool
) -> int:
    """List the RDMA ports of this machine: with which address each is used, or why not."""
    choices = choose(find_ports(), Wishes(devices, subnets, gid_index))
    found = [_port_json(one) for one in choices]
    show(found, as_json, lambda console: _print(console, found))
    return EXIT_DONE if any(one.gid for one in choices) else EXIT_NO_RDMA


@net.command(
    "check",
    cls=Command,
    examples=[
        ("braidfs net check stor1", "Would a mount here use RDMA to this storage server?"),
        ("braidfs net check 10.1.0.7:7500 --json", "At this address, for programs."),
    ],
    exits={EXIT_NO_RDMA: "the server answers, but data would go by TCP"},
)
@click.argument("host")
@reaching
@json_option
def check(reach: Reach, host: str, as_json: bool) -> int:
    """Ask the storage server at HOST whether a mount on this machine would use RDMA to it.

    The question is sent on an authenticated TCP connection; no queue pair is made.
    """
    theirs, their_reason = run_trio(_ask, host, reach)
    mine, my_reason = _mine()
    found = {
        "host": host,
        "transport": "rdma" if theirs and mine else "tcp",
        "server": theirs or None,
        "server_reason": their_reason or None,
        "client": mine or None,
        "client_reason": my_reason or None,
    }
    show(found, as_json, lambda console: _print_check(console, found))
    return EXIT_DONE if theirs and mine else EXIT_NO_RDMA


async def _ask(host: str, reach: Reach) -> tuple[str, str]:
    """Returns what the server would use, or why nothing. Raises TransportError,
    AuthenticationError."""
    address = parse_address(host, port_default=STORAGESERVER_PORT)
    hello = HelloFields("rdma", "braidfs net check")
    timeout_s = reach.timeout_s
    stream = await connect(
        address,
        key=load_key(reach.key_file),
        hello=hello,
        timeout_s=timeout_s,
        transport=transport_of(reach.tls),
    )
    try:
        with trio.fail_after(timeout_s):
            answer = await ask(stream, RdmaOffer(b""))
            return answer.by, answer.reason
    except trio.TooSlowError as error:
        raise TransportError(f"{host} did not answer within {timeout_s:g} s") from error
    finally:
        await stream.aclose()


def _mine() -> tuple[str, str]:
    try:
        choices = choose(find_ports(), Wishes())
    except NoRdmaError as error:
        return "", str(error)
    used = [f"{one.port.name} {one.gid}" for one in choices if one.gid]
    return ", ".join(used), "" if used else "no port can be used: see braidfs net devices"


def _port_json(one: Choice) -> dict[str, Any]:
    port = one.port
    return {
        "port": port.name,
        "state": "active" if port.is_active else "down",
        "link": "Ethernet" if port.is_ethernet else "InfiniBand",
        "gigabits": port.gigabits,
        "numa_node": port.numa_node if port.numa_node >= 0 else None,
        "used": one.gid is not None,
        "gid": str(one.gid) if one.gid else None,
        "reason": one.reason or None,
        "gids": [str(gid) for gid in port.gids],
    }


def _print(console: Console, found: Sequence[dict[str, Any]]) -> None:
    rows = [
        (
            one["port"],
            one["state"],
            one["link"],
            f"{one['gigabits']:g} Gb/s",
            "-" if one["numa_node"] is None else str(one["numa_node"]),
            f"yes: {one['gid']}" if one["used"] else f"no: {one['reason']}",
        )
        for one in found
    ]
    console.print(table(("port", "state", "link", "speed", "NUMA node", "used"), rows))


def _print_check(console: Console, found: dict[str, Any]) -> None:
    console.print(f"{found['host']}: authenticated")
    console.print(f"server  {found['server'] or 'no RDMA: ' + str(found['server_reason'])}")
    console.print(f"client  {found['client'] or 'no RDMA: ' + str(found['client_reason'])}")
    console.print(f"data would go by {str(found['transport']).upper()}")
