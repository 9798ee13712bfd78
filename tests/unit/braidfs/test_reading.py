"""read_files(): order, places, errors, and files that change between the scan and the reading."""

import copy
import errno
import gc
import os
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from braidfs.data import DamagedIndexError, Files, FilesError, Index, read_files, reading
from braidfs.data.arenas import Spares
from braidfs.data.pools import Pool, PoolOfProcess

from .data_sets import kind, make_pool, make_tree

__all__ = ["kind"]  # a fixture


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    make_tree(root)
    return root


def content(index: Index, row: int) -> bytes:
    return Path(index.path(row)).read_bytes()


def test_files_come_in_the_order_of_the_request(kind: str, tree: Path) -> None:
    index = Index.scan(tree)
    rows = [*random.Random(3).sample(range(len(index)), len(index)), 5, 5, -1]
    batch = read_files(index, rows, threads=3)
    assert [bytes(one or b"") for one in batch] == [content(index, row) for row in rows]
    assert list(batch.sizes) == [index.size(index.row(row)) for row in rows]
    assert len(batch) == len(rows) and batch.errors == ()
    assert all(place % 4096 == 0 for place in batch.places)
    last = batch[-1]
    assert last == content(index, -1) and batch[1:3] == [batch[1], batch[2]]


def test_paths_of_any_kind(kind: str, tree: Path) -> None:
    index = Index.scan(tree)
    path = index.path(6)
    batch = read_files([path, os.fsencode(path), Path(path)])
    assert [bytes(one or b"") for one in batch] == [content(index, 6)] * 3
    with pytest.raises(ValueError, match="NUL"):
        read_files(["/a\0b"])


def test_files_whose_size_is_a_lie(kind: str) -> None:
    """Those of /proc have a size of 0."""
    (status,) = read_files(["/proc/self/status"])
    assert status is not None and bytes(status).startswith(b"Name:")


def test_nothing(kind: str, tree: Path) -> None:
    assert list(read_files([])) == [] == list(read_files(Index.scan(tree), []))


def test_wrong_calls(tree: Path) -> None:
    index = Index.scan(tree)
    with pytest.raises(IndexError, match="40 files"):
        read_files(index, [40])
    with pytest.raises(TypeError, match="rows"):
        read_files(index)
    with pytest.raises(TypeError, match="rows"):
        read_files(["/etc/passwd"], [0])
    with pytest.raises(ValueError, match="raise"):
        read_files(index, [1], errors="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threads"):
        read_files(index, [1], threads=1000)


def test_all_errors_are_named_after_the_batch(kind: str, tree: Path) -> None:
    index = Index.scan(tree)
    Path(index.path(2)).unlink()
    Path(index.path(4)).unlink()
    Path(index.path(4)).mkdir()
    with pytest.raises(FilesError) as caught:
        read_files(index, [0, 2, 4, 6])
    found = [(one.position, one.path, one.errno) for one in caught.value.failures]
    assert found == [(1, index.path(2), errno.ENOENT), (2, index.path(4), errno.EISDIR)]
    assert str(caught.value).startswith("2 of 4 files could not be read: " + index.path(2))
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.failures == caught.value.failures and str(again) == str(caught.value)
    assert FilesError("as DataLoader makes it again").failures == ()


def test_errors_are_kept_if_wanted(kind: str, tree: Path) -> None:
    index = Index.scan(tree)
    batch = read_files([index.path(0), "/missing", tree, index.path(6)], errors="keep")
    assert [None if one is None else bytes(one) for one in batch] == [
        content(index, 0),
        None,
        None,
        content(index, 6),
    ]
    assert [one.errno for one in batch.errors] == [errno.ENOENT, errno.EISDIR]
    assert list(batch.sizes)[1:3] == [-1, -1]


def test_a_long_list_of_errors_is_cut() -> None:
    with pytest.raises(FilesError, match=r"^9 of 9 .*; and others$") as caught:
        read_files([f"/missing/{number}" for number in range(9)])
    assert len(caught.value.failures) == 9


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 300_000])
def test_files_that_changed_since_the_scan(kind: str, tree: Path, size: int) -> None:
    """Grown and shrunk, replaced under the same name; the others of the batch stay whole."""
    index = Index.scan(tree)
    for row in (3, 6, 20):
        path = Path(index.path(row))
        path.with_suffix(".new").write_bytes(random.Random(row).randbytes(size))
        path.with_suffix(".new").replace(path)
    rows = list(range(len(index)))
    batch = read_files(index, rows)
    assert [bytes(one or b"") for one in batch] == [content(index, row) for row in rows]
    assert batch.sizes[6] == size


class Meddling:
    """A pool that changes files after each look at their sizes."""

    def __init__(self, pool: Pool, meddle: Callable[[int], None]) -> None:
        self._pool, self._meddle, self.looks = pool, meddle, 0

    def sizes(self, names: bytes, table: object, threads: int) -> None:
        self._pool.sizes(names, table, threads)
        self.looks += 1
        self._meddle(self.looks)

    def read(self, names: bytes, table: object, arena: object, threads: int) -> None:
        self._pool.read(names, table, arena, threads)


