"""OBJECT_COPY: makes a new object of a target of this server from an object of another server.

Native code copies (native/src/server/remote_copy.h), step by step, in threads of their own, over a
connection that is used for nothing else meanwhile. A copy ends with the connection that asked for
it: then its connection to the other server is cut, and it has ended when its step has. Until then
nobody else makes the same object.
"""

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from fscommon.errors import BraidError, FsError, Status
from fscommon.native_ports import ChunkServer, CopyProgressRow, RemoteCopy
from fscommon.tasks import open_tasks
from fscommon.wire.objects import ObjectCopied, ObjectCopy
from storageserver.care import Care, Pace
from storageserver.sources import Sources, check_source
from storageserver.targets import Targets

COPIES_MAX: Final = 16  # at once; others wait
STEP: Final = 8 << 20  # bytes of one step
SHORT_STEP: Final = 1 << 20  # while clients are served
FULL: Final = 0.9  # of a target: nothing is copied to one that is fuller
CHECK_ROOM_EACH: Final = 64 << 20  # bytes

_Name = tuple[int, int, int]  # target, file id, object number


class Copying:
    def __init__(self, native: ChunkServer, targets: Targets, sources: Sources, care: Care) -> None:
        self._native = native
        self._targets = targets
        self._sources = sources
        self._care = care
        self._turns = trio.CapacityLimiter(COPIES_MAX)
        self._threads = trio.CapacityLimiter(COPIES_MAX)
        self._under_way: dict[_Name, trio.Event] = {}

    async def copy(self, request: ObjectCopy) -> ObjectCopied:
        """Raises FsError: ENOSPC without room, NO_TARGET, NO_OBJECT when the source is lost,
        STALE_TRUNCATE_EPOCH when one of the objects has a newer epoch or the source was changed,
        STALE_INCARNATION when a target lost power, DROPPED, EIO when the other server is lost."""
        if self._targets.path_of(request.target) is None:
            raise FsError(Status.NO_TARGET, f"there is no target {request.target} here")
        check_source(request)
        async with self._turns, self._alone(request):
            try:
                async with self._sources.copy_from(request.source_address) as one:
                    return await self._run(one, request)
            except FsError as error:
                if error.status is Status.ENOSPC and not error.message:
                    raise FsError(Status.ENOSPC, f"target {request.target} has no room") from error
                raise
            except BraidError as error:
                raise FsError(Status.EIO, f"the copy failed: {error}") from error

    @asynccontextmanager
    async def _alone(self, request: ObjectCopy) -> AsyncIterator[None]:
        name = (request.target, request.file_id, request.object)
        while name in self._under_way:
            await self._under_way[name].wait()
        self._under_way[name] = trio.Event()
        try:
            yield
        finally:
            self._under_way.pop(name).set()

    async def _run(self, one: RemoteCopy, request: ObjectCopy) -> ObjectCopied:
        one.begin(
            source_target=request.source_target,
            source_object=request.source_object,
            target=request.target,
            file_id=request.file_id,
            object=request.object,
            epoch=request.epoch,
            must_exist=request.must_exist,
        )
        pace = self._care.of_target(request.target)
        checked_at = -CHECK_ROOM_EACH
        copied = 0
        while True:
            if copied - checked_at >= CHECK_ROOM_EACH:
                self._check_room(request.target)
                checked_at = copied
            row = await self._step(one, pace)
            if row.status:
                raise FsError(_status(row.status), row.message)
            copied = row.bytes
            if row.is_done:
                return ObjectCopied(row.incarnation, row.source_incarnation, copied)

    async def _step(self, one: RemoteCopy, pace: Pace) -> CopyProgressRow:
        length = SHORT_STEP if pace.makes_room() else STEP
        async with pace.piece(length), cutting(one):
            row = await trio.to_thread.run_sync(
                functools.partial(self._native.copy_step, one, length), limiter=self._threads
            )
        if row.serves_clients:
            pace.source_serves_clients()
        return row

    def _check_room(self, target: int) -> None:
        """Raises FsError."""
        part = self._targets.part_used(target)
        if part > FULL:
            raise FsError(
                Status.ENOSPC,
                f"target {target} is {part:.0%} full: nothing is copied to one beyond {FULL:.0%}",
            )


def _status(number: int) -> Status:
    """The other server may have a status that is not known here."""
    return Status(number) if number in set(Status) else Status.EIO


@asynccontextmanager
async def cutting(one: RemoteCopy) -> AsyncIterator[None]:
    """Whoever cancels the body, in which a thread works, need not wait for the other server."""
    is_over = False

    async def cut_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            if not is_over:
                one.cut()

    async with open_tasks() as tasks:
        tasks.start_soon(cut_when_cancelled)
        yield
        is_over = True
        tasks.cancel_scope.cancel()
