"""The codec: every message decodes to itself, and nothing else is accepted."""

import contextlib
import typing
from dataclasses import dataclass, fields
from typing import Annotated, Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fscommon.errors import ProtocolError, RangeError
from fscommon.limits import FRAME_BODY_LENGTH_MAX
from fscommon.ranges import ARRAY_LENGTH_MAX, U64, Most, Text, Width
from fscommon.types import Ino
from fscommon.wire import messages
from fscommon.wire.codec import decode, encode, read_hint
from fscommon.wire.messages import BODIES, Caller, Failure, Lookup, MkDir, ReadDirReply, Replay
from fscommon.wire.servers import HeartbeatReply, Registered

CLASSES = sorted(
    {cls for pair in BODIES.values() for cls in pair} | {Failure, Replay}, key=lambda c: c.__name__
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    row = read_hint(hint)
    if row.whole is not None:
        return st.none() | values_of(typing.get_args(hint)[0])
    if row.element is not None:
        inner = hint.__origin__ if typing.get_origin(hint) is Annotated else hint
        return st.lists(values_of(typing.get_args(inner)[0]), max_size=3).map(tuple)
    if row.message is not None:
        return messages_of(row.message)
    if row.width is not None:
        return st.integers(row.width.low, row.width.high)
    return {
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        str: st.text(max_size=20),
        bytes: st.binary(max_size=20),
    }[row.kind]


def messages_of(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return st.builds(cls, **{f.name: values_of(hints[f.name]) for f in fields(cls)})


@pytest.mark.parametrize("cls", CLASSES)
def test_every_message_comes_back(cls: type) -> None:
    @given(messages_of(cls))
    def comes_back(message: Any) -> None:
        assert decode(cls, encode(message)) == message

    comes_back()


@pytest.mark.parametrize("cls", CLASSES)
def test_random_bytes_are_a_protocol_error_or_a_message(cls: type) -> None:
    @given(st.binary(max_size=60))
    def decodes(body: bytes) -> None:
        with contextlib.suppress(ProtocolError):
            assert type(decode(cls, body)) is cls

    decodes()


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.binary()
        | st.text(),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=10,
    )
)
def test_random_msgpack_is_a_protocol_error_or_a_message(value: Any) -> None:
    for cls in (ReadDirReply, MkDir, Lookup):
        with contextlib.suppress(ProtocolError):
            decode(cls, msgpack.packb(value))


def test_golden() -> None:
    message = MkDir(1, b"name", 0o755, Caller(1000, 100, 0o22, (5, 6)))
    golden = bytes.fromhex("9401c4046e616d65cd01ed94cd03e86412920506")
    assert encode(message) == golden
    assert decode(MkDir, golden) == message


@pytest.mark.parametrize(
    ("cls", "value"),
    [
        (Lookup, [1]),
        (Lookup, [True, b"x"]),
        (Lookup, [1, "x"]),
        (Lookup, [1.0, b"x"]),
        (Lookup, {0: 1}),
        (Lookup, {}),
        (Lookup, None),
        (Lookup, [1, [b"x"]]),
        (Lookup, [1, b"x", *range(17)]),
        (MkDir, [1, b"x", 2, None]),
        (MkDir, [1, b"x", 2, [0, 0, 0, [b"1"]]]),
        (MkDir, [1, b"x", 2, [0, 0, 0, 5]]),
        (ReadDirReply, [[[b"x", 1]], b"", b"", True]),
        (ReadDirReply, [[b"x"], 1, b"", True]),
        (HeartbeatReply, [1, 1, 5]),
        (HeartbeatReply, [1, 1, [None]]),
        (Registered, [1, b"", [], b"", 0, [], 5]),
        (Registered, [1, b"", [], b"", 0, [], float("nan")]),
        (Registered, [1, b"", [], b"", 0, [], float("inf")]),
    ],
)
def test_wrong_shapes_are_refused(cls: type, value: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(cls, msgpack.packb(value))


@dataclass(frozen=True, slots=True)
class Part:
    number: U64
    more: U64 = 7


@dataclass(frozen=True, slots=True)
class Message:
    """As it is today; former and later releases have less and more of it."""

    number: U64
    name: Text = "none"
    part: Part = Part(1, 2)
    parts: Annotated[tuple[Part, ...], Most(9)] = ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([5], Message(5)),
        ([5, "x"], Message(5, "x")),
        ([5, "x", [6]], Message(5, "x", Part(6))),
        ([5, "x", [6, 7, b"later"], [[8]]], Message(5, "x", Part(6, 7), (Part(8),))),
        ([5, "x", [6, 7], [], None, [1]], Message(5, "x", Part(6, 7))),
    ],
)
def test_messages_of_other_releases_are_understood(value: Any, message: Message) -> None:
    assert decode(Message, msgpack.packb(value)) == message


