"""OBJECT_COPY: makes a new object of a target of this server from an object of another server.

The source is read by the other server's data connections, as the metaserver would, and the copy is
written by one to this server. While it is written the copy has the epoch that it had, 0 if it is
new; at the end its epoch is raised. So a write of an attempt that was given up, and is late, does
not change a copy that is done. A repeated attempt clears what is left of the one before, and its
connection is served when the requests of that one's have ended.

A copy holds at most IN_FLIGHT pieces in memory, all of them together PIECES_MAX. It ends with the
connection that asked for it.
"""

import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from fscommon.errors import BraidError, FsError, Status
from fscommon.native_ports import ChunkServer
from fscommon.net.stream import FrameStream
from fscommon.net.tcp import TcpStream
from fscommon.rpc.blocks import BlockCaller
from fscommon.rpc.caller import Caller
from fscommon.rpc.data import ObjectStat
from fscommon.tasks import open_tasks
from fscommon.wire.frame import FrameParser
from fscommon.wire.objects import ObjectCopied, ObjectCopy
from storageserver.care import Care, Pace
from storageserver.sources import PIECE, REQUEST_S, Sources
from storageserver.targets import Targets

COPIES_MAX: Final = 16  # at once; others wait
IN_FLIGHT: Final = 8  # pieces of one copy
PIECES_MAX: Final = 32
FULL: Final = 0.9  # of a target: nothing is copied to one that is fuller
CHECK_ROOM_EACH: Final = 64 << 20  # bytes
_FORMER_MAX: Final = 4096

_Name = tuple[int, int, int]  # target, file id, object number


