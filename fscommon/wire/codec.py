"""Messages as msgpack arrays of their fields, in order; the door to msgpack.

A message is a frozen dataclass of int, float, bool, str, bytes, other such dataclasses, tuples
`tuple[X, ...]` of these, and `X | None`. Each number states its width, and each bytes, str and
tuple states its greatest length (fscommon.ranges); a class without these is not a message. Each
class is compiled once into a coder that runs no Python code per field: one attrgetter packs; one
tuple of types, one struct of all the numbers and a few lengths verify.

Decoding is strict: exact types, every value in its range, nothing behind the end, no maps, no
extensions. The number of fields is the class's, or that of another release: a class only ever gets
further fields at its end, with defaults. Those that are missing have their defaults, and what lies
behind those that are known is left out. Deeper nesting than the class has is a wrong type; the
class itself may not be deeper than MSGPACK_DEPTH_MAX. Everything that can be wrong with received
bytes is a ProtocolError; when only a value is out of its range, it is a RangeError.
"""

import itertools
import math
import struct
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final, TypeVar

import msgpack  # type: ignore[import-untyped]

from fscommon.errors import ProtocolError, RangeError
from fscommon.limits import FRAME_BODY_LENGTH_MAX, MSGPACK_DEPTH_MAX
from fscommon.ranges import ARRAY_LENGTH_MAX, Most, Width

M = TypeVar("M")

_Coder = Callable[[Any], Any]
_UNKNOWN_MAX: Final = 16  # fields of a later release that are left out
_FIELDS_MANY: Final = 7  # from so many fields on, a constructor is slower than bypassing it


def encode(message: Any) -> bytes:
    """The bytes of a message. Raises ProtocolError when a value does not fit the wire."""
    cls = type(message)
    shape = _compiled.get(cls) or _shape(cls)
    try:
        packed = msgpack.packb(shape.lower(message), use_bin_type=True)
    except (OverflowError, ValueError, TypeError) as error:
        raise ProtocolError(f"{type(message).__name__} cannot be encoded: {error}") from error
    if len(packed) > FRAME_BODY_LENGTH_MAX:
        raise ProtocolError(f"{type(message).__name__} of {len(packed)} bytes is over the limit")
    return bytes(packed)


