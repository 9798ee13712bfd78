"""What is written about a checkpoint: its manifest `checkpoint.json`, and the marks of its parts.

Both are JSON. Unknown keys of a manifest are kept when it is read, for later formats. A mark that
cannot be read to its end is one that is being written: it counts as missing. Pure.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FORMAT: Final = 1
_KNOWN: Final = {"format", "step", "attempt", "parts", "files"}


@dataclass(frozen=True)
class File:
    """A file of a checkpoint. name: relative; size: in bytes; sum: `KIND:HEX`, or None."""

    name: str
    size: int
    sum: str | None
    part: int


@dataclass(frozen=True)
class Manifest:
    step: int
    attempt: str
    parts: int
    files: tuple[File, ...]
    other: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        known = {
            "format": FORMAT,
            "step": self.step,
            "attempt": self.attempt,
            "parts": self.parts,
            "files": [vars(file) for file in self.files],
        }
        return json.dumps({**self.other, **known}, indent=1).encode() + b"\n"


def decode_manifest(content: bytes) -> Manifest:
    """Raises ValueError for what is no manifest of a format that is known."""
    try:
        read = json.loads(content)
        if read["format"] != FORMAT:
            raise ValueError(f"its format is {read['format']}, this version knows {FORMAT}")
        return Manifest(
            int(read["step"]),
            str(read["attempt"]),
            int(read["parts"]),
            _files(read["files"]),
            {key: value for key, value in read.items() if key not in _KNOWN},
        )
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is no manifest of a checkpoint: {error!r}") from None


def encode_mark(parts: Iterable[int], files: Iterable[File]) -> bytes:
    return json.dumps({"parts": sorted(parts), "files": [vars(file) for file in files]}).encode()


def decode_mark(content: bytes) -> tuple[frozenset[int], tuple[File, ...]] | None:
    """Parts and their files. None: the mark is not written to its end."""
    try:
        read = json.loads(content)
    except ValueError:
        return None
    return frozenset(map(int, read["parts"])), _files(read["files"])


def _files(read: Iterable[Mapping[str, Any]]) -> tuple[File, ...]:
    return tuple(
        File(str(one["name"]), int(one["size"]), one.get("sum"), int(one["part"])) for one in read
    )
