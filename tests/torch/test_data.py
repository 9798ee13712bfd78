"""braidfs.data with torch's DataLoader: every way to start workers, descriptors, memory, faults.

tests/integration/test_torch.py runs it, in environments that have torch.
"""

import gc
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

from braidfs.data import Announced, Files, FilesError, Index, StreamFiles, read_files
from braidfs.data.index import _image_of
from braidfs.data.scan import Listed

STARTS = ("fork", "spawn", "forkserver")
COUNT = 400
BATCH = 32


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    root = tmp_path_factory.mktemp("tree")
    for number in range(COUNT):
        path = root / f"class-{number % 5}" / f"{number:04}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(random.Random(number).randbytes(number * 37))
    index = Index.scan(root)
    index.save(tmp_path_factory.mktemp("saved") / "index")
    return index


@pytest.fixture(scope="module")
def contents(index: Index) -> list[bytes]:
    return [Path(index.path(row)).read_bytes() for row in range(len(index))]


def with_row(data: Any, row: int) -> tuple[Any, int]:
    return data, row


def as_it_is(items: Any) -> Any:
    return items


def loader(files: Any, **given: Any) -> Any:
    workers = given.setdefault("num_workers", 2)
    if not workers:
        given.pop("multiprocessing_context", None)
    return DataLoader(files, collate_fn=as_it_is, **given)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("workers", [0, 2, 8])
def test_every_byte_in_the_order_of_the_sampler(
    index: Index, contents: list[bytes], start: str, workers: int
) -> None:
    files = Files(index, with_row)
    order = list(RandomSampler(files, generator=torch.Generator().manual_seed(3)))
    sampler = Announced(order, files, window=50)
    given = {"sampler": sampler, "batch_size": BATCH, "num_workers": workers}
    batches = list(loader(files, multiprocessing_context=start, **given))
    found = [item for batch in batches for item in batch]
    assert [row for _, row in found] == order
    assert all(tensor.numpy().tobytes() == contents[row] for tensor, row in found)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("workers", [0, 3])
def test_a_stream_is_the_same_for_any_workers(
    index: Index, contents: list[bytes], start: str, workers: int
) -> None:
    files = Files(index, with_row)
    stream = StreamFiles(files, shuffle=5, batch=BATCH, rank=1, world=3)
    assert isinstance(stream, IterableDataset)
    expected = [[row for _, row in batch] for batch in stream]
    given = {"num_workers": workers, "multiprocessing_context": start, "batch_size": None}
    batches = loader(stream, **given)
    assert len(batches) == len(expected)
    found = list(batches)
    assert [[row for _, row in batch] for batch in found] == expected
    for batch in found:
        assert all(tensor.numpy().tobytes() == contents[row] for tensor, row in batch)


@pytest.mark.parametrize("start", STARTS)
def test_workers_that_stay_see_the_epoch(index: Index, start: str) -> None:
    stream = StreamFiles(Files(index, with_row), shuffle=5, batch=BATCH, rank=0, world=1)
    given = {"persistent_workers": True, "multiprocessing_context": start, "batch_size": None}
    batches = loader(stream, **given)
    orders = []
    for epoch in (0, 1, 0):
        stream.set_epoch(epoch)
        orders.append([row for batch in batches for _, row in batch])
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[1]) == list(range(COUNT))


def test_a_stream_goes_on_in_the_workers(index: Index) -> None:
    stream = StreamFiles(Files(index, with_row), shuffle=5, batch=BATCH, rank=0, world=1)
    whole = [[row for _, row in batch] for batch in loader(stream, batch_size=None)]
    stream.resume(0, 5)
    rest = [[row for _, row in batch] for batch in loader(stream, batch_size=None, num_workers=3)]
    assert rest == whole[5:]


