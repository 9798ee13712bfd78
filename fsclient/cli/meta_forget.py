"""braidfs meta forget: a metaserver that is gone for good is taken out of its group.

The active metaserver has the journal, and removes what the other one has reported there with its
next look. The command waits until the group has no such member.
"""

import time
from typing import Final

import click
import trio

from fscommon.errors import BraidError
from fscommon.rpc.caller import Caller
from fscommon.wire.group import MetaForget, MetaForgetting
from fscommon.wire.ops import Op

from .cluster import status_of
from .frame import Command, Reach, json_option, reaching, show
from .words import duration

_GONE_S_MAX: Final = 20.0
_PAUSE_S: Final = 0.2


@click.command(
    "forget",
    cls=Command,
    examples=[
        ("braidfs meta forget meta3", "Its host was given back, and status still misses it."),
        ("braidfs meta forget meta3 --json | jq .seconds_since_report", "How long it was silent."),
    ],
)
@click.argument("name")
@reaching
@json_option
def meta_forget(reach: Reach, name: str, as_json: bool) -> None:
    """Take a metaserver that is gone for good out of the group.

    NAME is the one that `braidfs status` shows. Nobody waits for it any more: status does not miss
    it, and entries of the journal are not kept for it. The active metaserver refuses to forget
    itself, and one that has reported within the last minute: stop that one first. A metaserver that
    is started again is a member again; if entries that it lacks are gone, it takes a copy.
    """
    forgotten: MetaForgetting = reach.ask(lambda caller: _forget(caller, reach, name))
    found = {
        "name": name,
        "address": forgotten.address,
        "seconds_since_report": round(forgotten.seconds_since_report, 3),
    }
    silent = duration(forgotten.seconds_since_report)
    show(
        found,
        as_json,
        lambda console: console.print(
            f"{name} at {forgotten.address} is no member any more; it was silent for {silent}",
            markup=False,
        ),
    )


async def _forget(caller: Caller, reach: Reach, name: str) -> MetaForgetting:
    forgotten: MetaForgetting = await caller.call(Op.META_FORGET, MetaForget(name), reach.timeout_s)
    until_s = time.monotonic() + _GONE_S_MAX
    while True:
        reply = await status_of(caller, reach)
        if all(row.name != name for row in reply.group.metaservers):
            return forgotten
        if time.monotonic() > until_s:
            raise BraidError(
                f"{name} is still a member: the active metaserver forgets it when the journal "
                "answers, unless it is another one by then"
            )
        await trio.sleep(_PAUSE_S)
