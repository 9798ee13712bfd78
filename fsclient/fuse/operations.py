"""pyfuse3's handlers, each mapped to one call of fsclient.fs.

Inode 1 of the kernel is the mounted directory, whatever its number in the file system. The pid of a
request is the native upcall slot (rule 4): native returns the true pid and the unique id for it. A
handler is cancelled when its caller is interrupted. Only FUSEError leaves a handler: a FsError
becomes its errno, an interruption EINTR, and anything unexpected is a bug, which is logged with its
traceback and answered EIO, but never ends the mount. Touched by the trio thread only.

READ, WRITE, FLUSH, FSYNC and RELEASE never come here; they stay in the native lanes.
"""

import errno
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyfuse3
import trio

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import INODE_IMMUTABLE, Attributes
from fscommon.limits import NAME_LENGTH_MAX
from fscommon.native_ports import IoPort
from fscommon.observe.log import Log

from ..fs.caller import Requester
from ..fs.changes import Change, loses_set_ids
from ..fs.directories import Listed, Unleased
from ..fs.filesystem import FileSystem
from ..fs.namespace import Found, Namespace
from ..fs.open_flags import OpenedFile
from .attributes import absent_entry, change_of, entry_attributes, statvfs
from .structures import DirectoryBody, EntryOut, ReadIn

T = TypeVar("T")
Observe = Callable[[str, float, bool], None]  # handler, seconds, failed by a bug

SEALED_S = 24 * 3600.0  # as kSealedLife in native/src/names/attribute_table.h

_NOT_ANSWERED = frozenset(
    {
        Status.ETIMEDOUT,
        Status.ABORTED,
        Status.DISCONNECTED,
        Status.NOT_READY,
        Status.BUSY,
        Status.UNKNOWN_SESSION,
        Status.FENCED,
    }
)
_KERNEL_ROOT = 1
_UPCALL_KILL_SUIDGID = 1
_UPCALL_SETS_TIMES = 8
_INTERRUPTS_EARLY_MAX = 4096


