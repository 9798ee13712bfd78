"""Numbers as people read them. Pure."""

from typing import Final

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float) -> str:
    """Bytes, in powers of 1024."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in _UNITS:
        count /= 1024
        if count < 1023.95:
            return f"{count:.1f} {unit}"
    return f"{count:.0f} {_UNITS[-1]}"


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