class Copying:
    def __init__(self, native: ChunkServer, targets: Targets, sources: Sources, care: Care) -> None:
        self._native = native
        self._targets = targets
        self._sources = sources
        self._care = care
        self._turns = trio.CapacityLimiter(COPIES_MAX)
        self._pieces = trio.Semaphore(PIECES_MAX)
        # Connections by which a copy was made that did not end well.
        self._former: dict[_Name, int] = {}

    async def copy(self, request: ObjectCopy) -> ObjectCopied:
        """Raises FsError: ENOSPC without room, NO_TARGET, NO_OBJECT when the source is lost,
        STALE_TRUNCATE_EPOCH when one of the objects has a newer epoch or the source was changed,
        STALE_INCARNATION when a target lost power, DROPPED, EIO when the other server is lost."""
        if self._targets.path_of(request.target) is None:
            raise FsError(Status.NO_TARGET, f"there is no target {request.target} here")
        async with self._turns:
            self._check_room(request.target)
            try:
                return await self._copy(request)
            except FsError as error:
                if error.status is Status.ENOSPC and not error.message:
                    raise FsError(Status.ENOSPC, f"target {request.target} has no room") from error
                raise
            except BraidError as error:
                raise FsError(Status.EIO, f"the copy failed: {error}") from error

    async def _copy(self, request: ObjectCopy) -> ObjectCopied:
        name = (request.target, request.file_id, request.object)
        async with self._sources.of(request) as source, self._to_self(name) as writing:
            sink = BlockCaller(writing, *name, timeout_s=REQUEST_S)
            one = _Copy(
                source,
                sink,
                request.epoch,
                self._care.of_target(request.target),
                self._pieces,
                lambda: self._check_room(request.target),
            )
            copied = await one.run(must_exist=request.must_exist)
        self._former.pop(name, None)
        return ObjectCopied(sink.incarnation, source.incarnation, copied)

    @asynccontextmanager
    async def _to_self(self, name: _Name) -> AsyncIterator[Caller]:
        """A connection to this server, which waits until the former one of this copy has ended."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        caller = Caller(FrameStream(TcpStream(ours, "this server"), FrameParser()))
        connection = secrets.randbits(64)
        self._native.adopt(
            theirs.detach(),
            purpose="server",
            session=0,
            connection=connection,
            previous=self._former.pop(name, 0),
        )
        self._former[name] = connection
        if len(self._former) > _FORMER_MAX:
            del self._former[next(iter(self._former))]
        async with open_tasks() as tasks:
            tasks.start_soon(caller.run)
            try:
                yield caller
            finally:
                with trio.CancelScope(shield=True):
                    await caller.aclose()
                tasks.cancel_scope.cancel()

    def _check_room(self, target: int) -> None:
        """Raises FsError."""
        part = self._targets.part_used(target)
        if part > FULL:
            raise FsError(
                Status.ENOSPC,
                f"target {target} is {part:.0%} full: nothing is copied to one beyond {FULL:.0%}",
            )


class _Copy:
    """One copy. check_room(): raises FsError when there is none any more."""

    def __init__(
        self,
        source: BlockCaller,
        sink: BlockCaller,
        epoch: int,
        pace: Pace,
        pieces: trio.Semaphore,
        check_room: Callable[[], None],
    ) -> None:
        self._source = source
        self._sink = sink
        self._epoch = epoch
        self._pace = pace
        self._pieces = pieces
        self._check_room = check_room
        self._sink_epoch = 0  # while it is written
        self._bytes = 0
        self._end = 0  # of what was written
        self._unchecked = 0
        self._failure: BraidError | None = None

    async def run(self, *, must_exist: bool) -> int:
        """Returns how many bytes were copied."""
        before = await self._source.stat()
        if before is None and must_exist:
            raise FsError(Status.NO_OBJECT, "the source has lost its object")
        length = 0 if before is None else before.length
        self._check_epoch(before, "the source")
        if length == 0:
            await self._source.sync(epoch=self._epoch)  # its answer names the incarnation
        former = await self._sink.stat()
        self._check_epoch(former, "the new object")
        if former is not None:
            self._sink_epoch = former.truncate_epoch
            await self._sink.punch_all(former.length, epoch=self._sink_epoch)
        await self._move_all(length)
        left = 0 if former is None else former.length
        await self._finish(length, max(left, self._end))
        if _identity(await self._source.stat()) != _identity(before):
            raise FsError(Status.STALE_TRUNCATE_EPOCH, "the source changed while it was copied")
        return self._bytes

    def _check_epoch(self, found: ObjectStat | None, what: str) -> None:
        if found is not None and found.truncate_epoch > self._epoch:
            raise FsError(
                Status.STALE_TRUNCATE_EPOCH,
                f"{what} has epoch {found.truncate_epoch}, the copy is to have {self._epoch}",
            )

    async def _move_all(self, length: int) -> None:
        send, receive = trio.open_memory_channel[tuple[int, int]](0)
        async with open_tasks() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.start_soon(self._move_some, receive.clone(), tasks.cancel_scope)
            receive.close()
            async with send:
                at = 0
                while (found := await self._extent(at, length)) is not None:
                    begin, at = found
                    for offset in range(begin, at, PIECE):
                        await send.send((offset, min(PIECE, at - offset)))
        if self._failure is not None:
            raise self._failure

    async def _extent(self, at: int, length: int) -> tuple[int, int] | None:
        """The next bytes at or behind `at` that are no hole, from begin to end."""
        begin = await self._source.seek(at, hole=False, epoch=self._epoch) if at < length else None
        if begin is None or begin >= length:
            return None
        end = await self._source.seek(begin, hole=True, epoch=self._epoch)
        return begin, length if end is None else min(end, length)

    async def _move_some(
        self, pieces: "trio.MemoryReceiveChannel[tuple[int, int]]", all_of_them: trio.CancelScope
    ) -> None:
        """Moves pieces until there is none any more. The first failure ends all who do so."""
        async with pieces:
            try:
                async for offset, length in pieces:
                    await self._move(offset, length)
            except BraidError as error:
                self._failure = self._failure or error
                all_of_them.cancel()

    async def _move(self, offset: int, length: int) -> None:
        async with self._pace.piece(length), self._pieces:
            piece = await self._source.read(offset, length)
            if len(piece.payload) != length:
                raise FsError(Status.STALE_TRUNCATE_EPOCH, "the source was cut meanwhile")
            await self._sink.write(piece, epoch=self._sink_epoch)
            if self._source.serves_clients:
                self._pace.source_serves_clients()
        self._bytes += length
        self._end = max(self._end, offset + length)
        self._unchecked += length
        if self._unchecked >= CHECK_ROOM_EACH:
            self._unchecked = 0
            self._check_room()

    async def _finish(self, length: int, sink_length: int) -> None:
        """Gives the object its epoch, and its length where that does not follow from its bytes. It
        is refused when the object has that epoch, and another length, from a former copy."""
        if sink_length == length:
            await self._sink.raise_epoch(self._epoch)
        else:
            await self._sink.truncate(length, epoch=self._epoch)
        await self._sink.sync(epoch=self._epoch)


def _identity(found: ObjectStat | None) -> tuple[int, int] | None:
    return None if found is None else (found.length, found.truncate_epoch)
