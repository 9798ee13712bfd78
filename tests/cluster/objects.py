"""Two storage servers and objects on them, for tests of what one does with those of the other."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from fscommon.auth.handshake import HelloFields
from fscommon.auth.key import load_key
from fscommon.limits import BLOCK_SIZE, GENERATION_SHIFT
from fscommon.rpc.blocks import BlockCaller, Piece, piece_of
from fscommon.rpc.caller import Caller, open_caller
from fscommon.rpc.data import DataCaller
from fscommon.wire.header import FLAG_SUMS
from fscommon.wire.messages import Empty, StatusReply
from fscommon.wire.objects import ObjectCopied, ObjectCopy
from fscommon.wire.ops import Op
from tests.cluster.cluster import Cluster
from tests.cluster.plan import Settings, make_plan
from tests.cluster.process import Program

MIB: Final = 1 << 20
FILE: Final = 1 << 40  # no file of the cluster has this id
PATIENCE_S: Final = 30.0
EPOCH: Final = 5


SETTINGS: Final[Settings] = {
    "storageserver": {"target.capacity_bytes": "1 GiB"},  # however full the disk is
    "storageserver-2": {"domain": "another rack"},
}


class Nodes:
    """The source's target and server, and those of the copy."""

    def __init__(self, cluster: Cluster, rows: dict[str, int]) -> None:
        plans = cluster.plan.storageservers
        self._plan = cluster.plan
        self.key = load_key(cluster.plan.key_file)
        self.source, self.sink = (f"127.0.0.1:{plan.port}" for plan in plans)
        self.source_target, self.sink_target = rows[self.source], rows[self.sink]
        self.program: Program = cluster.storageservers[1]
        self.folder = cluster.plan.state / "targets"

    def target_folder(self, place: int) -> Path:
        """Of the source's target (0), or that of the copy (1)."""
        return self._plan.target_path(self._plan.storageservers[place], 0)

    def number(self, generation: int, stripe: int = 3) -> int:
        return stripe | generation << GENERATION_SHIFT

    def request(self, generation: int, epoch: int = EPOCH) -> ObjectCopy:
        new = self.number(generation)
        return ObjectCopy(
            self.sink_target, FILE, new, epoch, self.source, self.source_target, self.number(0)
        )

    async def copy(self, request: ObjectCopy) -> ObjectCopied:
        copied: ObjectCopied = await self.ask(self.sink, Op.OBJECT_COPY, request)
        return copied

    async def ask(self, address: str, op: Op, request: Any) -> Any:
        async with self.calling(address, "admin") as caller:
            return await caller.call(op, request, PATIENCE_S)

    @asynccontextmanager
    async def calling(self, address: str, purpose: str = "server") -> AsyncIterator[Caller]:
        async with open_caller(
            address, key=self.key, hello=HelloFields(purpose, "test"), timeout_s=PATIENCE_S
        ) as caller:
            caller.take_payloads(MIB)
            yield caller


@contextmanager
def two_servers(state: Path, settings: Settings = SETTINGS) -> Iterator[Cluster]:
    """A cluster of two storage servers, without a mount."""
    cluster = Cluster(make_plan(state, storage_servers=2, settings=settings))
    try:
        cluster.start_servers()
        yield cluster
    finally:
        cluster.stop_servers()


async def nodes_of(cluster: Cluster) -> Nodes:
    key = load_key(cluster.plan.key_file)
    hello = HelloFields("admin", "test")
    address = cluster.plan.metaserver_address
    async with open_caller(address, key=key, hello=hello, timeout_s=PATIENCE_S) as caller:
        status: StatusReply = await caller.call(Op.STATUS, Empty(), PATIENCE_S)
    return Nodes(cluster, {row.address: row.target for row in status.map.targets})


class WritingCaller(BlockCaller):
    """A BlockCaller that writes, too."""

    async def write(self, piece: Piece, *, epoch: int) -> None:
        await self._ask(
            Op.WRITE,
            flags=FLAG_SUMS,
            offset=piece.offset,
            length=len(piece.payload),
            epoch=epoch,
            body=piece.sums,
            payload=piece.payload,
        )

    async def sync(self, *, epoch: int) -> None:
        await self._ask(Op.SYNC, offset=self.incarnation, epoch=epoch)


class Source:
    """Bytes of the source, with holes."""

    def __init__(self, seed: int, length: int) -> None:
        self.length = length
        rng = random.Random(seed)
        self.extents: list[tuple[int, bytes]] = []
        at = 0
        while at < length:
            at += rng.choice((0, 1, 2, 40, 300)) * 4096
            count = min(rng.choice((1, 3, 256, 700)) * 4096, length - at)
            if count > 0:
                self.extents.append((at, rng.randbytes(count)))
            at += max(count, 0) + 4096

    def image(self) -> bytearray:
        image = bytearray(self.length)
        for offset, content in self.extents:
            image[offset : offset + len(content)] = content
        return image

    def count(self) -> int:
        return sum(len(content) for _, content in self.extents)

    async def write(self, caller: Caller, target: int, number: int) -> None:
        data = DataCaller(caller)
        await data.truncate(
            target, FILE, number, length=self.length, epoch=2, must_exist=False, timeout_s=30
        )
        blocks = WritingCaller(caller, target, FILE, number, timeout_s=PATIENCE_S)
        for offset, content in self.extents:
            for at in range(0, len(content), MIB):
                await blocks.write(piece_of(offset + at, content[at : at + MIB]), epoch=2)
        await blocks.sync(epoch=2)


async def read_all(caller: Caller, target: int, number: int, length: int) -> bytearray:
    blocks = BlockCaller(caller, target, FILE, number, timeout_s=PATIENCE_S)
    image = bytearray()
    for offset in range(0, length, MIB):
        image += (await blocks.read(offset, min(MIB, length - offset))).payload
    return image


def object_files(targets: Path, file_id: int, number: int | None = None) -> list[Path]:
    """The files of objects of a file that the targets below this folder have: of one object, or of
    all."""
    last = "*" if number is None else f"{number:x}"
    return sorted(targets.glob(f"**/objects/*/{file_id:016x}.{last}"))


def object_file(targets: Path, file_id: int, number: int) -> Path:
    """The file of an object that one target below this folder has."""
    (found,) = object_files(targets, file_id, number)
    return found


def home_of(path: Path, offset: int, block: bytes) -> int:
    """Where in the object's file the block at this offset is, which has these bytes; 0: it is in
    neither of its two places."""
    group, index = divmod(offset // BLOCK_SIZE, 256)
    with path.open("rb") as file:
        for slot in (0, 1):
            home = group * (MIB + 4096) + 4096 + (slot << 43) + index * BLOCK_SIZE
            file.seek(home)
            if file.read(BLOCK_SIZE) == block.ljust(BLOCK_SIZE, b"\0"):
                return home
    return 0


def flip_bit(path: Path, offset: int, bit: int, block: bytes) -> None:
    """Flips a bit of an object at this offset, in its file. block: what the offset's block has."""
    home = home_of(path, offset, block)
    assert home, f"{path} does not have these bytes at {offset}"
    with path.open("r+b") as file:
        file.seek(home + offset % BLOCK_SIZE)
        byte = file.read(1)[0]
        file.seek(home + offset % BLOCK_SIZE)
        file.write(bytes([byte ^ 1 << bit]))
