"""STATUS for the verbs, requested once. Its rows as JSON are in fscommon.observe.status."""

from fscommon.wire.messages import Empty, StatusReply
from fscommon.wire.ops import Op

from .frame import Reach


def ask_status(reach: Reach) -> StatusReply:
    reply: StatusReply = reach.call(Op.STATUS, Empty())
    return reply
