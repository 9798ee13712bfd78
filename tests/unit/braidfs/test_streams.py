"""StreamFiles without torch: orders, splits among ranks and workers, resuming."""

import itertools
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from braidfs.data import Files, Index
from braidfs.data.streams import Permutation, PlainStream

from .data_sets import make_tree


@pytest.fixture
def files(tmp_path: Path) -> Files:
    make_tree(tmp_path, 40)
    return Files(Index.scan(tmp_path), lambda _, row: row, tensors=False)


def rows(stream: PlainStream) -> list[int]:
    return [row for batch in stream for row in batch]


@pytest.mark.parametrize("count", [*range(1, 70), 255, 256, 257, 1000, 4097])
def test_a_permutation_has_every_number_once(count: int) -> None:
    order = Permutation(count, seed=5, epoch=2)
    assert sorted(order[position] for position in range(count)) == list(range(count))
    with pytest.raises(IndexError):
        order[count]


def test_a_permutation_is_a_good_shuffle() -> None:
    """Each number comes to each place about as often, and neighbours do not stay neighbours."""
    seen: Counter[tuple[int, int]] = Counter()
    neighbours = 0
    for seed in range(3000):
        order = [Permutation(10, seed, 0)[position] for position in range(10)]
        seen.update(enumerate(order))
        neighbours += sum(abs(one - other) == 1 for one, other in itertools.pairwise(order))
    assert len(seen) == 100 and min(seen.values()) > 200 and max(seen.values()) < 400
    assert 1.5 < neighbours / 3000 < 2.1  # 1.8 of 9 are expected


def test_orders_of_seeds_and_epochs_differ(files: Files) -> None:
    found = set()
    for seed, epoch in itertools.product(range(4), range(4)):
        stream = PlainStream(files, shuffle=seed)
        stream.set_epoch(epoch)
        assert stream.epoch == epoch
        found.add(tuple(rows(stream)))
        assert tuple(rows(stream)) in found, "the same epoch has the same order"
    assert len(found) == 16 and all(sorted(one) == list(range(40)) for one in found)
    assert rows(PlainStream(files)) == list(range(40))


@pytest.mark.parametrize("world", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("batch", [1, 6, 64])
def test_ranks_have_as_many_each(files: Files, world: int, batch: int) -> None:
    streams = [
        PlainStream(files, shuffle=1, batch=batch, rank=rank, world=world) for rank in range(world)
    ]
    found = [rows(stream) for stream in streams]
    assert {len(one) for one in found} == {-(-40 // world)}
    assert {len(stream) for stream in streams} == {len(list(stream)) for stream in streams}
    counts = Counter(itertools.chain(*found))
    assert set(counts) == set(range(40)) and sum(counts.values()) - 40 < world


def in_worker(monkeypatch: pytest.MonkeyPatch, number: int, count: int) -> None:
    module: Any = types.ModuleType("torch.utils.data")
    seen = types.SimpleNamespace(id=number, num_workers=count)
    module.get_worker_info = lambda: seen
    monkeypatch.setitem(sys.modules, "torch.utils.data", module)


@pytest.mark.parametrize("workers", [1, 2, 3, 11])
@pytest.mark.parametrize("start", [0, 1, 4])
def test_batches_are_the_same_for_any_number_of_workers(
    files: Files, monkeypatch: pytest.MonkeyPatch, workers: int, start: int
) -> None:
    alone = PlainStream(files, shuffle=1, batch=6, rank=0, world=1)
    expected = list(alone)[start:]
    parts = []
    for number in range(workers):
        in_worker(monkeypatch, number, workers)
        stream = PlainStream(files, shuffle=1, batch=6, rank=0, world=1)
        stream.resume(0, start)
        parts.append(list(stream))
    together = [one for some in itertools.zip_longest(*parts) for one in some if one is not None]
    assert together == expected


@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_a_stream_goes_on_where_it_was(files: Files, taken: int) -> None:
    stream = PlainStream(files, shuffle=1, batch=6)
    stream.set_epoch(3)
    whole = list(stream)
    begun = iter(stream)
    for _ in range(taken):
        next(begun)
    state = stream.state_dict()
    other = PlainStream(files, shuffle=1, batch=6)
    other.load_state_dict(state)
    assert list(other) == whole[taken:]
    assert list(other) == whole, "and the next pass is a whole one"


def test_a_worker_goes_on_where_it_was(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    in_worker(monkeypatch, 1, 2)
    stream = PlainStream(files, batch=6)
    stream.resume(0, 1)
    whole = list(stream)
    begun = iter(stream)
    next(begun)
    other = PlainStream(files, batch=6)
    other.load_state_dict(stream.state_dict())
    assert list(other) == whole[1:] != []


def test_rank_and_world_of_the_environment(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rows(PlainStream(files)) == list(range(1, 40, 4))
    assert rows(PlainStream(files, rank=2, world=4)) == list(range(2, 40, 4))
    for wrong in ({"rank": 4}, {"rank": -1}, {"batch": 0}):
        with pytest.raises(ValueError, match="rank"):
            PlainStream(files, **wrong)


def test_the_name_without_torch(monkeypatch: pytest.MonkeyPatch, files: Files) -> None:
    import braidfs.data  # noqa: PLC0415

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "braidfs.data.torch", raising=False)
    monkeypatch.delitem(vars(braidfs.data), "StreamFiles", raising=False)
    try:
        assert braidfs.data.StreamFiles is PlainStream
    finally:
        vars(braidfs.data).pop("StreamFiles", None)
    with pytest.raises(AttributeError):
        braidfs.data.Missing  # noqa: B018


def test_an_empty_data_set(tmp_path: Path) -> None:
    stream = PlainStream(Index.scan(tmp_path), shuffle=1)
    assert list(stream) == [] and len(stream) == 0
