"""A data set as a stream of batches, split among the ranks of a job and the workers of each rank.

The order of an epoch is a permutation of the rows, computed from the seed, the epoch and the
position: no process has a list of it, and a stream goes on from any place at once. Each rank has
the same number of files; where they cannot be divided, the first ones of the order come again at
the end, as DistributedSampler does it. A rank's batches are the same for any number of workers.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from .files import Files
from .index import Index

_ROUNDS: Final = 4  # of the Feistel network, from which on it is a good shuffle
_MASK: Final = (1 << 64) - 1
_EPOCH, _START = 0, 1  # in a stream's place


def _mixed(number: int) -> int:
    """A number of 64 bits that has nothing of the given one to be seen (splitmix64's end)."""
    number = (number + 0x9E3779B97F4A7C15) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return number ^ (number >> 31)


class Permutation:
    """A shuffled order of the numbers below `count`, of which each is found by its position."""

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        """seed: any number. epoch: from 0."""
        self._count = count
        half = max((count - 1).bit_length() + 1, 2) // 2
        self._half, self._low = half, (1 << half) - 1
        base = _mixed(_mixed(seed & _MASK) + epoch)  # not the same when they are swapped
        self._keys = [_mixed(base + number) for number in range(_ROUNDS)]

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self._count:
            raise IndexError(f"position {position} of {self._count}")
        # The network permutes a power of four; what lies above the count is permuted again.
        while True:
            left, right = position >> self._half, position & self._low
            for key in self._keys:
                left, right = right, left ^ (_mixed(right ^ key) & self._low)
            position = left << self._half | right
            if position < self._count:
                return position


class PlainStream:
    """Batches of whole files, each read in one call. The state of a stream is that of this process:
    a worker of a DataLoader has a copy of its own."""

    def __init__(
        self,
        files: Files | Index,
        *,
        shuffle: int | None = None,
        batch: int = 64,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """files: an index, or Files with a transform. shuffle: the seed of the order, the same in
        all ranks; None: the order of the index. batch: files of a batch; the last one of an epoch
        may have fewer.

        rank, world: of this process and of the job; None: RANK and WORLD_SIZE of the environment,
        or a job of one. Raises ValueError if they do not fit."""
        self._files = files if isinstance(files, Files) else Files(files)
        self._seed = shuffle
        self._batch = batch
        self._rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self._world = int(os.environ.get("WORLD_SIZE", "1")) if world is None else world
        if batch < 1 or not 0 <= self._rank < self._world:
            raise ValueError(f"batch {batch}, rank {self._rank} of {self._world}")
        self._place: Any = [0, 0]  # the epoch, and the batch of this rank with which it begins
        self._taken = 0  # batches that this process gave in this epoch

    def __len__(self) -> int:
        """How many batches an epoch has on this rank, from its begin."""
        return (self._files_of_rank() + self._batch - 1) // self._batch

    @property
    def epoch(self) -> int:
        """The epoch of the next pass; it chooses the order."""
        return int(self._place[_EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """The next pass has the order of that epoch, and begins with its first batch."""
        self.resume(epoch, 0)

    def resume(self, epoch: int, batches: int) -> None:
        """The next pass has the order of that epoch, without as many batches of this rank."""
        self._place[_EPOCH], self._place[_START] = epoch, batches
        self._taken = 0

    def state_dict(self) -> dict[str, int]:
        """Where this process is; torchdata's StatefulDataLoader asks each worker."""
        return {"epoch": self.epoch, "start": int(self._place[_START]), "taken": self._taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next pass goes on where that state was taken."""
        self.resume(state["epoch"], state["start"])
        self._taken = state["taken"]

    def __iter__(self) -> Iterator[list[Any]]:
        """Batches of this rank, in a worker those of this worker."""
        worker, workers = _worker()
        order = self._order()
        count, start = self._files_of_rank(), int(self._place[_START])
        first = start + worker + self._taken * workers
        for number in range(first, len(self), workers):
            begin = number * self._batch
            positions = range(begin, min(begin + self._batch, count))
            items = self._files.__getitems__([order(one) for one in positions])
            self._taken += 1
            yield items
        self._taken = 0

    def _order(self) -> Callable[[int], int]:
        """The row at each position of this rank."""
        total, rank, world = len(self._files), self._rank, self._world
        if self._seed is None:
            return lambda one: (one * world + rank) % total
        rows = Permutation(total, self._seed, self.epoch)
        return lambda one: rows[(one * world + rank) % total]

    def _files_of_rank(self) -> int:
        return (len(self._files) + self._world - 1) // self._world


def _worker() -> tuple[int, int]:
    """The number of this worker of a DataLoader, and how many there are."""
    loading = sys.modules.get("torch.utils.data")
    found = loading.get_worker_info() if loading is not None else None
    return (found.id, found.num_workers) if found is not None else (0, 1)
