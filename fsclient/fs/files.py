"""Open files: open, create, close, changes of attributes, and the commits of written state.

Every open(2) asks the metaserver (close-to-open), which also registers the inode as open and
returns its layout and capability for the lanes; an inode is registered once, however many handles
it has. A commit reports what the lanes drained (size, mtime, which objects are durable); from
taking that state until the metaserver's answer it is kept in OpenInode.taken, so that attributes
shown in between do not go back. CLOSE is sent in batches (fsclient.fs.closing). Touched by the trio
thread only. Names are in fsclient.fs.namespace; the bytes themselves are only in the native lanes.
"""

import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    INODE_IMMUTABLE,
    LEASE_DATA,
    LEASE_DATA_EXCLUSIVE,
    Attributes,
    ino_of,
    unpack_attributes,
)
from fscommon.layout.layout import storable_end
from fscommon.wire.codec import decode
from fscommon.wire.messages import (
    COMMIT_MTIME,
    COMMIT_SYNCED,
    Commit,
    Committed,
    Create,
    Open,
    Opened,
    TmpFile,
)
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from .caller import Requester
from .changes import Change, set_attr
from .complete import CompleteDirectories
from .cuts import Cuts
from .delegated_changes import FIRST_HANDLE, DelegatedChanges
from .drains import Drains
from .inline_writes import InlineWrites
from .inodes import Inodes, OpenInode
from .losses import tell_losses
from .open_flags import OpenedFile, check_unprotected, is_writable
from .orphans import undo_orphaned
from .ports import WRITTEN_CUT, Lanes, Metadata, Written, written_of
from .replicas import Replicas, unpack_commit

INVALIDATION_WAIT_S = 1.0
ASK_AGAIN_S = 0.01
OWN_LEASE_REQUESTS_MAX = 3000


