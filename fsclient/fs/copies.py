"""copy_file_range: whole blocks go from target to target, never through this client.

Chunk pairs whose targets are on one server are copied there (operation COPY), chunk by chunk. An
empty file first gets the layout of the file from which it is copied, so that this is true of all
its chunks. The rest (ends that are no whole blocks, layouts of different shapes, short ranges) is
EOPNOTSUPP: the kernel copies it through its page cache. What all clients have written to the source
is drained before. Meanwhile only this client may use the sink. The sink is extended beforehand, so
that a quota refuses before anything is copied, and cut back if the copy fails: targets then refuse
bytes that come later, by their truncate epoch. A copy is durable when it is answered. Touched by
the trio thread only.
"""

from collections.abc import Callable
from typing import Final

import trio

from fscommon.errors import FsError, Status
from fscommon.file_time import file_time_ns
from fscommon.layout.attributes import INODE_APPEND, INODE_IMMUTABLE
from fscommon.limits import COPY_LENGTH_MIN

from .changes import Change
from .drains import Extent
from .extents import BLOCK_SIZE, kill_set_ids_of
from .files import Files
from .namespace import Namespace

LENGTH_MAX: Final = 64 << 20  # of one request, which cannot be interrupted
CUT_S: Final = 30.0


class Copies:
    def __init__(self, namespace: Namespace, files: Files, log: Callable[[str], None]) -> None:
        self._namespace = namespace
        self._files = files
        self._drains = files.drains
        self._log = log

    async def copy(self, source: Extent, sink: Extent, length: int, *, kill_set_ids: bool) -> int:
        """Returns how many bytes were copied. Raises EOPNOTSUPP for what the kernel is to copy."""
        if source.begin % BLOCK_SIZE or sink.begin % BLOCK_SIZE:
            raise FsError(Status.EOPNOTSUPP, "the offsets are not at whole blocks")
        if source.ino == sink.ino:
            raise FsError(Status.EOPNOTSUPP, "source and sink are one file")
        async with self._files.readable(source.ino):
            size = (await self._namespace.getattr(source.ino)).size
            length = min(length, size - source.begin, LENGTH_MAX) // BLOCK_SIZE * BLOCK_SIZE
            if length < COPY_LENGTH_MIN:
                raise FsError(Status.EOPNOTSUPP, "the range is short")
            # The source must be durable: a target that loses power meanwhile would copy older
            # bytes.
            await self._drains.drain(source.ino, sync=True)
            async with self._files.owned(sink.ino):
                return await self._copy(source, sink, length, kill_set_ids=kill_set_ids)

    async def _copy(self, source: Extent, sink: Extent, length: int, *, kill_set_ids: bool) -> int:
        if any(self._files.replicas.has(one.ino) for one in (source, sink)):
            raise FsError(Status.EOPNOTSUPP, "servers do not copy from replica to replica")
        await self._drains.drain(sink.ino, sync=True)  # else held bytes may be sent again later
        now = await self._namespace.getattr(sink.ino)
        if now.flags & (INODE_IMMUTABLE | INODE_APPEND):
            raise FsError(Status.EPERM)
        reach = await self._drains.copy_reach(source, sink, length)
        if reach < length and not now.size:
            await self._files.setattr(sink.ino, Change(size=0, like=source.ino))
            reach = await self._drains.copy_reach(source, sink, length)
        if reach < COPY_LENGTH_MIN:
            raise FsError(Status.EOPNOTSUPP, "the chunks are not on targets of one server")
        if kill_set_ids:
            await kill_set_ids_of(self._files, sink.ino, now)
        if sink.begin + reach > now.size:
            await self._files.setattr(sink.ino, Change(size=sink.begin + reach, at_least=True))
        try:
            file_id, _ = self._files.objects_of(sink.ino)
            with trio.CancelScope(shield=True):  # requests in flight cannot be cancelled
                stripe_bits = await self._drains.copy(source, sink, reach)
                await self._files.bytes_changed(sink.ino, file_time_ns(), file_id, stripe_bits)
        except FsError:
            if sink.begin + reach > now.size:
                await self._cut(sink.ino, now.size)
            raise
        return reach

    async def _cut(self, ino: int, size: int) -> None:
        with trio.move_on_after(CUT_S, shield=True):
            try:
                await self._files.setattr(ino, Change(size=size))
                return
            except FsError as error:
                self._log(f"inode {ino} could not be cut after a failed copy: {error}")
                return
        self._log(f"inode {ino} was not cut after a failed copy: no answer")
