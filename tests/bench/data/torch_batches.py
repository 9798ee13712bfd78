"""What a training program does with braidfs.data: a program for the Python that has torch.

`python torch_batches.py ACTION` reads its arguments as JSON, and prints one object: seconds, cpu_s
(of this process), count (files). Imports are not timed. Actions: `single` (a DataLoader whose
workers read one file after the other), `batches` (one whose workers read each batch in one call),
`read` (batches without a DataLoader), `scan` (a tree, into an index file), `load` (an index file
of a million files, which is made first).
"""

import json
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from braidfs.data import Announced, Files, Index, read_files
from braidfs.data.index import _image_of
from braidfs.data.scan import Listed

BATCH = 64
LARGE = 1_000_000
Seen = dict[str, float]


class _OneByOne:
    def __init__(self, index: Index) -> None:
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, row: int) -> Any:
        with open(self._index.path(row), "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


@contextmanager
def _timed(seen: Seen) -> Iterator[None]:
    began_s, before_s = time.monotonic(), _cpu_s()
    yield
    seen |= {"seconds": time.monotonic() - began_s, "cpu_s": _cpu_s() - before_s}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _order(index: Index, seed: int) -> list[int]:
    return random.Random(seed).sample(range(len(index)), len(index))


def _epoch(files: Any, sampler: Any, workers: int) -> Seen:
    seen: Seen = {}
    with _timed(seen):
        loader = DataLoader(
            files, batch_size=BATCH, sampler=sampler, num_workers=workers, collate_fn=list
        )
        seen["count"] = sum(len(batch) for batch in loader)
    return seen


def single(file: str, workers: int, seed: int) -> Seen:
    index = Index.load(file)
    return _epoch(_OneByOne(index), _order(index, seed), workers)


def batches(file: str, workers: int, seed: int, announced: bool) -> Seen:
    index = Index.load(file)
    files, order = Files(index), _order(index, seed)
    return _epoch(files, Announced(order, files) if announced else order, workers)


def read(file: str, seed: int) -> Seen:
    index = Index.load(file)
    order = _order(index, seed)
    seen: Seen = {"count": len(order)}
    with _timed(seen):
        for begin in range(0, len(order), BATCH):
            read_files(index, order[begin : begin + BATCH])
    return seen


def scan(root: str, file: str) -> Seen:
    seen: Seen = {}
    with _timed(seen):
        index = Index.scan(root)
    index.save(file)
    return seen | {"count": len(index)}


def load(file: str) -> Seen:
    """Paths as those of ImageNet, in a thousand folders."""
    each = LARGE // 1000
    paths = [
        b"n%08d/n%08d_%06d.JPEG" % (top, top, one) for top in range(1000) for one in range(each)
    ]
    listed = Listed(1)
    listed.paths += b"".join(paths)
    listed.offsets.extend(range(len(paths[0]), len(listed.paths) + 1, len(paths[0])))
    for numbers in (listed.sizes, listed.inodes):
        numbers.extend(range(1, LARGE + 1))
    for numbers in (listed.folders, listed.classes):
        numbers.extend(row // each for row in range(LARGE))
    listed.folder_inodes.extend(range(1000))
    listed.class_names += [path[:9] for path in paths[::each]]
    Path(file).write_bytes(_image_of(listed, b"/data/train"))
    seen: Seen = {"count": LARGE}
    with _timed(seen):
        Index.load(file)
    return seen


ACTIONS: dict[str, Callable[..., Seen]] = {
    "single": single,
    "batches": batches,
    "read": read,
    "scan": scan,
    "load": load,
}


if __name__ == "__main__":
    print(json.dumps(ACTIONS[sys.argv[1]](**json.load(sys.stdin))))
