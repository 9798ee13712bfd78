"""Frames: golden bytes, every way to truncate them, and what is refused."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscommon.checksum import xxh3_64
from fscommon.errors import ProtocolError
from fscommon.limits import FRAME_BODY_LENGTH_MAX, FRAME_PAYLOAD_LENGTH_MAX
from fscommon.wire.frame import FrameParser, encode_frame
from fscommon.wire.header import FLAGS_KNOWN, HEADER_SIZE, Header, decode_header

# Every field has bytes of its own. native/tests has the same bytes for the same header.
GOLDEN_HEADER = Header(
    op=17,
    flags=0x06,
    request_id=0x1112131415161718,
    file_id=0x2122232425262728,
    stripe_index=0x31323334,
    target=0x41424344,
    offset=0x5152535455565758,
    length=0x61626364,
    payload_length=0x00717273,
    body_length=0x00018283,
    epoch=0x91929394,
    status=0x03F4,
    map_epoch=0xA1A2A3A4,
    body_checksum=0xB1B2B3B4B5B6B7B8,
)
GOLDEN = bytes.fromhex(
    "42524944"
    "01"
    "11"
    "0600"
    "1817161514131211"
    "2827262524232221"
    "34333231"
    "44434241"
    "5857565554535251"
    "64636261"
    "73727100"
    "83820100"
    "94939291"
    "f403"
    "0000"
    "a4a3a2a1"
    "b8b7b6b5b4b3b2b1"
    "5cfc583fed5973d4"
)


def parse(received: bytes, **limits: int) -> list[tuple[Header, bytes]]:
    parser = FrameParser(**limits)
    parser.feed(received)
    return [(frame.header, frame.body) for frame in parser.frames()]


def seal(raw: bytes) -> bytes:
    return raw[:72] + struct.pack("<Q", xxh3_64(raw[:72]))


def test_golden_header() -> None:
    assert GOLDEN_HEADER.encode() == GOLDEN
    assert decode_header(GOLDEN) == GOLDEN_HEADER


def test_a_frame_comes_back() -> None:
    raw = encode_frame(64, request_id=7, offset=5, body=b"body")
    ((header, body),) = parse(raw)
    assert (header.op, header.request_id, header.offset, body) == (64, 7, 5, b"body")


def test_every_cut_of_a_stream_gives_the_same_frames() -> None:
    stream = encode_frame(3) + encode_frame(64, request_id=1, body=b"x" * 200) + encode_frame(65)
    whole = parse(stream)
    assert len(whole) == 3
    for cut in range(len(stream) + 1):
        parser = FrameParser()
        parser.feed(stream[:cut])
        frames = parser.frames()
        parser.feed(stream[cut:])
        frames += parser.frames()
        assert [(f.header, f.body) for f in frames] == whole
        assert parser.is_empty


def test_byte_by_byte() -> None:
    parser = FrameParser()
    frames = []
    for byte in encode_frame(3) + encode_frame(64, body=b"abc"):
        parser.feed(bytes([byte]))
        frames += parser.frames()
    assert [f.body for f in frames] == [b"", b"abc"]


def test_every_flipped_bit_is_refused() -> None:
    raw = encode_frame(64, request_id=1, body=b"some body")
    for bit in range(len(raw) * 8):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError):
            parse(bytes(flipped))


@given(st.binary(max_size=300))
def test_random_bytes_are_a_protocol_error_or_nothing(received: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert parse(received) == []


@given(st.binary(min_size=72, max_size=72))
def test_sealed_random_headers_are_a_protocol_error_or_a_header(raw: bytes) -> None:
    header = b"BRID\x01" + raw[5:]
    with contextlib.suppress(ProtocolError):
        decode_header(seal(header))


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (0, b"HTTP", "magic"),
        (4, b"\x02", "version 2"),
        (6, struct.pack("<H", FLAGS_KNOWN + 1), "flags"),
        (44, struct.pack("<I", FRAME_PAYLOAD_LENGTH_MAX + 1), "payload"),
        (48, struct.pack("<I", FRAME_BODY_LENGTH_MAX + 1), "body"),
        (58, b"\x01\x00", "flags"),
    ],
)
def test_a_sealed_header_out_of_bounds_is_refused(at: int, value: bytes, words: str) -> None:
    raw = bytearray(encode_frame(3))
    raw[at : at + len(value)] = value
    with pytest.raises(ProtocolError, match=words):
        decode_header(seal(bytes(raw)))


def test_header_of_wrong_size_is_refused() -> None:
    with pytest.raises(ProtocolError, match="80 bytes"):
        decode_header(GOLDEN[:-1])


def test_body_over_the_parsers_limit_is_refused_before_it_comes() -> None:
    raw = encode_frame(64, body=b"x" * 101)
    with pytest.raises(ProtocolError, match="101 bytes"):
        parse(raw[:HEADER_SIZE], body_length_max=100)


def test_the_limit_can_be_raised() -> None:
    parser = FrameParser(body_length_max=10)
    parser.body_length_max = 1000
    parser.feed(encode_frame(64, body=b"x" * 500))
    assert len(parser.frames()) == 1


def test_payload_is_refused() -> None:
    raw = Header(op=64, payload_length=1).encode()
    with pytest.raises(ProtocolError, match="payload"):
        parse(raw)


def test_oversized_body_is_not_encoded() -> None:
    with pytest.raises(ProtocolError, match="limit"):
        encode_frame(64, body=bytes(FRAME_BODY_LENGTH_MAX + 1))


def test_remainder() -> None:
    parser = FrameParser()
    parser.feed(encode_frame(3) + b"early")
    assert parser.next_frame() is not None
    assert not parser.is_empty
    assert parser.take_remainder() == b"early"
    assert parser.is_empty


def test_no_remainder_within_a_frame() -> None:
    parser = FrameParser()
    parser.feed(encode_frame(64, body=b"abc")[:-1])
    assert parser.next_frame() is None
    with pytest.raises(ProtocolError, match="half read"):
        parser.take_remainder()
