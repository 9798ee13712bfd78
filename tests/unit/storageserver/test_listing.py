"""The listing of a target's objects: in pages, for whoever has the cluster key."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import session_secret
from fscommon.errors import AuthenticationError, FsError, ProtocolError, TransportError
from fscommon.net.address import parse_address
from fscommon.rpc.caller import open_caller
from fscommon.wire.messages import Empty
from fscommon.wire.objects import END_UNKNOWN, OBJECTS_MAX, ObjectList, ObjectListing, ObjectRow
from fscommon.wire.ops import Op
from storageserver.listing import end_of, list_directory

from .fakes import World, make_world

HOUR_S = 3600
MIB = 1 << 20


def put(directory: Path, name: str, content: bytes = b"", age_s: int = 0) -> None:
    path = directory / name
    path.write_bytes(content)
    then_s = time.time() - age_s
    os.utime(path, (then_s, then_s))


def test_names_that_are_objects(tmp_path: Path) -> None:
    put(tmp_path, "00000000000000ff.0", b"x" * 5000, HOUR_S)
    put(tmp_path, "ffffffffffffffff.ffffffff")
    put(tmp_path, "00000000000000ff.1a")
    for name in ("ff.0", "00000000000000FF.0", "00000000000000ff.", "00000000000000ff.00", ".tmp"):
        put(tmp_path, name)
    put(tmp_path, "00000000000000ff.fffffffff")  # it has more than 32 bits
    found = list_directory(tmp_path, "")
    assert found.after == ""
    assert [(row.file_id, row.stripe_index) for row in found.rows] == [
        (255, 0),
        (255, 0x1A),
        ((1 << 64) - 1, (1 << 32) - 1),
    ]
    assert found.rows[0].bytes >= 5000 and HOUR_S <= found.rows[0].age_s < HOUR_S + 60


@pytest.mark.parametrize(
    ("length", "end"),
    [
        (0, 0),
        (4096, 0),  # a page of records, and no block
        (4096 + 8192, 8192),
        (4096 + MIB, MIB),
        (8192 + MIB, MIB),
        (8192 + MIB + 5, MIB + 5),
        (3 * (4096 + MIB) - 1, 3 * MIB - 1),
        ((1 << 43) + 1, END_UNKNOWN),
    ],
)
def test_what_a_file_can_hold(length: int, end: int) -> None:
    assert end_of(length) == end


def test_pages(tmp_path: Path) -> None:
    count = OBJECTS_MAX + 700
    for number in range(count):
        (tmp_path / f"{number:016x}.0").touch()
    first = list_directory(tmp_path, "")
    assert len(first.rows) == OBJECTS_MAX and first.after == f"{OBJECTS_MAX - 1:016x}.0"
    (tmp_path / first.after).unlink()  # where one goes on need not be there any more
    second = list_directory(tmp_path, first.after)
    assert second.after == ""
    assert [row.file_id for row in (*first.rows, *second.rows)] == list(range(count))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with make_world(tmp_path, tcp=True) as made:
        yield made


async def ask(world: World, op: Op, message: object, purpose: str = "admin") -> ObjectListing:
    address = parse_address(world.metaserver.registrations[-1].address)
    hello = HelloFields(purpose, "fsck")
    key = world.metaserver.key
    async with open_caller(address, key=key, hello=hello, timeout_s=10) as caller:
        listing: ObjectListing = await caller.call(op, message, 10)
        return listing


def make_objects(world: World) -> None:
    for target in ("t1", "t2"):
        directory = world.path / target / "objects" / "0a"
        directory.mkdir(parents=True)
        put(directory, f"000000000000000{target[1]}.3", age_s=HOUR_S)


@pytest.mark.trio
async def test_an_administrator_is_answered(world: World) -> None:
    async with world.running():
        await world.metaserver.wait_heartbeats(1)
        make_objects(world)
        ids = [target.target for target in world.native.targets]
        for number, target in enumerate(ids, 1):
            (row,) = (await ask(world, Op.OBJECT_LIST, ObjectList(target, 10, ""))).rows
            assert (row.file_id, row.stripe_index) == (number, 3)
            assert isinstance(row, ObjectRow) and row.age_s >= HOUR_S
        with pytest.raises(FsError, match="no target 99 here"):
            await ask(world, Op.OBJECT_LIST, ObjectList(99, 10, ""))
        with pytest.raises(FsError, match="256 directories"):
            await ask(world, Op.OBJECT_LIST, ObjectList(ids[0], 256, ""))
        with pytest.raises(FsError, match="0b"):
            await ask(world, Op.OBJECT_LIST, ObjectList(ids[0], 11, ""))


@pytest.mark.trio
async def test_nothing_else_is_answered_there(world: World) -> None:
    async with world.running():
        await world.metaserver.wait_heartbeats(1)
        for op in (Op.STATUS, Op.DELETE, Op.FENCE):
            with pytest.raises((TransportError, ProtocolError)):
                await ask(world, op, Empty())
        assert world.native.adopted == [], "native code never sees such a connection"


@pytest.mark.trio
async def test_a_client_with_a_key_of_its_own_is_no_administrator(world: World) -> None:
    world.metaserver.sessions = [7]
    async with world.running():
        await world.metaserver.wait_heartbeats(1)
        address = parse_address(world.metaserver.registrations[-1].address)
        hello = HelloFields("admin", "client", session=7, key=5)
        with pytest.raises(AuthenticationError):
            async with open_caller(
                address, key=session_secret(b"K" * 32, 7), hello=hello, timeout_s=10
            ):
                pass
