"""Bodies of DELEGATE and CREATE_BATCH (docs/decisions/0013-delegation.md).

A client that holds the names of a directory exclusively makes files in it by itself, of slots that
it was given beforehand. It tells of them afterwards, in order, in batches.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delegate:
    """Take the names and attributes of directory ino exclusively (0: of none) and give slots: at
    most count, and no more than this session may have unused."""

    ino: int
    count: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A file that may be made: its inode number, layout, and a capability to write it."""

    ino: int
    layout: bytes
    capability: bytes


@dataclass(frozen=True, slots=True)
class Delegated:
    """attributes: of the directory, with what is held on it; b"" for ino 0, and for one in which no
    files are to be made (its tree has limits). uids, gids: who has limits, whose files are made at
    the metaserver."""

    attributes: bytes
    slots: tuple[Slot, ...]
    uids: tuple[int, ...] = ()
    gids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Birth:
    """An empty regular file that the client made of a slot, and opened. mode: permission bits,
    time_ns: since 1970."""

    ino: int
    parent: int
    name: bytes
    mode: int
    uid: int
    gid: int
    time_ns: int
    layout: bytes
    writable: bool


@dataclass(frozen=True, slots=True)
class CreateBatch:
    births: tuple[Birth, ...]


@dataclass(frozen=True, slots=True)
class Born:
    """errors: status of each birth, empty when all went well."""

    errors: tuple[int, ...]
    parents: bytes = b""
