"""Bodies of OPEN_AHEAD (docs/decisions/0019-open-ahead.md)."""

from dataclasses import dataclass
from typing import Annotated

from fscommon.ranges import U32, U64, Blob, Many, Names, Record


@dataclass(frozen=True, slots=True)
class OpenAhead:
    """Open for reading what the next `count` names of a directory have. cookie as in READDIR."""

    ino: U64
    cookie: U64
    count: U32  # of names that are looked at, at most limits.OPEN_AHEAD_MAX


@dataclass(frozen=True, slots=True)
class OpenedAhead:
    """The files that were opened, a column for each kind of record: the rows have their places in
    common. cookie: of the last name that was looked at, or that of the request: not now,
    as others change the directory. end: there is nothing more to ask for."""

    names: Names
    attributes: Blob  # records of 128 bytes
    layouts: Annotated[tuple[Record, ...], Many]
    capabilities: Blob  # of 64 bytes each
    cookie: U64
    end: bool
    parents: Blob = b""
