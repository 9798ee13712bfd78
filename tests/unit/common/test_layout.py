"""Packed records and the relation between files, chunks and objects."""

import hmac
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscommon.errors import ProtocolError
from fscommon.layout.attributes import ATTRIBUTES_SIZE, Attributes, unpack_attributes
from fscommon.layout.capability import CAPABILITY_SIZE, capability_key, make_capability
from fscommon.layout.layout import (
    SHAPE,
    Layout,
    Replica,
    object_length,
    pieces,
    storable_end,
    unpack_layout,
    with_inline,
    without_inline,
)
from fscommon.limits import (
    CHUNK_SIZE_MAX,
    CHUNK_SIZE_MIN,
    FILE_SIZE_MAX,
    INLINE_LENGTH_MAX,
    OBJECT_BYTES_MAX,
)

CHUNK = 64 << 10

layouts = st.builds(
    lambda width, **fields: Layout(
        stripe_width=width, targets=tuple(range(1, width + 1)), chunk_size=CHUNK, **fields
    ),
    width=st.integers(1, 5),
    file_id=st.integers(1, (1 << 64) - 1),
    truncate_epoch=st.integers(0, (1 << 32) - 1),
    durable_stripes=st.integers(0, (1 << 64) - 1),
    inline=st.binary(max_size=INLINE_LENGTH_MAX),
)
offsets = st.integers(0, 20 * CHUNK)


def test_attributes_lie_where_the_contract_says() -> None:
    raw = bytearray(Attributes(*range(1, 20)).pack())
    assert len(raw) == ATTRIBUTES_SIZE
    places = {
        "Q": (0, 8, 16, 80, 88, 96),
        "q": (24, 32, 40, 48, 104),
        "I": (56, 60, 64, 68, 72, 76, 112, 116),
    }
    found = sorted(
        (at, struct.unpack_from(f"<{k}", raw, at)[0]) for k, v in places.items() for at in v
    )
    assert [value for _, value in found] == list(range(1, 20))
    assert raw[120:] == bytes(8)


def test_attributes_come_back() -> None:
    attributes = Attributes(1, (1 << 64) - 1, mtime_ns=-1, lease_ns=-5, uid=(1 << 32) - 1)
    assert unpack_attributes(attributes.pack()) == attributes


@pytest.mark.parametrize("size", [0, 127, 129])
def test_attributes_of_wrong_size_are_refused(size: int) -> None:
    with pytest.raises(ProtocolError):
        unpack_attributes(bytes(size))


@given(layouts)
def test_layouts_come_back(layout: Layout) -> None:
    assert unpack_layout(layout.pack()) == layout


def test_inline_bytes_are_behind_the_targets() -> None:
    bare = Layout(7, CHUNK, 2, (1, 2)).pack()
    told = with_inline(bare, b"tiny")
    assert told[20] == 1
    assert told[32:] == bare[32:] + b"tiny"
    assert with_inline(told, b"") == bare


@given(layouts, st.integers(0, 1), st.binary(max_size=3), st.integers(0, 40))
def test_bytes_that_nobody_announced_are_refused(
    layout: Layout, flag: int, more: bytes, less: int
) -> None:
    raw = bytearray(layout.pack() + more)
    raw = raw[: max(0, len(raw) - less)]
    if len(raw) > 20:
        raw[20] = flag
    size = 32 + 4 * layout.stripe_width
    fits = len(raw) == size if not flag else size < len(raw) <= size + INLINE_LENGTH_MAX
    if fits:
        assert unpack_layout(bytes(raw)).inline == bytes(raw[size:])
        return
    with pytest.raises(ProtocolError):
        unpack_layout(bytes(raw))


def test_golden_layout() -> None:
    layout = Layout(
        0x1112131415161718, 1 << 20, 2, (0x21, 0x22), truncate_epoch=3, durable_stripes=1
    )
    assert layout.pack().hex() == (
        "01010200000010001817161514131211030000000000000001000000000000002100000022000000"
    )
    assert layout.target(1) == 0x22


@pytest.mark.parametrize(
    ("at", "value"), [(0, 2), (0, 3), (1, 0), (1, 4), (2, 0), (2, 65), (4, 1), (5, 0x80), (7, 0x80)]
)
def test_unsound_layouts_are_refused(at: int, value: int) -> None:
    raw = bytearray(Layout(1, CHUNK, 1, (1,)).pack())
    raw[at] = value
    with pytest.raises(ProtocolError):
        unpack_layout(bytes(raw))


@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda raw: b"\2\2\1\0" + raw))
def test_random_layouts_are_a_protocol_error_or_a_layout(raw: bytes) -> None:
    try:
        layout = unpack_layout(raw)
    except ProtocolError:
        return
    assert layout.pack() == raw


REPLICATED = Layout(
    0x1112131415161718,
    1 << 20,
    2,
    (0x21, 0x22, 0, 0x24),
    2,
    generations=(0, 1, 0, 0),
    generation_last=1,
    replicas_wanted=2,
)


def test_golden_layout_of_a_replicated_file() -> None:
    assert REPLICATED.pack().hex() == (
        "0202020000001000181716151413121100000000000000000000000000000000"
        "0100000002000000"
        "21000000000000002200000001000000"
        "00000000000000002400000000000000"
    )
    assert unpack_layout(REPLICATED.pack()) == REPLICATED


def test_vacant_places_are_no_replicas() -> None:
    replicas = [Replica(0, 0x21, 0), Replica(0, 0x22, 1), Replica(1, 0x24, 0)]
    assert list(REPLICATED.replicas()) == replicas
    assert [one.object_number for one in replicas] == [0, 0x100, 1]


