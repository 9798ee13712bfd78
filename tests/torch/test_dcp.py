"""Writer and Reader in one process, beside FileSystemWriter, FileSystemReader and torch's tools."""

import copyreg
import inspect
import io
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp

from braidfs.checkpoint import pieces
from braidfs.checkpoint.torch import DamagedFile, Reader
from braidfs.checkpoint.torch_writer import FolderWriter
from tests.torch.states import blank, same, state, tensors

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

WRITERS: dict[str, Callable[[Path], Any]] = {
    "ours": FolderWriter,
    "ours, small pieces": lambda path: FolderWriter(path, threads=3, piece=4096),
    "ours, past the page cache": lambda path: FolderWriter(path, direct=True),
    "torch": dcp.FileSystemWriter,
}
READERS: dict[str, Callable[[Path], Any]] = {
    "ours": Reader,
    "ours, small pieces": lambda path: Reader(path, threads=3, piece=4096),
    "ours, share node": lambda path: Reader(path, share="node"),
    "torch": dcp.FileSystemReader,
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_reads_what_every_writer_wrote(
    tmp_path: Path, reader: str, writer: str
) -> None:
    wanted = state()
    dcp.save(wanted, storage_writer=WRITERS[writer](tmp_path))
    found = blank(wanted)
    dcp.load(found, storage_reader=READERS[reader](tmp_path))
    same(found, wanted)


@pytest.mark.parametrize("writer", WRITERS)
def test_into_targets_of_other_kinds(tmp_path: Path, writer: str) -> None:
    """In another order, with gaps, of another dtype: as torch's own reader does it."""
    wanted = {name: one for name, one in tensors().items() if one.numel()}
    dcp.save(wanted, storage_writer=WRITERS[writer](tmp_path))
    for made in (_reversed_order, _with_gaps, _as_double):
        ours = {name: made(one) for name, one in wanted.items()}
        torchs = {name: made(one) for name, one in wanted.items()}
        dcp.load(ours, storage_reader=Reader(tmp_path))
        dcp.load(torchs, storage_reader=dcp.FileSystemReader(tmp_path))
        same(ours, torchs)


def _reversed_order(one: Any) -> Any:
    turned = tuple(reversed(range(one.dim())))
    return torch.zeros(tuple(reversed(one.shape)), dtype=one.dtype).permute(turned)


def _with_gaps(one: Any) -> Any:
    return torch.zeros((*one.shape, 2), dtype=one.dtype)[..., 0]


def _as_double(one: Any) -> Any:
    return torch.zeros(one.shape, dtype=torch.complex128 if one.is_complex() else torch.float64)


def test_tools_of_torch_read_it(tmp_path: Path) -> None:
    wanted = state()
    dcp.save(wanted, storage_writer=FolderWriter(tmp_path / "dcp"))
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "file.pt")
    same(torch.load(tmp_path / "file.pt", weights_only=False), wanted)
    torch_save_to_dcp(tmp_path / "file.pt", tmp_path / "again")
    found = blank(wanted)
    dcp.load(found, storage_reader=Reader(tmp_path / "again"))
    same(found, wanted)


def test_items_begin_at_pages(tmp_path: Path) -> None:
    dcp.save({"a": torch.randn(100_000), "b": torch.ones(3)}, storage_writer=FolderWriter(tmp_path))
    records = dcp.FileSystemReader(tmp_path).read_metadata().storage_data
    assert [info.offset % 4096 for info in records.values()] == [0, 0]
    assert {index.fqn: info.braidfs["begin"] % 4096 for index, info in records.items()}["a"] == 0


