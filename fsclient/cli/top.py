"""braidfs top: live rates of servers and clients (fscommon.observe.rates)."""

import sys
import time
from typing import Any

import click
import trio
from rich.console import Group
from rich.live import Live
from rich.text import Text

from fscommon.observe.health import problems_of
from fscommon.observe.problem import overall
from fscommon.observe.rates import Meter, Rates
from fscommon.observe.status import session_text
from fscommon.rpc.caller import Caller
from fscommon.wire.messages import StatusReply

from .cluster import status_of
from .frame import Command, Reach, json_option, reaching, show_json
from .terminal import table, terminal
from .words import counted, number, size


@click.command(
    "top",
    cls=Command,
    examples=[
        ("braidfs top", "Live, until Ctrl-C."),
        ("braidfs top --interval 5 --count 12", "For a minute."),
        ("braidfs top --json --count 1", "One measurement, for programs."),
    ],
)
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two measurements.",
)
@click.option("--count", type=click.IntRange(1, 10**6), help="End after this many measurements.")
@click.option(
    "--clients",
    "client_count",
    type=click.IntRange(0, 10_000),
    default=20,
    show_default=True,
    help="How many of the busiest clients to show.",
)
@reaching
@json_option
def top(reach: Reach, interval: float, count: int | None, client_count: int, as_json: bool) -> None:
    """Show what servers and clients are doing now: bytes and requests a second.

    With --json, each measurement is one object on one line.
    """
    meter = Meter()

    async def measure(caller: Caller) -> StatusReply:
        reply = await status_of(caller, reach)
        meter.take(reply, time.monotonic())
        return reply

    async def work(caller: Caller) -> None:
        await measure(caller)
        is_live = sys.stdout.isatty() and not as_json
        with Live(console=terminal(), screen=is_live, auto_refresh=False) as live:
            left = count
            while left is None or left > 0:
                await trio.sleep(interval)
                reply = await measure(caller)
                left = None if left is None else left - 1
                if as_json:
                    show_json(top_json(reply, meter))
                    sys.stdout.flush()
                elif is_live:
                    live.update(_screen(reply, meter, client_count), refresh=True)
                else:
                    terminal().print(_screen(reply, meter, client_count))

    reach.ask(work)


def top_json(reply: StatusReply, meter: Meter) -> dict[str, Any]:
    return {
        "health": overall(problems_of(reply)),
        "nodes": [
            {"name": node.name, **meter.rates(f"node {node.node}").as_json()}
            for node in reply.nodes
        ],
        "clients": [
            {
                "session": session_text(client.session),
                "client": client.node,
                **meter.rates(f"client {client.session}").as_json(),
            }
            for client in reply.clients
        ],
    }


def _screen(reply: StatusReply, meter: Meter, client_count: int) -> Group:
    servers = [
        (node.name, "up" if node.is_up else "DOWN", *_cells(meter.rates(f"node {node.node}")))
        for node in reply.nodes
    ]
    busy = sorted(
        ((meter.rates(f"client {one.session}"), one) for one in reply.clients),
        key=lambda pair: -(pair[0].read_bytes + pair[0].written_bytes + pair[0].requests),
    )[:client_count]
    clients = [(one.node, *_cells(rates), number(round(rates.requests))) for rates, one in busy]
    right = "read/s,written/s,reads/s,writes/s,metadata/s"
    return Group(
        Text(
            f"{overall(problems_of(reply))}   {counted(len(reply.clients), 'client')}   "
            f"{time.strftime('%H:%M:%S')}\n"
        ),
        table(("server", "state", "read/s", "written/s", "reads/s", "writes/s"), servers, right),
        Text(""),
        table(
            ("client", "read/s", "written/s", "reads/s", "writes/s", "metadata/s"), clients, right
        ),
    )


def _cells(rates: Rates) -> tuple[str, str, str, str]:
    return (
        size(rates.read_bytes),
        size(rates.written_bytes),
        number(round(rates.reads)),
        number(round(rates.writes)),
    )
