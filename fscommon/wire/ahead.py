"""Bodies of OPEN_AHEAD (docs/decisions/0019-open-ahead.md)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenAhead:
    """Open for reading what the next `count` names of a directory have. cookie as in READDIR."""

    ino: int
    cookie: int
    count: int  # of names that are looked at, at most limits.OPEN_AHEAD_MAX


@dataclass(frozen=True, slots=True)
class OpenedAhead:
    """The files that were opened, a column for each kind of record: the rows have their places in
    common. cookie: of the last name that was looked at, or that of the request: not now,
    as others change the directory. end: there is nothing more to ask for."""

    names: tuple[bytes, ...]
    attributes: bytes  # records of 128 bytes
    layouts: tuple[bytes, ...]
    capabilities: bytes  # of 64 bytes each
    cookie: int
    end: bool
    parents: bytes = b""
