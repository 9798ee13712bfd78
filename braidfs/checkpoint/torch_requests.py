"""What a load plan wants, as ranges of files and places for their bytes.

An item whose elements' place is known, and whose target is a plain tensor of the CPU of the same
dtype, is read straight into the target, range by range. Slices that are too fine for that, targets
of a device, of another dtype or in another order go through memory, some rows at a time. Other
items are read whole and given to torch.load.
"""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index

from braidfs.checkpoint.damage import DamagedFile
from braidfs.checkpoint.pieces import Want, cut
from braidfs.checkpoint.torch_memory import bytes_of, is_plain
from braidfs.checkpoint.torch_metadata import Place, check_head

RUN_MIN = 64 << 10  # shorter runs are read with what is between them


@dataclass(slots=True)
class Requests:
    """The wants of a plan, and what to do when all of them were filled."""

    folder: Path
    piece: int
    wants: list[Want] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)  # what each file must have at least
    _heads: set[tuple[str, int]] = field(default_factory=set)

    def expect(self, info: Any) -> None:
        """The file of an item must have all of it."""
        end = info.offset + info.length
        self.ends[info.relative_path] = max(end, self.ends.get(info.relative_path, 0))

    def tensor(self, item: Any, info: Any, place: Place, target: Any) -> None:
        """An item with a known place, into its target."""
        offsets, lengths = tuple(item.storage_offsets), tuple(item.lengths)
        path = self.folder / info.relative_path
        if tuple(target.shape) != lengths:
            raise ValueError(f"{item.storage_index} has {lengths}, and {tuple(target.shape)} room")
        if not _within(offsets, lengths, place.shape):
            raise DamagedFile(path, f"{item.storage_index} has {place.shape}: it lacks {lengths}")
        self._head(info, place)
        if target.numel():
            box = _Box(info.relative_path, place.begin, place.dtype, place.shape)
            self.wants += box.wants(offsets, lengths, target, self.piece)

    def whole(self, info: Any, use: Callable[[bytearray], None]) -> None:
        """An item that is read whole and then used."""
        held = bytearray(info.length)
        self.wants += cut(info.relative_path, info.offset, memoryview(held), self.piece)
        self.after.append(lambda: use(held))

    def _head(self, info: Any, place: Place) -> None:
        """The file itself must say the same of the item as the metadata do."""
        if (info.relative_path, info.offset) in self._heads:
            return
        self._heads.add((info.relative_path, info.offset))
        head = bytearray(place.begin - info.offset)
        path = self.folder / info.relative_path
        self.wants += cut(info.relative_path, info.offset, memoryview(head), self.piece)
        self.after.append(lambda: check_head(path, bytes(head), place))


def decoded(held: bytearray, item: Any, target: Any) -> None:
    """Copies an item that was read whole into its target, as torch's own reader does."""
    tensor = torch.load(io.BytesIO(held), map_location="cpu", weights_only=True)
    tensor = narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths)
    if target.size() != tensor.size():
        raise ValueError(f"{item.storage_index} has {tensor.size()}, and {target.size()} room")
    target.copy_(tensor)


def _within(offsets: Sequence[int], lengths: Sequence[int], shape: Sequence[int]) -> bool:
    return len(offsets) == len(lengths) == len(shape) and all(
        min(offset, length) >= 0 and offset + length <= size
        for offset, length, size in zip(offsets, lengths, shape, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Box:
    """Elements in a file, in the order of their indices."""

    file: str
    begin: int
    dtype: Any
    shape: tuple[int, ...]

    @property
    def row(self) -> int:
        """The bytes of one index of the first dimension."""
        return math.prod(self.shape[1:]) * int(self.dtype.itemsize)

    def wants(
        self, offsets: tuple[int, ...], lengths: tuple[int, ...], target: Any, piece: int
    ) -> Iterator[Want]:
        """The slice at `offsets` of `lengths`, into the target."""
        if not lengths:
            yield from self._run(0, 1, target.reshape(1), piece)
        elif lengths[1:] == self.shape[1:]:
            yield from self._run(offsets[0], lengths[0], target, piece)
        elif lengths[0] == 1 or self._are_runs(lengths, target):
            for index in range(lengths[0]):
                begin = self.begin + (offsets[0] + index) * self.row
                inner = _Box(self.file, begin, self.dtype, self.shape[1:])
                yield from inner.wants(offsets[1:], lengths[1:], target[index], piece)
        else:
            yield from self._rows(offsets, lengths, target, piece)

    def _are_runs(self, lengths: tuple[int, ...], target: Any) -> bool:
        """Whether each index of the first dimension is worth reads of its own."""
        shortest = math.prod(lengths[1:]) * int(self.dtype.itemsize)
        return shortest >= RUN_MIN and self._fits(target[0])

    def _fits(self, target: Any) -> bool:
        return (
            is_plain(target)
            and target.device.type == "cpu"
            and target.dtype == self.dtype
            and target.is_contiguous()
            and not target.is_conj()
            and not target.is_neg()
        )

    def _run(self, first: int, count: int, target: Any, piece: int) -> Iterator[Want]:
        """Whole rows: they lie together in the file."""
        begin = self.begin + first * self.row
        if self._fits(target):
            yield from cut(self.file, begin, bytes_of(target), piece)  # the planner keeps it alive
            return
        offsets = (first, *(0,) * (target.dim() - 1))
        yield from self._rows(offsets, tuple(target.shape), target, piece)

    def _rows(
        self, offsets: tuple[int, ...], lengths: tuple[int, ...], target: Any, piece: int
    ) -> Iterator[Want]:
        """Through memory: whole rows are read, as many as a piece has, and their slice copied."""
        row = self.row if self.shape else int(self.dtype.itemsize)
        at_once = max(1, piece // max(1, row))
        for done in range(0, lengths[0], at_once):
            count = min(at_once, lengths[0] - done)
            part = target[done : done + count]
            begin = self.begin + (offsets[0] + done) * row
            shape = (count, *self.shape[1:])
            slices = tuple(slice(o, o + n) for o, n in zip(offsets[1:], lengths[1:], strict=True))
            yield _copied(self.file, begin, self.dtype, shape, slices, part)


def _copied(
    file: str, begin: int, dtype: Any, shape: tuple[int, ...], slices: tuple[slice, ...], part: Any
) -> Want:
    held: list[Any] = []
    all_rows = (slice(None), *slices)

    def place() -> memoryview:
        pinned = part.device.type != "cpu" and torch.accelerator.is_available()
        held.append(torch.empty(shape, dtype=dtype, pin_memory=pinned))
        return bytes_of(held[0])

    def done(_: memoryview) -> None:
        part.copy_(held.pop()[all_rows])

    size = math.prod(shape) * int(dtype.itemsize)
    return Want(file, begin, size, place, done)
