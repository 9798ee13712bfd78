"""Bodies of OPEN_AHEAD, the request of the directory prefetch
(docs/decisions/0019-open-ahead.md).
"""

from dataclasses import dataclass
from typing import Annotated

from fscommon.ranges import U32, U64, Blob, Many, Names, Record


@dataclass(frozen=True, slots=True)
class OpenAhead:
    """Opens for reading the files that have the next `count` names of a directory. cookie as in
    READDIR."""

    ino: U64
    cookie: U64
    count: U32  # names to look at; at most limits.OPEN_AHEAD_MAX


@dataclass(frozen=True, slots=True)
class OpenedAhead:
    """The files that were opened, one column for each kind of record; row i of each column belongs
    to the same file.

    cookie: that of the last name that was looked at; or the request's cookie, which means: not now,
    because other clients change the directory. end: there is nothing more to ask for.
    """

    names: Names
    attributes: Blob  # records of 128 bytes
    layouts: Annotated[tuple[Record, ...], Many]
    capabilities: Blob  # 64 bytes each
    cookie: U64
    end: bool
    parents: Blob = b""
