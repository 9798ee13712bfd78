"""OBJECT_COPY between two storage servers: objects of many MiB with holes, while the source is
read, with the copying server killed in the middle.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fscommon.errors import FsError, Status, TransportError
from fscommon.limits import STRIPE_WIDTH_MAX
from fscommon.rpc.blocks import BlockCaller, piece_of
from fscommon.rpc.caller import Caller
from fscommon.rpc.data import DataCaller
from fscommon.tasks import open_tasks
from fscommon.wire.objects import ObjectCopied, ObjectCopy
from fscommon.wire.ops import Op
from storageserver.sources import CONNECT_S
from tests.cluster.cluster import Cluster
from tests.cluster.objects import (
    EPOCH,
    FILE,
    MIB,
    PATIENCE_S,
    SETTINGS,
    Nodes,
    Source,
    WritingCaller,
    nodes_of,
    read_all,
    two_servers,
)
from tests.cluster.plan import Settings
from tests.unit.waiting import eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.trio]


@pytest.fixture
def settings() -> Settings:
    return SETTINGS


@pytest.fixture
def servers(localdir: Path, settings: Settings) -> Iterator[Cluster]:
    with two_servers(localdir / "state", settings) as cluster:
        yield cluster


@pytest.fixture
async def nodes(servers: Cluster) -> Nodes:
    return await nodes_of(servers)


async def extents_of(caller: Caller, target: int, number: int) -> list[tuple[int, int]]:
    blocks = BlockCaller(caller, target, FILE, number, timeout_s=PATIENCE_S)
    found: list[tuple[int, int]] = []
    at: int | None = 0
    while at is not None and (begin := await blocks.seek(at, hole=False, epoch=EPOCH)) is not None:
        at = await blocks.seek(begin, hole=True, epoch=EPOCH)
        found.append((begin, at or 0))
    return found


async def check_copy(nodes: Nodes, source: Source, number: int) -> None:
    async with nodes.calling(nodes.source) as old, nodes.calling(nodes.sink) as new:
        assert await read_all(new, nodes.sink_target, number, source.length) == source.image()
        holes = await extents_of(old, nodes.source_target, nodes.number(0))
        assert await extents_of(new, nodes.sink_target, number) == holes
        stat = await DataCaller(new).stat(nodes.sink_target, FILE, number, timeout_s=30)
        assert (stat.length, stat.truncate_epoch) == (source.length, EPOCH)


@pytest.mark.parametrize("length", [40 * MIB + 1000, 5000, 4096])
async def test_a_copy_has_the_bytes_and_the_holes(nodes: Nodes, length: int) -> None:
    source = Source(1, length)
    async with nodes.calling(nodes.source) as caller, open_tasks() as tasks:
        await source.write(caller, nodes.source_target, nodes.number(0))
        image = source.image()

        async def read_on() -> None:
            while True:
                target = nodes.source_target
                assert await read_all(caller, target, nodes.number(0), length) == image

        tasks.start_soon(read_on)
        copied = await nodes.copy(nodes.request(1))
        tasks.cancel_scope.cancel()
    assert copied == ObjectCopied(1, 1, source.count())
    await check_copy(nodes, source, nodes.number(1))
    nodes.program.kill()
    nodes.program.start()
    await check_copy(nodes, source, nodes.number(1))


@pytest.mark.expects_warnings
async def test_a_copier_that_is_killed_repeats(nodes: Nodes) -> None:
    source = Source(2, 96 * MIB)
    async with nodes.calling(nodes.source) as caller:
        await source.write(caller, nodes.source_target, nodes.number(0))
    for _ in range(3):
        async with open_tasks() as tasks:

            async def be_killed() -> None:
                with pytest.raises(TransportError):
                    await nodes.copy(nodes.request(1))

            tasks.start_soon(be_killed)
            await eventually(lambda: object_bytes(nodes, nodes.number(1)) > 8 * MIB)
            nodes.program.kill()
        nodes.program.start()
    assert (await nodes.copy(nodes.request(1))).bytes == source.count()
    await check_copy(nodes, source, nodes.number(1))
    assert (await nodes.copy(nodes.request(1))).bytes == source.count(), "again"
    await check_copy(nodes, source, nodes.number(1))


def object_bytes(nodes: Nodes, number: int) -> int:
    """Bytes that the object's file has on the disk of the copying server."""
    name = f"{FILE:016x}.{number:x}"
    return sum(one.stat().st_blocks * 512 for one in nodes.folder.glob(f"*/objects/*/{name}"))