def decode(cls: type[M], body: bytes) -> M:
    """The message in body. Raises ProtocolError when body is not exactly one message, RangeError
    when a value is out of range."""
    shape = _compiled.get(cls) or _shape(cls)
    if len(body) > FRAME_BODY_LENGTH_MAX:
        raise ProtocolError(f"body of {len(body)} bytes is over the limit")
    try:
        values = msgpack.unpackb(
            body,
            use_list=False,
            raw=False,
            max_map_len=0,
            max_ext_len=0,
            max_array_len=ARRAY_LENGTH_MAX,
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise ProtocolError(f"body is not a {cls.__name__}: {error}") from error
    message: M = shape.lift(values, len(body) <= shape.least)
    return message


@dataclass(frozen=True, slots=True)
class _Field:
    """The type of a field, as its hint states it. element: the type of an array's elements; whole:
    that of an optional array."""

    kind: type  # the type that msgpack returns
    width: Width | None = None
    most: int | None = None
    element: "_Field | None" = None
    whole: "_Field | None" = None
    message: type | None = None


def read_hint(hint: Any) -> _Field:
    """The field of a type hint. Raises TypeError for a type that cannot be in a message, or has no
    range."""
    hint, ranges = _without_ranges(hint)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        most = _range(ranges, Most, hint).length
        return _Field(tuple, most=most, element=read_hint(arguments[0]))
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    if is_union and len(arguments) == 2 and arguments[1] is type(None):
        whole = read_hint(arguments[0])
        if whole.element is None:
            raise TypeError("only an array of a message may be optional")
        return _Field(tuple, most=whole.most, whole=whole)
    if hint is int:
        return _Field(int, width=_range(ranges, Width, hint))
    if hint in (bytes, str):
        return _Field(hint, most=_range(ranges, Most, hint).length)
    if hint in (bool, float):
        return _Field(hint)
    return _Field(tuple, message=hint)


def _without_ranges(hint: Any) -> tuple[Any, list[Any]]:
    """The hint without NewType, which exists for mypy only, and the ranges that Annotated gives."""
    ranges: list[Any] = []
    while True:
        if hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif typing.get_origin(hint) is typing.Annotated:
            ranges += hint.__metadata__
            hint = hint.__origin__
        else:
            return hint, ranges


R = TypeVar("R", Width, Most)


def _range(ranges: list[Any], kind: type[R], hint: Any) -> R:
    for one in ranges:
        if isinstance(one, kind):
            return one
    raise TypeError(f"{hint} of a message has no range (fscommon.ranges)")


class _Shape:
    """How one dataclass becomes an array (lower), and how an array becomes the dataclass (lift)."""

    def __init__(self, cls: type, depth: int) -> None:
        if not is_dataclass(cls):
            raise TypeError(f"{cls.__name__} is not a dataclass")
        if depth > MSGPACK_DEPTH_MAX:
            raise TypeError(f"{cls.__name__} is nested deeper than {MSGPACK_DEPTH_MAX}")
        hints = typing.get_type_hints(cls, include_extras=True)
        names = tuple(field.name for field in fields(cls))
        rows = tuple(read_hint(hints[name]) for name in names)
        lengths = [row.most for row in rows if row.most is not None]
        # In a body of at most so many bytes, no field can be too long.
        self.least = min(lengths, default=FRAME_BODY_LENGTH_MAX)
        self.lift = _lift_of(cls, names, rows, depth)
        self._get = _getter(names)
        self._lowers = tuple(_lower(row, depth + 1) for row in rows)
        is_flat = all(lower is _as_is for lower in self._lowers)
        self.lower: _Coder = self._get if is_flat else self._lower_each

    def _lower_each(self, message: Any) -> Any:
        return tuple([f(v) for f, v in zip(self._lowers, self._get(message), strict=True)])


def _lift_of(
    cls: type, names: tuple[str, ...], rows: tuple[_Field, ...], depth: int
) -> Callable[..., Any]:
    """Makes the function that every request passes through: what it needs are its own variables.
    Its second argument says that no field can be too long."""
    kinds = [row.kind for row in rows]
    other_kinds = _with_none(rows)
    numbers, fit = _numbers(rows)
    lengths = tuple((place, row.most) for place, row in enumerate(rows) if row.most is not None)
    lifts = ((place, _lift_inner(row, depth + 1)) for place, row in enumerate(rows))
    inner = tuple((place, lift) for place, lift in lifts if lift is not None)
    make = _maker(cls, names)
    fitted = _fitted(cls, rows, depth)

    def lift(values: Any, is_short: bool = False) -> Any:
        if type(values) is not tuple or (
            (met := [*map(type, values)]) != kinds and tuple(met) not in other_kinds
        ):
            others = fitted(values)
            if others is None:
                raise ProtocolError(f"fields of {cls.__name__} have wrong types")
            return lift(others, is_short)
        try:
            fit(*(values if numbers is None else numbers(values)))
        except struct.error:
            raise RangeError(f"a number of {cls.__name__} is out of range") from None
        if not is_short:
            for place, most in lengths:
                if values[place] is not None and len(values[place]) > most:
                    raise RangeError(f"{names[place]} of {cls.__name__} is too long")
        if inner:
            values = list(values)
            for place, lift_one in inner:
                values[place] = lift_one(values[place])
        return cls(*values) if make is None else make(values)

    return lift


def _fitted(
    cls: type, rows: tuple[_Field, ...], depth: int
) -> Callable[[Any], tuple[Any, ...] | None]:
    """Makes the function that gives an array of another release the number of fields that the class
    has. None: it has this number, or a field is missing that has no default."""
    count = len(rows)
    known = itertools.takewhile(
        lambda pair: pair[0].default is not MISSING,
        zip(reversed(fields(cls)), reversed(rows), strict=True),
    )
    defaults = [_lower(row, depth + 1)(field.default) for field, row in known][::-1]

    def fit(values: Any) -> tuple[Any, ...] | None:
        if type(values) is not tuple or len(values) == count:
            return None
        if count < len(values) <= count + _UNKNOWN_MAX:
            return values[:count]
        missing = count - len(values)
        return values + tuple(defaults[-missing:]) if 0 < missing <= len(defaults) else None

    return fit


_compiled: dict[type, _Shape] = {}  # filled once per class, never changed afterwards


def _shape(cls: type, depth: int = 0) -> _Shape:
    shape = _compiled.get(cls)
    if shape is None:
        shape = _compiled[cls] = _Shape(cls, depth)
    return shape


def _with_none(rows: tuple[_Field, ...]) -> frozenset[tuple[type, ...]]:
    """The possible types of the fields when optional ones are None."""
    choices = [(row.kind, type(None)) if row.whole else (row.kind,) for row in rows]
    return frozenset(itertools.product(*choices)) if any(row.whole for row in rows) else frozenset()


def _numbers(rows: tuple[_Field, ...]) -> tuple[_Coder | None, Callable[..., bytes]]:
    """A function that takes the numbers out of the values (None: the values are passed whole), and
    a struct that packs them: one call checks the ranges of all of them."""
    if all(row.kind in _FORMATS for row in rows):
        return None, struct.Struct("=" + "".join(_FORMATS[row.kind](row) for row in rows)).pack
    places = [place for place, row in enumerate(rows) if row.width is not None]
    fit = struct.Struct("=" + "".join(_FORMATS[int](rows[place]) for place in places)).pack
    if len(places) < 2:
        first = places[0] if places else 0
        return itemgetter(slice(first, first + len(places))), fit
    return itemgetter(*places), fit


def _format_of_int(row: _Field) -> str:
    assert row.width is not None, "read_hint sees to it"
    return row.width.code


_FORMATS: Final[dict[type, Callable[[_Field], str]]] = {
    int: _format_of_int,
    bool: lambda row: "?",
    bytes: lambda row: "0s",
}


def _maker(cls: type, names: tuple[str, ...]) -> _Coder | None:
    """A function that makes a message with many fields without its constructor, which looks up each
    of them by name. None: the constructor is used."""
    slots = tuple(getattr(cls, name, None) for name in names)
    places = tuple(slot for slot in slots if isinstance(slot, types.MemberDescriptorType))
    if len(names) < _FIELDS_MANY or len(places) < len(names):
        return None
    put = types.MemberDescriptorType.__set__

    def make(values: Any) -> Any:
        message: Any = object.__new__(cls)
        any(map(put, places, itertools.repeat(message), values))  # it returns None for each
        return message

    return make


def _getter(names: tuple[str, ...]) -> _Coder:
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda message: ()
    single = attrgetter(names[0])
    return lambda message: (single(message),)


def _lower(row: _Field, depth: int) -> _Coder:
    if row.whole is not None:
        inner = _lower(row.whole, depth)
        return lambda value: None if value is None else inner(value)
    if row.element is not None:
        inner = _lower(row.element, depth + 1)
        return tuple if inner is _as_is else lambda values: tuple(map(inner, values))
    if row.message is not None:
        return _shape(row.message, depth).lower
    return float if row.kind is float else _as_is


def _as_is(value: Any) -> Any:
    return value


def _lift_inner(row: _Field, depth: int) -> Callable[[Any], Any] | None:
    """What is left to do with a value of the right type and length. None: nothing."""
    if row.whole is not None:
        array = _lift_inner(row.whole, depth)
        assert array is not None, "read_hint sees to it"
        return lambda value: None if value is None else array(value)
    if row.element is not None:
        return _lift_array(row.element, depth)
    if row.message is not None:
        return _shape(row.message, depth).lift
    return _finite if row.kind is float else None


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ProtocolError("expected a finite float")
    return value


def _lift_array(element: _Field, depth: int) -> _Coder:
    inner = _lift_inner(element, depth + 1)
    kind = {element.kind}
    fits = _all_fit(element)

    def lift(values: tuple[Any, ...]) -> tuple[Any, ...]:
        if not values:
            return values
        if set(map(type, values)) != kind:
            raise ProtocolError(f"expected an array of {element.kind.__name__}")
        if not fits(values):
            raise RangeError("an entry of an array is out of range")
        return values if inner is None else tuple(map(inner, values))

    return lift


def _all_fit(element: _Field) -> Callable[[tuple[Any, ...]], bool]:
    """A function that tells whether each of several values, at least one, is in the range of the
    element."""
    if element.width is not None:
        low, high = element.width.low, element.width.high
        return lambda values: min(values) >= low and max(values) <= high
    if element.most is not None:
        most = element.most
        return lambda values: max(map(len, values)) <= most
    return lambda values: True
