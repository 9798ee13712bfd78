"""Layout defaults: text and record, and inputs that are neither."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscommon.errors import ProtocolError
from fscommon.layout.template import LayoutDefault, parse_default, unpack_default

BASE = LayoutDefault(1 << 20, 4)


@given(chunks=st.integers(1, 1024), width=st.integers(1, 64))
def test_text_and_record_come_back(chunks: int, width: int) -> None:
    default = LayoutDefault(chunks * 65536, width)
    assert unpack_default(default.pack()) == default
    assert parse_default(default.text().encode(), BASE) == default


@pytest.mark.parametrize(
    ("text", "chunk_size", "width"),
    [
        (b"stripe_width=8", 1 << 20, 8),
        (b"chunk_size=4MiB", 4 << 20, 4),
        (b"chunk_size=64k stripe_width=1\0", 65536, 1),
        (b" stripe_width=2,\n", 1 << 20, 2),
        (b"chunk_size=2M,chunk_size=4M", 4 << 20, 4),
    ],
)
def test_texts_that_are_taken(text: bytes, chunk_size: int, width: int) -> None:
    assert parse_default(text, BASE) == LayoutDefault(chunk_size, width)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ,",
        b"stripe_width",
        b"stripe_width=",
        b"stripe_width=0",
        b"stripe_width=65",
        b"stripe_width=-1",
        b"stripe_width=4k",
        b"chunk_size=65537",
        b"chunk_size=0",
        b"chunk_size=128M",
        b"chunk_size=1G",
        b"chunk_size=1e6",
        b"targets=1",
        b"x" * 300,
        b"stripe_width=" + b"9" * 40,
        "stripe_width=٣".encode(),
        b"\xff",
        b"chunk_size==1M",
    ],
)
def test_texts_that_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # UnicodeDecodeError is a ValueError too
        parse_default(text, BASE)


@pytest.mark.parametrize(
    "raw", [b"", b"\0" * 8, b"\x01" * 9, b"\x02\0\x01\0\0\0\x10\0", b"\x01\0\0\0\0\0\x10\0"]
)
def test_records_that_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_default(raw)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_default_or_a_refusal(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert parse_default(raw, BASE).chunk_size % 65536 == 0
