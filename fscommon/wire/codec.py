"""Messages as msgpack arrays of their fields, in order; the door to msgpack.

A message is a frozen dataclass of int, float, bool, str, bytes, other such dataclasses, tuples
`tuple[X, ...]` of these, and `X | None`. Each class is compiled once into a coder. Flat classes
(nothing nested) need no Python code per field: one attrgetter packs, one tuple of types verifies.
Decoding is strict: exact types, exact number of fields, nothing behind the end, no maps, no
extensions. Nesting deeper than the class is a wrong type; the class itself may not be deeper than
MSGPACK_DEPTH_MAX. All that can be wrong with received bytes is a ProtocolError.
"""

import math
import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgpack  # type: ignore[import-untyped]

from fscommon.errors import ProtocolError
from fscommon.limits import FRAME_BODY_LENGTH_MAX, MSGPACK_DEPTH_MAX

M = TypeVar("M")

ARRAY_LENGTH_MAX: Final = 1 << 17  # entries of one array

_Coder = Callable[[Any], Any]
_SCALARS: Final = (int, bool, str, bytes)


def encode(message: Any) -> bytes:
    """Bytes of a message. Raises ProtocolError when a value does not fit the wire."""
    try:
        packed = msgpack.packb(_shape(type(message)).lower(message), use_bin_type=True)
    except (OverflowError, ValueError, TypeError) as error:
        raise ProtocolError(f"{type(message).__name__} cannot be encoded: {error}") from error
    if len(packed) > FRAME_BODY_LENGTH_MAX:
        raise ProtocolError(f"{type(message).__name__} of {len(packed)} bytes is over the limit")
    return bytes(packed)


def decode(cls: type[M], body: bytes) -> M:
    """The message in body. Raises ProtocolError when it is not exactly one."""
    shape = _shape(cls)
    if len(body) > FRAME_BODY_LENGTH_MAX:
        raise ProtocolError(f"body of {len(body)} bytes is over the limit")
    try:
        values = msgpack.unpackb(
            body, use_list=False, raw=False, max_map_len=0, max_ext_len=0,
            max_array_len=ARRAY_LENGTH_MAX,
        )  # fmt: skip
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise ProtocolError(f"body is not a {cls.__name__}: {error}") from error
    message: M = shape.lift(values)
    return message


class _Shape:
    """How one dataclass becomes an array (lower) and an array becomes it (lift)."""

    def __init__(self, cls: type, depth: int) -> None:
        if not is_dataclass(cls):
            raise TypeError(f"{cls.__name__} is not a dataclass")
        if depth > MSGPACK_DEPTH_MAX:
            raise TypeError(f"{cls.__name__} is nested deeper than {MSGPACK_DEPTH_MAX}")
        hints = typing.get_type_hints(cls)
        self._cls = cls
        self._names = tuple(field.name for field in fields(cls))
        kinds = tuple(_runtime_type(hints[name]) for name in self._names)
        self._types = kinds
        self._flat = all(kind in _SCALARS for kind in kinds)
        self._lowers = tuple(_lower(kind, depth + 1) for kind in kinds)
        self._lifts = tuple(_lift(kind, depth + 1) for kind in kinds)
        self._get = _getter(self._names)
        self.lower: _Coder = self._get if self._flat else self._lower_each
        self.lift: _Coder = self._lift_flat if self._flat else self._lift_each

    def _lower_each(self, message: Any) -> Any:
        return tuple([f(v) for f, v in zip(self._lowers, self._get(message), strict=True)])

    def _lift_flat(self, values: Any) -> Any:
        if type(values) is not tuple or tuple(map(type, values)) != self._types:
            raise ProtocolError(f"fields of {self._cls.__name__} have wrong types")
        return self._cls(*values)

    def _lift_each(self, values: Any) -> Any:
        if type(values) is not tuple or len(values) != len(self._lifts):
            raise ProtocolError(f"{self._cls.__name__} has {len(self._lifts)} fields")
        return self._cls(*[f(v) for f, v in zip(self._lifts, values, strict=True)])


_compiled: dict[tuple[type, int], _Shape] = {}  # filled once per class, never changed after


def _shape(cls: type, depth: int = 0) -> _Shape:
    shape = _compiled.get((cls, depth))
    if shape is None:
        shape = _compiled[cls, depth] = _Shape(cls, depth)
    return shape


def _runtime_type(hint: Any) -> Any:
    """The hint without NewType, which exists for mypy alone."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return hint


def _getter(names: tuple[str, ...]) -> _Coder:
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda message: ()
    single = attrgetter(names[0])
    return lambda message: (single(message),)


def _element(hint: Any) -> Any:
    """X of tuple[X, ...]; None when the hint is no such tuple."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _runtime_type(arguments[0])
    return None


def _optional(hint: Any) -> Any:
    """X of X | None; None when the hint is no such union."""
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType) and len(arguments) == 2 and arguments[1] is type(None):
        return _runtime_type(arguments[0])
    return None


def _lower(hint: Any, depth: int) -> _Coder:
    if hint in _SCALARS:
        return _as_is
    if hint is float:
        return float
    if (element := _element(hint)) is not None:
        inner = _lower(element, depth + 1)
        if inner is _as_is:
            return tuple
        return lambda values: tuple(map(inner, values))
    if (kind := _optional(hint)) is not None:
        inner = _lower(kind, depth)
        return lambda value: None if value is None else inner(value)
    return _shape(hint, depth).lower


def _lift(hint: Any, depth: int) -> _Coder:
    if hint in _SCALARS:
        return _exactly(hint)
    if hint is float:
        return _finite
    if (element := _element(hint)) is not None:
        return _array_of(element, depth)
    if (kind := _optional(hint)) is not None:
        inner = _lift(kind, depth)
        return lambda value: None if value is None else inner(value)
    return _shape(hint, depth).lift


def _as_is(value: Any) -> Any:
    return value


def _exactly(kind: type) -> _Coder:
    def lift(value: Any) -> Any:
        if type(value) is not kind:
            raise ProtocolError(f"expected {kind.__name__}, not {type(value).__name__}")
        return value

    return lift


def _finite(value: Any) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise ProtocolError("expected a finite float")
    return value


def _array_of(element: Any, depth: int) -> _Coder:
    inner = _lift(element, depth + 1)

    def lift(values: Any) -> Any:
        if type(values) is not tuple:
            raise ProtocolError(f"expected an array, not {type(values).__name__}")
        return tuple(map(inner, values))

    def lift_scalars(values: Any) -> Any:
        if type(values) is not tuple or any(type(value) is not element for value in values):
            raise ProtocolError(f"expected an array of {element.__name__}")
        return values

    return lift_scalars if element in _SCALARS else lift
