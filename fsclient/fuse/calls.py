"""Requests that pyfuse3 does not know: CALL events of the native bridge, each answered once.

A call is dispatched by opcode to a handler, which decodes the body (structures.py), calls
fsclient.fs and returns the body of the answer. It runs as a task of its own, interruptible like
pyfuse3's handlers (operations.py). Native bounds how many calls there are. Touched by the trio
thread only.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import pyfuse3
import trio

from braidfs import announcement
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import Attributes
from fscommon.native_ports import IoPort

from ..fs.caller import Requester, is_user
from ..fs.changes import Change
from ..fs.drains import Extent
from ..fs.filesystem import FileSystem
from . import structures
from .operations import Operations

_ENOSYS: Final = 38
READ, RELEASE, FLUSH, GETLK, SETLK, SETLKW = 15, 18, 25, 31, 32, 33
IOCTL, FALLOCATE, READDIRPLUS, LSEEK, COPY_FILE_RANGE = 39, 43, 44, 46, 47
SYNCFS, TMPFILE, STATX = 50, 51, 52


@dataclass(frozen=True, slots=True)
class Call:
    """A call. ino: the file system's number. outcome: for FLUSH, its errno so far."""

    slot: int
    ino: int
    head: structures.CallHead
    body: bytes
    outcome: int


Handler = Callable[[Call], Coroutine[Any, Any, bytes]]


