"""What a former reply contained, and which request it answered.

The first is for running a request again, and for counting what a session has made. The second
prevents that another request gets the stored reply: its client would believe it."""

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
    """Returns inode, layout and time of the reply that a mutation got before the restart. A batch
    has these in its request. Raises ProtocolError if it cannot have been a reply."""
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
    """A hash that differs between requests of one op. A replay contains the former request."""
    if not frame.header.flags & FLAG_REPLAY:
        return frame.header.body_checksum
    request = decode(Replay, frame.body).request
    return xxh3_64(request) if request else 0  # 0 as in the header of a frame without a body


def ino_of_reply(op: Op, reply: bytes) -> Ino:
    return former_outcome(op, reply)[0].ino
