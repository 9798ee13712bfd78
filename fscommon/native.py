"""The one door to _braidfs_native, the data plane in C++ (docs/INTERFACES.md, section 3).

What Python may call are the Protocols of fscommon.native_ports; make_chunk_server and
make_datapath make the real ones, tests make fakes. The module is imported at first use, so that
programs which need no native code run without it.
"""

import importlib
from dataclasses import dataclass, fields
from enum import IntEnum
from types import ModuleType
from typing import NamedTuple, Protocol, cast

from fscommon.errors import BraidError
from fscommon.native_ports import (
    ChangesPort,
    ChunkServer,
    ClusterPort,
    InodesPort,
    IoPort,
    MountingPort,
    NamesPort,
    NativeTls,
    NativeTlsContext,
    RemoteCopy,
)


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
    ASK = 20
    CHANGES_WAIT = 24
    CUT = 25
    WRITE_INLINE = 26
    DROP_REPLICAS = 27
    SYNCED = 28


class Event(NamedTuple):
    """One row of reap(); what token, a and b mean depends on the kind."""

    kind: int
    token: int
    ino: int
    a: int
    b: int
    payload: bytes


RawEvent = tuple[int, int, int, int, int, bytes]


class EventSource(Protocol):
    def events_fd(self) -> int: ...
    def reap(self, count_max: int) -> list[RawEvent]: ...


@dataclass(frozen=True, slots=True)
class Datapath:
    """The native half of a mounted client: its ports, each fetched once."""

    mounting: MountingPort
    cluster: ClusterPort
    inodes: InodesPort
    names: NamesPort
    changes: ChangesPort
    io: IoPort


def make_chunk_server(
    *,
    lane_count: int,
    io: str,
    busy_poll_us: int = 0,
    target_count: int = 1,
    fetched_bytes_max: int = 1 << 30,
    buffer_bytes_max: int = 512 << 20,
) -> ChunkServer:
    """target_count: how many targets will be opened; they share what the process may have open.
    fetched_bytes_max: of files that clients are going to read and have not read yet, in the page
    cache; 0: nothing is fetched for them. buffer_bytes_max: of payloads on their way, all lanes
    together; each lane has as much as the largest payloads need, at least."""
    made = _class("ChunkServer")(
        lane_count=lane_count,
        io=io,
        busy_poll_us=busy_poll_us,
        target_count=target_count,
        fetched_bytes_max=fetched_bytes_max,
        buffer_bytes_max=buffer_bytes_max,
    )
    return cast(ChunkServer, made)


def make_remote_copy(descriptor: int, *, patience_ms: int, tls: NativeTls | None) -> RemoteCopy:
    """Over an authenticated connection to a storage server, which it owns from now on."""
    made = _class("RemoteCopy")(descriptor, patience_ms=patience_ms, tls=tls)
    return cast(RemoteCopy, made)


def make_datapath(  # noqa: PLR0913 - the settings of the native class, all named
    *,
    lane_count: int,
    max_write: int,
    dirty_bytes_max: int,
    dirty_bytes_per_inode_max: int,
    held_bytes_max: int,
    timeout_ms: int,
    busy_poll_us: int,
    session: int,
) -> Datapath:
    made = _class("Datapath")(
        lane_count=lane_count,
        max_write=max_write,
        dirty_bytes_max=dirty_bytes_max,
        dirty_bytes_per_inode_max=dirty_bytes_per_inode_max,
        held_bytes_max=held_bytes_max,
        timeout_ms=timeout_ms,
        busy_poll_us=busy_poll_us,
        session=session,
    )
    return Datapath(*(getattr(made, field.name) for field in fields(Datapath)))


def tls_server(certificate_file: str, key_file: str) -> NativeTlsContext:
    """Raises ValueError with a sentence."""
    return cast(NativeTlsContext, _class("TlsContext").server(certificate_file, key_file))  # type: ignore[attr-defined]


def tls_client(authorities_file: str) -> NativeTlsContext:
    """Raises ValueError with a sentence."""
    return cast(NativeTlsContext, _class("TlsContext").client(authorities_file))  # type: ignore[attr-defined]


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
