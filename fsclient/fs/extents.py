"""Extents of files: fallocate, and where data and holes are (SEEK_DATA, SEEK_HOLE).

Nothing is reserved at the targets: an allocation sets the size and checks that there is room now. A
hole is made at the targets and is durable when it is answered; the kernel holds the inode's lock
meanwhile, so no write of this client comes in between. Touched by the trio thread only.
"""

import errno
import os
from typing import Final

from fscommon.errors import FsError, Status
from fscommon.file_time import file_time_ns
from fscommon.layout.attributes import INODE_APPEND, INODE_IMMUTABLE, Attributes
from fscommon.limits import FILE_SIZE_MAX, OBJECT_BYTES_MAX
from fscommon.wire.messages import COMMIT_KILL_SUIDGID

from .changes import Change
from .files import Files
from .inodes import left_of_mode
from .namespace import Namespace

KEEP_SIZE: Final = 1
PUNCH_HOLE: Final = 2
ZERO_RANGE: Final = 16
BLOCK_SIZE: Final = 4096
_MODES: Final = (0, KEEP_SIZE, KEEP_SIZE | PUNCH_HOLE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE)


class Extents:
    def __init__(self, namespace: Namespace, files: Files) -> None:
        self._namespace = namespace
        self._files = files
        self._drains = files.drains

    async def fallocate(
        self, ino: int, offset: int, length: int, mode: int, *, kill_set_ids: bool
    ) -> None:
        """kill_set_ids: the caller may not keep the set-ID bits (as at a write)."""
        if mode not in _MODES:
            raise FsError(Status.EOPNOTSUPP, "this mode of fallocate is not supported")
        if not length:
            raise FsError(Status.EINVAL, "the length is 0")
        end = offset + length
        if end > FILE_SIZE_MAX:
            raise FsError(Status.EFBIG)
        now = await self._namespace.getattr(ino)
        _check_flags(now, mode)
        if not mode & PUNCH_HOLE:
            if end > OBJECT_BYTES_MAX and end > self._files.objects_of(ino)[1]:
                raise FsError(Status.EFBIG, "no target can hold that much of one file")
            await self._check_room(end - max(now.size, min(offset, end)))
        if kill_set_ids:
            await kill_set_ids_of(self._files, ino, now)
        if mode & (PUNCH_HOLE | ZERO_RANGE) and offset < now.size:
            async with self._files.owned(ino):
                await self._make_hole(ino, offset, min(end, now.size))
        if not mode & KEEP_SIZE and end > now.size:
            await self._files.setattr(ino, Change(size=end, at_least=True))
        elif not mode & (PUNCH_HOLE | ZERO_RANGE):  # a change, too
            await self._files.setattr(ino, Change(mtime_ns=file_time_ns()))

    async def seek(self, ino: int, offset: int, whence: int) -> int:
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise FsError(Status.EINVAL, "only SEEK_DATA and SEEK_HOLE come here")
        await self._files.wait_for_bytes(ino)
        size = (await self._namespace.getattr(ino)).size
        if offset >= size:
            raise FsError(Status.ENXIO)
        await self._drains.drain(ino, sync=False)
        found = await self._drains.seek(ino, offset, hole=whence == os.SEEK_HOLE)
        if whence == os.SEEK_HOLE:
            return min(found, size)
        if not 0 <= found < size:
            raise FsError(Status.ENXIO)
        return found

    async def _check_room(self, wanted: int) -> None:
        if wanted > 0 and wanted > (await self._namespace.statfs()).bytes_available:
            raise FsError(Status.ENOSPC)

    async def _make_hole(self, ino: int, begin: int, end: int) -> None:
        await self._drains.drain(ino, sync=True)  # held bytes must not be sent again later
        file_id, _ = self._files.objects_of(ino)
        await self._drains.punch(ino, begin, end)
        await self._files.bytes_changed(ino, file_time_ns(), file_id)


async def kill_set_ids_of(files: Files, ino: int, now: Attributes) -> None:
    has_bits = left_of_mode(now.mode, COMMIT_KILL_SUIDGID) != now.mode
    if has_bits or now.xattr_count:  # one may be a capability
        # For a set-group-ID bit without group execution the kernel has asked before to clear it, if
        # needed.
        change = Change(kill_set_ids=True, in_group=lambda _gid: True)
        await files.setattr(ino, change)


def _check_flags(attributes: Attributes, mode: int) -> None:
    refused = INODE_IMMUTABLE | (INODE_APPEND if mode & ~KEEP_SIZE else 0)
    if attributes.flags & refused:
        raise FsError(Status.EPERM, os.strerror(errno.EPERM))
