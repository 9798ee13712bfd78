"""One rank of a job that saves and loads checkpoints: a program, for tests and the benchmark.

`python -m tests.torch.job` reads the rank, their number, the place where they meet and the works as
JSON from its standard input, and does each work between two barriers when the line "go" comes. For
each it prints one object: seconds (from one barrier to the other), cpu_s (of this process), bytes
(of the state of this rank).
"""

import json
import os
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from braidfs.checkpoint import Checkpoints
from braidfs.checkpoint.torch import Reader, Writer, save

LAYER_ROWS = 4096


def state(size: int, *, replicated: bool, seed: int) -> dict[str, Any]:
    """Layers of 16 MiB, each with a bias: `size` bytes on each rank, either a rank's own part of
    larger tensors or the same on all ranks."""
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    count = max(1, size // (LAYER_ROWS * 4096))
    placement = Replicate() if replicated else Shard(0)
    found: dict[str, Any] = {}
    for number in range(count):
        generator = torch.Generator().manual_seed(seed + number)
        rows = LAYER_ROWS if replicated else LAYER_ROWS * world
        whole = torch.randn(rows, 1024, generator=generator) if seed else torch.zeros(rows, 1024)
        found[f"layers.{number}.weight"] = distribute_tensor(whole, mesh, [placement])
        found[f"layers.{number}.bias"] = torch.full((1024,), float(seed + number))
    return found


def writer(kind: str, path: Path, given: dict[str, Any]) -> Any:
    if kind == "torch":
        return dcp.FileSystemWriter(path / f"step-{given['step']:09d}")
    return Writer(Checkpoints(path, keep=0), given["step"], direct=given.get("direct", False))


def reader(kind: str, path: Path, given: dict[str, Any]) -> Any:
    folder = path / f"step-{given['step']:09d}"
    return dcp.FileSystemReader(folder) if kind == "torch" else Reader(folder, given.get("share"))


def work(given: dict[str, Any]) -> dict[str, float]:
    path, kind = Path(given["path"]), given["kind"]
    if given["action"] == "file":
        return _one_file(path, kind, given)
    saves = given["action"] == "save"
    seed = given.get("seed", 1) if saves else 0
    values = state(given["size"], replicated=given.get("replicated", False), seed=seed)
    dist.barrier()
    began_s, cpu_s = time.monotonic(), _cpu_s()
    if saves:
        dcp.save(values, storage_writer=writer(kind, path, given))
    else:
        dcp.load(values, storage_reader=reader(kind, path, given))
    cpu_s = _cpu_s() - cpu_s
    dist.barrier()
    seconds = time.monotonic() - began_s
    if not saves and given.get("check"):
        _check(values, given)
    mine = sum(_local(one).nbytes for one in values.values())
    return {"seconds": seconds, "cpu_s": cpu_s, "bytes": mine}


def _one_file(path: Path, kind: str, given: dict[str, Any]) -> dict[str, float]:
    """Saves one file, durable at the end."""
    values = {
        name: _local(one) for name, one in state(given["size"], replicated=True, seed=1).items()
    }
    path.mkdir()
    began_s, cpu_s = time.monotonic(), _cpu_s()
    if kind == "save":
        save(values, path / "file.pt")
    else:
        with (path / "file.pt").open("wb") as file:
            torch.save(values, file)
            file.flush()
            os.fsync(file.fileno())
    seconds, cpu_s = time.monotonic() - began_s, _cpu_s() - cpu_s
    mine = sum(one.nbytes for one in values.values())
    return {"seconds": seconds, "cpu_s": cpu_s, "bytes": mine}


def _check(values: dict[str, Any], given: dict[str, Any]) -> None:
    wanted = state(given["size"], replicated=given.get("replicated", False), seed=given["check"])
    for name, one in wanted.items():
        assert torch.equal(_local(values[name]), _local(one)), name


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    given = json.loads(sys.stdin.readline())
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{given['store']}"
    dist.init_process_group(
        "gloo", init_method=store, rank=given["rank"], world_size=given["world"]
    )
    try:
        for one in given["works"]:
            if not sys.stdin.readline():
                return  # whoever started this rank has ended
            print(json.dumps(work(one)), flush=True)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
