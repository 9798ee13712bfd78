"""Stores whose file is really damaged: found by reading, moved aside, and never begun anew."""

import errno
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fscommon.errors import ConfigError
from fscommon.observe.log import Log
from metaserver import copying
from metaserver.config import MetaserverConfig
from metaserver.copying import COPYING
from metaserver.own_store import OwnStore
from metaserver.state_directory import STORE
from metaserver.store.journal import UnreachableError
from metaserver.store.journaled import MARK_KEY, Mark, has_names
from metaserver.store.lmdb import DamagedRecordError, DamagedStoreError, LmdbStore
from metaserver.store.sound import damage_of, read_all
from metaserver.store.waist import StoreError

PAGE = 4096
COUNT = 4000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A state directory with a store of some hundred pages."""
    store = LmdbStore(tmp_path / STORE, size_max=1 << 20)
    random_bytes = random.Random(1).randbytes
    for part in range(4):
        batch: list[tuple[bytes, bytes | None]] = [
            (b"I%d" % number, random_bytes(150)) for number in range(part, COUNT, 4)
        ]
        store.commit(batch)
    store.commit([Mark(b"l" * 16, 7, b"n" * 16).record()])
    store.close()
    return tmp_path


def data_of(directory: Path) -> Path:
    return directory / STORE / "data.mdb"


def _cut(data: Path) -> None:
    os.truncate(data, 5 * PAGE)


def _cut_in_the_root(data: Path) -> None:
    os.truncate(data, 2 * PAGE + 100)


def _empty(data: Path) -> None:
    os.truncate(data, 0)


def _foreign(data: Path) -> None:
    data.write_bytes(b"This is the file of another program.\n" * 1000)


def _zeros(data: Path) -> None:
    data.write_bytes(bytes(len(data.read_bytes())))


def _meta_pages(data: Path) -> None:
    _flip(data, range(16, 40))
    _flip(data, range(PAGE + 16, PAGE + 40))


def _middle(data: Path) -> None:
    """Each page but the first ones, somewhere."""
    where = random.Random(2)
    pages = range(4, os.path.getsize(data) // PAGE)
    _flip(data, [page * PAGE + where.randrange(PAGE) for page in pages])


def _flip(data: Path, places: "range | list[int]") -> None:
    with data.open("r+b") as file:
        for at in places:
            file.seek(at)
            (byte,) = file.read(1) or b"\0"
            file.seek(at)
            file.write(bytes([byte ^ 0x5A]))


DAMAGES = [_cut, _cut_in_the_root, _empty, _foreign, _zeros, _meta_pages, _middle]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(directory: Path, damage: Callable[[Path], None]) -> None:
    assert damage_of(directory / STORE) == ""
    damage(data_of(directory))
    found = damage_of(directory / STORE)
    assert found
    print(f"{damage.__name__}: {found}")


@pytest.mark.parametrize("seed", range(60))
def test_no_flipped_byte_gets_through(directory: Path, seed: int) -> None:
    """A page that is in use: its bytes are whole, or the damage is found. What LMDB does with the
    page is not foreseen, so the process that reads may end by a signal."""
    data = data_of(directory)
    before = dict(_records(directory))
    where = random.Random(seed)
    size = LmdbSize(directory).pages * PAGE
    _flip(data, [where.randrange(size) for _ in range(3)])
    if not damage_of(directory / STORE):
        assert dict(_records(directory)) == before


class LmdbSize:
    def __init__(self, directory: Path) -> None:
        store = LmdbStore(directory / STORE, size_max=1 << 20)
        self.pages = int(store._environment.info()["last_pgno"]) + 1
        store.close()


def _records(directory: Path) -> list[tuple[bytes, bytes]]:
    store = LmdbStore(directory / STORE, size_max=1 << 20)
    snapshot = store.snapshot()
    try:
        return list(snapshot.range(b"", b"\xff"))
    finally:
        snapshot.close()
        store.close()


def test_a_sound_store_is_read_whole_and_not_changed(directory: Path, tmp_path: Path) -> None:
    before = data_of(directory).read_bytes()
    assert read_all(directory / STORE) == COUNT + 1
    assert read_all(tmp_path / "none") == 0
    assert data_of(directory).read_bytes() == before
    assert not (tmp_path / "none").exists()


def test_a_damaged_mark_is_damage(directory: Path) -> None:
    store = LmdbStore(directory / STORE, size_max=1 << 20)
    store.commit([(MARK_KEY, b"not a mark")])
    store.close()
    assert "mark of the journal" in damage_of(directory / STORE)


def test_a_store_that_cannot_be_read_is_not_called_damaged(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there, and something else keeps it from being read."""
    data = data_of(directory)
    data.rename(data.with_name("kept"))
    data.mkdir()
    (data / "file").write_bytes(b"")
    with pytest.raises(StoreError):
        damage_of(directory / STORE)
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(StoreError, match="could not be read"):
        damage_of(directory / STORE)


