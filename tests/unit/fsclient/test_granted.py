"""A record in a reply from before a lease is not used under the lease.

Grants are noted when a reply arrives, and tasks process their replies afterwards, in any order.
"""

import pytest
import trio

from fsclient.fs.filesystem import FileSystem
from fscommon.errors import FsError, Status
from fscommon.layout.attributes import (
    LEASE_ENTRIES,
    LEASE_META,
    LEASE_READER,
    unpack_attributes,
    with_lease,
)
from fscommon.wire.messages import Entry
from fscommon.wire.ops import Op

from .fakes import DIRECTORY, FakeLanes, FakeMetadata, make_fs, record

FILE, FOLDER = 100, 2
NAMES = LEASE_META | LEASE_ENTRIES


class World:
    """Attributes of FILE and names of FOLDER are leased."""

    def __init__(self) -> None:
        self.meta, self.lanes = FakeMetadata(), FakeLanes()
        self.fs: FileSystem = make_fs(self.meta, self.lanes, lambda _: None)
        leases = self.fs.leases
        leases.session_opened(30.0)
        leases.renewed(trio.current_time(), 0)
        leases.table.granted(FILE, LEASE_READER, 1)
        leases.table.granted(FOLDER, NAMES, 1)
        self.lanes.entries_lease(FOLDER)


async def test_attributes() -> None:
    world = World()
    inodes, leases = world.fs.inodes, world.fs.leases
    inodes.hold(FILE)
    late = record(FILE, size=1, change_version=7)
    assert leases.attributes_s(inodes.see_record(late), 1.0) == 0.0
    assert FILE not in world.lanes.believed and inodes.known(FILE) is None
    newer = with_lease(record(FILE, size=2, change_version=8), 1, LEASE_READER)
    assert leases.attributes_s(inodes.see_record(newer), 1.0) > 1.0
    assert FILE in world.lanes.believed and inodes.known(FILE) == unpack_attributes(newer)
    assert inodes.see_record(late).size == 2


@pytest.mark.parametrize("flags", [0, LEASE_META, NAMES])
async def test_names(flags: int) -> None:
    world = World()
    own = record(FOLDER, mode=DIRECTORY, lease_flags=flags)
    world.meta.answers[Op.LOOKUP] = Entry(record(FILE), own)
    found = await world.fs.namespace.lookup(FOLDER, b"name")
    assert (found.entry_s > 0) == (flags == NAMES)


async def test_absent_names() -> None:
    world = World()
    world.meta.answers[Op.LOOKUP] = FsError(Status.ENOENT)
    with pytest.raises(FsError):
        await world.fs.namespace.lookup(FOLDER, b"name")
    own = record(FOLDER, mode=DIRECTORY, lease_flags=NAMES)
    world.meta.answers[Op.LOOKUP] = FsError(Status.ENOENT, "", own)
    found = await world.fs.namespace.lookup(FOLDER, b"name")
    assert found.attributes is None and found.entry_s > 0