def test_persistent_workers_of_files(index: Index, contents: list[bytes]) -> None:
    files = Files(index, with_row)
    sampler = Announced(DistributedSampler(files, num_replicas=2, rank=1, seed=3), files)
    batches = loader(files, sampler=sampler, batch_size=BATCH, persistent_workers=True)
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        found = [item for batch in batches for item in batch]
        assert all(tensor.numpy().tobytes() == contents[row] for tensor, row in found)
        orders.append([row for _, row in found])
    assert len({tuple(order) for order in orders}) == 3
    assert {len(order) for order in orders} == {COUNT // 2}


def the_bytes(data: Any, row: int) -> Any:
    return data


@pytest.mark.parametrize("transform", [None, the_bytes])
@pytest.mark.parametrize("start", STARTS)
def test_a_batch_takes_one_descriptor(index: Index, start: str, transform: Any) -> None:
    """Its tensors are views of one storage: without that each took one, and "received 0 items of
    ancdata" was the end of a training."""
    given = {"multiprocessing_context": start, "batch_size": BATCH, "num_workers": 1}
    batches = iter(loader(Files(index, transform), **given))
    kept = [next(batches)]
    before = descriptors()
    for _ in range(6):
        kept.append(next(batches))
    assert 0 <= descriptors() - before <= 6
    storages = [{one.untyped_storage().data_ptr() for one in batch} for batch in kept]
    assert all(len(one) == 1 for one in storages) and len(set.union(*storages)) == 7
    del kept
    assert descriptors() <= before


def test_tensors_live_as_long_as_they_are_kept(index: Index, contents: list[bytes]) -> None:
    """Memory is used again by the next batches, but not while a tensor or a view of it is there."""
    kept = []
    for number in range(40):
        rows = [number, COUNT - 1 - number]
        batch = read_files(index, rows)
        tensor, view, array = batch.tensors()[0], batch[1], batch.arrays()[0]
        kept.append((number, tensor, view, array))
        del batch, tensor, view, array
        read_files(index, range(100, 140))
    for number, tensor, view, array in kept:
        assert tensor.numpy().tobytes() == array.tobytes() == contents[number]
        assert view is not None and bytes(view) == contents[COUNT - 1 - number]
    assert tensor.dtype == torch.uint8 and tensor.shape == (index.size(39),)


def test_files_that_were_not_read_are_none(index: Index) -> None:
    batch = read_files(["/missing", index.path(7)], errors="keep")
    assert batch.tensors()[0] is None is batch.arrays()[0]
    assert len(batch.tensors()[1]) == index.size(7)
    assert read_files(["/missing"], errors="keep").tensors() == [None]
    assert read_files([]).tensors() == []


class Sharing:
    """A data set that says whether the bytes of its files lie in memory that torch shares."""

    def __init__(self, index: Index, shared: bool | None) -> None:
        self._index, self._shared = index, shared

    def __len__(self) -> int:
        return len(self._index)

    def __getitems__(self, rows: list[int]) -> list[bool]:
        tensors = read_files(self._index, rows, shared=self._shared).tensors()
        return [one.is_shared() for one in tensors]


@pytest.mark.parametrize("shared", [None, False, True])
def test_memory_is_shared_where_it_is_wanted(index: Index, shared: bool | None) -> None:
    files = Sharing(index, shared)
    by_workers = {one for batch in loader(files, batch_size=8) for one in batch}
    here = {one for batch in loader(files, batch_size=8, num_workers=0) for one in batch}
    assert by_workers == {shared is not False} and here == {shared is True}


def test_a_killed_worker_is_an_error_at_once(index: Index, contents: list[bytes]) -> None:
    files = Files(index, with_row)
    running = iter(loader(files, batch_size=4, prefetch_factor=1))
    next(running)
    os.kill(running._workers[0].pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly"):
        for _ in running:
            pass
    assert time.monotonic() - begun < 30
    del running
    found = [item for batch in loader(files, batch_size=BATCH) for item in batch]
    assert all(tensor.numpy().tobytes() == contents[row] for tensor, row in found)


@pytest.mark.parametrize("workers", [0, 2])
def test_files_that_change_after_the_scan(tmp_path: Path, workers: int) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}").write_bytes(b"old" * 1000)
    index = Index.scan(tmp_path)
    with (tmp_path / "03").open("ab") as file:
        file.write(b"grown" * 50_000)
    (tmp_path / "new").write_bytes(b"replaced" * 100)
    (tmp_path / "new").replace(tmp_path / "07")
    found = [
        one for batch in loader(Files(index), batch_size=5, num_workers=workers) for one in batch
    ]
    for row, tensor in enumerate(found):
        assert tensor.numpy().tobytes() == (tmp_path / f"{row:02}").read_bytes()
    (tmp_path / "11").unlink()
    with pytest.raises(FilesError, match=r"1 of 5 files could not be read.*11: No such file"):
        list(loader(Files(index), batch_size=5, num_workers=workers))
    kept = Files(index, errors="keep")
    found = [one for batch in loader(kept, batch_size=5, num_workers=workers) for one in batch]
    assert [row for row, one in enumerate(found) if one is None] == [11]


def own_bytes(pid: int) -> int:
    """Memory that this process shares with no other."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    lines = [line.split() for line in text.splitlines() if line.startswith("Private_")]
    return sum(int(words[1]) for words in lines) << 10


def large_index(root: Path, rows: int) -> Index:
    """Many rows of a few files: nobody waits for a million files to be made."""
    for number in range(100):
        (root / f"{number:050}").write_bytes(b"x" * 500)
    few = Index.scan(root)
    listed = Listed(few.root_inode)
    times = rows // 100
    listed.paths += b"".join(few.name(row) for row in range(100)) * times
    listed.offsets.extend(range(50, 50 * rows + 1, 50))
    listed.sizes.extend(list(few.sizes) * times)
    listed.inodes.extend(list(few.inodes) * times)
    listed.folders.extend([0] * rows)
    listed.classes.extend([(1 << 32) - 1] * rows)
    listed.folder_inodes.extend(few.folder_inodes)
    return Index(_image_of(listed, os.fsencode(root)))


def length(data: Any, row: int) -> int:
    return len(data)


def watched(batches: Any, begin: int, end: int) -> list[dict[int, int]]:
    """The workers' own memory after so many batches, and after so many more."""
    running = iter(batches)
    seen = []
    for number, _ in enumerate(running):
        if number in (begin, end):
            seen.append({one.pid: own_bytes(one.pid) for one in running._workers})
    return seen


@pytest.mark.parametrize("saved", [True, False])
def test_workers_do_not_grow_with_a_large_index(tmp_path: Path, saved: bool) -> None:
    """Lists of paths grow by their counts of references, until a node has no memory left."""
    (tmp_path / "tree").mkdir()
    index = large_index(tmp_path / "tree", 1_000_000)
    if saved:
        index.save(tmp_path / "index")
        index = Index.load(tmp_path / "index")
    files = Files(index, length, threads=1)
    order = random.Random(1).sample(range(len(index)), 200_000)
    given = {"num_workers": 8, "multiprocessing_context": "fork", "batch_size": 256}
    early, late = watched(loader(files, sampler=order, **given), 100, 760)
    growth = {pid: late[pid] - before for pid, before in early.items()}
    assert max(growth[pid] / early[pid] for pid in early) <= 0.05, (growth, early)


def test_rank_and_world_of_torch_distributed(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    stream = StreamFiles(Files(index, with_row), batch=BATCH)
    rows = [row for batch in stream for _, row in batch]
    assert rows == list(range(2, COUNT, 4))
    given = StreamFiles(Files(index, with_row), batch=BATCH, rank=0, world=1)
    assert len(given) == -(-COUNT // BATCH)