class Operations(pyfuse3.Operations):
    supports_dot_lookup = True
    enable_writeback_cache = False
    enable_acl = True

    def __init__(
        self,
        files: FileSystem,
        upcalls: IoPort,
        root_ino: int,
        attr_s: float,
        *,
        sealed: bool = False,
    ) -> None:
        """attr_s: how long the kernel may cache attributes without leases. sealed: it may cache
        immutable inodes for SEALED_S."""
        super().__init__()
        self._fs = files
        self._names: Namespace = files.namespace
        self._upcalls = upcalls
        self._root_ino = root_ino
        self._attr_s = attr_s
        self._sealed = sealed
        self._scopes: dict[int, trio.CancelScope] = {}
        self._interrupted_early: dict[int, int] = {}
        self._log = Log("fuse")
        self.observe: Observe | None = None

    # ---- interruption -------------------------------------------------------------------------

    def interrupt(self, slot: int) -> None:
        """The caller with this slot was interrupted; its handler may not have started yet."""
        scope = self._scopes.get(slot)
        if scope is not None:
            scope.cancel()
        elif len(self._interrupted_early) < _INTERRUPTS_EARLY_MAX:
            self._interrupted_early[slot] = self._unique(slot)

    @property
    def running_count(self) -> int:
        return len(self._scopes)

    async def _serve(self, slot: int, work: Coroutine[Any, Any, T]) -> T:
        """Runs one handler: it can be interrupted, and any failure becomes an errno. It knows what
        lanes have answered before."""
        self._fs.inodes.catch_up()
        began = time.perf_counter()
        failed = False
        scope = trio.CancelScope()
        self._scopes[slot] = scope
        if self._interrupted_early and self._was_interrupted(slot):
            scope.cancel()
        try:
            with scope:
                return await work
        except FsError as error:
            raise pyfuse3.FUSEError(error.errno) from None
        except pyfuse3.FUSEError:
            raise
        except Exception:
            failed = True
            self._log.exception("a handler failed; its caller gets EIO", handler=_name(work))
            raise pyfuse3.FUSEError(errno.EIO) from None
        finally:
            if self._scopes.get(slot) is scope:
                del self._scopes[slot]
            if self.observe is not None:
                self.observe(_name(work), time.perf_counter() - began, failed)
        raise pyfuse3.FUSEError(errno.EINTR)

    async def _serve_slotless(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a handler to which pyfuse3 gives no context, so that it cannot be interrupted."""
        return await self._serve(-id(work), work)

    def _was_interrupted(self, slot: int) -> bool:
        unique = self._interrupted_early.pop(slot, None)
        return unique is not None and unique == self._unique(slot)

    def _unique(self, slot: int) -> int:
        try:
            return self._upcalls.upcall(slot).unique
        except ValueError:
            return 0

    # ---- for calls that pyfuse3 does not know (calls.py) ---------------------------------------

    async def serve(self, slot: int, work: Coroutine[Any, Any, T]) -> T:
        """Runs the handler of a call; raises FUSEError only."""
        return await self._serve(slot, work)

    def ino_of(self, kernel_ino: int) -> int:
        return self._ino(kernel_ino)

    def kernel_ino_of(self, ino: int) -> int:
        return self._kernel_ino(ino)

    def attributes_s(self, attributes: Attributes) -> float:
        """How long the kernel may cache the attributes."""
        seconds = self._fs.leases.attributes_s(attributes, self._attr_s)
        stays = seconds and self._sealed and attributes.flags & INODE_IMMUTABLE
        return SEALED_S if stays else seconds

    def pid_of(self, slot: int) -> int:
        return self._upcalls.upcall(slot).pid

    # ---- translation --------------------------------------------------------------------------

    def _ino(self, kernel_ino: int) -> int:
        return self._root_ino if kernel_ino == _KERNEL_ROOT else kernel_ino

    def _kernel_ino(self, ino: int) -> int:
        return _KERNEL_ROOT if ino == self._root_ino else ino

    def _entry(self, attributes: Attributes, entry_s: float = 0.0) -> pyfuse3.EntryAttributes:
        attr_s = self.attributes_s(attributes)
        if self._sealed and entry_s:  # an immutable inode keeps its name, too
            entry_s = max(entry_s, attr_s)
        return entry_attributes(attributes, self._kernel_ino(attributes.ino), entry_s, attr_s)

    def _named(self, parent: int, name: bytes, attributes: Attributes) -> pyfuse3.EntryAttributes:
        """The answer for a name that was just made."""
        return self._entry(attributes, self._names.entry_s(parent, name, attributes.ino))

    def _requester(self, ctx: pyfuse3.RequestContext) -> Requester:
        slot = ctx.pid
        return Requester(ctx.uid, ctx.gid, ctx.umask, lambda: self._upcalls.upcall(slot).pid)

    def _kills_set_ids(self, ctx: pyfuse3.RequestContext) -> bool:
        return bool(self._upcalls.upcall(ctx.pid).bits & _UPCALL_KILL_SUIDGID)

    def _file(self, opened: OpenedFile) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=opened.fh, keep_cache=opened.keep_pages, direct_io=opened.direct)

    # ---- names --------------------------------------------------------------------------------

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if parent_inode == _KERNEL_ROOT and name == b"..":
            name = b"."  # nothing above the mounted directory is visible
        found = await self._serve(ctx.pid, self._lookup(self._ino(parent_inode), name))
        if found.attributes is None:
            return absent_entry(found.entry_s)
        return self._entry(found.attributes, found.entry_s)

    async def _lookup(self, parent: int, name: bytes) -> Found:
        """Looks a name up. The error is ENOMEM if nobody could say what the name is: for any other
        error but EINTR Linux drops a name that it looks up again, with all that is mounted below
        it."""
        try:
            return await self._names.lookup(parent, name)
        except FsError as error:
            if error.status in _NOT_ANSWERED:
                raise FsError(Status.ENOMEM, f"lookup: {error}") from None
            raise

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self._fs.inodes.catch_up()
        for kernel_ino, _count in inode_list:
            self._fs.inodes.forget(self._ino(kernel_ino))

    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent = self._ino(parent_inode)
        work = self._names.mknod(parent, name, mode, rdev, self._requester(ctx))
        return self._named(parent, name, await self._serve(ctx.pid, work))

    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent = self._ino(parent_inode)
        work = self._names.mkdir(parent, name, mode, self._requester(ctx))
        return self._named(parent, name, await self._serve(ctx.pid, work))

    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent = self._ino(parent_inode)
        work = self._names.symlink(parent, name, target, self._requester(ctx))
        return self._named(parent, name, await self._serve(ctx.pid, work))

    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent = self._ino(new_parent_inode)
        work = self._names.link(self._ino(inode), parent, new_name)
        return self._named(parent, new_name, await self._serve(ctx.pid, work))

    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._serve(ctx.pid, self._names.unlink(self._ino(parent_inode), name))

    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._serve(ctx.pid, self._names.rmdir(self._ino(parent_inode), name))

    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        old, new = self._ino(parent_inode_old), self._ino(parent_inode_new)
        await self._serve(ctx.pid, self._names.rename(old, name_old, new, name_new, flags))

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._serve(ctx.pid, self._names.readlink(inode))

    # ---- attributes ---------------------------------------------------------------------------

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._entry(await self._serve(ctx.pid, self._names.getattr(self._ino(inode))))

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        bits, requester = self._upcalls.upcall(ctx.pid).bits, self._requester(ctx)
        change = change_of(
            attr,
            fields,
            requester,
            kill_set_ids=bool(bits & _UPCALL_KILL_SUIDGID),
            times_given=bool(bits & _UPCALL_SETS_TIMES),
        )
        work = self._set(self._ino(inode), change, requester)
        return self._entry(await self._serve(ctx.pid, work))

    async def _set(self, ino: int, change: Change, requester: Requester) -> Attributes:
        """Sets attributes. A member of the file's former group may keep a set-group-ID bit."""
        if change.only_kills and not requester.is_user(0):
            await self._check_may_kill(ino, requester)
        if change.kill_set_ids and change.gid is not None and not requester.is_user(0):
            group = (await self._names.getattr(ino)).gid
            change = replace(change, in_group=lambda _gid: requester.in_group(group))
        return await self._fs.files.setattr(ino, change)

    async def _check_may_kill(self, ino: int, requester: Requester) -> None:
        """Raises EPERM for a chown(-1, -1) by another user than the owner, as on local disks. The
        kernel sends the same request before a buffered write, but then the file is open for
        writing."""
        attributes = await self._names.getattr(ino)
        if requester.is_user(attributes.uid) or self._fs.files.may_be_written(ino):
            return
        if loses_set_ids(attributes, requester.in_group):
            raise FsError(Status.EPERM, "only the owner, or a write, clears set-ID bits")

    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._serve(ctx.pid, self._names.getxattr(self._ino(inode), name))

    async def setxattr(
        self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext
    ) -> None:
        """pyfuse3 has checked XATTR_CREATE and XATTR_REPLACE by getxattr."""
        work = self._names.setxattr(self._ino(inode), name, value, self._requester(ctx))
        await self._serve(ctx.pid, work)

    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        """Only root sees trusted.*: the kernel filters getxattr, but not the list."""
        names = await self._serve(ctx.pid, self._names.listxattr(self._ino(inode)))
        is_roots = self._requester(ctx).is_user(0)
        return names if is_roots else [n for n in names if not n.startswith(b"trusted.")]

    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self._serve(ctx.pid, self._names.removexattr(self._ino(inode), name))

    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        """The kernel checks permissions itself (default_permissions)."""
        return True

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        ino = self._ino(self._upcalls.upcall(ctx.pid).nodeid)  # pyfuse3 does not pass it
        reply = await self._serve(ctx.pid, self._names.statfs(ino))
        return statvfs(reply, NAME_LENGTH_MAX)

    # ---- files --------------------------------------------------------------------------------

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        kill = self._kills_set_ids(ctx)
        work = self._fs.files.open(self._ino(inode), flags, kill_set_ids=kill)
        return self._file(await self._serve(ctx.pid, work))

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        if len(name) > NAME_LENGTH_MAX:
            raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
        parent = self._ino(parent_inode)
        kill = self._kills_set_ids(ctx)
        work = self._fs.files.create(
            parent, name, mode, flags, self._requester(ctx), kill_set_ids=kill
        )
        opened = await self._serve(ctx.pid, work)
        return self._file(opened), self._named(parent, name, opened.attributes)

    # ---- directories --------------------------------------------------------------------------

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        fh = self._fs.next_handle()
        self._fs.directories.open(fh, self._ino(inode))
        return fh

    async def releasedir(self, fh: int) -> None:
        self._fs.directories.release(fh)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._serve_slotless(self._fs.directories.sync(fh))

    async def list_directory(self, request: ReadIn) -> bytes:
        """READDIRPLUS that lanes could not answer: by what they know now, else entry by entry."""
        directories = self._fs.directories
        fh, offset = request.fh, request.offset
        parent = directories.ino_of(fh)
        dots = await directories.dots(fh, offset)
        page = await directories.page(fh, offset)
        told = directories.told(fh, offset, request.size)
        if told is not None:
            return told
        body = DirectoryBody(request.size)
        if not all(self._add(body, parent, dot) for dot in dots):
            return body.octets
        count = 0
        for listed in page:
            if not self._add(body, parent, listed):
                directories.taken(fh, count, was_full=True)
                return body.octets
            count += 1
        directories.taken(fh, count, was_full=False)
        return body.octets

    def _add(self, body: DirectoryBody, parent: int, listed: Listed | Unleased) -> bool:
        if isinstance(listed, Unleased):
            entry_s = self._names.entry_s(parent, listed.name, listed.inode.ino)
            entry = EntryOut(listed.inode, listed.inode.ino, entry_s, 0.0)
            return body.add(listed.name, listed.cookie, entry)
        attributes = listed.attributes
        entry_s = attr_s = 0.0
        if not listed.is_stale:
            attr_s = self.attributes_s(attributes)
            if listed.is_named:
                entry_s = self._names.entry_s(parent, listed.name, attributes.ino)
        entry = EntryOut(attributes, self._kernel_ino(attributes.ino), entry_s, attr_s)
        return body.add(listed.name, listed.cookie, entry)


def _name(work: object) -> str:
    """The name of a coroutine's operation."""
    return str(getattr(work, "__name__", "unknown")).removeprefix("_")