class Calls:
    def __init__(
        self, operations: Operations, files: FileSystem, answers: IoPort, nursery: trio.Nursery
    ) -> None:
        self._operations = operations
        self._fs = files
        self._answers = answers
        self._nursery = nursery
        self._handlers: dict[int, Handler] = {
            READ: self._read,
            GETLK: self._getlk,
            SETLK: self._setlk,
            SETLKW: self._setlkw,
            IOCTL: self._ioctl,
            FALLOCATE: self._fallocate,
            READDIRPLUS: self._readdirplus,
            LSEEK: self._lseek,
            COPY_FILE_RANGE: self._copy,
            SYNCFS: self._syncfs,
            TMPFILE: self._tmpfile,
            STATX: self._statx,
        }

    def called(self, slot: int, kernel_ino: int, opcode: int, outcome: int, payload: bytes) -> None:
        """A CALL event."""
        if opcode == RELEASE:  # only reported, if there are locks; native answers it
            self._fs.locks.released(
                self._operations.ino_of(kernel_ino), structures.released_fh(payload)
            )
            return
        if opcode == FLUSH:
            self._nursery.start_soon(self._flush, slot, kernel_ino, outcome, payload)
            return
        handler = self._handlers.get(opcode)
        if handler is None:
            self._answer(slot, _ENOSYS, b"")
            return
        head, body = structures.CallHead.of(payload)
        call = Call(slot, self._operations.ino_of(kernel_ino), head, body, outcome)
        self._nursery.start_soon(self._run, handler, call)

    async def _run(self, handler: Handler, call: Call) -> None:
        try:
            body = await self._operations.serve(call.slot, handler(call))
        except pyfuse3.FUSEError as error:
            self._answer(call.slot, error.errno, b"")
        else:
            self._answer(call.slot, 0, body)

    def _answer(self, slot: int, error: int, body: bytes) -> None:
        try:
            self._answers.answer(slot, error, body)
        except ValueError:
            return  # the mount is ending: native has answered

    async def _flush(self, slot: int, kernel_ino: int, outcome: int, payload: bytes) -> None:
        """Never interrupted: the file is closed whatever happens."""
        ino = self._operations.ino_of(kernel_ino)
        error = outcome
        try:
            await self._fs.locks.closed(ino, structures.flush_owner(payload))
        except FsError as failure:
            error = error or failure.errno
        self._answer(slot, error, b"")

    # ---- handlers -----------------------------------------------------------------------------

    async def _read(self, call: Call) -> bytes:
        """A READ on a mount of a sealed tree: the request returns to the lane that read it."""
        return structures.handle_out(await self._fs.files.open_sealed(call.ino)) + call.body

    async def _getlk(self, call: Call) -> bytes:
        request = structures.lock_in(call.ino, call.body)
        return structures.lock_out(await self._fs.locks.find_conflict(request))

    async def _setlk(self, call: Call) -> bytes:
        await self._fs.locks.set(structures.lock_in(call.ino, call.body), wait=False)
        return b""

    async def _setlkw(self, call: Call) -> bytes:
        await self._fs.locks.set(structures.lock_in(call.ino, call.body), wait=True)
        return b""

    async def _statx(self, call: Call) -> bytes:
        attributes = await self._fs.namespace.getattr(call.ino)
        attr_s = self._operations.attributes_s(attributes)
        return structures.statx_out(attributes, self._number(attributes), attr_s)

    async def _fallocate(self, call: Call) -> bytes:
        request = structures.fallocate_in(call.body)
        await self._fs.extents.fallocate(
            call.ino,
            request.offset,
            request.length,
            request.mode,
            kill_set_ids=self._kills_set_ids(call),
        )
        return b""

    def _kills_set_ids(self, call: Call) -> bool:
        """Whether set-ID bits are cleared, which the kernel does not say (HANDLE_KILLPRIV_V2)."""
        return not is_user(0, call.head.uid, lambda: self._operations.pid_of(call.slot))

    async def _lseek(self, call: Call) -> bytes:
        request = structures.seek_in(call.body)
        found = await self._fs.extents.seek(call.ino, request.offset, request.whence)
        return found.to_bytes(8, "little")

    async def _copy(self, call: Call) -> bytes:
        """The kernel goes on with the rest, and copies by itself after EOPNOTSUPP."""
        request = structures.copy_in(call.body)
        copied = await self._fs.copies.copy(
            Extent(call.ino, request.offset_in),
            Extent(self._operations.ino_of(request.nodeid_out), request.offset_out),
            request.length,
            kill_set_ids=self._kills_set_ids(call),
        )
        return structures.copy_out(copied)

    async def _readdirplus(self, call: Call) -> bytes:
        return await self._operations.list_directory(structures.read_in(call.body))

    async def _syncfs(self, call: Call) -> bytes:
        await self._fs.sync()
        return b""

    async def _tmpfile(self, call: Call) -> bytes:
        request = structures.create_in(call.body)
        slot = call.slot
        requester = Requester(
            call.head.uid, call.head.gid, request.umask, lambda: self._operations.pid_of(slot)
        )
        made = await self._fs.files.tmpfile(call.ino, request.mode, request.flags, requester)
        return structures.created_out(
            made.attributes,
            self._number(made.attributes),
            made.fh,
            attr_s=self._operations.attributes_s(made.attributes),
            direct=made.direct,
        )

    async def _ioctl(self, call: Call) -> bytes:
        request, given = structures.ioctl_in(call.body)
        if request.command == announcement.IOCTL_ANNOUNCE:
            return structures.ioctl_result(self._announced(given))
        if request.command in (structures.IOCTL_GET_FLAGS, structures.IOCTL_GET_XATTR):
            attributes = await self._fs.namespace.getattr(call.ino)
            return structures.flags_out(attributes, request.command)
        flags = structures.flags_of(request.command, given)
        if flags is None:
            raise FsError(Status.EOPNOTSUPP, "a flag that is not supported")
        await self._fs.files.setattr(call.ino, Change(inode_flags=flags))
        await self._fs.files.attributes_changed(call.ino)
        return structures.IOCTL_DONE

    def _announced(self, given: bytes) -> int:
        try:
            files = announcement.unpack_announcement(given)
        except ValueError as error:
            raise FsError(Status.EINVAL, str(error)) from error
        parents = [self._operations.ino_of(parent) for parent in files.parents]
        return self._fs.announced.announce(files.inos, parents, replaces=files.replaces)

    def _number(self, attributes: Attributes) -> int:
        return self._operations.kernel_ino_of(attributes.ino)
