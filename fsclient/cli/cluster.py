"""STATUS for the verbs. Its rows as JSON are in fscommon.observe.status."""

from fscommon.auth.handshake import HelloFields
from fscommon.observe.health import silent_standbys
from fscommon.rpc import silences
from fscommon.rpc.caller import Caller
from fscommon.wire.messages import Empty, StatusReply
from fscommon.wire.ops import Op

from .frame import Reach, run_trio


async def status_of(caller: Caller, reach: Reach) -> StatusReply:
    """Asks on a connection that is open. reach: says how long the answer may take."""
    reply: StatusReply = await caller.call(Op.STATUS, Empty(), reach.timeout_s)
    return reply


def ask_status(reach: Reach) -> StatusReply:
    """Like status_of(), on a connection of its own and for a plain function."""
    return reach.ask(lambda caller: status_of(caller, reach))


def reasons_of_silence(reach: Reach, reply: StatusReply) -> dict[str, str]:
    """Half a sentence for each standby that is silent, by its name."""
    if not silent_standbys(reply):
        return {}
    hello = HelloFields("admin", "braidfs status")
    found: dict[str, str] = run_trio(
        silences.reasons_of_silence, reply, lambda address: reach.open_caller(address, hello)
    )
    return found
