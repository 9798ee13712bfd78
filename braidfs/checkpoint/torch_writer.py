"""A StorageWriter of torch.distributed.checkpoint that writes from the memory of tensors.

Each rank writes one file, in which stock readers find what FileSystemWriter would have written: for
each item a file of torch.save. All offsets are planned before the first byte: items begin at
multiples of 4,096, their beginnings and ends are skeletons (torch_skeletons), and the elements go
from the tensors' own memory to the file.
"""

import dataclasses
import io
import os
import pickle
import secrets
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint import StorageWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo, _StoragePrefix
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import WriteItemType
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from braidfs.checkpoint.pieces import PIECE, Held, Layout, write_layout
from braidfs.checkpoint.torch_memory import is_dense, is_plain, source_of
from braidfs.checkpoint.torch_metadata import METADATA, PLACE, place_to_record
from braidfs.checkpoint.torch_skeletons import HAS_SKELETONS, skeleton_of

_VERSION = "1.0.0"  # of DCP's files


class FolderWriter(StorageWriter, BlockingAsyncStager):
    """Writes a checkpoint into a folder, as FileSystemWriter does: nothing hides it before it is
    whole. Writer is what training code uses."""

    def __init__(
        self,
        path: "str | os.PathLike[str]",
        threads: int = 4,
        piece: int = PIECE,
        direct: bool = False,
        *,
        cache_staged_state_dict: bool = False,
    ) -> None:
        StorageWriter.__init__(self)
        BlockingAsyncStager.__init__(self, cache_staged_state_dict=cache_staged_state_dict)
        self.path = Path(path)
        self._threads = threads
        self._piece = piece
        self._direct = direct
        self._save_id = str(uuid.uuid4())

    def reset(self, checkpoint_id: "str | os.PathLike[str] | None" = None) -> None:
        if checkpoint_id:
            self.path = Path(checkpoint_id)
        self._save_id = str(uuid.uuid4())

    def set_up_storage_writer(self, is_coordinator: bool, *_args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise ValueError("the coordinator commits: use_collectives=False is not possible")

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        self.path.mkdir(parents=True, exist_ok=True)
        return [
            dataclasses.replace(plan, storage_data=_StoragePrefix(f"__{rank}_"))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: Any, planner: Any) -> Any:
        results = self._write_file(f"{plan.storage_data.prefix}0.distcp", plan.items, planner)
        done: Any = Future()
        done.set_result(results)
        return done

    def _write_file(self, name: str, items: Sequence[Any], planner: Any) -> list[Any]:
        if not items:
            return []
        layout = Layout()
        results = [self._placed(layout, name, item, planner.resolve_data(item)) for item in items]
        write_layout(
            self.path / name, layout, threads=self._threads, piece=self._piece, direct=self._direct
        )
        return results

    def _placed(self, layout: Layout, name: str, item: Any, content: Any) -> Any:
        """Appends an item to the layout of a file; returns what DCP gathers of it."""
        begin = layout.align()
        place = None
        if item.type == WriteItemType.BYTE_IO:
            layout.add(Held(content.getbuffer()))
        else:
            place = self._add_tensor(layout, content.detach())
        info = _StorageInfo(name, begin, layout.size - begin)
        if place is not None:
            setattr(info, PLACE, place)
        return WriteResult(index=item.index, size_in_bytes=layout.size - begin, storage_data=info)

    def _add_tensor(self, layout: Layout, tensor: Any) -> dict[str, object] | None:
        """Appends a tensor's file; returns where its elements lie, if they lie in order."""
        if not HAS_SKELETONS or not is_plain(tensor) or tensor.numel() == 0:
            layout.add(Held(_by_torch(tensor)))
            return None
        shape = tuple(tensor.shape)
        dense = is_dense(tensor)
        in_order = tuple(torch.empty(shape, device="meta").stride())
        stride = tuple(tensor.stride()) if dense else in_order
        skeleton = skeleton_of(tensor.dtype, shape, stride)
        layout.add(Held(skeleton.head))
        begin = layout.add(source_of(tensor, self._piece))
        layout.add(Held(skeleton.tail))
        return place_to_record(begin, tensor.dtype, shape) if stride == in_order else None

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        metadata.version = _VERSION
        metadata.storage_data = {one.index: one.storage_data for row in results for one in row}
        metadata.storage_meta = self.storage_meta()
        layout = Layout()
        layout.add(Held(pickle.dumps(metadata)))
        partial = self.path / f"{METADATA}.tmp"
        write_layout(partial, layout, threads=1, piece=self._piece, direct=False)
        partial.rename(self.path / METADATA)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def storage_meta(self) -> Any:
        return StorageMeta(checkpoint_id=str(self.path), save_id=self._save_id)

    @property
    def checkpoint_id(self) -> "str | os.PathLike[str]":
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | os.PathLike[str]") -> bool:
        return Path(checkpoint_id).parent.is_dir()


class Commits(Protocol):
    """What the Writer needs of braidfs.checkpoint.Checkpoints."""

    root: Path

    def prepare(self, step: int, attempt: str | None = None) -> Path: ...

    def commit(
        self, step: int, attempt: str | None, files: Iterable[str], *, parts: int = 1
    ) -> Any: ...


@dataclasses.dataclass(frozen=True)
class _Placement:
    """What the coordinator tells a rank: how its files begin, and of which attempt they are."""

    prefix: str
    attempt: str


class Writer(FolderWriter):
    """Saves a step by torch.distributed.checkpoint.save(state, storage_writer=Writer(cps, step)).

    `cps`: this rank's Checkpoints, below the same directory on all ranks, wherever it is mounted.
    The step becomes visible, whole and durable, when the coordinator has heard of every rank that
    its file is durable; or not at all. A failure of a rank is DCP's own exception on every rank,
    and leaves a hidden directory for `Checkpoints.tidy`. Each save has an attempt of its own.

    `threads` write pieces of `piece` bytes, with `direct` past the page cache (O_DIRECT). It is a
    stager for async_save, too, as FileSystemWriter is (`cache_staged_state_dict`). `done`: the
    Step, on the coordinator, after the save. Raises StepExists, within DCP's exception.
    """

    def __init__(
        self,
        cps: Commits,
        step: int,
        threads: int = 4,
        piece: int = PIECE,
        direct: bool = False,
        *,
        cache_staged_state_dict: bool = False,
    ) -> None:
        super().__init__(
            cps.root, threads, piece, direct, cache_staged_state_dict=cache_staged_state_dict
        )
        self._cps = cps
        self._step = step
        self._attempt = ""
        self.done: Any = None

    def reset(self, checkpoint_id: "str | os.PathLike[str] | None" = None) -> None:
        if checkpoint_id:
            raise ValueError("the step names the directory: leave out checkpoint_id")
        super().reset()

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        self._attempt = secrets.token_hex(8)
        self._cps.prepare(self._step, self._attempt)
        return [
            dataclasses.replace(plan, storage_data=_Placement(f"__{rank}_", self._attempt))
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: Any, planner: Any) -> Any:
        self._attempt = plan.storage_data.attempt
        self.path = self._cps.prepare(self._step, self._attempt)
        return super().write_data(plan, planner)

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        super().finish(metadata, results)
        files = {one.storage_data.relative_path for row in results for one in row}
        parts = len(results)
        self.done = self._cps.commit(
            self._step, self._attempt, [*sorted(files), METADATA], parts=parts
        )

    def storage_meta(self) -> Any:
        return StorageMeta(checkpoint_id=str(self._cps.root), save_id=self._save_id)

    @property
    def checkpoint_id(self) -> "str | os.PathLike[str]":
        return self._cps.root


def _by_torch(tensor: Any) -> bytes:
    """A tensor's file as FileSystemWriter makes it."""
    tensor = tensor.cpu()
    if is_plain(tensor) and tensor.untyped_storage().size() != tensor.nbytes:
        tensor = tensor.clone()
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    return buffer.getvalue()