def meddled(monkeypatch: pytest.MonkeyPatch, kind: str, meddle: Callable[[int], None]) -> Meddling:
    pool = Meddling(make_pool(kind), meddle)
    monkeypatch.setattr(reading, "_pool", PoolOfProcess(lambda: pool))
    return pool


def test_a_file_that_grows_twice_is_read_a_third_time(
    kind: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tree / "a/file-0000.jpg"

    def grow(look: int) -> None:
        if look < 3:
            path.write_bytes(bytes([look]) * 10_000 * look)

    pool = meddled(monkeypatch, kind, grow)
    (one,) = read_files([path])
    assert bytes(one or b"") == b"\2" * 20_000 and pool.looks == 3


def test_a_file_that_grows_for_ever_is_an_error(
    kind: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tree / "a/file-0000.jpg", tree / "b/file-0004.jpg"

    def grow(look: int) -> None:
        path.write_bytes(b"x" * 10_000 * look)

    meddled(monkeypatch, kind, grow)
    batch = read_files([other, path], errors="keep")
    assert batch[0] == other.read_bytes()
    assert [(one.position, one.errno) for one in batch.errors] == [(1, errno.EBUSY)]


def test_a_file_that_grew_and_vanished(
    kind: str, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.scan(tree)
    grown = Path(index.path(5))
    grown.write_bytes(b"x" * 500_000)
    meddled(monkeypatch, kind, lambda _: grown.unlink())
    batch = read_files(index, [4, 5, 6], errors="keep")
    assert [one.errno for one in batch.errors] == [errno.ENOENT]
    assert batch[0] == content(index, 4) and batch[2] == content(index, 6)


def test_files_larger_than_the_memory(tree: Path) -> None:
    index = Index.scan(tree)
    with pytest.raises(MemoryError, match="1 files have"):
        huge = tree / "huge"
        huge.touch()
        os.truncate(huge, 1 << 43)
        read_files([huge])
    assert read_files(index, [1])[0] == content(index, 1)


def test_a_fork_while_others_read(kind: str, tree: Path) -> None:
    index = Index.scan(tree)
    rows = range(len(index))
    expected = [content(index, row) for row in rows]
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            read_files(index, rows)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                found = [bytes(one or b"") for one in read_files(index, rows)]
                os._exit(found == expected)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    finally:
        over.set()
        thread.join(30)


def test_memory_is_used_again_after_the_last_view() -> None:
    spares = Spares()
    arena = spares.arena(10_000)
    arena.view[:4] = b"used"
    view = arena.view[:4]
    del arena
    gc.collect()
    second = spares.arena(10_000)
    assert bytes(view) == b"used" and bytes(second.view[:4]) == bytes(4)
    second.view[:4] = b"next"
    assert bytes(view) == b"used"
    del view
    third = spares.arena(5_000)
    assert bytes(third.view[:4]) == b"used" and len(third.view) == 5_000
    del second, third
    larger = spares.arena(5 << 20)
    assert bytes(larger.view[:4]) == bytes(4)


def test_little_memory_is_kept() -> None:
    spares = Spares()
    many = [spares.arena(3 << 20) for _ in range(12)]
    many.append(spares.arena(400 << 20))
    del many
    kept = [len(one) for one in spares._free]
    assert 0 < len(kept) <= 4 and sum(kept) <= 256 << 20


def test_items_of_files(kind: str, tree: Path) -> None:
    index = Index.scan(tree)
    files = Files(index, lambda data, row: (row, len(data)), tensors=False)
    assert len(files) == 40
    assert files[-1] == (39, index.size(39))
    assert files.__getitems__([4, 0]) == [(4, index.size(4)), (0, index.size(0))]
    plain = Files(index, tensors=False)
    assert plain[6] == content(index, 6)
    Path(index.path(0)).unlink()
    with pytest.raises(FilesError):
        plain.__getitems__([0, 1])
    keeping = Files(index, tensors=False, errors="keep")
    assert keeping.__getitems__([0, 1]) == [None, content(index, 1)]
    again = pickle.loads(pickle.dumps(plain))
    assert again[6] == content(index, 6) and copy.copy(plain)[6] == content(index, 6)


def test_a_forged_size_is_no_more_than_an_error(tree: Path) -> None:
    index = Index.scan(tree)
    forged = memoryview(bytearray(8 * len(index))).cast("Q")
    forged[0] = (1 << 64) - 1
    index.sizes = forged
    with pytest.raises(MemoryError):
        read_files(index, [0])
    forged[0] = (1 << 63) - 1
    with pytest.raises(MemoryError):
        read_files(index, [0])
    assert issubclass(DamagedIndexError, ValueError)
