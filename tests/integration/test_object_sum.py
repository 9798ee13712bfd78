"""OBJECT_SUM and OBJECT_MEND between two storage servers: what is damaged on a device is found, and
written again from another replica, while clients write.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from fscommon.errors import FsError, Status
from fscommon.limits import BLOCK_SIZE
from fscommon.rpc.blocks import piece_of
from fscommon.rpc.data import DataCaller
from fscommon.tasks import open_tasks
from fscommon.wire.objects import RANGES_MAX, ObjectMend, ObjectMended, ObjectSum, ObjectSummed
from fscommon.wire.ops import Op
from tests.cluster.cluster import Cluster
from tests.cluster.objects import (
    FILE,
    MIB,
    PATIENCE_S,
    Nodes,
    Source,
    WritingCaller,
    flip_bit,
    nodes_of,
    object_file,
    read_all,
    two_servers,
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.trio]
LENGTH = 20 * MIB + 1000


@pytest.fixture
def servers(localdir: Path) -> Iterator[Cluster]:
    with two_servers(localdir / "state") as cluster:
        yield cluster


@pytest.fixture
async def nodes(servers: Cluster) -> Nodes:
    return await nodes_of(servers)


class Pair:
    """An object that both servers have."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.number = nodes.number(0)
        self.source = Source(7, LENGTH)
        self.image = bytes(self.source.image())

    async def write(self) -> None:
        for address, target in self.places():
            async with self.nodes.calling(address) as caller:
                await self.source.write(caller, target, self.number)

    def places(self) -> list[tuple[str, int]]:
        nodes = self.nodes
        return [(nodes.source, nodes.source_target), (nodes.sink, nodes.sink_target)]

    async def sums(self) -> list[ObjectSummed]:
        return [
            await self.nodes.ask(address, Op.OBJECT_SUM, ObjectSum(target, FILE, self.number))
            for address, target in self.places()
        ]

    async def mend(
        self, place: int, offsets: tuple[int, ...], lengths: tuple[int, ...]
    ) -> ObjectMended:
        (address, target), (other, other_target) = self.places()[place], self.places()[1 - place]
        request = ObjectMend(
            target, FILE, self.number, offsets, lengths, other, other_target, self.number
        )
        mended: ObjectMended = await self.nodes.ask(address, Op.OBJECT_MEND, request)
        return mended

    def blocks(self) -> list[int]:
        """Offsets of blocks that are no holes."""
        return [
            at
            for offset, content in self.source.extents
            for at in range(offset, offset + len(content), BLOCK_SIZE)
        ]

    def flip(self, place: int, block: int, rng: random.Random) -> None:
        folder = self.nodes.target_folder(place)
        held = self.image[block : block + BLOCK_SIZE]
        path = object_file(folder, FILE, self.number)
        flip_bit(path, block + rng.randrange(BLOCK_SIZE), rng.randrange(8), held)


@pytest.fixture
async def pair(nodes: Nodes) -> Pair:
    made = Pair(nodes)
    await made.write()
    return made


@pytest.mark.expects_warnings
async def test_damage_on_both_is_found_and_mended(pair: Pair) -> None:
    rng = random.Random(1)
    whole = await pair.sums()
    assert whole[0].digest == whole[1].digest and len(whole[0].digest) == 16
    assert whole[0].length == LENGTH and whole[0].blocks_damaged == 0
    assert pair.source.count() <= whole[0].bytes <= LENGTH + BLOCK_SIZE
    flipped = sorted(rng.sample(pair.blocks(), 100))
    for index, block in enumerate(flipped):
        pair.flip(index % 2, block, rng)
    found = await pair.sums()
    for place, one in enumerate(found):
        assert one.digest == whole[0].digest, "what was written is the same"
        assert one.blocks_damaged == 50
        damaged = [
            at
            for offset, length in zip(one.offsets, one.lengths, strict=True)
            for at in range(offset, offset + length, BLOCK_SIZE)
        ]
        assert damaged == flipped[place::2]
        assert await pair.mend(place, one.offsets, one.lengths) == ObjectMended(50, (), ())
    assert await pair.sums() == whole
    for address, target in pair.places():
        async with pair.nodes.calling(address) as caller:
            assert await read_all(caller, target, pair.number, LENGTH) == pair.image


@pytest.mark.expects_warnings
async def test_what_no_replica_has_is_left(pair: Pair) -> None:
    rng = random.Random(2)
    blocks = pair.blocks()
    pair.flip(0, blocks[3], rng)
    pair.flip(1, blocks[3], rng)
    pair.flip(0, blocks[2], rng)
    begin = blocks[0]
    assert await pair.mend(0, (begin,), (8 * BLOCK_SIZE,)) == ObjectMended(
        1, (blocks[3],), (BLOCK_SIZE,)
    )
    assert [one.blocks_damaged for one in await pair.sums()] == [1, 1]


