"""The mounted file system: the parts of fsclient.fs joined, and what the lanes report to them.

One FileSystem per mount, touched by the trio thread only. It knows neither FUSE (fsclient.fuse) nor
how the lanes' events arrive (fsclient.reaper).
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import trio

from fscommon.errors import FsError
from fscommon.tasks import first_exception, open_tasks
from fscommon.wire.leases import LeaseRestore

from ..leases.holder import Leases
from ..leases.recalls import Caches, Recalls
from .ahead import Ahead
from .announced import Announced
from .closing import Closer
from .complete import CompleteDirectories
from .copies import Copies
from .directories import Directories
from .extents import Extents
from .files import Files
from .inodes import Inodes
from .locks import Locks
from .namespace import Namespace
from .ports import Lanes, Metadata

REOPENS_AT_ONCE_MAX = 64


class FileSystem:
    def __init__(
        self,
        meta: Metadata,
        lanes: Lanes,
        leases: Leases,
        log: Callable[[str], None],
        *,
        believe_s: float = 0.0,
        believe_names_s: float = 0.0,
        first_handle: int = 1,
    ) -> None:
        """believe_s, believe_names_s: how long the kernel and this client may cache attributes and
        names without leases."""
        handles = count(first_handle)
        self.next_handle: Callable[[], int] = lambda: next(handles)
        self.leases = leases
        self.inodes = Inodes(lanes, leases, trio.current_time, believe_s)
        self.complete = CompleteDirectories(
            lanes, leases, trio.current_time, lambda: meta.sole_until, believe_names_s
        )
        self.files = Files(meta, lanes, leases, self.inodes, self.complete, self.next_handle, log)
        self.delegated_changes = self.files.delegated_changes
        self.ahead = Ahead(meta, lanes, leases, self.inodes, self.complete, log)
        self.announced = Announced(lanes, self.ahead)
        self.files.was_read = self.ahead.was_read
        self.inodes.catch_up = self.delegated_changes.catch_up
        self.namespace = Namespace(
            meta, lanes, leases, self.inodes, self.complete, believe_names_s, self.delegated_changes
        )
        self.namespace.before_write = self.files.before_write
        self.namespace.tell_written = self.files.commit_written
        self.directories = Directories(
            meta, lanes, leases, self.namespace, self.inodes, self.complete
        )
        self.drains = self.files.drains
        self.extents = Extents(self.namespace, self.files)
        self.copies = Copies(self.namespace, self.files, log)
        self.locks = Locks(meta, lanes, leases, self.files, self.inodes, log)
        self.files.opening = self.locks.look
        self.closer = Closer(meta, leases, self.inodes, self.files.replicas)
        caches = Caches(
            self.files.drain,
            partial(self.drains.drain, sync=False),
            self._publish,
            self._report,
            self.delegated_changes.give_back,
            self.inodes.lost_lease,
            self.closer.close_now,
            self.inodes.single,
            self.ahead.clear,
        )
        self.recalls = Recalls(leases, lanes.names, meta, self.drains, caches, log)
        self.ahead.give_up = self.recalls.give_up
        self.inodes.tell_open = self.recalls.tell_open

    async def run(self, prefetches: bool) -> None:
        """Runs what goes on beside requests, until it is cancelled. prefetches: files may be opened
        and read before a program asks for them."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.closer.run)
            nursery.start_soon(self.delegated_changes.run)
            nursery.start_soon(self.locks.watch_descriptors)
            if prefetches:
                nursery.start_soon(self.ahead.run)
                nursery.start_soon(self.announced.run)

    async def _report(self, ino: int) -> None:
        """Commits or reports what only this client knows of the inode."""
        await self.delegated_changes.report(ino)
        await self.locks.tell_closes(ino)
        await self.files.report_size(ino)

    async def _publish(self, ino: int) -> None:
        """Sends what was written to the inode so far, bytes and size at once: nobody may read it
        before the lease is returned. Raises FsError when the targets failed."""
        if self.inodes.get(ino) is None:
            return
        try:
            async with open_tasks() as tasks:
                tasks.start_soon(self.files.commit_written, ino)
                await self.drains.drain(ino, sync=False)
        except BaseExceptionGroup as group:
            if group.split((FsError, trio.Cancelled))[1] is not None:
                raise
            raise first_exception(group) from None

    def exclusive(self) -> tuple[int, ...]:
        """The inodes that only this session may change, for SESSION_OPEN."""
        return tuple({*self.leases.exclusive(), *self.delegated_changes.parents_on_way()})

    def restorable(self) -> Iterator[LeaseRestore]:
        """The shared leases for a restarted metaserver: those of open files first."""
        return self.recalls.restorable(self.inodes.held())

    def restarted(self) -> None:
        """The metaserver was restarted."""
        self.recalls.restarted()
        self.delegated_changes.renew_slots()

    def losing_session(self) -> None:
        """The session is evicted; callers that wait for the metaserver learn it afterwards. Changes
        of names that the metaserver has not answered are lost."""
        self.delegated_changes.collect()
        self.directories.lose(self.delegated_changes.parents_on_way())

    def lost_session(self) -> None:
        """The session was evicted: everything cached is void, everything not committed is lost."""
        self.losing_session()
        self.delegated_changes.lose()
        self.inodes.unkeep_all()
        self.recalls.evicted()
        self.complete.clear()
        self.files.lose()

    def released(self, fh: int, ino: int) -> None:
        """The kernel closed a handle, and the lanes have finished with it."""
        self.files.released(fh, ino)
        self.locks.handle_gone(ino)

    async def sync(self) -> None:
        """Makes durable what this client has written, and every earlier change of names."""
        limit = trio.CapacityLimiter(REOPENS_AT_ONCE_MAX)

        async def sync_one(ino: int) -> None:
            async with limit:
                await self.files.sync(ino)

        async with open_tasks() as tasks:
            for ino in self.inodes.written():
                tasks.start_soon(sync_one, ino)
        await self.namespace.barrier()

    async def reopen_all(self) -> None:
        """Gets new capabilities for all open inodes, after the session was lost."""
        limit = trio.CapacityLimiter(REOPENS_AT_ONCE_MAX)

        async def reopen(ino: int) -> None:
            async with limit:
                await self.files.reopen(ino)

        async with trio.open_nursery() as nursery:
            for ino in self.inodes.held():
                nursery.start_soon(reopen, ino)
