"""load() of files that are cut, torn, changed or hostile; and the ways that few machines take."""

import contextlib
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from braidfs.checkpoint import torch_file, torch_memory, torch_skeletons, torch_writer
from braidfs.checkpoint.torch import DamagedFile, load, save
from braidfs.checkpoint.torch_writer import FolderWriter
from tests.torch.states import blank, same, state, tensors


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save({"a": torch.arange(5000), "b": torch.ones(3), "n": 3}, tmp_path / "file.pt")
    return tmp_path / "file.pt"


def test_a_cut_file_is_told(saved: Path) -> None:
    content = saved.read_bytes()
    for size in (4, 100, 4096, len(content) // 2, len(content) - 30, len(content) - 1):
        saved.write_bytes(content[:size])
        with pytest.raises(DamagedFile, match=r"file\.pt is damaged"):
            load(saved)


def test_a_file_that_lacks_a_page_in_the_middle_is_told_or_right(saved: Path) -> None:
    """A page of zeros: of the elements it cannot be seen, everywhere else it is told."""
    content = saved.read_bytes()
    places = torch_skeletons.places_of(saved.open("rb"))
    for begin in range(0, len(content), 4096):
        end = min(begin + 4096, len(content))
        if any(a < end and begin < a + size for a, size in places.values()):
            continue
        saved.write_bytes(content[:begin] + bytes(end - begin) + content[end:])
        try:
            found = load(saved)
        except (DamagedFile, pickle.UnpicklingError):
            continue
        same(found, {"a": torch.arange(5000), "b": torch.ones(3), "n": 3})


def test_bits_that_flip_in_what_surrounds_the_elements(saved: Path) -> None:
    """Whatever is read then, no other error leaves load(), and it never reads past the file."""
    content = saved.read_bytes()
    places = torch_skeletons.places_of(saved.open("rb")).values()
    around = [n for n in range(len(content)) if not any(a <= n < a + size for a, size in places)]
    around = [n for n in around if content[n]]
    source = random.Random(7)
    for _ in range(300):
        changed = bytearray(content)
        changed[source.choice(around)] ^= 1 << source.randrange(8)
        saved.write_bytes(changed)
        with contextlib.suppress(DamagedFile, pickle.UnpicklingError):
            load(saved)


def test_a_file_runs_no_code(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"a": torch.ones(3), "b": Hostile()}, tmp_path / "file.pt")
    for into in (None, {"a": torch.ones(3), "b": None}):
        with pytest.raises(pickle.UnpicklingError, match=r"file\.pt: .*add_safe_globals"):
            load(tmp_path / "file.pt", into)
    assert not (tmp_path / "ran").exists()


def test_another_zip_is_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "file.pt", "w") as file:
        file.writestr("a/b", b"c")
    with pytest.raises(DamagedFile, match=r"no file of torch\.save"):
        load(tmp_path / "file.pt")


def test_a_compressed_file_is_told(tmp_path: Path, saved: Path) -> None:
    """torch.load does not read it either."""
    with zipfile.ZipFile(tmp_path / "other.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a/data.pkl", pickle.dumps({"a": 1}))
    with pytest.raises(DamagedFile, match="is not whole"):
        load(tmp_path / "other.pt")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.pt")
    with pytest.raises(FileNotFoundError):
        save({}, tmp_path / "none" / "file.pt")


def test_torch_before_2_7_saves_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (torch_skeletons, torch_writer):
        monkeypatch.setattr(module, "HAS_SKELETONS", False)
    save(state(), tmp_path / "file.pt")
    same(load(tmp_path / "file.pt"), state_again())
    wanted = state()
    dcp.save(wanted, storage_writer=FolderWriter(tmp_path / "dcp"))
    found = blank(wanted)
    dcp.load(found, storage_reader=dcp.FileSystemReader(tmp_path / "dcp"))
    same(found, wanted)


def state_again() -> dict[str, Any]:
    """The first state after the seed."""
    torch.manual_seed(20)
    return state()


def test_without_its_unpickler_torch_loads_by_itself(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_file, "_SafeUnpickler", None)
    same(load(saved), {"a": torch.arange(5000), "b": torch.ones(3), "n": 3})


def test_tensors_of_a_device_go_through_an_arena(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU stands in for a device: parts of a piece must not meet in the arena."""

    def through_arena(tensor: Any, piece: int) -> Any:
        tensor = tensor.detach().resolve_conj().resolve_neg()
        dense = tensor if torch_memory.is_dense(tensor) else tensor.contiguous()
        return torch_memory._OfDevice(dense, piece)

    monkeypatch.setattr(torch_writer, "source_of", through_arena)
    monkeypatch.setattr(torch_memory, "_arena", torch_memory._Arena())
    wanted = {**tensors(), **{f"small {n}": torch.randn(700) for n in range(60)}}
    for piece in (4096, 50_000):
        folder = tmp_path / str(piece)
        dcp.save(wanted, storage_writer=FolderWriter(folder, threads=3, piece=piece))
        found = blank(wanted)
        dcp.load(found, storage_reader=dcp.FileSystemReader(folder))
        same(found, wanted)