async def test_other_bytes_have_another_digest_and_mend_nothing(pair: Pair) -> None:
    rng = random.Random(3)
    block = pair.blocks()[1]
    nodes = pair.nodes
    async with nodes.calling(nodes.source) as caller:
        blocks = WritingCaller(caller, nodes.source_target, FILE, pair.number, timeout_s=PATIENCE_S)
        await blocks.write(piece_of(block, rng.randbytes(BLOCK_SIZE)), epoch=2)
    stale, other = await pair.sums()
    assert stale.digest != other.digest
    pair.flip(1, block, rng)
    assert await pair.mend(1, (block,), (BLOCK_SIZE,)) == ObjectMended(0, (block,), (BLOCK_SIZE,))


async def test_writers_meanwhile(pair: Pair) -> None:
    """What is being written is no damage, and no mend writes over it."""
    nodes, rng = pair.nodes, random.Random(4)
    written = bytearray(pair.image)

    async def write(place: int) -> None:
        address, target = pair.places()[place]
        async with nodes.calling(address) as caller:
            blocks = WritingCaller(caller, target, FILE, pair.number, timeout_s=PATIENCE_S)
            for _ in range(200):
                at = rng.randrange(LENGTH // BLOCK_SIZE - 64) * BLOCK_SIZE
                content = rng.randbytes(rng.randrange(1, 64) * BLOCK_SIZE)
                await blocks.write(piece_of(at, content), epoch=2)
                if place == 1:
                    written[at : at + len(content)] = content

    async with open_tasks() as tasks:
        for place in (0, 1):
            tasks.start_soon(write, place)
        for _ in range(5):
            assert [one.blocks_damaged for one in await pair.sums()] == [0, 0]
            assert (await pair.mend(1, (0,), (LENGTH // BLOCK_SIZE * BLOCK_SIZE,))).blocks == 0
    async with nodes.calling(nodes.sink) as caller:
        assert await read_all(caller, nodes.sink_target, pair.number, LENGTH) == written


async def test_what_cannot_be_summed_or_mended(pair: Pair) -> None:
    nodes = pair.nodes

    async def refused(op: Op, request: object) -> Status:
        with pytest.raises(FsError) as raised:
            await nodes.ask(nodes.sink, op, request)
        return raised.value.status

    target, number = nodes.sink_target, pair.number
    assert await refused(Op.OBJECT_SUM, ObjectSum(99, FILE, number)) is Status.NO_TARGET
    assert await refused(Op.OBJECT_SUM, ObjectSum(target, FILE, 9)) is Status.NO_OBJECT
    origin = (nodes.source, nodes.source_target, number)
    for offsets, lengths in (
        ((1,), (BLOCK_SIZE,)),
        ((0,), (0,)),
        ((0, BLOCK_SIZE), (BLOCK_SIZE,)),
        ((1 << 50,), (BLOCK_SIZE,)),
        ((0,) * (RANGES_MAX + 1), (BLOCK_SIZE,) * (RANGES_MAX + 1)),
    ):
        wrong = ObjectMend(target, FILE, number, offsets, lengths, *origin)
        assert await refused(Op.OBJECT_MEND, wrong) is Status.EINVAL
    one = (0,), (BLOCK_SIZE,)
    nobody = ObjectMend(target, FILE, number, *one, "127.0.0.1:1", 1, number)
    assert await refused(Op.OBJECT_MEND, nobody) is Status.EIO
    no_header_names_it = ObjectMend(target, FILE, number, *one, nodes.source, 1 << 32, number)
    assert await refused(Op.OBJECT_MEND, no_header_names_it) is Status.NO_TARGET
    itself = ObjectMend(target, FILE, number, *one, nodes.sink, target, number)
    assert await refused(Op.OBJECT_MEND, itself) is Status.EINVAL
    lost = ObjectMend(
        target, FILE, number, *one, nodes.source, nodes.source_target, nodes.number(7)
    )
    assert await refused(Op.OBJECT_MEND, lost) is Status.NO_OBJECT
    async with nodes.calling(nodes.sink) as caller:
        data = DataCaller(caller)
        await data.drop_names(target, [(FILE, number)], timeout_s=PATIENCE_S)
    assert await refused(Op.OBJECT_SUM, ObjectSum(target, FILE, number)) is Status.DROPPED


async def test_a_sum_ends_with_the_connection_that_asked(pair: Pair) -> None:
    nodes = pair.nodes
    for _ in range(5):
        async with nodes.calling(nodes.sink, "admin") as caller, open_tasks() as tasks:
            request = ObjectSum(nodes.sink_target, FILE, pair.number)
            tasks.start_soon(caller.call, Op.OBJECT_SUM, request, PATIENCE_S)
            await trio.sleep(0.002)
            tasks.cancel_scope.cancel()
    assert (await pair.sums())[1].blocks_damaged == 0
