"""Rows of the native module as the fakes of its ports return them (fscommon.native_ports)."""

from dataclasses import dataclass
from typing import NamedTuple

from fscommon.native_ports import CreationRow, MoveRow, RemovalRow, SettingRow


class Creation(NamedTuple):
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


class Loss(NamedTuple):
    ino: int
    is_written: bool


class Offer(NamedTuple):
    token: int
    description: bytes


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
    creations: list[CreationRow]
    removals: list[RemovalRow]
    settings: list[SettingRow]
    moves: list[MoveRow]


@dataclass(frozen=True, slots=True)
class Children:
    count: int
    used: int
    unused: int


class Upcall(NamedTuple):
    unique: int
    pid: int
    opcode: int
    bits: int = 0
    nodeid: int = 0
