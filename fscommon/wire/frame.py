"""Frames without I/O: bytes from fields, and frames from a stream of bytes.

FrameParser is fed whatever has arrived, and returns whole, verified frames. It uses a length only
after the header's own checksum was verified, and holds at most one unfinished frame; so a peer
costs at most `body_length_max` and `payload_length_max` bytes and one receive buffer. Any breach is
a ProtocolError, after which the connection must be closed. Control and metadata frames have no
payload. Frames with file bytes are native code's (native/src/net), but for the few that a storage
server copies (storageserver.copying); who takes a payload compares it with its sums.
"""

from dataclasses import dataclass

from fscommon.checksum import xxh3_64
from fscommon.errors import ProtocolError
from fscommon.limits import FRAME_BODY_LENGTH_MAX
from fscommon.wire.header import HEADER_SIZE, Header, decode_header


@dataclass(frozen=True, slots=True)
class Frame:
    header: Header
    body: bytes
    payload: bytes = b""


def encode_frame(  # noqa: PLR0913 - the fields of a header, all named
    op: int,
    *,
    flags: int = 0,
    request_id: int = 0,
    file_id: int = 0,
    stripe_index: int = 0,
    target: int = 0,
    offset: int = 0,
    length: int = 0,
    epoch: int = 0,
    status: int = 0,
    map_epoch: int = 0,
    body: bytes = b"",
    payload: bytes = b"",
) -> bytes:
    """Header, body and payload, ready to be sent. Raises ProtocolError when the body is over the
    limit."""
    if len(body) > FRAME_BODY_LENGTH_MAX:
        raise ProtocolError(f"body of {len(body)} bytes is over the limit")
    checksum = xxh3_64(body) if body else 0
    header = Header(
        op,
        flags,
        request_id,
        file_id,
        stripe_index,
        target,
        offset,
        length,
        len(payload),
        len(body),
        epoch,
        status,
        map_epoch,
        checksum,
    )
    return header.encode() + body + payload


class FrameParser:
    """Sans-IO: feed() bytes, then call next_frame() until it returns None."""

    def __init__(self, *, body_length_max: int = FRAME_BODY_LENGTH_MAX) -> None:
        self.body_length_max = body_length_max  # may be raised when the peer is authenticated
        self.payload_length_max = 0  # may be raised by who asks for payloads
        self._buffer = bytearray()
        self._header: Header | None = None

    def feed(self, received: bytes) -> None:
        self._buffer += received

    def next_frame(self) -> Frame | None:
        """The next whole frame; None until more bytes were fed. Raises ProtocolError."""
        header = self._header or self._next_header()
        if header is None:
            return None
        length = header.body_length + header.payload_length
        if len(self._buffer) < length:
            return None
        self._header = None
        view = memoryview(self._buffer)
        body = bytes(view[: header.body_length])
        payload = bytes(view[header.body_length : length]) if header.payload_length else b""
        view.release()
        del self._buffer[:length]
        if header.body_checksum != (xxh3_64(body) if body else 0):
            raise ProtocolError("body checksum mismatch")
        return Frame(header, body, payload)

    def frames(self) -> list[Frame]:
        """All whole frames that were fed and not taken yet. Raises ProtocolError."""
        taken = []
        while (frame := self.next_frame()) is not None:
            taken.append(frame)
        return taken

    def take_remainder(self) -> bytes:
        """The bytes behind the last frame taken; the parser is empty afterwards.

        Only between frames: a header that was taken cannot be given back. Raises ProtocolError.
        """
        if self._header is not None:
            raise ProtocolError("a frame is half read")
        remainder = bytes(self._buffer)
        self._buffer.clear()
        return remainder

    @property
    def is_empty(self) -> bool:
        """True between two frames: the stream may end here."""
        return self._header is None and not self._buffer

    def _next_header(self) -> Header | None:
        if len(self._buffer) < HEADER_SIZE:
            return None
        header = decode_header(bytes(memoryview(self._buffer)[:HEADER_SIZE]))
        if header.body_length > self.body_length_max:
            raise ProtocolError(f"body of {header.body_length} bytes is over the limit")
        if header.payload_length > self.payload_length_max:
            raise ProtocolError("a control frame has no payload")
        del self._buffer[:HEADER_SIZE]
        self._header = header
        return header
