"""What training programs do with files, by PyTorch: a program for the Python that has it.

`python torch_loads.py ACTION` reads its arguments as JSON, and prints one object: seconds, free_s
(when the program could go on), count. Imports of torch are not timed. Actions: `epoch` (a
DataLoader over the files of a list), `save` (torch.save and fsync), `checkpoint`
(torch.distributed.checkpoint), `store` (a safetensors file), `load` (torch.load with mmap) and
`restore` (safetensors): the last two read every byte.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

LAYER_BYTES = 16 << 20
Seen = dict[str, float]


class _Files:
    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> Any:
        with open(self._paths[index], "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)


def epoch(paths: list[str], workers: int) -> Seen:
    """Reads the paths in the given order."""
    began_s = time.monotonic()
    loader = torch.utils.data.DataLoader(
        _Files(paths), batch_size=32, num_workers=workers, collate_fn=list, prefetch_factor=4
    )
    count = sum(len(batch) for batch in loader)
    return {"seconds": time.monotonic() - began_s, "count": count}


def _state(size: int) -> dict[str, Any]:
    """A model of layers of 16 MiB each, with a bias."""
    state = {}
    for number in range(max(1, size // LAYER_BYTES)):
        state[f"layers.{number}.weight"] = torch.randn(1024, LAYER_BYTES // 4096)
        state[f"layers.{number}.bias"] = torch.randn(1024)
    return state


def save(path: str, size: int) -> Seen:
    state = _state(size)
    began_s = time.monotonic()
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        free_s = time.monotonic() - began_s
        os.fsync(file.fileno())
    return {"seconds": time.monotonic() - began_s, "free_s": free_s, "count": _bytes(state)}


def checkpoint(path: str, size: int) -> Seen:
    """It calls fsync by itself."""
    import torch.distributed.checkpoint as checkpoints  # noqa: PLC0415

    state = _state(size)
    began_s = time.monotonic()
    checkpoints.save(state, checkpoint_id=path)
    return {"seconds": time.monotonic() - began_s, "count": _bytes(state)}


def store(path: str, size: int) -> Seen:
    from safetensors.torch import save_file  # type: ignore[import-not-found] # noqa: PLC0415

    state = _state(size)
    began_s = time.monotonic()
    save_file(state, path)
    return {"seconds": time.monotonic() - began_s, "count": _bytes(state)}


def load(path: str) -> Seen:
    began_s = time.monotonic()
    return _touched(torch.load(path, mmap=True, weights_only=True), began_s)


def restore(path: str) -> Seen:
    from safetensors.torch import load_file  # noqa: PLC0415

    began_s = time.monotonic()
    return _touched(load_file(path), began_s)


def _touched(state: dict[str, Any], began_s: float) -> Seen:
    for tensor in state.values():
        tensor.view(torch.uint8).max()
    return {"seconds": time.monotonic() - began_s, "count": _bytes(state)}


def _bytes(state: dict[str, Any]) -> float:
    return float(sum(one.numel() * one.element_size() for one in state.values()))


ACTIONS: dict[str, Callable[..., Seen]] = {
    "epoch": epoch,
    "save": save,
    "checkpoint": checkpoint,
    "store": store,
    "load": load,
    "restore": restore,
}


if __name__ == "__main__":
    print(json.dumps(ACTIONS[sys.argv[1]](**json.load(sys.stdin))))
