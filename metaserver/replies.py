"""What a reply said, for running its request again and for whoever counts what a session made; and
which request a stored reply answered: told to another one it would be believed."""

from typing import Any

from fscommon.checksum import xxh3_64
from fscommon.layout.attributes import unpack_attributes
from fscommon.layout.layout import unpack_layout
from fscommon.types import Ino
from fscommon.wire.births import Changed
from fscommon.wire.codec import decode
from fscommon.wire.frame import Frame
from fscommon.wire.header import FLAG_REPLAY
from fscommon.wire.messages import BODIES, Opened, Replay
from fscommon.wire.ops import Op
from metaserver.context import Replayed


def former_outcome(op: Op, reply: bytes) -> tuple[Replayed, int]:
    """Inode, layout and time of the reply that a mutation got before the restart. A batch has
    its own in the request. Raises ProtocolError: nobody was answered this."""
    kind = BODIES[op][1]
    if kind is Changed:
        return Replayed(Ino(0), b""), 0
    message: Any = decode(kind, reply)
    attributes = unpack_attributes(message.attributes)
    layout = message.layout if isinstance(message, Opened) else b""
    if layout:
        unpack_layout(layout)
    return Replayed(Ino(attributes.ino), layout), attributes.ctime_ns


def request_hash(frame: Frame) -> int:
    """What tells requests of one op apart; a replay carries the body of the request as it was."""
    if not frame.header.flags & FLAG_REPLAY:
        return frame.header.body_checksum
    request = decode(Replay, frame.body).request
    return xxh3_64(request) if request else 0  # as in the header of a frame without a body


def ino_of_reply(op: Op, reply: bytes) -> Ino:
    return former_outcome(op, reply)[0].ino
