"""braidfs status: the cluster on one screen, with what is wrong, why, and what to do about it."""

import click
from rich.console import Console

from fscommon.observe.health import problems_of
from fscommon.observe.jobs import is_at_work, job_sentence
from fscommon.observe.problem import Problem, Severity, overall
from fscommon.observe.status import paths_text, role_text, session_text, status_json, target_json
from fscommon.wire.group import EngineServer
from fscommon.wire.messages import StatusReply

from .cluster import reasons_of_silence
from .expiry import ask_with_certificates, seen
from .frame import EXIT_DONE, EXIT_UNHEALTHY, Command, Reach, json_option, reaching, show
from .terminal import plain, table
from .words import bar, counted, duration, latency, number, size

CLIENTS_SHOWN = 8
_COLOURS = {"healthy": "green", "degraded": "yellow", "failing": "red"}
_MARKS = {
    Severity.ERROR: ("red", "✗"),
    Severity.WARNING: ("yellow", "✗"),
    Severity.NOTE: ("cyan", "·"),
}
_STATE_COLOURS = {
    "up": "green",
    "down": "red",
    "full": "yellow",
    "draining": "cyan",
    "joining": "cyan",
    "lost": "red",
}


@click.command(
    cls=Command,
    examples=[
        ("braidfs status", "The cluster of this machine."),
        ("braidfs status -s meta1,meta2 -k cluster.key", "Another cluster."),
        ("braidfs status --json | jq -r .problems[].what", "For monitoring."),
    ],
    exits={EXIT_UNHEALTHY: "the cluster answers, but something is wrong (warnings included)"},
)
@reaching
@json_option
def status(reach: Reach, as_json: bool) -> int:
    """Show health, space, servers, targets and clients on one screen.

    Each problem is shown with its reason and what to do.
    """
    reply, certificates = ask_with_certificates(reach)
    problems = problems_of(reply, seen(certificates), reasons_of_silence(reach, reply))
    found = status_json(reply, problems)
    found["certificates"] = [one.as_json() for one in certificates]
    show(found, as_json, lambda console: _print(console, reply, problems))
    is_well = all(problem.severity is Severity.NOTE for problem in problems)
    return EXIT_DONE if is_well else EXIT_UNHEALTHY


def _print(console: Console, reply: StatusReply, problems: list[Problem]) -> None:
    health = overall(problems)
    state = "recovering" if reply.recovering else "ready"
    console.print(
        f"cluster  {reply.cluster.hex()[:8]}  [bold {_COLOURS[health]}]{health}[/]   "
        f"metaserver {reply.version} {state} for {duration(reply.uptime_s)}"
    )
    _print_space(console, reply)
    for problem in problems:
        colour, mark = _MARKS[problem.severity]
        console.print(
            f"\n[{colour}]{mark} {plain(problem.what)}[/]: "
            f"{plain(problem.why)}\n  → {plain(problem.remedy)}"
        )
    _print_jobs(console, reply)
    if not reply.group.is_alone:
        _print_group(console, reply)
    _print_servers(console, reply)
    _print_clients(console, reply)


def _print_space(console: Console, reply: StatusReply) -> None:
    files = reply.files
    used = files.bytes_total - files.bytes_free
    share = used / files.bytes_total if files.bytes_total else 0.0
    console.print(
        f"space    {bar(share)} {size(used)} of {size(files.bytes_total)} used ({share:.0%}), "
        f"{number(files.inodes_total - files.inodes_free)} inodes"
    )


def _print_jobs(console: Console, reply: StatusReply) -> None:
    """A sentence for each job that has something to do."""
    rows = [row for row in reply.jobs if is_at_work(row)]
    if rows:
        console.print(f"\n{counted(len(rows), 'job')}")
    for row in rows:
        console.print(f"job {row.job}  {plain(job_sentence(row))}", soft_wrap=True)


def _print_group(console: Console, reply: StatusReply) -> None:
    journal = reply.group.journal
    console.print(f"\n{counted(len(reply.group.metaservers), 'metaserver')}")
    rows = [
        (
            row.name,
            row.address,
            role_text(row),
            number(row.applied),
            "-" if row.is_active else number(row.behind),
            "-" if row.is_active else f"{duration(row.seconds_since_report)} ago",
        )
        for row in reply.group.metaservers
    ]
    columns = ("metaserver", "address", "role", "applied", "behind", "reported")
    console.print(table(columns, rows, right="applied,behind,reported"))
    appends = (
        f"appends {latency(journal.append_p50_s * 1e6)}, "
        f"1 % over {latency(journal.append_p99_s * 1e6)}, "
        if journal.append_p99_s
        else ""
    )
    console.print(
        f"\njournal  {journal.engine}, term {journal.term}, entry {number(journal.index)}, "
        f"{appends}heard {duration(journal.silence_s)} ago"
    )
    if journal.servers:
        console.print(
            table(
                ("server", "state", "role", "used", "of"),
                [_engine_row(server) for server in journal.servers],
                right="used,of",
            )
        )


def _engine_row(server: EngineServer) -> tuple[str, ...]:
    if not server.is_reachable:
        return server.endpoint, "[red]not reachable[/]", "-", "-", "-"
    return (
        server.endpoint,
        "[red]alarm[/]" if server.alarms else "[green]up[/]",
        "leader" if server.is_leader else "-",
        size(server.bytes_used),
        size(server.bytes_max) if server.bytes_max else "no bound",
    )


def _print_servers(console: Console, reply: StatusReply) -> None:
    rows = []
    domains = {node.node: node.domain for node in reply.nodes}
    for row in reply.map.targets:
        seen = target_json(reply, row)
        colour = _STATE_COLOURS.get(row.state, "red")
        rows.append(
            (
                str(row.target),
                seen["node_name"],
                domains.get(row.node, "?"),
                row.address,
                f"[{colour}]{row.state}[/]",
                size(row.bytes_free),
                size(row.bytes_total),
                number(seen["objects"]),
                str(seen["errors"]),
            )
        )
    servers = counted(len(reply.nodes), "storage server")
    console.print(f"\n{servers}, {counted(len(reply.map.targets), 'target')}")
    console.print(
        table(
            ("target", "server", "domain", "address", "state", "free", "size", "objects", "errors"),
            rows,
            right="target,free,size,objects,errors",
        )
    )


def _print_clients(console: Console, reply: StatusReply) -> None:
    rows = [
        (
            session_text(client.session),
            client.node,
            str(client.opens),
            number(client.requests),
            paths_text(client),
            f"{duration(client.seconds_since_renewal)} ago",
        )
        for client in reply.clients[:CLIENTS_SHOWN]
    ]
    console.print("\n" + counted(len(reply.clients), "client"))
    if rows:
        columns = ("session", "client", "open", "requests", "bytes by", "heard")
        console.print(table(columns, rows, right="open,requests,heard"))
    if len(reply.clients) > CLIENTS_SHOWN:
        more = len(reply.clients) - CLIENTS_SHOWN
        console.print(f"… and {more} more: braidfs client list")
