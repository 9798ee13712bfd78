"""Ranks of a job on this machine, joined by gloo, for tests.

A rank that is done leaves without the end of its group and of its interpreter, for what was seen
there with PyTorch 2.7.1 and 2.13. A thread of gloo (ProcessGroupGloo::runLoop) may be so late that
it drops the tensors of a finished work only then (~AsyncWork, ConcretePyInterpreterVTable::decref),
for which it wants the interpreter's lock. The end of the group waits for that thread with this lock
in its hand (~ProcessGroupGloo, std::thread::join), so it waits for ever (2.7.1). The end of an
interpreter ends that thread by pthread_exit, which its destructors do not allow: std::terminate.
With 2.7.1 and 5 ms more for that thread, 6 of 6 ranks without any checkpoint waited for ever, and
19 of 30 were aborted.
"""

import os
import sys
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
    work(rank, *given)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)
