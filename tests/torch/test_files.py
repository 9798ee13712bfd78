"""save() and load() of single files, against torch.save and torch.load."""

import io
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.serialization import config

from braidfs.checkpoint.torch import load, save
from tests.torch.states import blank, same, state, tensors

Reader = Callable[[Path], Any]
READERS: dict[str, Reader] = {
    "torch.load": lambda path: torch.load(path, weights_only=True),
    "torch.load, all classes": lambda path: torch.load(path, weights_only=False),
    "torch.load with mmap": lambda path: torch.load(path, weights_only=True, mmap=True),
    "load": load,
    "load, small pieces": lambda path: load(path, threads=3, piece=4096),
}
WRITERS: dict[str, Callable[[Any, Path], object]] = {
    "torch.save": torch.save,
    "save": save,
    "save, small pieces": lambda obj, path: save(obj, path, threads=3, piece=4096),
    "save past the page cache": lambda obj, path: save(obj, path, direct=True),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_reads_what_every_writer_wrote(
    tmp_path: Path, reader: str, writer: str
) -> None:
    wanted = state()
    WRITERS[writer](wanted, tmp_path / "file.pt")
    same(READERS[reader](tmp_path / "file.pt"), wanted)


def test_strides_are_those_of_torch_save(tmp_path: Path) -> None:
    save(tensors(), tmp_path / "ours.pt")
    torch.save(tensors(), tmp_path / "torch.pt")
    wanted = torch.load(tmp_path / "torch.pt")
    for found in (load(tmp_path / "ours.pt"), load(tmp_path / "torch.pt")):
        for name, one in wanted.items():
            assert found[name].stride() == one.stride(), name
            assert found[name].requires_grad == one.requires_grad, name


@pytest.mark.parametrize("reader", READERS)
def test_views_share_their_storage_afterwards(tmp_path: Path, reader: str) -> None:
    base = torch.randn(100, 100)
    save({"base": base, "row": base[7], "again": base}, tmp_path / "file.pt")
    assert (tmp_path / "file.pt").stat().st_size < 2 * base.nbytes
    found = READERS[reader](tmp_path / "file.pt")
    found["base"][7, 3] = 12.0
    assert found["row"][3] == 12.0 and found["again"][7, 3] == 12.0


def test_storages_begin_at_pages(tmp_path: Path) -> None:
    """So a map of the file, or O_DIRECT, needs no copy."""
    save({"a": torch.randn(1000), "b": torch.randn(3)}, tmp_path / "file.pt")
    found = torch.load(tmp_path / "file.pt", mmap=True)
    assert all(one.data_ptr() % 4096 == 0 for one in found.values())


def test_an_object_is_read_into_another(tmp_path: Path) -> None:
    wanted = state()
    wanted["model"] = {name: one for name, one in wanted["model"].items() if _has_no_gaps(one)}
    save(wanted, tmp_path / "file.pt")
    into = blank(wanted)
    into["model"]["transposed"] = torch.zeros(13, 17).t()
    into["model"]["large"] = torch.zeros(1000, 700).t()  # the file has it in another order
    before = {name: one.data_ptr() for name, one in into["model"].items()}
    found = load(tmp_path / "file.pt", into, piece=100_000)
    assert found is into
    same(found, wanted)
    assert {name: one.data_ptr() for name, one in found["model"].items()} == before


def _has_no_gaps(tensor: torch.Tensor) -> bool:
    return bool(tensor.clone(memory_format=torch.preserve_format).stride() == tensor.stride())


def test_a_model_resumes_by_its_state_dict(tmp_path: Path) -> None:
    def made() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    model, optimizer = made()
    model(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "1.pt")
    other, its_optimizer = made()
    found = load(
        tmp_path / "1.pt", {"model": other.state_dict(), "optimizer": blank(optimizer.state_dict())}
    )
    its_optimizer.load_state_dict(found["optimizer"])
    same(other.state_dict(), model.state_dict())
    same(its_optimizer.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize(
    ("into", "told"),
    [
        ({"a": torch.zeros(4), "b": 1}, r"a is \(4,\)"),
        ({"a": torch.zeros(3, dtype=torch.int32), "b": 1}, "torch.int32"),
        ({"a": torch.zeros(3)}, "has b, which"),
        ({"a": torch.zeros(3), "b": 1, "c": 2}, "has no c"),
        ({"a": 5, "b": 1}, "none in `into`"),
        ({"a": torch.zeros(3), "b": torch.zeros(1)}, "none in the file"),
    ],
)
def test_an_object_that_does_not_fit_is_told(tmp_path: Path, into: Any, told: str) -> None:
    save({"a": torch.ones(3), "b": 1}, tmp_path / "file.pt")
    with pytest.raises(ValueError, match=told):
        load(tmp_path / "file.pt", into)


def test_the_settings_of_torch_are_as_they_were(tmp_path: Path) -> None:
    before = config.save.storage_alignment, config.save.compute_crc32
    save(state(), tmp_path / "file.pt")
    with pytest.raises((AttributeError, pickle.PicklingError)):
        save({"cannot": lambda: None}, tmp_path / "other.pt")
    assert (config.save.storage_alignment, config.save.compute_crc32) == before
    assert os.listdir(tmp_path) == ["file.pt"]


def test_a_save_that_fails_leaves_the_file_of_before(tmp_path: Path) -> None:
    save({"step": 1}, tmp_path / "file.pt")

    class Torn:
        def __reduce__(self) -> Any:
            raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        save({"step": Torn()}, tmp_path / "file.pt")
    assert load(tmp_path / "file.pt") == {"step": 1}
    assert os.listdir(tmp_path) == ["file.pt"]


def test_open_files_get_the_same_content(tmp_path: Path) -> None:
    wanted = state()
    with (tmp_path / "file.pt").open("w+b") as file:
        save(wanted, file)
        file.write(b"after")
    content = (tmp_path / "file.pt").read_bytes()
    assert content.endswith(b"after")
    (tmp_path / "file.pt").write_bytes(content[: -len(b"after")])
    same(load(tmp_path / "file.pt"), wanted)
    buffer = io.BytesIO()
    save(wanted, buffer)
    buffer.seek(0)
    same(torch.load(buffer), wanted)
    with (tmp_path / "appended.pt").open("ab") as file:
        save(wanted, file)
    same(load(tmp_path / "appended.pt"), wanted)


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.pt").symlink_to("there/file.pt")
    save({"step": 3}, tmp_path / "link.pt")
    assert (tmp_path / "link.pt").is_symlink() and load(tmp_path / "there" / "file.pt") == {
        "step": 3
    }


def test_threads_save_at_once(tmp_path: Path) -> None:
    wanted = [state() for _ in range(4)]
    threads = [
        threading.Thread(target=save, args=(one, tmp_path / f"{number}.pt"))
        for number, one in enumerate(wanted)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    for number, saved in enumerate(wanted):
        same(load(tmp_path / f"{number}.pt"), saved)


def test_a_forked_process_saves(tmp_path: Path) -> None:
    save({"step": 0}, tmp_path / "0.pt")
    process = multiprocessing.get_context("fork").Process(
        target=save, args=({"a": torch.ones(5)}, tmp_path / "1.pt")
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    same(load(tmp_path / "1.pt"), {"a": torch.ones(5)})


def test_other_formats_go_to_torch(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    same(load(tmp_path / "old.pt"), {"a": torch.ones(3)})
    into = {"a": torch.zeros(3)}
    load(tmp_path / "old.pt", into)
    same(into, {"a": torch.ones(3)})
    safetensors = pytest.importorskip("safetensors.torch")
    if torch.__version__ >= "2.13":  # torch.load reads such files since then
        safetensors.save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")
        same(load(tmp_path / "a.safetensors"), {"a": torch.ones(3)})


def test_subclasses_and_other_layouts(tmp_path: Path) -> None:
    wanted = {
        "sparse": torch.eye(5).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.randn(6), 0.1, 3, torch.quint8),
        "meta": torch.empty(3, device="meta"),
    }
    save(wanted, tmp_path / "file.pt")
    for found in (torch.load(tmp_path / "file.pt"), load(tmp_path / "file.pt")):
        same(found["sparse"].to_dense(), wanted["sparse"].to_dense())
        assert torch.equal(found["quantized"].int_repr(), wanted["quantized"].int_repr())
        assert found["meta"].is_meta and found["meta"].shape == (3,)
