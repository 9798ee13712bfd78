"""What a reply said, for running its request again and for whoever counts what a session made."""

from typing import Any

from fscommon.layout.attributes import unpack_attributes
from fscommon.types import Ino
from fscommon.wire.codec import decode
from fscommon.wire.messages import BODIES, Opened
from fscommon.wire.ops import Op
from metaserver.context import Replayed


def former_outcome(op: Op, reply: bytes) -> tuple[Replayed, int]:
    """Inode, layout and time of the reply that a mutation got before the restart. A batch has
    its own in the request."""
    if op is Op.CHANGE_BATCH:
        return Replayed(Ino(0), b""), 0
    message: Any = decode(BODIES[op][1], reply)
    attributes = unpack_attributes(message.attributes)
    layout = message.layout if isinstance(message, Opened) else b""
    return Replayed(Ino(attributes.ino), layout), attributes.ctime_ns


def ino_of_reply(op: Op, reply: bytes) -> Ino:
    return former_outcome(op, reply)[0].ino
