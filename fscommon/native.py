"""The one door to _braidfs_native, the data plane in C++ (docs/INTERFACES.md, section 3).

The Protocols below are what Python may call; `server` and `datapath` make the real ones, tests
make fakes. The module is imported at first use, so that programs which need no native code run
without it.
"""

import importlib
from enum import IntEnum
from types import ModuleType
from typing import NamedTuple, Protocol, cast

from fscommon.errors import BraidError


class NativeMissingError(BraidError):
    """The native module is not there or does not fit; the message says what to do."""


class EventKind(IntEnum):
    CONNECT = 1
    COMMIT = 2
    INTERRUPT = 3
    RELEASE = 4
    DONE = 5
    UNMOUNTED = 6
    LOG = 7
    REOPEN = 8
    CLOSED = 9
    CORRUPT = 10
    CALL = 11


class Event(NamedTuple):
    """One row of reap(); what token, a and b mean depends on the kind."""

    kind: int
    token: int
    ino: int
    a: int
    b: int
    payload: bytes


class TargetRow(NamedTuple):
    """What target_info() returns."""

    target: int
    uuid: bytes
    incarnation: int
    bytes_total: int
    bytes_free: int
    objects: int
    errors: int


RawEvent = tuple[int, int, int, int, int, bytes]


class EventSource(Protocol):
    def events_fd(self) -> int: ...
    def reap(self, count_max: int) -> list[RawEvent]: ...


class ChunkServer(EventSource, Protocol):
    """The native half of a storage server."""

    def io_engine(self) -> str: ...
    def target_open(
        self, path: str, *, cluster: bytes, uuid: bytes, capacity_bytes: int, create: bool
    ) -> int: ...
    def target_assign(self, index: int, target: int) -> None: ...
    def target_info(self, index: int) -> tuple[int, bytes, int, int, int, int, int]: ...
    def start(self) -> None: ...
    def stop(self, deadline_ms: int) -> None: ...
    def capability_key(self, key: bytes) -> None: ...
    def sessions(self, live: list[int]) -> None: ...
    def fence(self, session: int) -> None: ...
    def map_epoch(self, epoch: int) -> None: ...
    def adopt(
        self, fd: int, *, purpose: str, session: int, connection: int, previous: int
    ) -> None: ...
    def counters(self) -> dict[str, int]: ...


class Datapath(EventSource, Protocol):
    """The native half of a mounted client."""

    def mount(self, mountpoint: str, source: str, options: str, read_only: bool) -> None: ...
    def attach(self, fuse_fd: int) -> None: ...
    def start(self, root_ino: int) -> int: ...
    def stop(self, deadline_ms: int) -> None: ...
    def node_put(self, node: int) -> None: ...
    def target_put(self, target: int, node: int) -> None: ...
    def connection_put(self, lane: int, node: int, fd: int) -> None: ...
    def connection_failed(self, lane: int, node: int) -> None: ...
    def inode_put(self, attributes: bytes, layout: bytes, capability: bytes) -> None: ...
    def inode_drop(self, ino: int) -> None: ...
    def attributes_put(self, attributes: bytes, valid_ms: int) -> None: ...
    def complete_put(self, ino: int, valid_ms: int) -> None: ...
    def complete_extend(self, ino: int, valid_ms: int) -> None: ...
    def complete_add(self, ino: int, name: bytes) -> None: ...
    def complete_drop(self, ino: int) -> None: ...
    def complete_clear(self) -> None: ...
    def inode_written(self, ino: int) -> tuple[int, int, int] | None: ...
    def inode_take(self, ino: int) -> tuple[int, int, int] | None: ...
    def inode_resize(self, attributes: bytes, layout: bytes, capability: bytes) -> None: ...
    def handle_put(self, fh: int, ino: int, open_flags: int) -> None: ...
    def drain(self, token: int, ino: int, sync: bool) -> None: ...
    def commit_done(self, token: int, status: int, attributes: bytes) -> None: ...
    def punch(self, token: int, ino: int, begin: int, end: int) -> None: ...
    def seek(self, token: int, ino: int, start: int, hole: bool) -> None: ...
    def barrier(self, token: int) -> None: ...
    def answer(self, slot: int, error: int, body: bytes) -> None: ...
    def locked(self, ino: int, has_locks: bool) -> None: ...
    def upcall(self, slot: int) -> tuple[int, int, int, int]: ...
    def invalidate_inode(self, ino: int, offset: int, length: int) -> None: ...
    def invalidate_entry(self, parent: int, name: bytes) -> None: ...
    def session_put(self, session: int) -> None: ...
    def abort(self) -> int: ...
    def counters(self) -> dict[str, int]: ...


def make_chunk_server(*, lane_count: int, io: str) -> ChunkServer:
    return cast(ChunkServer, _class("ChunkServer")(lane_count=lane_count, io=io))


def make_datapath(
    *,
    lane_count: int,
    max_write: int,
    dirty_bytes_max: int,
    dirty_bytes_per_inode_max: int,
    held_bytes_max: int,
    timeout_ms: int,
    session: int,
) -> Datapath:
    made = _class("Datapath")(
        lane_count=lane_count,
        max_write=max_write,
        dirty_bytes_max=dirty_bytes_max,
        dirty_bytes_per_inode_max=dirty_bytes_per_inode_max,
        held_bytes_max=held_bytes_max,
        timeout_ms=timeout_ms,
        session=session,
    )
    return cast(Datapath, made)


def reap(source: EventSource, count_max: int = 256) -> list[Event]:
    """Events that wait now, at most count_max."""
    return [Event(*row) for row in source.reap(count_max)]


def load_module() -> ModuleType:
    try:
        return importlib.import_module("_braidfs_native")
    except ImportError as error:
        raise NativeMissingError(
            f"the native data plane cannot be loaded ({error}): build it with ./dev build"
        ) from error


def _class(name: str) -> type:
    found = getattr(load_module(), name, None)
    if found is None:
        raise NativeMissingError(
            f"the native data plane was built without {name}: build it again with ./dev build"
        )
    return cast(type, found)
