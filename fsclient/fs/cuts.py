"""Files that lanes cut by themselves and of which the metaserver is told later
(docs/decisions/0058-cuts-told-later.md).

A file that only this client may write gets its new size from a lane at once. What is committed of
it, or sent after the cut, waits until the metaserver has had the targets cut the file (a CUT event,
answered with cut_done). Other code that reports such a file to the metaserver, or changes its bytes
at the targets, does so within `told`. Touched by the trio thread only.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fscommon.errors import FsError, Status
from fscommon.wire.codec import decode
from fscommon.wire.messages import SET_MTIME, SET_SIZE, Opened, SetAttr
from fscommon.wire.ops import Op

from .drains import Drains
from .inodes import Inodes
from .ports import Lanes, Metadata

_UNREPORTED = 2  # client/inodes.h: CutState


class Cuts:
    def __init__(
        self,
        meta: Metadata,
        lanes: Lanes,
        inodes: Inodes,
        drains: Drains,
        see_written: Callable[[bytes], None],
        log: Callable[[str], None],
    ) -> None:
        """see_written: gives the tables a file's attributes after it was written."""
        self._meta = meta
        self._lanes = lanes
        self._inodes = inodes
        self._drains = drains
        self._see_written = see_written
        self._log = log

    @asynccontextmanager
    async def reported(self, ino: int) -> AsyncIterator[None]:
        """In this block the metaserver knows of every cut, and lanes make no more of them."""
        state = self._lanes.io.cuts_pause(ino, True)
        try:
            if state == _UNREPORTED:
                await self._drains.drain(ino, sync=False)
            yield
        finally:
            if state:
                self._lanes.io.cuts_pause(ino, False)

    def tell(self, number: int, ino: int, size: int, mtime_ns: int, payload: bytes) -> None:
        """A CUT event. payload: how far the former bytes reached, at the targets or by a committed
        size. The request is urgent, as only this client knows the cut."""
        self._inodes.catch_up()
        inode = self._inodes.get(ino)
        if inode is None:  # closed: another client may have it
            return self._lanes.io.cut_done(ino, number, int(Status.ESTALE), b"", b"", b"")
        request = SetAttr(
            ino,
            SET_SIZE | SET_MTIME,
            0,
            0,
            0,
            size,
            0,
            mtime_ns,
            0,
            int.from_bytes(payload, "little"),
            0,
        )

        def deliver(error: FsError | None, body: bytes) -> None:
            self._answered(number, ino, error, body)

        self._meta.post(Op.SETATTR, request, deliver, urgent=True)

    def _answered(self, number: int, ino: int, error: FsError | None, body: bytes) -> None:
        if error is not None:
            self._log(f"the metaserver could not be told that inode {ino} was cut: {error}")
            return self._lanes.io.cut_done(ino, number, int(error.status), b"", b"", b"")
        reply = decode(Opened, body)
        inode = self._inodes.get(ino)
        if inode is not None:
            inode.see_layout(reply.layout)
            self._inodes.limit(inode, reply.size_limit)
        self._see_written(reply.attributes)
        self._lanes.io.cut_done(ino, number, 0, reply.attributes, reply.layout, reply.capability)
