"""Keeps what the next process needs if this one is killed.

Native notes in shared memory (its record) each open file, and each inode that has written bytes
which are not durable. The record and the descriptors of the kernel's connection go to their holder:
the keeper of a mount in the background (fsclient.keeper), or systemd's store if the mount is a
service (fsclient.fd_store). docs/decisions/0034-survival.md. How the next process goes on is in
fsclient.handover and fsclient.fs.handed.
"""

import json
import os
import shutil
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import trio

from fscommon.native import Datapath
from fscommon.observe.log import Log

from . import death_watch, fd_store
from .fs.handed import HandedBacking, HandedFiles, HandedHandle
from .keeper import DESCRIPTORS_MAX, SOCKET

_ROW: Final = struct.Struct("<QQIIII")  # handle, inode, flags, direct, kind
_MAGIC: Final = 0x314E45504F465242
_HANDLE, _DIRECTORY, _UNCLEAN, _BACKING = 1, 2, 3, 4  # a _BACKING has stamp, inode, id


@dataclass(frozen=True, slots=True)
class Told:
    """What the holder learns of this process and its mount. version: of the state's format."""

    version: int
    generation: int
    mountpoint: str
    root_ino: int


class Survival:
    """It lives from before the first request to the end of the process. Nobody holds anything if
    there is neither a keeper nor a store of descriptors."""

    def __init__(self, datapath: Datapath) -> None:
        self._datapath = datapath
        self._log = Log("survival")
        self._keeper = _keeper()
        is_service = self._keeper is None and fd_store.is_there()
        self._store = fd_store.FdStore() if is_service else None
        is_held = self._keeper is not None or self._store is not None
        self._record = datapath.mounting.record_make() if is_held else -1
        self._told: Told | None = None

    @property
    def is_service(self) -> bool:
        """Whether the supervisor holds the mount."""
        return self._store is not None

    async def watch(self) -> None:
        """Has another process watch this one, if the mount is a service."""
        if not self.is_service:
            return
        try:
            await trio.to_thread.run_sync(death_watch.begin, abandon_on_cancel=True)
        except OSError as error:
            what = "if a killed process cannot end, the next one starts late"
            self._log.warning(what, error=error)

    def tell(self, told: Told, session: int) -> None:
        """Called when lanes run: from now on the mount outlives this process."""
        self._told = told
        self.session_changed(session)

    def session_changed(self, session: int) -> None:
        if self._told is None or self._record < 0:
            return
        try:
            connection = self._datapath.mounting.share()
        except OSError as error:  # the mount was unmounted meanwhile
            self._log.info("there is no mount left to hold", error=error)
            return
        state = {
            "generation": self._told.generation + 1,
            "in_background": self._store is None,
            "mountpoint": self._told.mountpoint,
            "root_ino": self._told.root_ino,
            "agreed": connection.agreed.hex(),
            "session": session,
        }
        try:
            if self._store is not None:
                self._store.hold(self._told.version, state, self._record, connection.fds)
            elif self._keeper is not None:
                _tell(self._keeper, self._told.version, state, [self._record, *connection.fds])
        except OSError as error:
            self._log.warning("nobody holds this mount if its process is killed", error=error)
        finally:
            for fd in connection.fds:
                os.close(fd)


def _tell(keeper: socket.socket, version: int, state: dict[str, Any], fds: list[int]) -> None:
    program = shutil.which(sys.argv[0]) or sys.argv[0]
    words = {"version": version, "words": [program, *sys.argv[1:]], "state": state}
    socket.send_fds(keeper, [json.dumps(words).encode()], fds[:DESCRIPTORS_MAX])


def _keeper() -> socket.socket | None:
    number = os.environ.get(SOCKET)
    if number is None:
        return None
    try:
        keeper = socket.socket(fileno=os.dup(int(number)))
    except (OSError, ValueError):
        return None
    keeper.setblocking(False)
    return keeper


def read_record(fd: int) -> tuple[HandedFiles, tuple[int, ...]]:
    """Reads what a killed process had open, and the inodes of which bytes may be lost."""
    handles: list[HandedHandle] = []
    directories: list[tuple[int, int]] = []
    unclean: list[int] = []
    backings: list[HandedBacking] = []
    for fh, ino, flags, direct, kind in _rows(fd):
        if kind == _HANDLE:
            handles.append(HandedHandle(fh, ino, flags, bool(direct)))
        elif kind == _DIRECTORY:
            directories.append((fh, ino))
        elif kind == _UNCLEAN:
            unclean.append(ino)
        elif kind == _BACKING:
            backings.append(HandedBacking(ino, id=flags, stamp=fh))
    files = HandedFiles(tuple(handles), tuple(directories), (), (), (), 0, tuple(backings))
    return files, tuple(unclean)


def _rows(fd: int) -> Iterator[tuple[int, int, int, int, int]]:
    magic, count, *_ = _ROW.unpack(os.pread(fd, _ROW.size, 0))
    if magic != _MAGIC:
        raise ValueError("not a record of open files")
    octets = os.pread(fd, (count - 1) * _ROW.size, _ROW.size)
    for fh, ino, flags, direct, kind, _ in _ROW.iter_unpack(octets):
        yield fh, ino, flags, direct, kind
