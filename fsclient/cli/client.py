"""braidfs client: lists the mounts and what they do, and ends them."""

from collections.abc import Sequence
from typing import Final

import click
import trio
from rich.console import Console

from fscommon.errors import FsError, Status, TransportError
from fscommon.observe.status import client_json, session_text
from fscommon.observe.visible import visible
from fscommon.rpc.caller import Caller
from fscommon.wire.admin import ClientStatus, Evict
from fscommon.wire.messages import StatusReply
from fscommon.wire.ops import Op

from .cluster import ask_status, status_of
from .frame import Command, Group, Reach, json_option, reaching, show
from .leases import leases
from .restart import abort, restart
from .terminal import table
from .words import duration, number, size

_POLL_S: Final = 0.1


@click.group(cls=Group)
def client() -> None:
    """Clients: one is one mount on one host."""


client.add_command(leases)
client.add_command(restart)
client.add_command(abort)


@client.command(
    "list",
    cls=Command,
    examples=[
        ("braidfs client list", "All mounts."),
        ("braidfs client list --host gpu17", "The mounts of one host."),
    ],
)
@click.option("--host", metavar="NAME", help="Only mounts of this host.")
@reaching
@json_option
def client_list(reach: Reach, host: str | None, as_json: bool) -> None:
    """List the mounts: their sessions, open files, and when each was last heard of."""
    found = _of_host(ask_status(reach).clients, host)
    show([client_json(one) for one in found], as_json, lambda c: _print_list(c, found))


def _of_host(clients: Sequence[ClientStatus], host: str | None) -> list[ClientStatus]:
    return [one for one in clients if host in (None, one.node.partition(":")[0])]


def _print_list(console: Console, found: list[ClientStatus]) -> None:
    rows = [
        (
            session_text(one.session),
            one.node,
            "replaying" if one.replaying else "live",
            number(one.opens),
            number(one.requests),
            f"{duration(one.seconds_since_renewal)} ago",
        )
        for one in found
    ]
    columns = ("session", "client", "state", "open", "requests", "heard")
    console.print(table(columns, rows, right="open,requests,heard"))


@client.command(
    "stats",
    cls=Command,
    examples=[
        ("braidfs client stats", "Which mount moves the most bytes."),
        ("braidfs client stats --sort requests", "Which mount sends the most requests."),
    ],
)
@click.option(
    "--sort",
    type=click.Choice(["bytes", "requests", "opens"]),
    default="bytes",
    show_default=True,
    help="What comes first.",
)
@click.option("--host", metavar="NAME", help="Only mounts of this host.")
@reaching
@json_option
def client_stats(reach: Reach, sort: str, host: str | None, as_json: bool) -> None:
    """Show what each mount has moved since it was mounted.

    Mounts report bytes with their heartbeat, every third of session_timeout_s."""
    order = {
        "bytes": lambda one: one.traffic.read_bytes + one.traffic.written_bytes,
        "requests": lambda one: one.requests,
        "opens": lambda one: one.opens,
    }[sort]
    found = sorted(_of_host(ask_status(reach).clients, host), key=order, reverse=True)
    show([client_json(one) for one in found], as_json, lambda c: _print_stats(c, found))


def _print_stats(console: Console, found: list[ClientStatus]) -> None:
    rows = [
        (
            session_text(one.session),
            one.node,
            size(one.traffic.read_bytes),
            size(one.traffic.written_bytes),
            number(one.traffic.reads),
            number(one.traffic.writes),
            number(one.requests),
            number(one.opens),
            _reported(one),
        )
        for one in found
    ]
    columns = (
        "session",
        "client",
        "read",
        "written",
        "reads",
        "writes",
        "metadata",
        "open",
        "reported",
    )
    console.print(table(columns, rows, right="read,written,reads,writes,metadata,open,reported"))


def _reported(one: ClientStatus) -> str:
    seconds = one.seconds_since_report
    return "never" if seconds < 0 else f"{duration(seconds)} ago"


@client.command(
    "evict",
    cls=Command,
    examples=[
        ("braidfs client evict 5f3a0c91d2e4b7a8", "One mount, by its session."),
        ("braidfs client evict --host gpu17 --yes", "Every mount of a dead host."),
    ],
)
@click.argument("session", required=False)
@click.option("--host", metavar="NAME", help="Every mount of this host.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@reaching
@json_option
def client_evict(
    reach: Reach, session: str | None, host: str | None, yes: bool, as_json: bool
) -> None:
    """End mounts that are dead or must be ended: their sessions are fenced at every storage server.

    What such a client has not sent yet is lost, as if its host had failed; files that it was
    writing end at their last committed size. A client that is alive opens a new session.
    """
    if (session is None) == (host is None):
        raise click.UsageError("name one SESSION, or a host with --host")
    victims = _victims(ask_status(reach), session, host)
    if not yes and not as_json:
        names = ", ".join(one.node for one in victims)
        click.confirm(f"End {len(victims)} mounts ({visible(names)})?", abort=True, err=True)
    gone = reach.ask(lambda caller: _evict(caller, reach, victims))
    show(
        {"evicted": [session_text(one) for one in gone]},
        as_json,
        lambda console: console.print(f"{len(gone)} evicted"),
    )


def _victims(reply: StatusReply, session: str | None, host: str | None) -> list[ClientStatus]:
    if session is None:
        found = _of_host(reply.clients, host)
        if not found:
            raise click.BadParameter(f"no mount of host {host}: see braidfs client list")
        return found
    wanted = session.lower().removeprefix("0x").zfill(16)
    found = [one for one in reply.clients if session_text(one.session) == wanted]
    if not found:
        raise click.BadParameter(f"there is no session {session}: see braidfs client list")
    return found


async def _evict(caller: Caller, reach: Reach, victims: list[ClientStatus]) -> list[int]:
    """Evicts the sessions and waits until the metaserver has none of them any more."""
    waiting = {one.session for one in victims}
    for session in waiting:
        try:
            await caller.call(Op.EVICT, Evict(session), reach.timeout_s)
        except FsError as error:
            if error.status is not Status.UNKNOWN_SESSION:  # the session ended by itself
                raise
    try:
        with trio.fail_after(reach.timeout_s):
            while waiting & await _sessions(caller, reach):  # noqa: ASYNC110 - another program
                await trio.sleep(_POLL_S)
    except trio.TooSlowError:
        raise TransportError(f"not evicted within {reach.timeout_s:g} s: see its log") from None
    return sorted(waiting)


async def _sessions(caller: Caller, reach: Reach) -> set[int]:
    reply = await status_of(caller, reach)
    return {one.session for one in reply.clients}
