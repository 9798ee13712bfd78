"""Names: lookup, make, remove, rename, link, symbolic links, extended attributes, statfs.

Each operation is one request to the metaserver, which is atomic and idempotent. This side keeps its
tables of open inodes coherent with it. The kernel checks permissions and caches dentries. Opens are
in fsclient.fs.files, directory listings in fsclient.fs.directories. Touched by the trio thread
only.
"""

import stat
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from fscommon.errors import FsError, Status
from fscommon.layout.attributes import Attributes, names_granted
from fscommon.layout.template import LAYOUT_XATTR
from fscommon.limits import (
    NAME_LENGTH_MAX,
    SYMLINK_LENGTH_MAX,
    XATTR_NAME_LENGTH_MAX,
    XATTR_VALUE_LENGTH_MAX,
)
from fscommon.wire.messages import (
    RENAME_EXCHANGE,
    XATTR_ACCESS_ACL,
    XATTR_KILL_SGID,
    Empty,
    Entry,
    GetAttr,
    GetXattr,
    Link,
    ListXattr,
    Lookup,
    MkDir,
    MkNod,
    ReadLink,
    ReadLinkReply,
    Removed,
    RemoveXattr,
    Rename,
    Renamed,
    RmDir,
    SetXattr,
    StatFs,
    StatFsReply,
    Symlink,
    Unlink,
    XattrNames,
    XattrValue,
)
from fscommon.wire.ops import Op

from ..leases.holder import Leases
from .caller import Requester
from .complete import CompleteDirectories
from .inodes import Inodes
from .pools import Pooled
from .ports import Lanes, Metadata

XATTR_CAPABILITY = b"security.capability"


@dataclass(frozen=True, slots=True)
class Found:
    """What a name is: an inode, or None, and for how many seconds the kernel may cache that."""

    attributes: Attributes | None
    entry_s: float


class Watcher(Protocol):
    """touched: a name of a file was removed from that directory, or renamed in it. made: this
    client made that directory. xattrs_change, has_xattrs, has_layout: it changes extended
    attributes."""

    def touched(self, parent: int, /) -> None: ...
    def pool_of(self, directory: int, /) -> Pooled | None: ...
    def made(
        self, directory: int, /, *, parent: int, has_xattrs: bool, inherited: Pooled | None
    ) -> None: ...
    def xattrs_change(self, ino: int, /) -> AbstractContextManager[None]: ...
    def has_xattrs(self, ino: int, /) -> None: ...
    def has_layout(self, ino: int, /) -> None: ...


