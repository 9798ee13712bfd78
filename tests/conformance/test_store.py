"""The conformance suite of the Store waist, run against every implementation."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaserver.store.lmdb import DamagedRecordError, LmdbStore
from metaserver.store.memory import MemoryStore
from metaserver.store.waist import Store, StoreFullError

Opener = Callable[[], Store]


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store
    made = MemoryStore() if request.param == "memory" else LmdbStore(tmp_path, size_max=1 << 26)
    yield made
    made.close()


def everything(store: Store) -> list[tuple[bytes, bytes]]:
    snapshot = store.snapshot()
    records = list(snapshot.range(b"\0", b"\xff" * 300))
    snapshot.close()
    return records


def test_what_was_committed_is_read(store: Store) -> None:
    store.commit([(b"b", b"2"), (b"a", b"1"), (b"c", b"")])
    snapshot = store.snapshot()
    assert snapshot.get(b"a") == b"1"
    assert snapshot.get(b"c") == b""
    assert snapshot.get(b"d") is None
    snapshot.close()


def test_delete_and_delete_of_nothing(store: Store) -> None:
    store.commit([(b"a", b"1"), (b"b", b"2")])
    store.commit([(b"a", None), (b"zz", None)])
    assert everything(store) == [(b"b", b"2")]


def test_ranges_are_ordered_and_half_open(store: Store) -> None:
    keys = [b"D\x00\x01", b"D\x00\x02", b"D\x01", b"D", b"E", b"D\xff\xff"]
    store.commit([(key, key) for key in keys])
    snapshot = store.snapshot()
    assert [k for k, _ in snapshot.range(b"D", b"E")] == sorted(k for k in keys if k != b"E")
    assert [k for k, _ in snapshot.range(b"D\x00\x02", b"D\x01")] == [b"D\x00\x02"]
    assert list(snapshot.range(b"F", b"G")) == []
    assert list(snapshot.range(b"D\x01", b"D\x01")) == []
    snapshot.close()


def test_a_snapshot_stays_as_it_was(store: Store) -> None:
    store.commit([(b"a", b"1")])
    old = store.snapshot()
    store.commit([(b"a", b"2"), (b"b", b"3")])
    assert old.get(b"a") == b"1"
    assert list(old.range(b"a", b"z")) == [(b"a", b"1")]
    old.close()
    assert everything(store) == [(b"a", b"2"), (b"b", b"3")]


def test_an_iterator_may_be_left_early(store: Store) -> None:
    store.commit([(b"%d" % i, b"") for i in range(100)])
    snapshot = store.snapshot()
    assert next(iter(snapshot.range(b"0", b"z"))) == (b"0", b"")
    snapshot.close()
    store.commit([(b"x", b"")])


def test_longest_keys_and_values(store: Store) -> None:
    key = b"D" + b"k" * 271
    store.commit([(key, b"v" * 70_000)])
    assert everything(store) == [(key, b"v" * 70_000)]


def test_an_empty_batch(store: Store) -> None:
    store.commit([])
    assert everything(store) == []
    assert store.room().used < store.room().total / 2 and not store.room().is_full


_KEYS = st.binary(min_size=1, max_size=4)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(st.dictionaries(_KEYS, st.none() | st.binary(max_size=9), max_size=8), max_size=8))
def test_against_a_dict(store: Store, batches: list[dict[bytes, bytes | None]]) -> None:
    store.commit([(key, None) for key, _ in everything(store)])
    model: dict[bytes, bytes] = {}
    for batch in batches:
        store.commit(list(batch.items()))
        for key, value in batch.items():
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        assert everything(store) == sorted(model.items())


def test_lmdb_keeps_batches_over_a_reopening(tmp_path: Path) -> None:
    first = LmdbStore(tmp_path, size_max=1 << 26)
    first.commit([(b"a", b"1")])
    first.close()
    second = LmdbStore(tmp_path, size_max=1 << 26)
    assert everything(second) == [(b"a", b"1")]
    second.close()


def test_lmdb_that_is_full_writes_nothing_of_the_batch(tmp_path: Path) -> None:
    """Its limit is reported; the map extends beyond it, for changes that were accepted before."""
    store = LmdbStore(tmp_path, size_max=1 << 20)
    store.commit([(b"a", b"1")])
    large = [(b"%d" % i, b"x" * (1 << 20)) for i in range(300)]
    with pytest.raises(StoreFullError, match="no room"):
        store.commit(large)
    assert everything(store) == [(b"a", b"1")]
    store.commit(large[:2])
    assert store.room().is_full and store.room().free == 0
    store.commit([(key, None) for key, _ in large[:2]])
    assert not store.room().is_full, "pages that are used again count as free"
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        pytest.skip("only root mounts a tmpfs")
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", tmp_path), check=True)
    yield tmp_path
    subprocess.run(("umount", "-l", tmp_path), check=True)


def fill(directory: Path) -> Path:
    """Fills all free space of the disk."""
    path = directory / "filled"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    return path


def test_lmdb_on_a_disk_that_others_fill(small_disk: Path) -> None:
    """The reserved space takes many changes, also after the store was opened again.

    The store reports that nothing more fits, until it does. Beyond the reserve a batch is refused
    as a whole, and fits later.
    """
    store = LmdbStore(small_disk / "store", size_max=0)
    store.commit([(b"%d" % i, b"x" * 1000) for i in range(2000)])
    assert not store.room().is_full
    filled = fill(small_disk)
    made = 2000
    while not store.room().is_full:
        store.commit([(b"%d" % made, b"x" * 1000)])
        made += 1
    for round_ in range(200):
        if round_ == 100:
            store.close()
            store = LmdbStore(small_disk / "store", size_max=0)
        store.commit([(b"%d" % i, None) for i in range(round_ * 10, round_ * 10 + 10)])
    assert made > 2100 and not store.room().is_full, "what was removed is room again"
    batch = [(b"large%d" % i, b"x" * 100_000) for i in range(60)]
    with pytest.raises(StoreFullError):
        store.commit(batch)
    assert store.room().used < 4 << 20
    filled.unlink()
    store.commit(batch)
    assert not store.room().is_full
    store.close()


def _stored(directory: Path, key: bytes) -> bytes:
    with lmdb.open(str(directory)) as environment, environment.begin() as transaction:
        stored = transaction.get(key)
        assert stored is not None
        return bytes(stored)


def _overwrite(directory: Path, key: bytes, value: bytes) -> None:
    with lmdb.open(str(directory)) as environment, environment.begin(write=True) as transaction:
        transaction.put(key, value)


def test_lmdb_never_gives_a_damaged_record(tmp_path: Path) -> None:
    """Each byte of value and checksum is changed, values are shortened, and the record of another
    key is put in their place."""
    store = LmdbStore(tmp_path, size_max=1 << 26)
    store.commit([(b"a", b"value"), (b"b", b"other"), (b"c", b"")])
    store.close()
    stored = _stored(tmp_path, b"a")
    damaged = [
        stored[:at] + bytes([stored[at] ^ 4]) + stored[at + 1 :] for at in range(len(stored))
    ]
    damaged += [b"", stored[:-1], bytes(len(stored)), _stored(tmp_path, b"b")]
    for value in damaged:
        _overwrite(tmp_path, b"a", value)
        store = LmdbStore(tmp_path, size_max=1 << 26)
        snapshot = store.snapshot()
        with pytest.raises(DamagedRecordError, match="key b'a'"):
            snapshot.get(b"a")
        with pytest.raises(DamagedRecordError, match="key b'a'"):
            list(snapshot.range(b"a", b"z"))
        assert snapshot.get(b"b") == b"other", "the others are as they were"
        snapshot.close()
        store.close()


def test_lmdb_gives_sums_to_a_store_without(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as environment, environment.begin(write=True) as transaction:
        for i in range(1000):
            transaction.put(b"%04d" % i, b"x" * i)
    for _ in range(2):
        store = LmdbStore(tmp_path, size_max=1 << 26)
        assert everything(store) == [(b"%04d" % i, b"x" * i) for i in range(1000)]
        store.close()