def test_places_are_read_straight_into_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes land where the tensors are, in few reads; torch.load is not called."""
    wanted = {f"layer {number}": torch.randn(300, 100) for number in range(40)}
    dcp.save(wanted, storage_writer=FolderWriter(tmp_path))
    reads = []

    def preadv(fd: int, views: list[memoryview], offset: int) -> int:
        reads.append((offset, sum(view.nbytes for view in views)))
        return real(fd, views, offset)

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("torch.load")

    real = os.preadv
    found = blank(wanted)
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(torch, "load", refused)
    dcp.load(found, storage_reader=Reader(tmp_path, threads=1))
    same(found, wanted)
    size = (tmp_path / "__0_0.distcp").stat().st_size
    assert len(reads) <= -(-size // pieces.PIECE) + 1
    assert reads == sorted(reads) and sum(length for _, length in reads) <= size


def test_async_save_is_of_the_moment_that_it_was_called(tmp_path: Path) -> None:
    values: dict[str, Any] = {"model": {"a": torch.randn(2000, 1000)}, "step": 4}
    before = values["model"]["a"].clone()
    saving = dcp.async_save(values, storage_writer=FolderWriter(tmp_path))
    values["model"]["a"].zero_()  # training goes on
    saving.result(60)
    found = blank(values)
    dcp.load(found, storage_reader=Reader(tmp_path))
    same(found, {"model": {"a": before}, "step": 4})


class Own(torch.Tensor):  # type: ignore[misc]
    pass


def test_a_subclass_is_saved_by_torch(tmp_path: Path) -> None:
    torch.serialization.add_safe_globals([Own])
    wanted = {"own": torch.randn(5, 6).as_subclass(Own), "plain": torch.randn(3)}
    dcp.save(wanted, storage_writer=FolderWriter(tmp_path))
    records = dcp.FileSystemReader(tmp_path).read_metadata().storage_data
    assert {i.fqn for i, info in records.items() if hasattr(info, "braidfs")} == {"plain"}


def test_a_state_without_tensors(tmp_path: Path) -> None:
    dcp.save({"step": 5}, storage_writer=FolderWriter(tmp_path))
    found = {"step": 0}
    dcp.load(found, storage_reader=Reader(tmp_path))
    assert found == {"step": 5}


def test_the_reader_refuses_an_unknown_share(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not 'rack'"):
        Reader(tmp_path, share="rack")


@pytest.mark.skipif(
    "use_collectives" not in inspect.signature(dcp.save).parameters,
    reason="this version of torch always has collectives",
)
def test_one_file_for_each_rank_is_saved_with_collectives_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use_collectives=False is not possible"):
        dcp.save({"a": torch.ones(2)}, storage_writer=FolderWriter(tmp_path), use_collectives=False)


# ---- damage --------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, Any]:
    wanted = {"a": torch.randn(200, 300), "b": torch.randn(300, 200), "n": 3}
    dcp.save(wanted, storage_writer=FolderWriter(tmp_path))
    return wanted


def _loaded(path: Path, wanted: dict[str, Any], **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = blank(wanted)
    dcp.load(found, storage_reader=Reader(path, **given))
    return found


def _refused(path: Path, wanted: dict[str, Any], told: str) -> None:
    _fails(path, wanted, DamagedFile, "(?s)is damaged: .*" + told)


def _fails(path: Path, wanted: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(CheckpointException, match=told) as caught:
        _loaded(path, wanted)
    ((failure, _),) = caught.value.failures.values()
    assert type(failure) is kind


def test_a_cut_file_is_told(tmp_path: Path, saved: dict[str, Any]) -> None:
    file = tmp_path / "__0_0.distcp"
    content = file.read_bytes()
    for size in (0, 1, 4096, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:size])
        _refused(tmp_path, saved, f"it has {size} bytes")
    file.unlink()
    _refused(tmp_path, saved, "it is missing")


def test_a_file_of_another_checkpoint_is_told(tmp_path: Path, saved: dict[str, Any]) -> None:
    other = {"a": torch.randn(300, 200), "b": torch.randn(200, 300), "n": 3}
    dcp.save(other, storage_writer=FolderWriter(tmp_path / "other"))
    (tmp_path / "other" / "__0_0.distcp").rename(tmp_path / "__0_0.distcp")
    _refused(tmp_path, saved, r"it has a tensor of torch.float32 \(300, 200\)")


def test_zeros_instead_of_a_file_are_told(tmp_path: Path, saved: dict[str, Any]) -> None:
    file = tmp_path / "__0_0.distcp"
    size = file.stat().st_size
    file.write_bytes(bytes(size))
    _refused(tmp_path, {"a": saved["a"]}, "there is no tensor before")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda info: info.braidfs.update(begin=info.offset), "there is no tensor before"),
        (lambda info: info.braidfs.update(begin=info.braidfs["begin"] - 64), "no tensor before"),
        (lambda info: info.braidfs.update(dtype="int32"), "the metadata say torch.int32"),
        (lambda info: info.braidfs.update(shape=(300, 200)), "it lacks"),
        (lambda info: info.braidfs.update(dtype="nn"), "has no place"),
        (lambda info: info.braidfs.update(begin=-4096), "has no place"),
        (lambda info: info.braidfs.update(begin="x"), "has no place"),
        (lambda info: info.braidfs.update(shape=(1 << 40, 300)), "is not within its item"),
        (lambda info: info.braidfs.clear(), "has no place"),
        (lambda info: setattr(info, "relative_path", "../secret"), "it names the file"),
        (lambda info: setattr(info, "relative_path", "/etc/passwd"), "it names the file"),
        (lambda info: setattr(info, "offset", -1), "has no range"),
        (lambda info: setattr(info, "length", 1 << 50), "should have"),
    ],
)
def test_wrong_metadata_are_told(
    tmp_path: Path, saved: dict[str, Any], change: Callable[[Any], object], told: str
) -> None:
    path = tmp_path / ".metadata"
    found = pickle.loads(path.read_bytes())
    change(next(info for index, info in found.storage_data.items() if index.fqn == "a"))
    path.write_bytes(pickle.dumps(found))
    _refused(tmp_path, {"a": saved["a"]}, told)


@pytest.mark.filterwarnings("ignore")
def test_metadata_run_no_code(tmp_path: Path, saved: dict[str, Any]) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    path = tmp_path / ".metadata"
    found = pickle.loads(path.read_bytes())
    found.planner_data = Hostile()
    path.write_bytes(pickle.dumps(found))
    told = r"posix\.mkdir, which is no record of DCP"
    _fails(tmp_path, saved, pickle.UnpicklingError, told)
    assert not (tmp_path / "ran").exists()


def test_members_of_enumerations_as_any_python_writes_them(
    tmp_path: Path, saved: dict[str, Any]
) -> None:
    """Some versions of 3.11 write getattr(kind, "NAME"), others kind(value)."""
    path = tmp_path / ".metadata"
    found = pickle.loads(path.read_bytes())
    kind = metadata._MEM_FORMAT_ENCODING  # it stands in each record of a tensor
    for reduced in (lambda one: (getattr, (kind, one.name)), lambda one: (kind, (one.value,))):
        path.write_bytes(_pickled(found, kind, reduced))
        _loaded(tmp_path, saved)
    for reduced in (lambda one: (getattr, (kind, "NONE")), lambda one: (getattr, (set, "pop"))):
        path.write_bytes(_pickled(found, kind, reduced))
        _fails(tmp_path, saved, DamagedFile, re.escape(f"{path} is damaged"))


def _pickled(found: Any, kind: Any, reduced: Callable[[Any], Any]) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file)
    pickler.dispatch_table = {**copyreg.dispatch_table, kind: reduced}
    pickler.dump(found)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore")
def test_torn_metadata_are_told(tmp_path: Path, saved: dict[str, Any]) -> None:
    path = tmp_path / ".metadata"
    content = path.read_bytes()
    for torn in (b"", content[:-1], content[: len(content) // 2], b"\0" * len(content)):
        path.write_bytes(torn)
        _fails(tmp_path, saved, DamagedFile, re.escape(f"{path} is damaged"))


def test_missing_metadata_are_told(tmp_path: Path, saved: dict[str, Any]) -> None:
    path = tmp_path / ".metadata"
    content = path.read_bytes()
    path.unlink()
    _fails(tmp_path, saved, FileNotFoundError, re.escape(str(path)))
    (tmp_path / "__0.metadata").write_bytes(content[:-1])
    reader = Reader(tmp_path)
    with pytest.raises(DamagedFile, match="__0"):
        reader.read_metadata(rank=0)
    with pytest.raises(FileNotFoundError):
        reader.read_metadata()
    unread = reader.read_metadata(rank=0)
    with pytest.raises(DamagedFile, match="__0"):
        _ = unread.state_dict_metadata


def test_shapes_that_do_not_fit_are_told(tmp_path: Path, saved: dict[str, Any]) -> None:
    with pytest.raises(CheckpointException, match="Size mismatch"):
        dcp.load({"a": torch.zeros(500, 300)}, storage_reader=Reader(tmp_path))
