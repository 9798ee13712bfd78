"""Layout defaults: text and record, and inputs that are neither."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscommon.errors import ProtocolError
from fscommon.layout.template import LayoutDefault, parse_default, unpack_default

BASE = LayoutDefault(1 << 20, 4)


@given(chunks=st.integers(1, 1024), width=st.integers(1, 64), replicas=st.integers(1, 3))
def test_text_and_record_come_back(chunks: int, width: int, replicas: int) -> None:
    default = LayoutDefault(chunks * 65536, width, replicas)
    assert unpack_default(default.pack()) == default
    for base in (BASE, LayoutDefault(1 << 20, 4, 3)):
        assert parse_default(default.text().encode(), base) == default


def test_the_record_of_one_replica_is_that_of_earlier_releases() -> None:
    record = bytes.fromhex("0100040000001000")
    assert BASE.pack() == record
    assert unpack_default(record) == BASE
    assert LayoutDefault(1 << 20, 4, 2).pack() == bytes.fromhex("0202040000001000")


@pytest.mark.parametrize(
    ("text", "chunk_size", "width", "replicas"),
    [
        (b"stripe_width=8", 1 << 20, 8, 1),
        (b"chunk_size=4MiB", 4 << 20, 4, 1),
        (b"chunk_size=64k stripe_width=1\0", 65536, 1, 1),
        (b" stripe_width=2,\n", 1 << 20, 2, 1),
        (b"chunk_size=2M,chunk_size=4M", 4 << 20, 4, 1),
        (b"replicas=3", 1 << 20, 4, 3),
        (b"chunk_size=4MiB,stripe_width=8,replicas=2", 4 << 20, 8, 2),
    ],
)
def test_texts_that_are_taken(text: bytes, chunk_size: int, width: int, replicas: int) -> None:
    assert parse_default(text, BASE) == LayoutDefault(chunk_size, width, replicas)


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
        b"replicas=0",
        b"replicas=4",
        b"replicas=1k",
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
    "raw",
    [
        b"",
        b"\0" * 8,
        b"\x01" * 9,
        b"\x02\0\x01\0\0\0\x10\0",
        b"\x02\x04\x01\0\0\0\x10\0",
        b"\x03\x02\x01\0\0\0\x10\0",
        b"\x01\0\0\0\0\0\x10\0",
    ],
)
def test_records_that_are_refused(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack_default(raw)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_default_or_a_refusal(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert parse_default(raw, BASE).chunk_size % 65536 == 0
