"""Bodies of requests: each field at each of its bounds and beyond, of wrong types, and at random.

Everything follows from the message's class (fscommon.ranges, read by the codec): a new field or a
new op is attacked without a change here. Bodies are msgpack of plain values, because the codec
itself would refuse to encode most of them.
"""

import random
import typing
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from fscommon.limits import FRAME_BODY_LENGTH_MAX
from fscommon.wire.codec import read_hint
from fscommon.wire.messages import BODIES
from fscommon.wire.ops import Op

WIRE_LOW, WIRE_HIGH = -(1 << 63), (1 << 64) - 1  # these are the limits of an integer in msgpack
_EDGES: Final = (0, 1, 2, 3, 1 << 15, 1 << 31, 1 << 32, 1 << 53, (1 << 63) - 1, 1 << 63)
_NAMES: Final = (
    b"",
    b".",
    b"..",
    b"a",
    b"d",
    b"f",
    b"a/b",
    b"\0",
    b"\xff\xfe",
    b"x" * 255,
    b"x" * 256,
    b"user.x",
    b"system.posix_acl_access",
    b"system.posix_acl_default",
    b"braidfs.layout",
    b"security.capability",
    b"trusted.x",
)
_TEXTS: Final = ("", "n", "a\x1b[2J\nb", "\ud7ff\U0010ffff", "x" * 256, "127.0.0.1:1")
_WRONG: Final[tuple[Any, ...]] = (
    None,
    True,
    1.5,
    float("nan"),
    float("inf"),
    "text",
    b"bytes",
    (),
    (1,),
    ((),),
    {},
)
_LONG_MAX: Final = 1 << 17  # it is for bytes and texts here, of which a body holds a few
_DEEP: Final = b"\x91" * 900 + b"\xc0"

Hint = Any


class Maker:
    """`inos`: existing inodes, beside numbers that no inode has. `texts`: good ones. `near`: few
    numbers of which half of the random bodies are made, so that several fields fit together."""

    def __init__(
        self,
        rng: random.Random,
        inos: tuple[int, ...],
        *,
        texts: tuple[str, ...] = ("n",),
        near: tuple[int, ...] = (),
    ) -> None:
        self._rng = rng
        self._inos = inos
        self._texts = texts
        self._near = near

    def bodies(self, op: Op) -> Iterator[bytes]:
        """First every bound of every field with valid values in the others, then random ones
        without end."""
        yield from self.of(BODIES[op][0])

    def of(self, cls: type) -> Iterator[bytes]:
        for values in self._at_each_bound(cls):
            yield _packed(values)
        hints = _hints(cls)
        while True:
            if self._near and self._rng.random() < 0.5:
                yield _packed([self._made_of_near(hint) for hint in hints])
            else:
                yield _packed([self._any(hint) for hint in hints])

    def broken(self, op: Op) -> Iterator[bytes]:
        """The server may end the connection for each of these."""
        yield from self.broken_of(BODIES[op][0])

    def broken_of(self, cls: type) -> Iterator[bytes]:
        good = _packed([self._good(hint) for hint in _hints(cls)])
        yield from (b"", b"\xc1", good[:-1], good + b"\0", _DEEP, b"\x80", b"\xdd\xff\xff\xff\xff")
        for place, _ in enumerate(_hints(cls)):
            for wrong in _WRONG:
                values = [self._good(hint) for hint in _hints(cls)]
                values[place] = wrong
                yield _packed(values)

    def _at_each_bound(self, cls: type) -> Iterator[list[Any]]:
        hints = _hints(cls)
        for place, hint in enumerate(hints):
            for value in self._bounds(hint):
                values = [self._good(other) for other in hints]
                values[place] = value
                yield values

    def _bounds(self, hint: Hint) -> Iterator[Any]:
        row = read_hint(hint)
        if row.width is not None:
            low, high = row.width.low, row.width.high
            numbers = {low, low - 1, high, high + 1, -1, *_EDGES, *self._inos}
            yield from (n for n in sorted(numbers) if WIRE_LOW <= n <= WIRE_HIGH)
        elif row.element is not None or row.whole is not None:
            yield from self._bounds_of_array(_element(hint), row.most)
        elif row.message is not None:
            yield from self._at_each_bound(row.message)
        elif row.kind is bytes:
            yield from (*_NAMES, *(b"y" * n for n in _lengths(row.most)))
        elif row.kind is str:
            yield from (*_TEXTS, *("y" * n for n in _lengths(row.most)))
        elif row.kind is bool:
            yield from (False, True)
        else:
            yield from (0.0, -1.0, 1e300)

    def _bounds_of_array(self, element: Hint, most: int | None) -> Iterator[Any]:
        yield []
        for value in self._bounds(element):
            yield [value]
        good = self._good(element)
        for count in (2, 1024, 1025, 20_000, *_lengths(most)):
            if len(_packed([good])) * count < FRAME_BODY_LENGTH_MAX // 4:
                yield [good] * count

    def _good(self, hint: Hint) -> Any:
        """A value in range; for an inode or a name, an existing one."""
        row = read_hint(hint)
        if row.element is not None:
            return []
        if row.whole is not None:
            return None
        if row.message is not None:
            return [self._good(one) for one in _hints(row.message)]
        if row.width is not None:
            return self._rng.choice(self._inos)
        choices = {bytes: (b"a", b"d", b"f"), str: self._texts, bool: (True,), float: (1.0,)}
        return self._rng.choice(choices[row.kind])

    def _made_of_near(self, hint: Hint) -> Any:
        row = read_hint(hint)
        if row.element is not None or row.whole is not None:
            element = _element(hint)
            return [self._made_of_near(element) for _ in range(self._rng.choice((1, 1, 2)))]
        if row.message is not None:
            return [self._made_of_near(one) for one in _hints(row.message)]
        if row.width is not None:
            return min(self._rng.choice(self._near), row.width.high)
        if row.kind is bool:
            return self._rng.random() < 0.5
        return self._good(hint)

    def _any(self, hint: Hint) -> Any:
        row = read_hint(hint)
        if row.element is not None or row.whole is not None:
            return [self._any(_element(hint)) for _ in range(self._rng.choice((0, 1, 2, 5)))]
        if row.message is not None:
            return [self._any(one) for one in _hints(row.message)]
        if row.width is not None and self._rng.random() < 0.4:
            return self._rng.randint(0, min(row.width.high, 1 << self._rng.randrange(1, 65)))
        if self._rng.random() < 0.5:
            return self._good(hint)
        return self._rng.choice([value for value in self._bounds(hint) if _is_short(value)])


def _hints(cls: type) -> list[Hint]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return [hints[field.name] for field in fields(cls)]


def _element(hint: Hint) -> Hint:
    """X of an annotated tuple[X, ...], which may be optional."""
    origin: Any = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _element(hint.__origin__)
    first = typing.get_args(hint)[0]
    return first if origin is tuple else _element(first)


def _lengths(most: int | None) -> list[int]:
    return [n for n in (most, most + 1) if n <= _LONG_MAX] if most is not None else []


def _is_short(value: Any) -> bool:
    return not isinstance(value, bytes | str | list) or len(value) <= 5000


def _packed(values: Any) -> bytes:
    return bytes(msgpack.packb(values, use_bin_type=True))
