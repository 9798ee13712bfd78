"""Ranks of a job on this machine, joined by gloo, for tests."""

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import multiprocessing


def run(world: int, work: Callable[..., None], *given: Any) -> None:
    """Runs work(rank, *given) in so many processes; an exception of one is raised here."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_begin, (world, str(Path(folder) / "store"), work, given), world)


def _begin(rank: int, world: int, store: str, work: Callable[..., None], given: Any) -> None:
    import torch  # noqa: PLC0415

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        work(rank, *given)
        dist.barrier()
    finally:
        dist.destroy_process_group()