class Namespace:
    def __init__(
        self,
        meta: Metadata,
        lanes: Lanes,
        leases: Leases,
        inodes: Inodes,
        complete: CompleteDirectories,
        believe_names_s: float,
        watcher: Watcher,
    ) -> None:
        """believe_names_s: how long the kernel caches a name without leases."""
        self._meta = meta
        self._lanes = lanes
        self._leases = leases
        self._inodes = inodes
        self._complete = complete
        self._believe_names_s = believe_names_s
        self._watcher = watcher
        # Called when the kernel reads security.capability of a file: a program is about to write
        # the file.
        self.before_write: Callable[[int], Awaitable[None]] = _nothing
        # Commits written state: a write drops security.capability, and the metaserver may not know
        # it yet.
        self.tell_written: Callable[[int], Awaitable[None]] = _nothing

    # ---- finding ------------------------------------------------------------------------------

    async def lookup(self, parent: int, name: bytes) -> Found:
        _check_name(name)
        if name == b".":
            return Found(await self.getattr(parent), 0.0)
        if name == b"..":
            return Found(await self.getattr((await self.getattr(parent)).parent), 0.0)
        state = self._complete.state(parent)
        try:
            reply = await self._meta.call(Op.LOOKUP, Lookup(parent, name), Entry)
        except FsError as error:
            is_absent = error.status is Status.ENOENT and self.are_leased(parent, error.parents)
            entry_s = self._absent_s(parent, name, state) if is_absent else 0.0
            if not entry_s:
                raise
            return Found(None, entry_s)
        self._inodes.see_parents(reply.parents)
        attributes = self._see(reply)
        self._inodes.parents.note(attributes.ino, parent)
        self._inodes.catch_up()
        is_sure = self.are_leased(parent, reply.parents)
        if not is_sure or state != self._complete.state(parent):
            return Found(attributes, 0.0)
        return Found(attributes, self.entry_s(parent, name, attributes.ino))

    def are_leased(self, parent: int, parents: bytes) -> bool:
        """Whether names of parent are leased that came with these records of directories."""
        return not self._leases.is_on or names_granted(parents, parent)

    def entry_s(self, parent: int, name: bytes, ino: int) -> float:
        """How long the kernel may cache that name in parent is ino, which was just learned."""
        return self._leases.entry_s(parent, name, ino, self._believe_names_s)

    def _absent_s(self, parent: int, name: bytes, state: int) -> float:
        self._inodes.catch_up()
        if state != self._complete.state(parent):
            return 0.0
        return self._leases.entry_s(parent, name, 0, 0.0)

    async def getattr(self, ino: int) -> Attributes:
        self._inodes.catch_up()
        known = self._inodes.known(ino)
        if known is not None:
            return known
        try:
            if await self._took_turn(ino) and (known := self._inodes.known(ino)) is not None:
                return known
            reply = await self._meta.call(Op.GETATTR, GetAttr(ino), Entry)
        except FsError as error:
            departed = self._inodes.find_departed(ino)
            if departed is None or error.status not in (Status.ENOENT, Status.ESTALE):
                raise
            return departed
        return self._see(reply)

    async def _took_turn(self, ino: int) -> bool:
        """A stat needs no lease. But a program that wrote the file under this client's last lease,
        and has it open for writing, will probably read or write again: then one OPEN gets the
        lease."""
        inode = self._inodes.get(ino)
        if inode is None or not inode.takes_turns:
            return False
        await self.before_write(ino)
        return True

    async def readlink(self, ino: int) -> bytes:
        return (await self._meta.call(Op.READLINK, ReadLink(ino), ReadLinkReply)).target

    # ---- making -------------------------------------------------------------------------------

    async def mknod(
        self, parent: int, name: bytes, mode: int, rdev: int, requester: Requester
    ) -> Attributes:
        _check_name(name)
        request = MkNod(parent, name, mode, rdev, requester.for_mode(mode))
        return await self._make(Op.MKNOD, request, parent, name)

    async def mkdir(self, parent: int, name: bytes, mode: int, requester: Requester) -> Attributes:
        _check_name(name)
        request = MkDir(parent, name, mode, requester.for_mode(mode))
        asked_at = self._complete.now()
        pool = self._watcher.pool_of(parent)
        made = await self._make(Op.MKDIR, request, parent, name)
        self._complete.made(made.pack(), asked_at)
        has_xattrs = made.xattr_count > 0
        self._watcher.made(made.ino, parent=parent, has_xattrs=has_xattrs, inherited=pool)
        return made

    async def symlink(
        self, parent: int, name: bytes, target: bytes, requester: Requester
    ) -> Attributes:
        _check_name(name)
        if len(target) > SYMLINK_LENGTH_MAX:
            raise FsError(Status.ENAMETOOLONG, "the target of a symbolic link is too long")
        request = Symlink(parent, name, target, requester.plain())
        return await self._make(Op.SYMLINK, request, parent, name)

    async def link(self, ino: int, new_parent: int, new_name: bytes) -> Attributes:
        _check_name(new_name)
        linked = await self._make(Op.LINK, Link(ino, new_parent, new_name), new_parent, new_name)
        self._inodes.returned(ino)
        self._inodes.moved(linked)
        return linked

    # ---- removing and moving ------------------------------------------------------------------

    async def unlink(self, parent: int, name: bytes) -> None:
        _check_name(name)
        await self._remove(Op.UNLINK, Unlink(parent, name), parent, name)
        self._watcher.touched(parent)

    async def rmdir(self, parent: int, name: bytes) -> None:
        _check_name(name)
        await self._remove(Op.RMDIR, RmDir(parent, name), parent, name)

    async def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int
    ) -> None:
        _check_name(name)
        _check_name(new_name)
        request = Rename(parent, name, new_parent, new_name, flags)
        kept = self._complete.moving((parent, name), (new_parent, new_name), flags)
        asked_at = self._complete.now()
        reply = await self._meta.call(Op.RENAME, request, Renamed)
        moved = self._inodes.see_record(reply.attributes)
        self._parents(reply.parents, asked_at)
        replaced = self._lost_name(reply.replaced) if reply.replaced else None
        self._inodes.changed()
        for each in filter(None, (moved, replaced)):
            self._inodes.moved(each)
        if parent == new_parent and not stat.S_ISDIR(moved.mode):
            self._watcher.touched(parent)
        exchanged = replaced.ino if replaced is not None and flags & RENAME_EXCHANGE else 0
        old_s = self._leases.entry_s(parent, name, exchanged, 0.0)
        new_s = self._leases.entry_s(new_parent, new_name, moved.ino, 0.0)
        # Linux moves the dentry with its time: the lanes expire it when the rename has ended in the
        # kernel.
        if not kept and not new_s:
            self._lanes.names.expire_names(new_parent, (new_name,))
        if not kept and exchanged and not old_s:
            self._lanes.names.expire_names(parent, (name,))

    # ---- extended attributes ------------------------------------------------------------------

    async def getxattr(self, ino: int, name: bytes) -> bytes:
        _check_xattr_name(name)
        if name == XATTR_CAPABILITY and ino not in self._inodes.without_xattrs:
            await self.before_write(ino)  # the kernel reads it before it writes
            await self.tell_written(ino)
        if name != LAYOUT_XATTR and ino in self._inodes.without_xattrs:
            raise FsError(Status.ENODATA)
        return (await self._meta.call(Op.GETXATTR, GetXattr(ino, name), XattrValue)).value

    async def setxattr(self, ino: int, name: bytes, value: bytes, requester: Requester) -> None:
        _check_xattr_name(name)
        if len(value) > XATTR_VALUE_LENGTH_MAX:
            raise FsError(Status.E2BIG, "the value of an extended attribute is too large")
        flags = 0
        if name == XATTR_ACCESS_ACL and not requester.in_group((await self.getattr(ino)).gid):
            flags = XATTR_KILL_SGID
        has_any = await self._change_xattrs(ino, Op.SETXATTR, SetXattr(ino, name, value, flags))
        if has_any and name == LAYOUT_XATTR:
            self._watcher.has_layout(ino)

    async def listxattr(self, ino: int) -> tuple[bytes, ...]:
        if ino in self._inodes.without_xattrs:
            return ()
        await self.tell_written(ino)
        return (await self._meta.call(Op.LISTXATTR, ListXattr(ino), XattrNames)).names

    async def removexattr(self, ino: int, name: bytes) -> None:
        _check_xattr_name(name)
        await self._change_xattrs(ino, Op.REMOVEXATTR, RemoveXattr(ino, name))

    async def _change_xattrs(self, ino: int, op: Op, request: object) -> bool:
        """Returns whether the inode has extended attributes afterwards."""
        with self._watcher.xattrs_change(ino):
            reply = await self._meta.call(op, request, Entry)
            changed = self._changed(reply)
            if changed.xattr_count:
                self._watcher.has_xattrs(ino)
        return changed.xattr_count > 0

    # ---- the whole file system ----------------------------------------------------------------

    async def statfs(self, ino: int = 0) -> StatFsReply:
        """The free room in the quota tree of ino; 0: in the cluster."""
        return await self._meta.call(Op.STATFS, StatFs(ino), StatFsReply)

    async def barrier(self) -> None:
        """Waits until everything answered so far is durable."""
        await self._meta.call(Op.BARRIER, Empty(), Empty)

    # ---- inside -------------------------------------------------------------------------------

    def _see(self, reply: Entry) -> Attributes:
        return self._inodes.see_record(reply.attributes)

    def _changed(self, reply: Entry) -> Attributes:
        self._inodes.changed()
        return self._see(reply)

    async def _make(self, op: Op, request: object, parent: int, name: bytes) -> Attributes:
        self._complete.entering(parent, name)
        asked_at = self._complete.now()
        reply = await self._meta.call(op, request, Entry)
        self._parents(reply.parents, asked_at)
        return self._changed(reply)

    async def _remove(self, op: Op, request: object, parent: int, name: bytes) -> None:
        self._complete.entering(parent, name)
        asked_at = self._complete.now()
        reply = await self._meta.call(op, request, Removed)
        self._lost_name(reply.attributes)
        self._parents(reply.parents, asked_at)
        self._leases.entry_s(parent, name, 0, 0.0)
        self._inodes.changed()

    def _parents(self, records: bytes, asked_at: float) -> None:
        self._inodes.see_parents(records)
        self._complete.changed(records, asked_at)

    def _lost_name(self, record: bytes) -> Attributes:
        attributes = self._inodes.see_record(record)
        if attributes.nlink == 0:
            self._inodes.departed(attributes)
        return attributes


def _check_name(name: bytes) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise FsError(Status.ENAMETOOLONG)


async def _nothing(_ino: int) -> None:
    return None


def _check_xattr_name(name: bytes) -> None:
    if len(name) > XATTR_NAME_LENGTH_MAX:
        raise FsError(Status.ERANGE, "the name of an extended attribute is too long")
