"""What torch adds: tensors of a batch, memory that a worker of a DataLoader shares with the
trainer, and the stream of a data set as DataLoader knows one.

All tensors of a batch are views of one storage, so the storage crosses once, as one descriptor; a
storage for each tensor would take one each, of which a process has about a thousand.
"""

from typing import Any, Final

import torch
import torch.distributed
from torch.utils.data import IterableDataset

from .arenas import Arena, lent_view
from .files import Files
from .index import Index
from .reading import Batch
from .streams import PlainStream

_ROUNDED: Final = 1 << 16  # bytes; ctypes keeps a few words for each size that it was asked for


def shared_arena(size: int) -> Arena:
    """Memory of that many bytes which torch hands to another process without a copy."""
    rounded = max(-(-size // _ROUNDED), 1) * _ROUNDED
    storage = torch.UntypedStorage._new_shared(rounded)
    address = storage.data_ptr()
    _, view = lent_view(lambda kind: kind.from_address(address), rounded, storage)
    return Arena(storage, view[:size])


def tensors_of(batch: Batch) -> list[Any]:
    """A tensor of uint8 for each file; None: it was not read."""
    if not any(size >= 0 for size in batch.sizes):
        return [None] * len(batch)
    keeper = batch.arena.keeper
    if isinstance(keeper, torch.UntypedStorage):
        whole = torch.empty(0, dtype=torch.uint8).set_(keeper)
    else:
        whole = torch.frombuffer(batch.arena.view, dtype=torch.uint8)
    return [
        None if size < 0 else whole[place : place + size]
        for place, size in zip(batch.places, batch.sizes, strict=True)
    ]


class StreamFiles(PlainStream, IterableDataset):
    """PlainStream as a data set of torch, for `DataLoader(stream, batch_size=None)`."""

    def __init__(
        self,
        files: Files | Index,
        *,
        shuffle: int | None = None,
        batch: int = 64,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """As PlainStream, with rank and world of torch.distributed where that is in use."""
        if rank is None and world is None and _is_distributed():
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        super().__init__(files, shuffle=shuffle, batch=batch, rank=rank, world=world)
        # Workers that stay from epoch to epoch see what set_epoch() is told in the trainer.
        self._place = torch.tensor(list(self._place)).share_memory_()


def _is_distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
