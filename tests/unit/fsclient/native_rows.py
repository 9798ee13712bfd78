"""Rows of the native module as the fakes of its ports return them (fscommon.native_ports)."""

from typing import Any, Final, NamedTuple


class Birth(NamedTuple):
    ino: int
    parent: int
    name: bytes
    mode: int
    uid: int
    gid: int
    time_ns: int
    layout: bytes
    writable: bool
    changes: int
    size: int
    mtime_ns: int
    is_open: bool
    fh: int = 0
    inline_bytes: bytes = b""


class Removal(NamedTuple):
    parent: int
    name: bytes
    ino: int
    time_ns: int
    record: bytes


class Setting(NamedTuple):
    ino: int
    valid: int
    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    written_ns: int
    record: bytes


class Move(NamedTuple):
    parent: int
    name: bytes
    new_name: bytes
    ino: int
    replaced: int
    time_ns: int
    record: bytes
    replaced_record: bytes


class ChangeRun(NamedTuple):
    births: list[Birth]
    removals: list[Removal]
    settings: list[Setting]
    moves: list[Move]


class Children(NamedTuple):
    count: int
    used: int
    unused: int


class Upcall(NamedTuple):
    unique: int
    pid: int
    opcode: int
    bits: int = 0
    nodeid: int = 0


_LONGER: Final = {"all_lost": "inodes_lost"}
_SAME: Final = ("handle_put", "size_limit_put", "set_ids_put", "locked")


class InodesOf:
    """The port of inodes of a fake which has its methods as inode_put(), inode_lost(), …"""

    def __init__(self, fake: object) -> None:
        self._fake = fake

    def __getattr__(self, name: str) -> Any:
        longer = name if name in _SAME else _LONGER.get(name, f"inode_{name}")
        return getattr(self._fake, longer)