@pytest.mark.expects_warnings
async def test_a_copy_ends_with_the_connection_that_asked(nodes: Nodes) -> None:
    source = Source(3, 64 * MIB)
    async with nodes.calling(nodes.source) as caller:
        await source.write(caller, nodes.source_target, nodes.number(0))
    for _ in range(5):
        with trio.move_on_after(PATIENCE_S):
            async with nodes.calling(nodes.sink, "admin") as caller, open_tasks() as tasks:
                tasks.start_soon(caller.call, Op.OBJECT_COPY, nodes.request(1), PATIENCE_S)
                await eventually(lambda: object_bytes(nodes, nodes.number(1)) > 0)
                tasks.cancel_scope.cancel()
    async with nodes.calling(nodes.sink) as caller:
        data = DataCaller(caller)
        stat = await data.stat(nodes.sink_target, FILE, nodes.number(1), timeout_s=30)
        assert stat.truncate_epoch == 0, "none of them came to its end"
    await nodes.copy(nodes.request(1))
    await check_copy(nodes, source, nodes.number(1))


async def refused(nodes: Nodes, request: ObjectCopy) -> FsError:
    with pytest.raises(FsError) as raised:
        await nodes.copy(request)
    return raised.value


async def test_what_cannot_be_copied(nodes: Nodes) -> None:
    source = Source(4, 3 * MIB)
    lost = replace(nodes.request(1), must_exist=True)
    assert (await refused(nodes, lost)).status is Status.NO_OBJECT
    async with nodes.calling(nodes.source) as old, nodes.calling(nodes.sink) as new:
        await source.write(old, nodes.source_target, nodes.number(0))
        assert (await refused(nodes, nodes.request(1, epoch=1))).status is (
            Status.STALE_TRUNCATE_EPOCH
        )
        data = DataCaller(new)
        await data.delete(nodes.sink_target, FILE, nodes.number(1), timeout_s=30)
        assert (await refused(nodes, nodes.request(1))).status is Status.DROPPED
        await data.drop_names(nodes.sink_target, [(FILE, nodes.number(2))], timeout_s=30)
        assert (await refused(nodes, nodes.request(2))).status is Status.DROPPED
        number = nodes.number(3)
        await data.raise_epoch(nodes.sink_target, FILE, number, epoch=EPOCH + 1, timeout_s=30)
        assert (await refused(nodes, nodes.request(3))).status is Status.STALE_TRUNCATE_EPOCH
        await DataCaller(old).drop_names(
            nodes.source_target, [(FILE, nodes.number(0))], timeout_s=30
        )
        assert (await refused(nodes, nodes.request(4))).status is Status.DROPPED
    request = nodes.request(5)
    wrong = ObjectCopy(99, FILE, 9, EPOCH, nodes.source, nodes.source_target, 3)
    assert (await refused(nodes, wrong)).status is Status.NO_TARGET
    nobody = replace(request, source_address="127.0.0.1:1")
    assert (await refused(nodes, nobody)).status is Status.EIO
    other_stripe = replace(request, source_object=nodes.number(0, stripe=4))
    assert (await refused(nodes, other_stripe)).status is Status.EINVAL
    none = STRIPE_WIDTH_MAX
    no_stripe = replace(request, object=nodes.number(1, none), source_object=nodes.number(0, none))
    assert (await refused(nodes, no_stripe)).status is Status.EINVAL
    no_header_names_it = replace(request, source_target=1 << 32)
    assert (await refused(nodes, no_header_names_it)).status is Status.NO_TARGET