def test_a_file_with_one_replica_that_moved_says_which_generation_it_has() -> None:
    moved = Layout(7, CHUNK, 1, (3,), generations=(4,), generation_last=5)
    again = unpack_layout(moved.pack())
    assert list(again.replicas()) == [Replica(0, 3, 4)]
    assert (again.replicas_wanted, again.is_replicated) == (1, True)


def test_inline_bytes_are_behind_the_replicas() -> None:
    told = with_inline(REPLICATED.pack(), b"tiny")
    assert told == REPLICATED.pack()[:20] + b"\1" + REPLICATED.pack()[21:] + b"tiny"
    assert without_inline(told) == REPLICATED.pack()


@pytest.mark.parametrize(
    "change",
    [
        {"targets": (0, 0, 0, 0x24)},  # a stripe without a replica
        {"targets": (0x21, 0x21, 0, 0x24)},  # two replicas on one target
        {"generations": (0, 2, 0, 0)},  # which was never given out
        {"generation_last": 1 << 24},
        {"replicas_wanted": 4},
        {"replica_count": 5, "targets": tuple(range(1, 11)), "generations": (0,) * 10},
    ],
)
def test_unsound_layouts_of_replicated_files_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        unpack_layout(replace(REPLICATED, **change).pack())


@given(layouts, offsets, st.integers(0, 5 * CHUNK))
def test_pieces_cover_the_extent_once(layout: Layout, offset: int, length: int) -> None:
    at = offset
    for piece in pieces(layout, offset, length):
        assert piece.offset == at
        assert 0 < piece.length <= CHUNK
        chunk, inside = divmod(piece.offset, CHUNK)
        assert inside + piece.length <= CHUNK
        assert piece.stripe_index == chunk % layout.stripe_width
        assert piece.object_offset == chunk // layout.stripe_width * CHUNK + inside
        at += piece.length
    assert at == offset + length


@given(layouts, offsets)
def test_object_lengths_are_where_the_pieces_end(layout: Layout, size: int) -> None:
    ends = dict.fromkeys(range(layout.stripe_width), 0)
    for piece in pieces(layout, 0, size):
        ends[piece.stripe_index] = max(ends[piece.stripe_index], piece.object_offset + piece.length)
    assert {i: object_length(layout, i, size) for i in ends} == ends


shapes = st.tuples(st.integers(1, 64), st.integers(1, CHUNK_SIZE_MAX // CHUNK_SIZE_MIN))


def laid_out(width: int, units: int) -> Layout:
    return Layout(1, units * CHUNK_SIZE_MIN, width, tuple(range(width)))


@given(shape=shapes, around=st.integers(-3, 3))
def test_what_targets_can_hold(shape: tuple[int, int], around: int) -> None:
    """The first byte that no object can hold, and all bytes before it, which an object can hold."""
    layout = laid_out(*shape)
    end = storable_end(layout.pack()[SHAPE])
    assert 0 < end < FILE_SIZE_MAX
    (piece,) = pieces(layout, end + around, 1)
    if around <= 0:
        assert (piece.object_offset >= OBJECT_BYTES_MAX) == (around == 0)
    assert all(object_length(layout, i, end) <= OBJECT_BYTES_MAX for i in range(shape[0]))


@given(shape=shapes, offset=st.integers(0, FILE_SIZE_MAX - 1))
def test_extents_at_any_offset(shape: tuple[int, int], offset: int) -> None:
    """Pieces are placed as the mapping of chunks to objects says, also near the largest size, and
    no value needs more than 64 bits."""
    layout = laid_out(*shape)
    length = min(FILE_SIZE_MAX - offset, 3 * layout.chunk_size)
    at = offset
    for piece in pieces(layout, offset, length):
        row, inside = divmod(piece.object_offset, layout.chunk_size)
        chunk = row * layout.stripe_width + piece.stripe_index
        assert (piece.offset, at) == (at, chunk * layout.chunk_size + inside)
        assert piece.object_offset + piece.length < 1 << 64
        assert object_length(layout, piece.stripe_index, at + piece.length) == (
            piece.object_offset + piece.length
        )
        at += piece.length
    assert at == offset + length


def test_a_capability_names_the_targets_of_all_replicas() -> None:
    raw = make_capability(
        b"k" * 32, layout=REPLICATED.pack(), session=2, rights=3, map_epoch=4, ino=5
    )
    marks = 0
    for target in reversed(REPLICATED.targets):
        marks = marks << 16 | (target * 0x9E3779B1 & (1 << 32) - 1) >> 16
    assert struct.unpack_from("<HHIQ", raw, 32) == (2, 2, 0, marks)


def test_capability() -> None:
    key = capability_key(b"k" * 32, b"u" * 16)
    assert key == hmac.digest(b"k" * 32, b"braidfs capability" + b"u" * 16, "sha256")
    layout = Layout(1, CHUNK, 2, (6, 7), truncate_epoch=8).pack()
    raw = make_capability(key, layout=layout, session=2, rights=3, map_epoch=4, ino=5)
    assert len(raw) == CAPABILITY_SIZE
    marks = [target * 0x9E3779B1 & (1 << 32) - 1 for target in (6, 7)]
    assert raw[:48] == struct.pack("<QQIIQHHIII", 1, 2, 3, 4, 5, 2, 0, 8, *marks)
    assert raw[48:] == hmac.digest(key, raw[:48], "sha256")[:16]