@pytest.mark.parametrize(
    "value", [[], ["x"], [5, 6], [5, "x", []], [-1], [5, "x", [6, 7], [], *range(17)]]
)
def test_what_no_release_sends_is_refused(value: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(Message, msgpack.packb(value))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        encode(Lookup(1, b"x")) + b"\x00",
        encode(Lookup(1, b"x"))[:-1],
        b"\x92\x01\xd9\x01\xff",
        b"\x92\x01\xc7\x01\x05\x00",
        b"\x92\x01\xd6\xff\x00\x00\x00\x00",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000 + b"\xc0",
        b"\x91" * 900 + b"\xc0",
    ],
)
def test_wrong_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(Lookup, body)


def test_limits_are_refused() -> None:
    with pytest.raises(ProtocolError, match="limit"):
        decode(Lookup, bytes(FRAME_BODY_LENGTH_MAX + 1))
    with pytest.raises(ProtocolError, match="limit"):
        encode(Lookup(1, bytes(FRAME_BODY_LENGTH_MAX)))
    with pytest.raises(ProtocolError):
        decode(messages.Close, msgpack.packb([[0] * (ARRAY_LENGTH_MAX + 1)]))


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, object()])
def test_values_that_do_not_fit_are_not_encoded(value: Any) -> None:
    with pytest.raises(ProtocolError, match="Lookup"):
        encode(Lookup(value, b"x"))


def test_whole_numbers_for_floats() -> None:
    message = Registered(1, b"", (), b"", 0, (), 5)
    assert decode(Registered, encode(message)).timeout_s == 5.0


def test_an_optional_part() -> None:
    for sessions in (None, (), (1, 2)):
        message = HeartbeatReply(1, 2, sessions)
        assert decode(HeartbeatReply, encode(message)) == message


def test_new_types_are_their_base() -> None:
    @dataclass(frozen=True, slots=True)
    class Row:
        ino: Ino

    Row.__annotations__["ino"] = Annotated[Ino, Width("Q")]
    assert decode(Row, encode(Row(Ino(3)))) == Row(Ino(3))


def test_classes_that_are_no_messages_are_bugs() -> None:
    with pytest.raises(TypeError, match="not a dataclass"):
        decode(int, b"\x01")


def test_entries_of_a_large_directory() -> None:
    names = tuple(b"n%d" % i for i in range(1024))
    message = ReadDirReply(names, bytes(8 * 1024), bytes(128 * 1024), True)
    assert decode(ReadDirReply, encode(message)) == message


# ---- ranges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", "BHIQq")
def test_a_number_fits_its_width(code: str) -> None:
    width = Width(code)

    @dataclass(frozen=True, slots=True)
    class Row:
        number: int
        several: tuple[int, ...]

    number = Annotated[int, width]
    Row.__annotations__.update(number=number, several=Annotated[tuple[number, ...], Most(4)])
    for value in (width.low, 0, width.high):
        assert decode(Row, encode(Row(value, (0, value)))) == Row(value, (0, value))
    for value in (width.low - 1, width.high + 1):
        if -(1 << 63) <= value < 1 << 64:  # msgpack has no other integers
            for row in (Row(value, ()), Row(0, (0, value))):
                with pytest.raises(RangeError):
                    decode(Row, encode(row))


def test_bytes_texts_and_arrays_have_a_longest() -> None:
    @dataclass(frozen=True, slots=True)
    class Inner:
        text: str
        name: bytes

    @dataclass(frozen=True, slots=True)
    class Row:
        inner: Inner
        names: tuple[bytes, ...]
        several: tuple[Inner, ...]

    short = Annotated[bytes, Most(3)]
    Inner.__annotations__.update(text=Annotated[str, Most(3)], name=short)
    some = Annotated[tuple[short, ...], Most(3)]
    Row.__annotations__.update(
        inner=Inner, names=some, several=Annotated[tuple[Inner, ...], Most(2)]
    )
    least = Inner("ååå", b"123")
    for row in (Row(least, (b"123",) * 3, (least,) * 2), Row(Inner("", b""), (), ())):
        assert decode(Row, encode(row)) == row
    for row in (
        Row(Inner("1234", b""), (), ()),
        Row(Inner("", b"1234"), (), ()),
        Row(least, (b"",) * 4, ()),
        Row(least, (b"1234",), ()),
        Row(least, (), (least,) * 3),
        Row(least, (), (least, Inner("1234", b""))),
    ):
        with pytest.raises(RangeError):
            decode(Row, encode(row))


@pytest.mark.parametrize("hint", [int, bytes, str, tuple[U64, ...], Text | None])
def test_a_field_without_a_range_is_a_bug(hint: Any) -> None:
    with pytest.raises(TypeError):
        read_hint(hint)
