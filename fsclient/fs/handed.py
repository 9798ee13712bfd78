"""What a client process hands to the next one about open files, packed and restored.

The next process knows nothing else. It opens the files again at the metaserver, which still has
them open for the session, under the handles that the kernel has. Leases that the session holds
count as held, so that what the kernel caches under them is invalidated when they are recalled or
end; names are looked up again as needed. Pure but for restore().
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import trio

from fscommon.errors import FsError
from fscommon.native_ports import BackingRow, HandleRow
from fscommon.tasks import open_tasks
from fscommon.wire.locks import HeldLock, LockRestore

from .delegated_changes import FIRST_HANDLE
from .filesystem import FileSystem

RESTORES_AT_ONCE_MAX = 64


@dataclass(frozen=True, slots=True)
class HandedHandle:
    fh: int
    ino: int
    open_flags: int
    direct: bool


@dataclass(frozen=True, slots=True)
class HandedLock:
    """A lock. fh: the handle by which it was last taken."""

    lock: HeldLock
    fh: int


class HandedBacking(NamedTuple):
    """A file that the kernel reads by itself: its number there, and the stamp of its bytes."""

    ino: int
    id: int
    stamp: int


@dataclass(frozen=True, slots=True)
class HandedFiles:
    """directories: handle and inode. leases: inode and bits. departed: inodes without a name and
    their attribute records. ticket: the last one that was given to a lock. backings:
    files that the kernel reads by itself."""

    handles: tuple[HandedHandle, ...]
    directories: tuple[tuple[int, int], ...]
    leases: tuple[tuple[int, int], ...]
    locks: tuple[HandedLock, ...]
    departed: tuple[tuple[int, bytes], ...]
    ticket: int
    backings: tuple[HandedBacking, ...] = ()

    @classmethod
    def of(
        cls, files: FileSystem, handles: list[HandleRow], backings: list[BackingRow]
    ) -> "HandedFiles":
        return cls(
            handles=tuple(
                HandedHandle(row.fh, row.ino, row.open_flags, row.direct) for row in handles
            ),
            directories=files.directories.handles(),
            leases=files.leases.table.rows(),
            locks=tuple(HandedLock(lock, fh) for lock, fh in files.locks.rows()),
            departed=files.inodes.departed_rows(),
            ticket=files.locks.ticket,
            backings=tuple(HandedBacking(row.ino, row.id, row.stamp) for row in backings),
        )

    @classmethod
    def read(cls, raw: dict[str, Any]) -> "HandedFiles":
        return cls(
            handles=tuple(HandedHandle(**row) for row in raw["handles"]),
            directories=tuple((fh, ino) for fh, ino in raw["directories"]),
            leases=tuple((ino, bits) for ino, bits in raw["leases"]),
            locks=tuple(HandedLock(HeldLock(**r["lock"]), r["fh"]) for r in raw["locks"]),
            departed=tuple((ino, bytes.fromhex(record)) for ino, record in raw["departed"]),
            ticket=raw["ticket"],
            backings=tuple(HandedBacking(*row) for row in raw.get("backings", ())),
        )

    def opens(self) -> tuple[int, ...]:
        return tuple({handle.ino for handle in self.handles})

    def lock_bodies(self) -> list[LockRestore]:
        return [LockRestore(tuple(held.lock for held in self.locks))] if self.locks else []

    def first_handle(self) -> int:
        """The first free handle of those that Python gives."""
        own = [handle.fh for handle in self.handles if handle.fh < FIRST_HANDLE]
        return 1 + max([0, *own, *(fh for fh, _ in self.directories)])

    async def restore(self, files: FileSystem) -> list[int]:
        """Called before the lanes run. Returns the inodes that could not be opened again: their
        handles are bad from now on."""
        for ino, bits in self.leases:
            files.leases.table.single(ino, bits)
        for ino, record in self.departed:
            files.inodes.departed_record(ino, record)
        for fh, ino in self.directories:
            files.directories.open(fh, ino)
        by_inode: dict[int, list[HandedHandle]] = defaultdict(list)
        for handle in self.handles:
            by_inode[handle.ino].append(handle)
        lost: list[int] = []
        limit = trio.CapacityLimiter(RESTORES_AT_ONCE_MAX)

        async def restore_one(ino: int, handles: list[HandedHandle]) -> None:
            async with limit:
                try:
                    await files.files.restore(
                        ino, [(h.fh, h.open_flags, h.direct) for h in handles]
                    )
                    _see_names(files, ino)
                except FsError:
                    lost.append(ino)

        async with open_tasks() as tasks:
            for ino, handles in by_inode.items():
                tasks.start_soon(restore_one, ino, handles)
        for held in self.locks:
            files.locks.take_back(held.lock, held.fh)
        files.locks.ticket = self.ticket
        return lost


def _see_names(files: FileSystem, ino: int) -> None:
    """Finds files without a name: a killed process could not report them."""
    inode = files.inodes.get(ino)
    if inode is not None and inode.attributes is not None and not inode.attributes.nlink:
        files.inodes.departed(inode.attributes)
