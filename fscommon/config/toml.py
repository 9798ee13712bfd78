"""Configuration files: TOML into frozen dataclasses, strictly.

A program declares its keys as a dataclass; a field without a default is required. Types are int,
float, bool, str, Path, ByteSize (an integer or "10 GiB"), tuple[str, ...], another such dataclass
for a [table], and tuple[Table, ...] for [[tables]]. Unknown keys are refused, and the message names
the nearest known one. A ValueError of __post_init__ is a fault of the file as well. Every fault is
one ConfigError that names the file and the key.
"""

import difflib
import math
import tomllib
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, NewType, TypeVar

from fscommon.errors import ConfigError

C = TypeVar("C")

ByteSize = NewType("ByteSize", int)
FILE_BYTES_MAX: Final = 1 << 20

_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "pib": 1 << 50,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "pb": 10**15,
}


class MissingFileError(ConfigError):
    """There is no such file."""


def load(cls: type[C], path: Path | str) -> C:
    """The file as a `cls`. Raises ConfigError."""
    return from_table(cls, read_table(path), str(path))


def read_table(path: Path | str) -> dict[str, Any]:
    """The keys and values of the file. Raises ConfigError."""
    try:
        with Path(path).open("rb") as file:
            octets = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise MissingFileError(f"cannot read {path}: {error.strerror}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # a NUL in its name
        raise ConfigError(f"cannot read {path!r}: {error}") from error
    if len(octets) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} is too large: at most {FILE_BYTES_MAX} bytes are allowed")
    try:
        return tomllib.loads(octets.decode())
    except RecursionError:
        raise ConfigError(f"{path} is not TOML: its values are nested too deeply") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from error


def from_table(cls: type[C], table: dict[str, Any], where: str) -> C:
    """A parsed table as a `cls`; `where` names it in messages. Raises ConfigError."""
    assert is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: {unknown_word('key', key, known)}")
    for name, field in known.items():
        optional = field.default is not MISSING or field.default_factory is not MISSING
        if name not in table and not optional:
            raise ConfigError(f"{where}: the key '{name}' is missing")
    values = {key: _convert(hints[key], value, f"{where}: {key}") for key, value in table.items()}
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def unknown_word(kind: str, word: str, known: Iterable[str]) -> str:
    """The sentence that refuses a word and names the nearest known one."""
    nearest = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.5)
    hint = f": did you mean '{nearest[0]}'?" if nearest else ""
    return f"unknown {kind} '{word}'{hint}"


def parse_size(text: str) -> ByteSize:
    """The bytes of "4096", "64 KiB", "1.5GiB". Raises ValueError."""
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text.strip()[len(number) :].lower()
    if unit not in _UNITS:
        raise ValueError(f"'{text}' is not a size: write bytes, or KiB, MiB, GiB, TiB")
    try:
        size = float(number) * _UNITS[unit] if "." in number else int(number) * _UNITS[unit]
    except ValueError:
        raise ValueError(f"'{text}' is not a size") from None
    if not math.isfinite(size) or size < 0:
        raise ValueError(f"'{text}' is not a size")
    return ByteSize(int(size))


def _convert(hint: Any, value: Any, where: str) -> Any:
    element = _element(hint)
    if element is not None:
        return _convert_list(element, value, where)
    if isinstance(hint, type) and is_dataclass(hint):
        return from_table(hint, _exactly(dict, value, where), where)
    if hint is ByteSize:
        return _convert_size(value, where)
    if hint is Path:
        return Path(_exactly(str, value, where))
    if hint is float and type(value) is int:
        return float(value)
    return _exactly(hint, value, where)


def _element(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None


def _convert_list(element: Any, value: Any, where: str) -> tuple[Any, ...]:
    items = _exactly(list, value, where)
    if not is_dataclass(element):
        return tuple(_convert(element, item, f"{where}[{i}]") for i, item in enumerate(items))
    assert isinstance(element, type)
    tables = [_exactly(dict, item, f"{where}[{i}]") for i, item in enumerate(items)]
    return tuple(from_table(element, t, f"{where}[{i}]") for i, t in enumerate(tables))


def _convert_size(value: Any, where: str) -> ByteSize:
    try:
        return parse_size(str(_exactly(int, value, where) if type(value) is not str else value))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


_NAMES: Final = {
    list: "a list",
    dict: "a table",
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
}


def _exactly(kind: type | types.GenericAlias, value: Any, where: str) -> Any:
    if type(value) is not kind:
        expected = _NAMES.get(typing.cast(type, kind), str(kind))
        got = _NAMES.get(type(value), type(value).__name__)
        raise ConfigError(f"{where}: expected {expected}, not {got}")
    return value
