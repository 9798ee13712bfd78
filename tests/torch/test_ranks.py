"""Writer and Reader with ranks joined by gloo: DTensors, other numbers of ranks, sharing."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from braidfs.checkpoint import torch_share
from braidfs.checkpoint.torch import DamagedFile, Reader
from braidfs.checkpoint.torch_writer import FolderWriter
from tests.torch.ranks import run

PIECE = 64 << 10
# The name of each says how its dimension 0 or 1 is divided among the ranks that save.
PLACED = {
    "rows": Shard(0),
    "uneven rows": Shard(0),
    "columns": Shard(1),
    "wide columns": Shard(1),
    "whole": Replicate(),
}


def _values() -> dict[str, Any]:
    torch.manual_seed(3)
    return {
        "rows": torch.randn(64, 48),
        "uneven rows": torch.randn(37, 20).bfloat16(),
        "columns": torch.randn(30, 64).double(),
        "wide columns": torch.randn(8, 4 * 20_000),
        "whole": torch.randn(300, 500),
    }


def _state(mesh: Any, values: dict[str, Any], placed: dict[str, Any]) -> dict[str, Any]:
    state = {name: distribute_tensor(one, mesh, [placed[name]]) for name, one in values.items()}
    return {**state, "plain": values["whole"] * 2, "step": 5}


def _blank(values: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.zeros_like(one) for name, one in values.items()}


def _check(state: dict[str, Any], values: dict[str, Any]) -> None:
    for name, one in values.items():
        assert torch.equal(state[name].full_tensor(), one), name
    assert torch.equal(state["plain"], values["whole"] * 2) and state["step"] == 5


def _save_by_both(_rank: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = _state(mesh, _values(), PLACED)
    dcp.save(state, storage_writer=FolderWriter(f"{folder}/ours", piece=PIECE))
    dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{folder}/torch"))
    saving = dcp.async_save(state, storage_writer=FolderWriter(f"{folder}/async", piece=PIECE))
    saving.result(120)


def _load_by_all(_rank: int, folder: str) -> None:
    """Each tensor as it was divided, and divided in the other dimension."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch_share.JOB_PIECE = 3 * PIECE
    turned = {**PLACED, "rows": Shard(1), "columns": Shard(0), "wide columns": Replicate()}
    for writer in ("ours", "torch", "async"):
        path = f"{folder}/{writer}"
        for placed in (PLACED, turned):
            readers = [Reader(path, share, piece=PIECE) for share in (None, "node", "job")]
            for reader in (*readers, dcp.FileSystemReader(path)):
                state = _state(mesh, _blank(_values()), placed)
                dcp.load(state, storage_reader=reader)
                _check(state, _values())


def test_four_ranks_save_and_four_or_two_load(tmp_path: Path) -> None:
    run(4, _save_by_both, str(tmp_path))
    run(4, _load_by_all, str(tmp_path))
    run(2, _load_by_all, str(tmp_path))


def _read_shared(rank: int, folder: str) -> None:
    """Every rank wants all; the reads of the checkpoint's own files are counted."""
    values = {f"layer {number}": torch.randn(500, 400) for number in range(6)}
    for one in values.values():
        dist.broadcast(one, 0)
    dcp.save(values, storage_writer=FolderWriter(folder, piece=PIECE))
    size = sum(one.stat().st_size for one in Path(folder).glob("*.distcp"))
    torch_share.JOB_PIECE = 4 * PIECE
    real, counted = os.preadv, [0]

    def preadv(fd: int, views: list[memoryview], offset: int) -> int:
        count = real(fd, views, offset)
        if os.readlink(f"/proc/self/fd/{fd}").startswith(folder):
            counted[0] += count
        return count

    vars(os)["preadv"] = preadv
    expected = {None: dist.get_world_size(), "node": 1, "job": 1}
    for share, times in expected.items():
        counted[0] = 0
        found = _blank(values)
        dcp.load(found, storage_reader=Reader(folder, share, piece=PIECE))
        assert all(torch.equal(found[name], one) for name, one in values.items()), share
        total = torch.tensor(counted[0])
        dist.all_reduce(total)
        assert times * 0.9 * size <= int(total) <= times * 1.05 * size, (share, int(total), size)
        if share is not None:
            assert counted[0] < 0.8 * size, f"rank {rank} read nearly all of it"


def test_what_all_ranks_want_is_read_once(tmp_path: Path) -> None:
    run(4, _read_shared, str(tmp_path))


def _share_without_an_owner(rank: int, folder: str) -> None:
    """Ranks that own pieces fail in every way; the others have their bytes all the same."""
    values = {f"layer {number}": torch.randn(500, 400) for number in range(6)}
    for one in values.values():
        dist.broadcast(one, 0)
    dcp.save(values, storage_writer=FolderWriter(folder, piece=PIECE))

    def refused(*_: object) -> None:
        raise OSError("no memory")

    fallocate, opened = os.posix_fallocate, vars(torch_share)["_opened"]
    for module, name, real, instead, fails in (
        (os, "posix_fallocate", fallocate, refused, 1),
        (torch_share, "_opened", opened, lambda _: None, 2),
    ):
        if rank == fails:
            vars(module)[name] = instead
        found = _blank(values)
        dcp.load(found, storage_reader=Reader(folder, "node", piece=PIECE))
        assert all(torch.equal(found[key], one) for key, one in values.items())
        vars(module)[name] = real


def test_an_owner_that_fails_costs_no_bytes(tmp_path: Path) -> None:
    run(3, _share_without_an_owner, str(tmp_path))


def _load_damaged(rank: int, folder: str) -> None:
    values = {"a": torch.ones(500, 400), "b": torch.ones(400, 500)}
    dcp.save(values, storage_writer=FolderWriter(folder, piece=PIECE))
    dist.barrier()
    if rank == 0:
        file = next(Path(folder).glob("__0_*.distcp"))
        os.truncate(file, file.stat().st_size // 2)
    dist.barrier()
    for share in (None, "node", "job"):
        try:
            dcp.load(_blank(values), storage_reader=Reader(folder, share, piece=PIECE))
        except CheckpointException as error:
            assert any(isinstance(one[0], DamagedFile) for one in error.failures.values())
        else:
            raise AssertionError(f"share={share}: a cut file was loaded")


@pytest.mark.timeout(400)
def test_every_rank_is_told_of_a_cut_file(tmp_path: Path) -> None:
    run(3, _load_damaged, str(tmp_path))
