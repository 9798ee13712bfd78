"""braidfs client leases: what each mount may cache, from the metaserver's table."""

from collections.abc import Sequence
from typing import Any, Final

import click
from rich.console import Console

from fscommon.layout.attributes import (
    LEASE_CHILDREN,
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    LEASE_ENTRIES,
    LEASE_ENTRIES_EXCLUSIVE,
    LEASE_META,
    LEASE_META_EXCLUSIVE,
)
from fscommon.observe.status import session_text
from fscommon.rpc.caller import Caller
from fscommon.wire.leases import HeldLease, LeaseQuery, LeaseReport, SessionLeases
from fscommon.wire.ops import Op

from .frame import Command, Reach, json_option, reaching, show
from .terminal import table
from .words import number

_FACETS: Final = {
    "meta": (LEASE_META, LEASE_META_EXCLUSIVE),
    "entries": (LEASE_ENTRIES, LEASE_ENTRIES_EXCLUSIVE),
    "data": (LEASE_DATA, LEASE_DATA_EXCLUSIVE),
    "children": (LEASE_CHILDREN, 0),
}
_PAGE: Final = 5_000


@click.command(
    "leases",
    cls=Command,
    examples=[
        ("braidfs client leases", "How much each mount holds, and which is slow to return it."),
        ("braidfs client leases 5f3a0c91d2e4b7a8 --limit 20", "What one mount holds."),
    ],
)
@click.argument("session", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1, 10**6),
    default=1000,
    show_default=True,
    help="Show at most this many leases of the SESSION.",
)
@reaching
@json_option
def leases(reach: Reach, session: str | None, limit: int, as_json: bool) -> None:
    """Show what mounts may cache: attributes (meta), names of a directory (entries), bytes (data).

    Without SESSION, one line for each mount: inodes with a lease, how many of them exclusively, and
    the recalls that it has not answered yet. A mount without leases asks the metaserver for
    everything.
    """
    if session is None:
        report: LeaseReport = reach.call(Op.LEASES, LeaseQuery(0))
        found = sorted(report.sessions, key=lambda one: -one.inodes)
        show([_sum_json(one) for one in found], as_json, lambda c: _print_sums(c, found))
        return
    held = reach.ask(lambda caller: _held(caller, reach, _number(session), limit))
    show([_lease_json(one) for one in held], as_json, lambda c: _print_leases(c, held))


def _number(session: str) -> int:
    try:
        found = int(session, 16)
    except ValueError:
        found = 0
    if not 0 < found < 1 << 64:
        raise click.BadParameter(f"'{session}' is no session: see braidfs client list")
    return found


async def _held(caller: Caller, reach: Reach, session: int, limit: int) -> list[HeldLease]:
    found: list[HeldLease] = []
    while len(found) < limit:
        after = found[-1].ino if found else 0
        query = LeaseQuery(session, after, min(_PAGE, limit - len(found)))
        report: LeaseReport = await caller.call(Op.LEASES, query, reach.timeout_s)
        found += report.leases
        if report.end or not report.leases:
            break
    return found


def _sum_json(one: SessionLeases) -> dict[str, Any]:
    return {
        "session": session_text(one.session),
        "client": one.node,
        "inodes": one.inodes,
        "exclusive": one.exclusive,
        "recalls_unanswered": one.recalls,
        "is_cached": one.is_cached,
    }


def _lease_json(one: HeldLease) -> dict[str, Any]:
    return {"inode": one.ino, "holds": _facets(one.flags), "recalled": _facets(one.recalled)}


def _facets(flags: int) -> dict[str, str]:
    """Maps each facet to shared or exclusive."""
    return {
        name: "exclusive" if flags & exclusive else "shared"
        for name, (shared, exclusive) in _FACETS.items()
        if flags & (shared | exclusive)
    }


def _print_sums(console: Console, found: Sequence[SessionLeases]) -> None:
    rows = [
        (
            session_text(one.session),
            one.node,
            number(one.inodes),
            number(one.exclusive),
            number(one.recalls),
            "yes" if one.is_cached else "no",
        )
        for one in found
    ]
    columns = ("session", "client", "inodes", "exclusive", "recalls", "caches")
    console.print(table(columns, rows, right="inodes,exclusive,recalls"))


def _print_leases(console: Console, held: Sequence[HeldLease]) -> None:
    rows = [(str(one.ino), _facets_text(one.flags), _facets_text(one.recalled)) for one in held]
    console.print(table(("inode", "holds", "recalled"), rows, right="inode"))


def _facets_text(flags: int) -> str:
    seen = _facets(flags)
    return " ".join(name if how == "shared" else f"{name}!" for name, how in seen.items())