async def test_an_object_is_not_copied_to_itself(nodes: Nodes) -> None:
    """A copy empties what it finds under the new name, which would be its source."""
    source = Source(6, 2 * MIB)
    request = nodes.request(0)
    async with nodes.calling(nodes.source) as caller:
        await source.write(caller, nodes.source_target, nodes.number(0))
    own = replace(request, target=nodes.source_target)
    with pytest.raises(FsError) as raised:
        await nodes.ask(nodes.source, Op.OBJECT_COPY, own)
    assert raised.value.status is Status.EINVAL
    async with nodes.calling(nodes.source) as caller:
        there = await read_all(caller, nodes.source_target, nodes.number(0), source.length)
    assert there == source.image()


async def test_a_stranger_does_not_hold_a_copy_up(nodes: Nodes) -> None:
    """Who listens at the source's address and says nothing is left, and is told no key."""
    heard = bytearray()

    async def listen(stream: trio.SocketStream) -> None:
        while more := await stream.receive_some():
            heard.extend(more)

    async with open_tasks() as tasks:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        tasks.start_soon(trio.serve_listeners, listen, [listener])
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        with trio.fail_after(CONNECT_S + 5):
            error = await refused(nodes, replace(nodes.request(1), source_address=address))
        tasks.cancel_scope.cancel()
    assert error.status is Status.EIO and "did not authenticate" in error.message
    assert heard and nodes.key not in heard


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_copy_of_nothing_is_an_empty_object(nodes: Nodes, is_there: bool) -> None:
    """The source is missing, which is a hole, or was cut to nothing."""
    if is_there:
        async with nodes.calling(nodes.source) as caller:
            await Source(1, 0).write(caller, nodes.source_target, nodes.number(0))
    copied = await nodes.copy(nodes.request(1))
    assert (copied.bytes, copied.source_incarnation) == (0, 1)
    async with nodes.calling(nodes.sink) as caller:
        found = await DataCaller(caller).stat(
            nodes.sink_target, FILE, nodes.number(1), timeout_s=PATIENCE_S
        )
    assert (found.length, found.truncate_epoch) == (0, EPOCH)


@pytest.mark.parametrize(
    "settings", [{**SETTINGS, "storageserver-2": {"target.capacity_bytes": "100 MiB"}}]
)
@pytest.mark.expects_warnings
async def test_nothing_is_copied_to_a_target_that_is_full(nodes: Nodes) -> None:
    source = Source(5, 100 * MIB)
    async with nodes.calling(nodes.source) as old, nodes.calling(nodes.sink) as new:
        await source.write(old, nodes.source_target, nodes.number(0))
        await nodes.copy(nodes.request(1))
        error = await refused(nodes, nodes.request(2))
        assert error.status is Status.ENOSPC and "has no room" in error.message
        piece = piece_of(0, bytes(MIB))
        blocks = WritingCaller(new, nodes.sink_target, FILE + 1, 0, timeout_s=PATIENCE_S)
        data = DataCaller(new)
        await data.delete(nodes.sink_target, FILE, nodes.number(2), timeout_s=PATIENCE_S)
        for at in range(0, 100 * MIB, MIB):
            try:
                await blocks.write(replace(piece, offset=at), epoch=0)
            except FsError:
                break
        error = await refused(nodes, nodes.request(3))
        assert error.status is Status.ENOSPC and "nothing is copied to one beyond 90%" in str(error)
        await data.delete(nodes.sink_target, FILE + 1, 0, timeout_s=PATIENCE_S)
        await data.delete(nodes.sink_target, FILE, nodes.number(1), timeout_s=PATIENCE_S)
    await nodes.copy(nodes.request(3))
    await check_copy(nodes, source, nodes.number(3))
