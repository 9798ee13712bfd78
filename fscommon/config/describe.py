"""A loaded configuration as plain values: what a program prints for --check. Pure."""

from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `value` is a text, a number, a truth value, or a list of these or of tables."""

    name: str
    value: Any
    is_default: bool


def describe(config: Any) -> list[Key]:
    """Every key of a configuration, in the order of its dataclass."""
    values = asdict(config)
    found = []
    for field in fields(config):
        is_default = field.default is not MISSING and getattr(config, field.name) == field.default
        found.append(Key(field.name, _plain(values[field.name]), is_default))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value