class Files:
    def __init__(
        self,
        meta: Metadata,
        lanes: Lanes,
        leases: Leases,
        inodes: Inodes,
        complete: CompleteDirectories,
        next_handle: Callable[[], int],
        log: Callable[[str], None],
    ) -> None:
        self._meta = meta
        self._lanes = lanes
        self._leases = leases
        self._inodes = inodes
        self._complete = complete
        self.drains = Drains(lanes)
        self.cuts = Cuts(meta, lanes, inodes, self.drains, self._see_written, log)
        self.inline_writes = InlineWrites(meta, lanes, leases, inodes, self._wrote_inline)
        self._next_handle = next_handle
        self._log = log
        self._take_count = 0
        self._handles: dict[int, int] = {}
        self.was_read: Callable[[int], None] = lambda ino: None  # opened for reading by Python
        self.opening: Callable[[int], None] = lambda ino: None
        self.delegated_changes = DelegatedChanges(
            meta, lanes, leases, inodes, self._born, complete.noted, log
        )
        self.replicas = Replicas(meta, lanes, inodes, self.delegated_changes, log)

    # ---- opening and closing ------------------------------------------------------------------

    async def open(self, ino: int, flags: int, *, kill_set_ids: bool) -> OpenedFile:
        self.opening(ino)
        inode = self._inodes.hold(ino)
        try:
            reply = await self._open(inode, is_writable(flags))
            attributes = self._register(inode, reply)
            check_unprotected(attributes, flags)
            if flags & os.O_TRUNC and is_writable(flags):
                change = Change(size=0, kill_set_ids=kill_set_ids)
                attributes = await self.setattr(ino, change)
        except BaseException:
            self._inodes.release(ino)
            raise
        if not is_writable(flags):
            self.was_read(ino)
        return self._opened(inode, flags, attributes)

    async def create(
        self,
        parent: int,
        name: bytes,
        mode: int,
        flags: int,
        requester: Requester,
        *,
        kill_set_ids: bool = False,
    ) -> OpenedFile:
        writable = is_writable(flags)
        exclusive = bool(flags & os.O_EXCL)
        caller = requester.for_mode(mode)
        request = Create(parent, name, mode, exclusive, writable, caller)
        self._complete.entering(parent, name)
        asked_at = self._complete.now()
        reply = await self._meta.call(Op.CREATE, request, Opened)
        attributes = unpack_attributes(reply.attributes)
        inode = self._inodes.hold(attributes.ino)
        self._complete.changed(reply.parents, asked_at)
        inode.is_writable |= writable
        attributes = self._register(inode, reply)
        self._inodes.changed()
        change = Change(size=0, kill_set_ids=kill_set_ids, in_group=requester.in_group)
        attributes = await self._open_existing(inode, attributes, flags, change)
        if reply.parents:
            self.delegated_changes.created(parent)
        return self._opened(inode, flags, attributes)

    async def open_sealed(self, ino: int) -> int:
        """Opens the file for a READ without a handle (a mount of a sealed tree). Raises FsError;
        ESTALE: the file is not sealed any more."""
        inode = self._inodes.hold(ino)
        try:
            attributes = self._register(inode, await self._open(inode, writable=False))
            if not attributes.flags & INODE_IMMUTABLE:
                raise FsError(Status.ESTALE, "the file is not sealed")
        except BaseException:
            self._inodes.release(ino)
            self._inodes.unkeep(ino)
            raise
        self.was_read(ino)
        return self._opened(inode, os.O_RDONLY, attributes).fh

    def _born(self, fh: int, ino: int) -> None:
        """Lanes made and opened a file."""
        self._handles[fh] = ino

    async def tmpfile(self, parent: int, mode: int, flags: int, requester: Requester) -> OpenedFile:
        """Makes a file without a name; with O_EXCL it never gets one."""
        request = TmpFile(parent, mode, not flags & os.O_EXCL, requester.for_mode(mode))
        reply = await self._meta.call(Op.TMPFILE, request, Opened)
        attributes = unpack_attributes(reply.attributes)
        inode = self._inodes.hold(attributes.ino)
        inode.is_writable = True
        attributes = self._register(inode, reply)
        self._inodes.departed(attributes)
        return self._opened(inode, flags, attributes)

    def released(self, fh: int, ino: int) -> None:
        """The kernel closed a handle (RELEASE event)."""
        if fh >= FIRST_HANDLE and fh not in self._handles:
            self.delegated_changes.collect()
        if self._handles.pop(fh, None) is not None:
            self._inodes.release(ino)
        elif fh >= FIRST_HANDLE:
            self._inodes.release_taken_over(ino)

    def orphaned(self, op: Op, body: bytes) -> None:
        undo_orphaned(op, body, self._inodes, self._leases, self._lanes)

    async def reopen(self, ino: int, writable: bool = False) -> None:
        """Gets a new capability for the lanes. writable: in any case with the right to write."""
        inode = self._inodes.get(ino)
        if inode is None:
            return await self._reopen_closed(ino)
        try:
            self._register(inode, await self._open(inode, inode.is_writable or writable))
        except FsError as error:
            self._log(f"cannot open inode {ino} again: {error}")

    async def _reopen_closed(self, ino: int) -> None:
        """Lanes sync a file later that was closed without a sync, with a new capability. Without
        one they give it up."""
        error: FsError | None = None
        inode = self._inodes.hold(ino)
        try:
            self._register(inode, await self._open(inode, writable=True))
        except FsError as failure:
            error = failure
        finally:
            is_closed = self._inodes.release(ino)
        if error is None or error.status is Status.DISCONNECTED or not is_closed:
            return
        self._lanes.inodes.lost(ino)
        if error.status not in (Status.ENOENT, Status.ESTALE):  # it was not removed
            self._log(f"inode {ino}, closed and not synced, may not be durable: {error}")

    async def restore(self, ino: int, handles: list[tuple[int, int, bool]]) -> None:
        """Restores handles (number, flags, direct) of the former process. Raises FsError."""
        (inode,) = {self._inodes.hold(ino) for _ in handles}
        try:
            writable = any(is_writable(flags) for _, flags, _ in handles)
            self._register(inode, await self._open(inode, writable))
        except FsError:
            for _ in handles:
                self._inodes.release(ino)
            raise
        for fh, flags, direct in handles:
            inode.had_readers |= not is_writable(flags)
            self._lanes.inodes.handle_put(fh, ino, flags, direct)
        self._handles.update((fh, ino) for fh, _, _ in handles)

    @property
    def handle_count(self) -> int:
        return len(self._handles)

    def _opened(self, inode: OpenInode, flags: int, attributes: Attributes) -> OpenedFile:
        keep_pages = self._inodes.may_keep_pages(inode.attributes or attributes)
        direct = not self._leases.is_cached(inode.ino) or self._leases.is_contended(inode.ino)
        if is_writable(flags) and flags & os.O_APPEND:  # the kernel may not know the end
            direct |= self._leases.is_on
        direct |= flags & os.O_ACCMODE == os.O_WRONLY
        inode.had_readers |= not is_writable(flags)
        fh = self._next_handle()
        self._handles[fh] = inode.ino
        self._lanes.inodes.handle_put(fh, inode.ino, flags, direct)
        return OpenedFile(fh, attributes, keep_pages, direct)

    async def _open(
        self, inode: OpenInode, writable: bool, wanted: int = 0, *, moves: bool = False
    ) -> Opened:
        """moves: lanes are about to write, so a file whose bytes are in its record gets objects."""
        asked = writable or inode.is_writable
        request = Open(inode.ino, asked, wanted, asked and moves)
        reply = await self._meta.call(Op.OPEN, request, Opened)
        inode.is_writable |= writable
        if inode.is_writable and not asked:  # a handle was opened for writing meanwhile
            return await self._open(inode, True, wanted, moves=moves)
        return reply

    def _register(self, inode: OpenInode, reply: Opened) -> Attributes:
        inode.see_layout(reply.layout)
        self._lanes.inodes.put(reply.attributes, reply.layout, reply.capability)
        self._leases.tell_lanes(inode.ino)
        self._inodes.limit(inode, reply.size_limit)
        self._inodes.see_parents(reply.parents)
        return self._inodes.see_record(reply.attributes)

    async def _open_existing(
        self, inode: OpenInode, attributes: Attributes, flags: int, to_nothing: Change
    ) -> Attributes:
        """CREATE may have found an existing file: does what an OPEN of it would have done."""
        try:
            check_unprotected(attributes, flags)
            if flags & os.O_TRUNC and attributes.size:
                return await self.setattr(inode.ino, to_nothing)
        except BaseException:
            self._inodes.release(inode.ino)
            raise
        return attributes

    # ---- attributes ---------------------------------------------------------------------------

    def may_be_written(self, ino: int) -> bool:
        """Whether somebody here has the file open for writing."""
        inode = self._inodes.get(ino)
        return inode is not None and inode.is_writable

    async def setattr(self, ino: int, change: Change) -> Attributes:
        """Sets attributes. Written state that the metaserver does not know yet goes along: it is
        older than this change and must not come after it."""
        async with self.cuts.reported(ino):
            return await self._setattr(ino, change)

    async def _setattr(self, ino: int, change: Change) -> Attributes:
        self._inodes.catch_up()
        self._inodes.single(ino)
        inode = self._inodes.get(ino)
        if change.size is not None and inode is not None:
            await self.drains.drain(ino, sync=False)
        token, written = self._take(inode)
        before = tuple(inode.taken) if inode is not None and change.sets_mtime else ()
        try:
            if change.size is not None and self._lanes.inodes.commits(ino):  # with an older size
                await self.drains.drain(ino, sync=False, commit=True)
            request = set_attr(ino, change, written)
            reply = await self._meta.call(Op.SETATTR, request, Opened, urgent=bool(token))
        except BaseException as error:
            if not (isinstance(error, FsError) and error.status is Status.DISCONNECTED):
                self._give_back(inode, token, written)
            raise
        if inode is None and change.size is not None:  # prefetched with its old size, perhaps
            self._inodes.resized_closed += 1
            inode = self._inodes.get(ino)
        if inode is not None:
            inode.time_was_set(before)
        attributes = self._changed(inode, token, reply, change)
        if change.takes_more(attributes):
            return await self._setattr(ino, Change(kill_set_ids=True, kill_every_sgid=True))
        if change.size is None and stat.S_ISREG(attributes.mode) and not self._inodes.is_open(ino):
            self._touched(ino)
        return attributes

    def _touched(self, ino: int) -> None:
        """Lanes could have made this change if the directory were delegated."""
        parent = self._inodes.parents.of(ino)
        if parent:
            self.delegated_changes.touched(parent)

    def _changed(
        self, inode: OpenInode | None, token: int, reply: Opened, change: Change
    ) -> Attributes:
        if inode is not None:
            inode.taken.pop(token, None)
            if change.size is not None:
                inode.see_layout(reply.layout)
                put = self._lanes.inodes.put if change.at_least else self._lanes.inodes.resize
                put(reply.attributes, reply.layout, reply.capability)
                self._leases.tell_lanes(inode.ino)
            self._inodes.limit(inode, reply.size_limit)  # its owner may have changed, too
        elif change.size is not None:
            self._resized_closed(reply)
        self._inodes.changed()
        self._inodes.wrote_pages(unpack_attributes(reply.attributes))
        return self._inodes.see_record(reply.attributes)

    def _resized_closed(self, reply: Opened) -> None:
        """Lanes may still know a file that was closed a moment ago, with the size that it had when
        it was written, and bytes that are not durable yet."""
        if reply.layout:
            self._lanes.inodes.resize(reply.attributes, reply.layout, reply.capability)
            self._lanes.inodes.drop(ino_of(reply.attributes))

    def objects_of(self, ino: int) -> tuple[int, int]:
        """The file id of an open inode, and the largest size that its layout can store."""
        inode = self._inodes.opened(ino)
        return inode.file_id, storable_end(inode.shape)

    async def sync(self, ino: int) -> None:
        """Makes what was written to ino durable, and commits its size."""
        if self._inodes.get(ino) is None:
            return
        await self.drains.drain(ino, sync=True)
        await self.commit_written(ino)

    async def publish(self, ino: int) -> None:
        """Drains and commits what was written to ino, so that other clients can read it."""
        inode = self._inodes.get(ino)
        if inode is not None and inode.is_writable:
            await self.drains.drain(ino, sync=False)
            await self.commit_written(ino)

    async def refresh(self, ino: int) -> None:
        """Later reads see what other clients have published."""
        inode = self._inodes.get(ino)
        if inode is None:
            return
        known = inode.attributes
        attributes = self._register(inode, await self._open(inode, inode.is_writable))
        if known is None or known.data_version != attributes.data_version:
            await self._invalidate(ino)
            self._inodes.may_keep_pages(attributes)

    async def attributes_changed(self, ino: int) -> None:
        """A request changed attributes without returning them: the kernel asks for them again."""
        await self._invalidate(ino, -1)

    async def _invalidate(self, ino: int, begin: int = 0) -> None:
        """Has the kernel drop attributes and pages (-1: none); waits up to INVALIDATION_WAIT_S."""
        self._lanes.names.invalidate_inode(ino, begin, 0)
        await self.drains.notified(
            lambda token: self._lanes.names.lease_drop(token, (ino,), 0), INVALIDATION_WAIT_S
        )

    async def commit_written(self, ino: int) -> None:
        """Commits size and time of what the lanes have sent so far."""
        async with self.cuts.reported(ino):
            inode = self._inodes.get(ino)
            token, written = self._take(inode)
            if inode is None or not token:
                return
            size, mtime_ns, flags = written
            request = Commit(ino, inode.file_id, flags, size, mtime_ns, 0, False)
            try:
                reply = await self._meta.call(Op.COMMIT, request, Committed, urgent=True)
            except BaseException as error:
                if not (isinstance(error, FsError) and error.status is Status.DISCONNECTED):
                    self._give_back(inode, token, written)
                raise
            inode.taken.pop(token, None)
            self._see_committed(inode, reply)

    async def bytes_changed(self, ino: int, mtime_ns: int, file_id: int, bits: int = 0) -> None:
        """Bytes changed at the targets in another way than by WRITE. bits: those of file_id's
        objects that are durable; the file may have others by now."""
        inode = self._inodes.opened(ino)
        flags = COMMIT_MTIME | (COMMIT_SYNCED if bits else 0)
        request = Commit(ino, file_id, flags, 0, mtime_ns, bits, False)
        self._see_committed(inode, await self._meta.call(Op.COMMIT, request, Committed))

    def _take(self, inode: OpenInode | None) -> tuple[int, Written]:
        row = self._lanes.inodes.take(inode.ino) if inode and inode.is_writable else None
        written = written_of(row)
        if inode is None or written is None or written.flags & WRITTEN_CUT:
            return 0, Written(0, 0, 0)
        self._take_count += 1
        inode.taken[self._take_count] = written
        self._lanes.names.attributes_drop(inode.ino)  # lanes know nothing newer any more
        return self._take_count, written

    def _give_back(
        self,
        inode: OpenInode | None,
        token: int,
        written: Written,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        """Commits by a request of its own what was taken."""
        if inode is None or not token:
            return
        size, mtime_ns, flags = written
        request = Commit(inode.ino, inode.file_id, flags, size, mtime_ns, 0, False)

        def deliver(error: FsError | None, body: bytes) -> None:
            inode.taken.pop(token, None)
            if error is None:
                self._see_committed(inode, decode(Committed, body))
            else:
                self._log(f"size and time of inode {inode.ino} could not be committed: {error}")
            told()

        self._meta.post(Op.COMMIT, request, deliver, urgent=True)

    # ---- leases -------------------------------------------------------------------------------

    async def ask(self, ino: int, end: int = 0) -> None:
        """An ASK event: lanes want a lease on the bytes of ino with its present state, or a larger
        size limit, up to `end`. An OPEN brings all that the inode's handles may need."""
        errno_of_answer = 0
        self._inodes.catch_up()  # the file may be new, with a share of its tree's limit
        inode = self._inodes.hold(ino)
        await self._leases.leaving.wait(ino)
        self._leases.asks(ino)
        try:
            is_limited = inode.size_limit is not None and inode.size_limit >= 0
            if is_limited:
                await self.report_size(ino)  # new bytes are charged before the limit rises
            wanted = end if is_limited else 0
            # A reader asks if it has no lease, a writer may also ask with one.
            moves = not self._leases.is_on or self._leases.holds(ino, LEASE_DATA_EXCLUSIVE)
            opened = await self._open(inode, inode.is_writable, wanted, moves=moves)
            self._register(inode, opened)
            if inode.is_writable and not self._leases.holds(ino, LEASE_DATA_EXCLUSIVE):
                await trio.sleep(ASK_AGAIN_S)  # writers have to ask again
        except FsError as error:
            errno_of_answer = error.errno
            self._log(f"no lease on inode {ino}: {error}")
        finally:
            self._inodes.release(ino)
            self._lanes.inodes.asked(ino, errno_of_answer)
            self._leases.used(ino)

    async def before_write(self, ino: int) -> None:
        """The kernel is about to write to a file that this client has open for writing: gets the
        lease that lanes will need now, and with it the attributes that the kernel reads before."""
        inode = self._inodes.get(ino)
        if inode is None or not inode.is_writable or not self._leases.is_on:
            return
        await self._leases.leaving.wait(ino)
        if not self._leases.holds(ino, LEASE_DATA_EXCLUSIVE):
            self._register(inode, await self._open(inode, True))

    async def wait_for_bytes(self, ino: int) -> None:
        """Waits until what other clients have written to ino is at the targets."""
        inode = self._inodes.get(ino)
        if inode is not None and self._leases.is_on and not self._leases.holds(ino, LEASE_DATA):
            self._register(inode, await self._open(inode, inode.is_writable))

    @asynccontextmanager
    async def readable(self, ino: int) -> AsyncIterator[None]:
        """In this block lanes know the inode, and what other clients have written is at the
        targets; also of a file that lanes opened by themselves."""
        self._inodes.catch_up()
        self._inodes.single(ino)
        is_open = self._inodes.get(ino) is not None
        inode = self._inodes.hold(ino)
        try:
            if not is_open or not self._leases.is_on or not self._leases.holds(ino, LEASE_DATA):
                self._register(inode, await self._open(inode, inode.is_writable))
            yield
        finally:
            self._inodes.release(ino)

    @asynccontextmanager
    async def owned(self, ino: int) -> AsyncIterator[None]:
        """In this block nobody else reads or writes the bytes of ino."""
        inode = self._inodes.get(ino)
        if inode is None or not self._leases.is_on:
            yield
            return
        for _ in range(OWN_LEASE_REQUESTS_MAX):
            await self._leases.leaving.wait(ino)
            if self._leases.holds(ino, LEASE_DATA_EXCLUSIVE) and not inode.is_inline:
                break
            self._register(inode, await self._open(inode, True, moves=True))
            if self._leases.holds(ino, LEASE_DATA_EXCLUSIVE):
                break
            await trio.sleep(ASK_AGAIN_S)
        else:
            raise FsError(Status.EIO, f"no exclusive lease on inode {ino}")
        with self._leases.using.on(ino):
            async with self.cuts.reported(ino):
                yield

    async def drain(self, ino: int) -> None:
        """Sends what was written to the targets, and size and time to the metaserver."""
        if self._inodes.get(ino) is not None:
            await self.drains.drain(ino, sync=False, commit=True)

    async def report_size(self, ino: int) -> None:
        """Commits size and time of what was written, before the bytes are sent."""
        async with self.cuts.reported(ino):
            inode = self._inodes.get(ino)
            token, written = self._take(inode)
            if token:
                answered = trio.Event()
                self._give_back(inode, token, written, answered.set)
                await answered.wait()

    def lose(self) -> None:
        """The session was evicted: what was written and not committed is lost (rule 15)."""
        for ino in self._inodes.held():
            inode = self._inodes.get(ino)
            if inode is not None:
                inode.taken.clear()
                inode.attributes = None
        self.replicas.lose()
        tell_losses(self._lanes.inodes.all_lost(), self._log)

    # ---- commits of the lanes -----------------------------------------------------------------

    def commit(self, token: int, ino: int, size: int, mtime_ns: int, payload: bytes) -> None:
        """A COMMIT event, answered with commit_done. The request is urgent: only this client knows
        the state, and the return of the lease must not overtake it. New files may have bytes."""
        event = unpack_commit(payload)
        inline, written = event.inline, Written(size, mtime_ns, event.flags)
        if not event.is_durable and (born := self.delegated_changes.written(ino, written, inline)):
            self._see_written(born)
            if inline and (inode := self._inodes.get(ino)):
                inode.is_inline = True
            return self._lanes.io.commit_done(token, 0, born)
        if inline:
            return self._lanes.io.commit_done(token, int(Status.ESTALE), b"")
        request = event.request(ino, size, mtime_ns)
        inode = self._inodes.get(ino)
        key = -token - 1  # differs from all tokens of setattr
        if inode is not None:
            inode.taken[key] = written

        def deliver(error: FsError | None, body: bytes) -> None:
            if inode is not None:
                inode.taken.pop(key, None)
            self._committed(token, ino, error, body)

        self._meta.post(Op.COMMIT, request, deliver, urgent=True)

    def _committed(self, token: int, ino: int, error: FsError | None, body: bytes) -> None:
        if error is not None:
            self._log(f"commit of inode {ino} failed: {error}")
            self._lanes.io.commit_done(token, int(error.status), b"")
            return
        reply = decode(Committed, body)
        self._see_committed(self._inodes.get(ino), reply)
        self._lanes.io.commit_done(token, 0, reply.attributes)

    def _wrote_inline(self, inode: OpenInode, reply: Opened) -> None:
        self._register(inode, reply)
        self._see_written(reply.attributes)

    def _see_committed(self, inode: OpenInode | None, reply: Committed) -> None:
        if inode is not None:
            self._inodes.limit(inode, reply.size_limit)
        self._see_written(reply.attributes)

    def _see_written(self, record: bytes) -> None:
        self._inodes.changed()
        self._inodes.wrote_pages(unpack_attributes(record))
        self._inodes.see_record(record)
        if (inode := self._inodes.get(ino_of(record))) is not None:
            inode.wrote = True
