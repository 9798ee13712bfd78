"""Writer with Checkpoints: a step is visible when all ranks' files are durable, or not at all."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from braidfs.checkpoint import Checkpoints, StepExists
from braidfs.checkpoint.torch import Reader, Writer, load, save
from tests.torch.ranks import run
from tests.torch.states import blank, same, state

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_a_step_is_visible_after_the_save(tmp_path: Path) -> None:
    wanted = state()
    cps = Checkpoints(tmp_path / "run", keep=2)
    for step in (10, 20, 30):
        writer = Writer(cps, step)
        dcp.save({**wanted, "step": step}, storage_writer=writer)
        assert writer.done.number == step and writer.done.path.is_dir()
        newest = cps.latest()
        assert newest is not None and newest == writer.done
    assert [one.number for one in cps.steps()] == [20, 30]
    found = blank({**wanted, "step": 0})
    with cps.reading() as path:
        assert sorted(os.listdir(path)) == [
            ".metadata",
            ".parts",
            "__0_0.distcp",
            "checkpoint.json",
        ]
        dcp.load(found, storage_reader=Reader(path))
    same(found, {**wanted, "step": 30})


def test_stock_torch_reads_a_step(tmp_path: Path) -> None:
    cps = Checkpoints(tmp_path)
    dcp.save(state(), storage_writer=Writer(cps, 1))
    found = blank(state())
    newest = cps.latest()
    assert newest is not None
    dcp.load(found, checkpoint_id=newest.path)
    same(found, dict(state()) | found)


def test_a_visible_step_stays_as_it_is(tmp_path: Path) -> None:
    cps = Checkpoints(tmp_path)
    dcp.save({"a": torch.ones(3)}, storage_writer=Writer(cps, 1))
    with pytest.raises(CheckpointException) as caught:
        dcp.save({"a": torch.zeros(3)}, storage_writer=Writer(cps, 1))
    assert isinstance(caught.value.failures[0][0], StepExists)
    found = {"a": torch.zeros(3)}
    with cps.reading(1) as path:
        dcp.load(found, storage_reader=Reader(path))
    same(found, {"a": torch.ones(3)})


def test_a_checkpoint_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave out checkpoint_id"):
        dcp.save({}, storage_writer=Writer(Checkpoints(tmp_path), 1), checkpoint_id=tmp_path)


def test_async_save_commits_when_it_is_done(tmp_path: Path) -> None:
    cps = Checkpoints(tmp_path)
    values: dict[str, Any] = {"a": torch.randn(1000, 1000), "step": 4}
    before = values["a"].clone()
    saving = dcp.async_save(values, storage_writer=Writer(cps, 4))
    values["a"].zero_()
    saving.result(60)
    found = blank(values)
    with cps.reading() as path:
        dcp.load(found, storage_reader=Reader(path))
    same(found, {"a": before, "step": 4})


def test_single_files_are_parts_of_a_step(tmp_path: Path) -> None:
    cps = Checkpoints(tmp_path)
    for rank in (0, 1):
        with cps.begin(5, part=rank, parts=2, attempt="first") as c, c.file(f"{rank}.pt") as file:
            save({"rank": rank, "a": torch.full((100, 100), rank)}, file)
    done = c.wait(10)
    for rank in (0, 1):
        same(load(done.path / f"{rank}.pt"), {"rank": rank, "a": torch.full((100, 100), rank)})


def _fail_on_one(rank: int, folder: str) -> None:
    cps = Checkpoints(folder)

    class Broken(Writer):
        def write_data(self, plan: Any, planner: Any) -> Any:
            if rank == 1:
                raise OSError("the disk of rank 1 is full")
            return super().write_data(plan, planner)

    values = {"a": torch.ones(1000, 100)}
    try:
        dcp.save(values, storage_writer=Broken(cps, 7))
    except CheckpointException as error:
        assert list(error.failures) == [1]
    else:
        raise AssertionError("every rank must hear of it")
    dist.barrier()
    assert cps.latest() is None
    dcp.save(values, storage_writer=Writer(cps, 7))
    dist.barrier()
    newest = cps.latest()
    assert newest is not None and newest.number == 7 and newest.parts == dist.get_world_size()
    values["a"].zero_()
    saving = dcp.async_save(values, storage_writer=Writer(cps, 8))
    saving.result(60)
    dist.barrier()
    newest = cps.latest()
    assert newest is not None and newest.number == 8


def test_a_rank_that_fails_leaves_nothing_visible(tmp_path: Path) -> None:
    run(2, _fail_on_one, str(tmp_path))


def _save_by_process(_rank: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    values = {"a": torch.ones(300, 100)}
    saving = dcp.async_save(
        values,
        storage_writer=Writer(Checkpoints(folder), 9),
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
    )
    saving.result(120)
    newest = Checkpoints(folder).latest()
    assert newest is not None and newest.number == 9


def test_async_save_by_a_process(tmp_path: Path) -> None:
    """DCP sends the writer to a process of its own."""
    run(1, _save_by_process, str(tmp_path))
