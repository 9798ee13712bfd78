"""Writes to files whose bytes are in their inode's record and are to stay there: one request to the
metaserver for each WRITE (docs/decisions/0037-inline-data.md)."""

import struct
from collections.abc import Callable
from typing import Final

from fscommon.errors import FsError
from fscommon.wire.messages import Opened, WriteInline
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from .inodes import Inodes, OpenInode
from .ports import Lanes, Metadata

_EVENT: Final = struct.Struct("<QII")  # file_id, COMMIT_KILL_* flags, durable


class InlineWrites:
    """written(inode, reply): gives lanes and tables the file's new state."""

    def __init__(
        self,
        meta: Metadata,
        lanes: Lanes,
        leases: Leases,
        inodes: Inodes,
        written: Callable[[OpenInode, Opened], None],
    ) -> None:
        self._meta = meta
        self._lanes = lanes
        self._leases = leases
        self._inodes = inodes
        self._written = written

    async def write(self, ino: int, offset: int, mtime_ns: int, payload: bytes) -> None:
        """A WRITE_INLINE event, answered like an ASK event; ESTALE: the file needs objects
        first."""
        file_id, flags, durable = _EVENT.unpack_from(payload)
        content = payload[_EVENT.size :]
        errno_of_answer = 0
        self._inodes.catch_up()  # the file may be new
        inode = self._inodes.hold(ino)
        await self._leases.leaving.wait(ino)
        self._leases.asks(ino)
        try:
            request = WriteInline(ino, file_id, offset, content, mtime_ns, flags, bool(durable))
            self._written(inode, await self._meta.call(Op.WRITE_INLINE, request, Opened))
        except FsError as error:
            errno_of_answer = error.errno
        finally:
            self._inodes.release(ino)
            self._lanes.inodes.asked(ino, errno_of_answer)
            self._leases.used(ino)
