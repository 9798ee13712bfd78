"""braidfs top: rates of servers and clients, live, from differences between two STATUS replies.

Storage servers count with every heartbeat (2 s), clients with every renewal of their session. A
rate is the difference of two counts over the time between the reports that held them.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click
import trio
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fscommon.rpc.caller import Caller
from fscommon.wire.admin import Traffic
from fscommon.wire.messages import Empty, StatusReply
from fscommon.wire.ops import Op

from .cluster import session_text
from .frame import Command, Reach, json_option, reaching, show_json, terminal
from .health import overall, problems_of
from .words import number, size, table


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts of one server or client, and when they were reported."""

    at_s: float
    traffic: Traffic
    requests: int
    asked_s: float


@dataclass(frozen=True, slots=True)
class Rates:
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    reads: float = 0.0
    writes: float = 0.0
    requests: float = 0.0

    def as_json(self) -> dict[str, float]:
        return {
            f"{name}_per_s": round(getattr(self, name), 1)
            for name in ("read_bytes", "written_bytes", "reads", "writes", "requests")
        }


class Meter:
    """Samples by name; `rates` of what was sampled last and what its latest change was from."""

    def __init__(self) -> None:
        self._before: dict[str, Sample] = {}
        self._rates: dict[str, Rates] = {}

    def take(self, status: StatusReply, now_s: float) -> None:
        for name, sample in _samples(status, now_s):
            before = self._before.get(name)
            if before is None or sample.traffic.reads < before.traffic.reads:
                self._before[name] = sample  # new, or it began anew
                self._rates[name] = Rates()
            elif sample.at_s - before.at_s > 0.5:  # another report, not the same one seen again
                self._rates[name] = _difference(before, sample)
                self._before[name] = sample

    def rates(self, name: str) -> Rates:
        return self._rates.get(name, Rates())


def _samples(status: StatusReply, now_s: float) -> Iterator[tuple[str, Sample]]:
    for node in status.nodes:
        at_s = now_s - node.seconds_since_heartbeat
        yield f"node {node.node}", Sample(at_s, node.traffic, 0, now_s)
    for client in status.clients:
        at_s = now_s - max(client.seconds_since_report, 0.0)
        yield (
            f"client {client.session}",
            Sample(at_s, client.traffic, client.requests, now_s),
        )


def _difference(before: Sample, after: Sample) -> Rates:
    passed, asked = after.at_s - before.at_s, after.asked_s - before.asked_s
    old, new = before.traffic, after.traffic
    return Rates(
        read_bytes=(new.read_bytes - old.read_bytes) / passed,
        written_bytes=(new.written_bytes - old.written_bytes) / passed,
        reads=(new.reads - old.reads) / passed,
        writes=(new.writes - old.writes) / passed,
        requests=max(0, after.requests - before.requests) / asked if asked > 0 else 0.0,
    )


@click.command(
    "top",
    cls=Command,
    examples=[("braidfs top", "Live, until Ctrl-C."),
              ("braidfs top --interval 5 --count 12", "A minute, then end."),
              ("braidfs top --json --count 1", "One measurement, for programs.")],
)  # fmt: skip
@click.option("--interval", type=click.FloatRange(0.2, 3600), default=2.0, show_default=True,
              metavar="SECONDS", help="Between two measurements.")  # fmt: skip
@click.option("--count", type=click.IntRange(1, 10**6), help="End after so many measurements.")
@click.option("--clients", "client_count", type=click.IntRange(0, 10_000), default=20,
              show_default=True, help="How many of the busiest clients to show.")  # fmt: skip
@reaching
@json_option
def top(reach: Reach, interval: float, count: int | None, client_count: int, as_json: bool) -> None:
    """Show what servers and clients are doing now: bytes and requests a second.

    With --json, one object a measurement and line."""
    meter = Meter()

    async def measure(caller: Caller) -> StatusReply:
        reply: StatusReply = await caller.call(Op.STATUS, Empty(), reach.timeout_s)
        meter.take(reply, time.monotonic())
        return reply

    async def work(caller: Caller) -> None:
        await measure(caller)
        is_live = sys.stdout.isatty() and not as_json
        with Live(console=Console(), screen=is_live, auto_refresh=False) as live:
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
                "session": session_text(client.session), "client": client.node,
                **meter.rates(f"client {client.session}").as_json(),
            }
            for client in reply.clients
        ],
    }  # fmt: skip


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
        Text(f"{overall(problems_of(reply))}   {len(reply.clients)} clients   "
             f"{time.strftime('%H:%M:%S')}\n"),
        table(("server", "state", "read/s", "written/s", "reads/s", "writes/s"), servers, right),
        Text(""),
        table(("client", "read/s", "written/s", "reads/s", "writes/s", "metadata/s"), clients,
              right),
    )  # fmt: skip


def _cells(rates: Rates) -> tuple[str, str, str, str]:
    return (
        size(rates.read_bytes), size(rates.written_bytes), number(round(rates.reads)),
        number(round(rates.writes)),
    )  # fmt: skip
