"""Numbers as people read and write them, and small tables and bars for the terminal. Pure."""

import re
from collections.abc import Sequence
from typing import Final

import click

from fscommon.observe.words import duration, size

__all__ = [
    "Age",
    "Size",
    "bar",
    "counted",
    "duration",
    "holds",
    "latency",
    "number",
    "path_of",
    "rate",
    "shown",
    "size",
    "split_sign",
]

_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s*([KMGTP]?)(?:i?B)?", re.I)
_TIME: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhdw]?)", re.I)
_SECONDS: Final = {"": 86400, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def rate(count: float, seconds: float) -> str:
    return f"{size(count / seconds)}/s" if seconds > 0 else "-"


def number(count: int) -> str:
    return f"{count:,}"


def counted(count: int, word: str) -> str:
    """`1 client`, `2 clients`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def latency(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1000:,.1f} ms"


def bar(share: float, width: int = 24) -> str:
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "█" * filled + "░" * (width - filled)


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """4096, 64KiB, 1.5G; with a leading + or -: at least, at most. Converts to (sign, bytes)."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        sign, rest = split_sign(str(value))
        found = _SIZE.fullmatch(rest.strip())
        if not found:
            self.fail(f"'{value}' is not a size such as 4096, 64KiB or +1G", param, ctx)
        power = " KMGTP".index(found[2].upper() or " ")
        return sign, int(float(found[1]) * 1024**power)


class Age(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """30s, 5m, 2h, 7d, 1w, days without a unit; + and - as in Size. Converts to (sign, seconds)."""

    name = "age"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        sign, rest = split_sign(str(value))
        found = _TIME.fullmatch(rest.strip())
        if not found:
            self.fail(f"'{value}' is not an age such as 30s, 2h or +7d", param, ctx)
        return sign, float(found[1]) * _SECONDS[found[2].lower()]


def split_sign(text: str) -> tuple[str, str]:
    return (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)


def holds(sign: str, value: float, bound: float) -> bool:
    """Whether value meets the bound: + at least, - at most, else equal."""
    if sign == "+":
        return value >= bound
    return value <= bound if sign == "-" else value == bound


def path_of(names: Sequence[bytes]) -> str:
    """A path of the file system, from its root."""
    return ":/" + shown(b"/".join(names))


def shown(name: bytes) -> str:
    """A path for JSON and terminals; bytes that are no text stay recognizable."""
    return name.decode("utf-8", "backslashreplace")
