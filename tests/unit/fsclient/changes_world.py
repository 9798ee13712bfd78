"""A client whose lanes create files only when the test says so; the tests of delegated changes
share it."""

import os
import struct
from dataclasses import replace

import trio
import trio.testing

from fsclient.fs.delegated_changes import FIRST_HANDLE, GATHER_S
from fscommon.layout.attributes import (
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_NAMER,
    unpack_attributes,
    with_lease,
)
from fscommon.wire.births import Changed, Delegated, Slot
from fscommon.wire.messages import SET_MODE
from fscommon.wire.ops import Op

from . import native_rows as rows
from .fakes import DIRECTORY, FakeWorld, layout, record

FOLDER = 7


class World(FakeWorld):
    def __init__(self) -> None:
        super().__init__()
        self.changes = self.fs.delegated_changes
        self.share = (0, 0)  # the files and the size limit that the metaserver gives
        self.is_full = False
        leases = self.fs.leases
        leases.session_opened(30.0)
        leases.renewed(trio.current_time(), 0)
        leases.table.granted(FOLDER, LEASE_META | LEASE_ENTRIES, 1)
        self.meta.answers[Op.DELEGATE] = self._delegate
        self.meta.answers[Op.CHANGE_BATCH] = Changed(())

    def _delegate(self, request: object) -> Delegated:
        ino = getattr(request, "ino")  # noqa: B009
        slots = tuple(Slot(100 + n, layout(100 + n), b"c") for n in range(4))
        if not ino:
            return Delegated(b"", slots)
        if self.is_full:
            return Delegated(b"", slots)
        self.fs.leases.table.granted(ino, LEASE_NAMER, 2)
        attributes = with_lease(record(ino, mode=DIRECTORY), 1, LEASE_NAMER)
        return Delegated(attributes, slots, (), (), *self.share)

    def bear(
        self,
        ino: int,
        name: bytes = b"n",
        flags: int = os.O_WRONLY,
        *,
        written: tuple[int, int, int] = (0, 0, 0),
        is_open: bool = True,
        inline: bytes = b"",
    ) -> None:
        """Lanes create a file. `written`: how often it was written, and the size and time that they
        committed with it."""
        writable = is_open and flags & os.O_ACCMODE != os.O_RDONLY
        birth = ino, FOLDER, name, 0o644, 1, 2, 3, layout(ino), writable, *written, is_open
        self.lanes.creations.append(rows.Creation(*birth, FIRST_HANDLE + ino, inline))

    def batches(self) -> list[list[int]]:
        return [[b.ino for b in batch.births] for batch in self.meta.requests(Op.CHANGE_BATCH)]


async def started(nursery: trio.Nursery) -> World:
    world = World()
    nursery.start_soon(world.changes.run)
    return world


async def delegated(world: World) -> None:
    world.changes.created(FOLDER)
    world.changes.created(FOLDER)
    await trio.testing.wait_all_tasks_blocked()
    assert world.lanes.delegated == {FOLDER}


async def gathered(world: World) -> None:
    for _ in range(100):
        await trio.sleep(GATHER_S)
        if world.meta.waiting:
            return


def set_attributes(world: World, ino: int, version: int = 7) -> None:
    """Lanes set attributes."""
    known = replace(unpack_attributes(record(ino)), mode=0o100600, change_version=version)
    world.lanes.settings = (
        *world.lanes.settings,
        rows.Setting(ino, SET_MODE, 0o600, 0, 0, 0, 0, 5, 0, known.pack()),
    )


def commit(
    world: World,
    ino: int,
    size: int,
    mtime_ns: int,
    flags: int,
    *,
    durable: int = 0,
    inline: bytes = b"",
) -> None:
    """Lanes commit what was written."""
    payload = struct.pack("<QIIQ", ino, flags, durable, 0) + inline
    world.fs.files.commit(9, ino, size, mtime_ns, payload)
