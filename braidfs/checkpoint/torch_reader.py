"""A StorageReader of torch.distributed.checkpoint that reads straight into tensors, by threads.

It reads checkpoints of braidfs.checkpoint.torch.Writer and of torch's FileSystemWriter. Items of
the Writer whose place is known are read by preadv(2) into their targets, sorted by offset; slices
read only their rows. Others are read by torch's own FileSystemReader. Torn files, and metadata that
do not fit their files, are DamagedFile.

`.metadata` is read without running code of it, tensors by torch.load(weights_only=True). What is no
tensor in a state goes to DCP's planner, whose default unpickles it: load only what you trust.
"""

import dataclasses
import io
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, StorageReader
from torch.distributed.checkpoint.metadata import StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType
from torch.futures import Future

from braidfs.checkpoint import torch_share
from braidfs.checkpoint.pieces import PIECE, Inputs, read_wants
from braidfs.checkpoint.torch_metadata import METADATA, Place, place_of, read_metadata
from braidfs.checkpoint.torch_requests import Requests, decoded
from braidfs.checkpoint.torch_share import Own, Shared, Wanted

_SHARES = (None, "node", "job")


class _Unread:
    """Stands for metadata that could not be read: who asks for something of them gets the error.

    From 2.9 on, load() of torch catches every error of read_metadata(), and tries the file that a
    rank would have that saved for itself. When there is none either it raises an AssertionError,
    which has the text of the first error since 2.12, and its type never."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


class Reader(StorageReader):
    """Loads a checkpoint by torch.distributed.checkpoint.load(state, storage_reader=Reader(path)).

    `path`: the folder of the checkpoint, such as Step.path. `share`: None: each rank reads what it
    wants. "node": what several ranks of a node want is read once a node, and passed on in memory.
    "job": it is read once in the job and broadcast in `process_group`, which must be the one that
    load() has (None: the default group). `threads` read pieces of `piece` bytes at a time.
    """

    _own: Own | None = None

    def __init__(
        self,
        path: "str | os.PathLike[str]",
        share: str | None = None,
        *,
        process_group: Any = None,
        threads: int = 4,
        piece: int = PIECE,
    ) -> None:
        if share not in _SHARES:
            raise ValueError(f'share is None, "node" or "job", not {share!r}')
        super().__init__()
        self.path = Path(path)
        self._share = share
        self._group = process_group
        self._threads = threads
        self._piece = piece
        self._storage_data: dict[Any, Any] = {}
        self._places: dict[Any, Place | None] = {}
        self._metadata: Any = None
        self._unread: Exception | None = None
        self._collective = True
        self._load_id = str(uuid.uuid4())

    def reset(self, checkpoint_id: "str | os.PathLike[str] | None" = None) -> None:
        if checkpoint_id:
            self.path = Path(checkpoint_id)
        self._load_id = str(uuid.uuid4())
        self._end_share()

    def read_metadata(self, *_args: Any, **kwargs: Any) -> Any:
        """The Metadata of the checkpoint; with `rank` that of a rank that saved for itself.

        Raises FileNotFoundError, pickle.UnpicklingError and DamagedFile. With `rank`, after a call
        without it has failed, it returns what raises that error when it is used."""
        rank = kwargs.get("rank")
        before, self._unread = self._unread, None
        try:
            found = read_metadata(self.path / (METADATA if rank is None else f"__{rank}{METADATA}"))
        except Exception as error:
            if rank is None:
                self._unread = error
            elif before is not None:
                return _Unread(before if isinstance(error, FileNotFoundError) else error)
            raise
        if getattr(found, "storage_meta", None) is None:
            found.storage_meta = StorageMeta()
        found.storage_meta.load_id = self._load_id
        return found

    def set_up_storage_reader(
        self, metadata: Any, is_coordinator: bool, *_args: Any, **kwargs: Any
    ) -> None:
        self._metadata = metadata
        self._storage_data = metadata.storage_data
        path = self.path / METADATA
        self._places = {index: place_of(path, info) for index, info in self._storage_data.items()}
        self._collective = kwargs.get("use_collectives", True)

    def prepare_local_plan(self, plan: Any) -> Any:
        if self._share != "node" or not self._collective:
            return plan
        self._end_share()
        self._own = Own()
        return dataclasses.replace(plan, storage_data=torch_share.own_offer(self._own))

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        if self._share is None or not self._collective or len(plans) == 1:
            return [dataclasses.replace(plan, storage_data=None) for plan in plans]
        wanted = [[self._wanted(item) for item in plan.items] for plan in plans]
        if self._share == "node":
            offers = [plan.storage_data for plan in plans]
            shared = torch_share.for_nodes(wanted, offers, self._piece)
        else:
            shared = torch_share.for_job(wanted, torch_share.JOB_PIECE)
        return [
            dataclasses.replace(plan, storage_data=one)
            for plan, one in zip(plans, shared, strict=True)
        ]

    def _wanted(self, item: Any) -> Wanted:
        """The range of the item's bytes, and how many of them are wanted."""
        info = self._storage_data[item.storage_index]
        size = info.length
        if (place := self._places[item.storage_index]) is not None:
            count = 1
            for length in item.lengths:
                count *= length
            size = count * place.dtype.itemsize + info.length - place.size
        return Wanted(info.relative_path, info.offset, info.offset + info.length, size)

    def read_data(self, plan: Any, planner: Any) -> Any:
        shared = plan.storage_data if isinstance(plan.storage_data, Shared) else None
        requests = Requests(self.path, self._piece)
        left: list[Any] = []
        failure = None
        try:
            left = self._divide(plan.items, planner, requests, shared)
        except Exception as error:
            failure = error  # in a broadcast, the others wait for this rank's part
        self._read(requests, shared, failure)
        for use in requests.after:
            use()
        if left:
            stock = FileSystemReader(self.path)
            stock.set_up_storage_reader(self._metadata, is_coordinator=False)
            stock.read_data(dataclasses.replace(plan, items=left), planner).wait()
        done: Any = Future()
        done.set_result(None)
        return done

    def _divide(
        self, items: Sequence[Any], planner: Any, requests: Requests, shared: Shared | None
    ) -> list[Any]:
        """Makes requests of the items; returns those that torch's own reader must read."""
        left = []
        for item in items:
            info = self._storage_data[item.storage_index]
            place = self._places[item.storage_index]
            requests.expect(info)
            if getattr(info, "transform_descriptors", None):
                left.append(item)
            elif item.type == LoadItemType.BYTE_IO:
                requests.whole(info, _bytes_loaded(item, planner))
            elif place is not None:
                target = planner.resolve_tensor(item).detach()
                requests.tensor(item, info, place, target)
                requests.after.append(_committed(item, target, planner))
            elif shared is not None and shared.pieces:
                requests.whole(info, _tensor_loaded(item, planner))
            else:
                left.append(item)
        return left

    def _read(self, requests: Requests, shared: Shared | None, failure: Exception | None) -> None:
        inputs = Inputs(self.path)
        if shared is not None and shared.pieces and self._share == "node":
            inputs = torch_share.FromNode(self.path, shared)
        with inputs:
            wants = requests.wants
            try:
                for file, end in requests.ends.items():
                    inputs.check(file, end)
            except Exception as error:
                failure = failure or error
            if shared is not None and shared.pieces and self._share == "job":
                wants = torch_share.broadcast(
                    inputs, shared, wants, self._group, threads=self._threads, failure=failure
                )
            if failure is not None:
                if self._own is not None:
                    self._own.give_up()
                raise failure
            if isinstance(inputs, torch_share.FromNode):
                inputs.open_owners()
                self._fill_own(shared)
            read_wants(inputs, wants, threads=self._threads, piece=self._piece)

    def _fill_own(self, shared: Shared | None) -> None:
        if self._own is None or shared is None:
            return
        with Inputs(self.path) as inputs:
            try:
                self._own.fill(inputs, shared, self._threads)
            except (OSError, ValueError):
                return  # every rank that wants these pieces reads them, and tells what is wrong

    def _end_share(self) -> None:
        if self._own is not None:
            self._own.close()
            self._own = None

    def __del__(self) -> None:
        self._end_share()

    @property
    def checkpoint_id(self) -> "str | os.PathLike[str]":
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | os.PathLike[str]") -> bool:
        return Path(checkpoint_id).is_dir()


def _bytes_loaded(item: Any, planner: Any) -> Callable[[bytearray], None]:
    return lambda held: planner.load_bytes(item, io.BytesIO(held))


def _tensor_loaded(item: Any, planner: Any) -> Callable[[bytearray], None]:
    def use(held: bytearray) -> None:
        target = planner.resolve_tensor(item).detach()
        decoded(held, item, target)
        planner.commit_tensor(item, target)

    return use


def _committed(item: Any, target: Any, planner: Any) -> Callable[[], None]:
    return lambda: planner.commit_tensor(item, target)
