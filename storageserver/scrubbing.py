"""OBJECT_SUM: reads an object of a target of this server from its device, group by group, and
compares it with its sums. OBJECT_MEND: writes ranges of it again with the bytes of another replica.

Native code reads, compares and writes (native/src/store/examine.cpp), in threads of their own. A
mend needs no agreement with writers: a block is written only if it is damaged at that moment, and
only with the very bytes that its record names as the last ones. What a writer has replaced
meanwhile is not damaged any more, or has another sum; then the source's bytes do not fit, and
nothing is written.

At most READS_MAX objects of a target are in work at once, others wait. A hung device keeps a thread
each, no memory.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import trio

from fscommon.errors import BraidError, FsError, Status
from fscommon.limits import BLOCK_SIZE, OBJECT_BYTES_MAX
from fscommon.native_ports import ChunkServer, ExaminedRow
from fscommon.observe.metrics import Metrics
from fscommon.rpc.blocks import BlockCaller
from fscommon.wire.objects import RANGES_MAX, ObjectMend, ObjectMended, ObjectSum, ObjectSummed
from storageserver.care import Care
from storageserver.sources import PIECE, Sources, check_source
from storageserver.targets import Targets

READS_MAX: Final = 2
DIGEST_SIZE: Final = 16

_R = TypeVar("_R")
_Range = tuple[int, int]  # offset, length


class Scrubbing:
    def __init__(
        self, native: ChunkServer, targets: Targets, sources: Sources, care: Care, metrics: Metrics
    ) -> None:
        self._native = native
        self._targets = targets
        self._sources = sources
        self._care = care
        self._metrics = metrics
        self._turns: dict[int, trio.CapacityLimiter] = {}

    # ---- reading -------------------------------------------------------------------------

    async def sum(self, request: ObjectSum) -> ObjectSummed:
        """Raises FsError: NO_TARGET, NO_OBJECT, DROPPED."""
        incarnation = self._incarnation_of(request.target)
        pace = self._care.of_target(request.target)
        found = _Found()
        group = 0
        while not found.ended:
            examine = functools.partial(
                self._native.examine,
                request.target,
                request.file_id,
                request.object,
                group,
                reads=request.reads,
            )
            async with pace.piece(PIECE if request.reads else BLOCK_SIZE):
                row = await self._in_thread(request.target, examine)
            if row.status:
                raise FsError(Status(row.status))
            found.add(row)
            group = row.group + 1
        self._count("braidfs_scrubbed_bytes_total", request.target, found.bytes)
        self._count("braidfs_scrub_damaged_blocks_total", request.target, found.blocks_damaged)
        self._count("braidfs_records_renewed_total", request.target, found.records_renewed)
        return found.summed(incarnation)

    # ---- mending -------------------------------------------------------------------------

    async def mend(self, request: ObjectMend) -> ObjectMended:
        """Raises FsError: as sum(), CORRUPT when its records are lost, EINVAL for ranges that are
        none, EIO when the other server or the device does not do it."""
        ranges = _checked(request.offsets, request.lengths)
        self._incarnation_of(request.target)
        check_source(request)
        try:
            async with self._sources.of(request) as source:
                mended, left = await self._mend_all(request, source, _pieces(ranges))
        except FsError:
            raise
        except BraidError as error:
            raise FsError(Status.EIO, f"nothing was mended: {error}") from error
        self._count("braidfs_mended_blocks_total", request.target, mended)
        offsets, lengths = _columns(_merged(left))
        return ObjectMended(mended, offsets, lengths)

    async def _mend_all(
        self, request: ObjectMend, source: BlockCaller, pieces: Iterable[_Range]
    ) -> tuple[int, list[_Range]]:
        mended = 0
        left: list[_Range] = []
        for offset, length in pieces:
            done, is_left = await self._mend_piece(request, source, (offset, length))
            mended += done
            if not is_left:
                continue
            for at in range(offset, offset + length, BLOCK_SIZE):  # the source may have some of it
                done, is_left = await self._mend_piece(request, source, (at, BLOCK_SIZE))
                mended += done
                left += [(at, BLOCK_SIZE)] if is_left else []
        return mended, left

    async def _mend_piece(
        self, request: ObjectMend, source: BlockCaller, place: _Range
    ) -> tuple[int, bool]:
        """How many blocks are mended, and whether some are left."""
        offset, length = place
        pace = self._care.of_target(request.target)
        async with pace.piece(length):
            try:
                payload = (await source.read(offset, length)).payload
            except FsError as error:
                if error.status not in (Status.CORRUPT, Status.CHECKSUM):
                    raise
                return 0, True
            if source.serves_clients:
                pace.source_serves_clients()
            status, mended, left = await self._in_thread(
                request.target,
                functools.partial(
                    self._native.mend,
                    request.target,
                    request.file_id,
                    request.object,
                    offset // BLOCK_SIZE,
                    payload.ljust(length, b"\0"),
                ),
            )
        if status:
            raise FsError(Status(status))
        return mended, left > 0

    # ---- helpers -------------------------------------------------------------------------

    def _incarnation_of(self, target: int) -> int:
        """Raises FsError."""
        incarnation = self._targets.incarnation_of(target)
        if incarnation is None:
            raise FsError(Status.NO_TARGET, f"there is no target {target} here")
        return incarnation

    async def _in_thread(self, target: int, work: Callable[[], _R]) -> _R:
        turns = self._turns.setdefault(target, trio.CapacityLimiter(READS_MAX))
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=turns)

    def _count(self, name: str, target: int, amount: int) -> None:
        self._metrics.counter(name, target=target).inc(amount)


class _Found:
    """What the groups of an object that were examined have shown."""

    def __init__(self) -> None:
        self.ended = False
        self.bytes = 0
        self.blocks_damaged = 0
        self.records_renewed = 0
        self._length = 0
        self._epoch = 0
        self._records_lost = False
        self._digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
        self._damaged: list[_Range] = []

    def add(self, row: ExaminedRow) -> None:
        self.ended = row.ended
        self._length = row.length
        self._epoch = row.epoch
        self._records_lost |= row.records_lost
        self.records_renewed += row.records_renewed
        self.bytes += row.bytes_read
        self._digest.update(row.sums)
        self.blocks_damaged += len(row.damaged)
        blocks = ((block * BLOCK_SIZE, BLOCK_SIZE) for block in row.damaged)
        self._damaged = _merged([*self._damaged, *blocks])[:RANGES_MAX]

    def summed(self, incarnation: int) -> ObjectSummed:
        offsets, lengths = _columns(self._damaged)
        return ObjectSummed(
            length=self._length,
            epoch=self._epoch,
            digest=b"" if self._records_lost else self._digest.digest(),
            blocks_damaged=self.blocks_damaged,
            offsets=offsets,
            lengths=lengths,
            bytes=self.bytes,
            records_renewed=self.records_renewed,
            incarnation=incarnation,
        )


def _merged(ranges: Iterable[_Range]) -> list[_Range]:
    """Joins ranges, which are in order, where one begins at the end of another."""
    merged: list[_Range] = []
    for offset, length in ranges:
        if merged and sum(merged[-1]) == offset:
            merged[-1] = merged[-1][0], merged[-1][1] + length
        else:
            merged.append((offset, length))
    return merged


def _columns(ranges: Sequence[_Range]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    some = ranges[:RANGES_MAX]
    return tuple(offset for offset, _ in some), tuple(length for _, length in some)


def _checked(offsets: Sequence[int], lengths: Sequence[int]) -> list[_Range]:
    """Raises FsError."""
    ranges = list(zip(offsets, lengths, strict=False))
    are_blocks = all(
        length
        and offset % BLOCK_SIZE == length % BLOCK_SIZE == 0
        and offset + length <= OBJECT_BYTES_MAX
        for offset, length in ranges
    )
    if not are_blocks or len(offsets) != len(lengths) or len(ranges) > RANGES_MAX:
        raise FsError(Status.EINVAL, "these are no ranges of blocks")
    return ranges


def _pieces(ranges: Iterable[_Range]) -> Iterator[_Range]:
    """Cuts ranges at multiples of PIECE."""
    for offset, length in ranges:
        at, end = offset, offset + length
        while at < end:
            until = min(end, (at // PIECE + 1) * PIECE)
            yield at, until - at
            at = until
