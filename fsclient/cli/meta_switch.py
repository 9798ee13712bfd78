"""braidfs meta switch: a planned hand-over from the active metaserver to a standby.

The metaserver's reply may be lost when its connection ends, so the journal's term decides: the
command waits until a metaserver is active in a later term than before.
"""

import time
from dataclasses import dataclass, replace
from typing import Final

import click
import trio

from fscommon.errors import BraidError, TransportError
from fscommon.net.address import parse_address
from fscommon.rpc.caller import Caller
from fscommon.wire.group import GroupStatus, MetaSwitch
from fscommon.wire.ops import Op

from .cluster import status_of
from .frame import Command, Reach, UnreachableError, json_option, reaching, run_trio, show
from .words import duration

_PAUSE_S: Final = 0.05
_ANSWER_S_MAX: Final = 2.0  # one that is silent for longer is not the one to wait for


@dataclass(frozen=True, slots=True)
class _Switched:
    before: str  # who was active
    after: str
    address: str
    term: int
    seconds: float


@click.command(
    "switch",
    cls=Command,
    examples=[
        ("braidfs meta switch", "Before the host of the active metaserver is restarted."),
        ("braidfs meta switch --json | jq -r .active", "Which metaserver is active now."),
    ],
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0.1, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until another metaserver is active.",
)
@reaching
@json_option
def meta_switch(reach: Reach, wait_s: float, as_json: bool) -> None:
    """Let a standby take over from the active metaserver, which stands by from then on.

    The active metaserver makes everything durable that it has answered, and resigns; mounts wait
    for a moment, and no program gets an error. It refuses when it is alone, or when no standby is
    near the end of the journal. The standby that is first to claim the journal becomes active, so
    none can be chosen: to keep one from it, stop it meanwhile.
    """
    switched = run_trio(_switch, reach, wait_s)
    found = {
        "active": switched.after,
        "address": switched.address,
        "before": switched.before,
        "term": switched.term,
        "seconds": round(switched.seconds, 3),
    }
    show(
        found,
        as_json,
        lambda console: console.print(
            f"{switched.after} at {switched.address} is active after {duration(switched.seconds)}; "
            f"{switched.before} stands by",
            markup=False,
        ),
    )


async def _switch(reach: Reach, wait_s: float) -> _Switched:
    before = await _asked(reach)
    started_s = time.monotonic()
    everybody = _with_others(reach, before)
    after = await _taken_over(everybody, before, started_s + wait_s)
    seconds = time.monotonic() - started_s
    was, now = before.active, after.active
    if was is None or now is None:
        raise BraidError("the metaserver does not say which one is active")
    if now.name == was.name:
        raise BraidError(
            f"{was.name} is active again, because no standby has claimed the journal: their logs "
            "say why"
        )
    return _Switched(was.name, now.name, now.address, after.journal.term, seconds)


async def _asked(reach: Reach) -> GroupStatus:
    """Asks for the hand-over. Returns the group as it was before."""

    async def work(caller: Caller) -> GroupStatus:
        reply = await status_of(caller, reach)
        try:
            await caller.call(Op.META_SWITCH, MetaSwitch(), reach.timeout_s)
        except TransportError:
            if reply.group.is_alone:
                raise
            # It was asked, perhaps: no other one is asked, too.
        return reply.group

    return await reach.run(work)


def _with_others(reach: Reach, group: GroupStatus) -> Reach:
    """Reaches the standbys first, also those that the administrator has not named."""
    standbys = [parse_address(row.address) for row in group.standbys]
    rest = [address for address in reach.metaservers if address not in standbys]
    timeout_s = min(reach.timeout_s, _ANSWER_S_MAX)
    return replace(reach, metaservers=(*standbys, *rest), timeout_s=timeout_s)


async def _taken_over(reach: Reach, before: GroupStatus, until_s: float) -> GroupStatus:
    async def work(caller: Caller) -> GroupStatus:
        reply = await status_of(caller, reach)
        return reply.group

    while True:
        why = "the active metaserver has not resigned"
        try:
            group = await reach.run(work)
            if group.journal.term > before.journal.term:
                return group
        except UnreachableError as error:
            why = str(error)
        if time.monotonic() > until_s:
            raise UnreachableError(f"no other metaserver has become active in time: {why}")
        await trio.sleep(_PAUSE_S)