def test_a_process_that_crashes_has_found_damage(
    directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crashing = tmp_path / "python"
    for sign, is_damage in ((signal.SIGBUS, True), (signal.SIGSEGV, True), (signal.SIGKILL, False)):
        crashing.write_text(f"#!/bin/sh\nkill -{int(sign)} $$\n")
        crashing.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(crashing))
        if is_damage:
            assert damage_of(directory / STORE) == f"who reads it is ended by {sign.name}"
        else:
            with pytest.raises(StoreError):
                damage_of(directory / STORE)


# ---- the store in the state directory -----------------------------------------------------------


def own_store(directory: Path) -> OwnStore:
    config = MetaserverConfig(state_directory=directory, key_file=directory / "key")
    return OwnStore(config, Log("metaserver"), key=b"k" * 32, transport=None)


def kept_in(directory: Path) -> list[Path]:
    return list(directory.glob("store.damaged-*"))


@pytest.mark.trio
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_store_is_kept_once(
    directory: Path, damage: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    old = directory / "store.damaged-20200101T000000Z"
    old.mkdir()
    damage(data_of(directory))
    damaged = data_of(directory).read_bytes()
    own = own_store(directory)
    store = await own.open_sound()
    (kept,) = kept_in(directory)
    assert kept != old and (kept / "data.mdb").read_bytes() == damaged
    assert not has_names(store)
    assert (own.lost, own.kept) == (f"the store was damaged, and is kept as {kept}", str(kept))
    own.close()

    again = own_store(directory)
    assert not has_names(await again.open_sound()), "the next start does not begin anew, either"
    assert again.lost
    again.store.commit([(b"I", b"a copy")])
    assert again.lost == "" and again.kept == str(kept)
    again.close()


@pytest.mark.trio
async def test_a_sound_store_is_opened_as_it_is(directory: Path) -> None:
    own = own_store(directory)
    assert has_names(await own.open_sound())
    assert (own.lost, own.kept) == ("", "")
    own.close()


@pytest.mark.trio
async def test_damage_that_is_found_later(directory: Path) -> None:
    own = own_store(directory)
    await own.open_sound()
    assert not has_names(own.discard("a page is missing"))
    assert own.lost
    own.close()


@pytest.mark.trio
async def test_a_copy_that_cannot_be_taken_is_tried_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason is: the store stays open, and nothing is left of the copy."""
    own = own_store(directory)
    await own.open_sound()
    (directory / COPYING).mkdir()
    for address in ("127.0.0.1:1", "no:address:at:all"):
        with pytest.raises(UnreachableError, match=f"no copy from {address}"):
            await own.copy(address)
        assert not (directory / COPYING).exists()

    def full(*_: object, **__: object) -> LmdbStore:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(copying, "LmdbStore", full)
        with pytest.raises(UnreachableError, match="No space left"):
            await own.copy("127.0.0.1:1")
    assert has_names(own.store)

    def damaged(_: object) -> bool:
        raise DamagedRecordError(b"I7")

    monkeypatch.setattr(copying, "has_names", damaged)
    with pytest.raises(DamagedStoreError, match="I7"):
        await own.copy("127.0.0.1:1")
    own.close()


@pytest.mark.parametrize("damage", [_cut_in_the_root, _foreign, _zeros, _meta_pages])
def test_a_metaserver_that_is_alone_keeps_its_store_in_its_place(
    directory: Path, damage: Callable[[Path], None]
) -> None:
    damage(data_of(directory))
    damaged = data_of(directory).read_bytes()
    if damage is not _cut_in_the_root:  # LMDB itself would end this process
        with pytest.raises(DamagedStoreError):
            own_store(directory).open()
    assert data_of(directory).read_bytes() == damaged
    assert kept_in(directory) == []


@pytest.mark.trio
async def test_alone_it_does_not_begin_anew_after_damage(directory: Path) -> None:
    _foreign(data_of(directory))
    own = own_store(directory)
    await own.open_sound()
    own.close()
    alone = own_store(directory)
    alone.open()
    with pytest.raises(ConfigError, match=r"is kept as .*and this metaserver is alone"):
        alone.check_begun()
    alone.close()
