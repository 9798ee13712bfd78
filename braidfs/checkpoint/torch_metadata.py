"""What DCP's .metadata file says of a checkpoint, read without running code of it.

torch unpickles that file with everything that pickle offers. Here only the classes of DCP's records
are made, and those that torch.serialization.add_safe_globals names. The Writer adds one attribute
to each record of a tensor, PLACE: where its elements lie in the file, so the Reader can read them
without torch.load. Stock readers ignore it.
"""

import io
import math
import pickle
import struct
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.serialization import get_safe_globals

from braidfs.checkpoint.damage import DamagedFile

try:
    from torch._weights_only_unpickler import Unpickler as _SafeUnpickler
except ImportError:
    _SafeUnpickler = None

METADATA = ".metadata"
PLACE = "braidfs"
_RECORDS = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
}


def _member_of(kind: object, name: object) -> Enum:
    """What getattr is for in files of some versions of Python 3.11, as that of Debian 12: a member
    of an enumeration."""
    if not (isinstance(kind, type) and issubclass(kind, Enum) and isinstance(name, str)):
        raise pickle.UnpicklingError(
            f"it takes {name!r} of {kind!r}, which is no enumeration of a record of DCP"
        )
    try:
        return kind[name]
    except KeyError:
        raise pickle.UnpicklingError(f"it names {name!r}, which {kind!r} lacks") from None


_OTHERS: dict[tuple[str, str], Any] = {
    ("builtins", "getattr"): _member_of,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    **{
        (module, name): PurePosixPath
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "PurePosixPath")
    },
}
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")


class _Unpickler(pickle.Unpickler):
    """Makes the records of DCP, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OTHERS:
            return _OTHERS[module, name]
        if name in _RECORDS.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        for allowed in get_safe_globals():
            one = allowed[0] if isinstance(allowed, tuple) else allowed
            if (one.__module__, one.__qualname__) == (module, name):
                return one
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which is no record of DCP:"
            " torch.serialization.add_safe_globals allows it"
        )


def read_metadata(path: Path) -> Any:
    """The Metadata of the file at path.

    Raises FileNotFoundError, pickle.UnpicklingError when it names a class that is not allowed, and
    DamagedFile when it is none."""
    content = path.read_bytes()
    try:
        found = _Unpickler(io.BytesIO(content)).load()
    except pickle.UnpicklingError as error:
        if "is no record of DCP" in str(error):
            raise pickle.UnpicklingError(f"{path}: {error}") from None
        raise DamagedFile(path, str(error)) from error
    except Exception as error:
        raise DamagedFile(path, f"it is no metadata of DCP: {error!r}") from error
    if not isinstance(found, metadata.Metadata) or not isinstance(found.storage_data, dict):
        raise DamagedFile(path, "it is no metadata of DCP")
    for info in found.storage_data.values():
        _check(path, info)
    return found


def _check(path: Path, info: Any) -> None:
    """Refuses records that lead out of the checkpoint's folder, or to no range."""
    if not isinstance(info, filesystem._StorageInfo):
        raise DamagedFile(path, f"a record of it is a {type(info).__name__}")
    name = info.relative_path
    parts = PurePosixPath(name).parts if isinstance(name, str) else ()
    if not parts or ".." in parts or parts[0] == "/" or "\0" in name:
        raise DamagedFile(path, f"it names the file {name!r}")
    if not all(type(one) is int and one >= 0 for one in (info.offset, info.length)):
        raise DamagedFile(path, f"a record of {name} has no range")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the elements of an item lie: from `begin` of its file on, in the order of their
    indices."""

    begin: int
    dtype: Any
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * int(self.dtype.itemsize)


def place_to_record(begin: int, dtype: Any, shape: tuple[int, ...]) -> dict[str, object]:
    return {"begin": begin, "dtype": str(dtype).removeprefix("torch."), "shape": tuple(shape)}


def place_of(path: Path, info: Any) -> Place | None:
    """The place that the Writer noted in a record; None if another program wrote it."""
    noted = getattr(info, PLACE, None)
    if noted is None or _SafeUnpickler is None or getattr(info, "transform_descriptors", None):
        return None
    try:
        dtype = getattr(torch, noted["dtype"])
        place = Place(noted["begin"], dtype, tuple(noted["shape"]))
        whole = all(type(one) is int and one >= 0 for one in (place.begin, *place.shape))
        if not whole or not isinstance(dtype, torch.dtype):
            raise ValueError(noted)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(path, f"a record of {info.relative_path} has no place") from error
    if place.begin < info.offset or place.begin + place.size > info.offset + info.length:
        raise DamagedFile(path, f"a place in {info.relative_path} is not within its item")
    return place


def check_head(path: Path, head: bytes, place: Place) -> None:
    """Compares a place with what the file itself has before the elements.

    Raises DamagedFile when that is not the beginning of a tensor of this dtype and shape."""
    try:
        dtype, shape, stride = _described(head)
    except Exception as error:
        raise DamagedFile(path, f"there is no tensor before {place.begin}: {error!r}") from error
    wanted = torch.empty(place.shape, device="meta").stride()
    if (dtype, shape) != (place.dtype, place.shape) or stride != wanted:
        told = f"a tensor of {dtype} {shape} before {place.begin}, and the metadata say"
        raise DamagedFile(path, f"it has {told} {place.dtype} {place.shape}")


@lru_cache(maxsize=4096)
def _described(head: bytes) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """dtype, shape and stride of the tensor whose file begins with `head`, up to its elements."""
    name, begin = _record(head, 0)
    last, end = _record(head, head.rindex(b"PK\3\4"))
    if not name.endswith(b"/data.pkl") or not last.endswith(b"/data/0") or end != len(head):
        raise ValueError("no file of torch.save begins there")
    unpickler = _SafeUnpickler(io.BytesIO(head[begin:]), encoding="utf-8")
    unpickler.persistent_load = _storage_without_memory
    tensor = unpickler.load()
    return tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


def _record(head: bytes, offset: int) -> tuple[bytes, int]:
    """The name of the zip record at an offset, and where its bytes begin."""
    signature, *_, name_size, extra_size = _LOCAL_HEADER.unpack_from(head, offset)
    if signature != b"PK\3\4":
        raise ValueError("no record")
    begin = offset + _LOCAL_HEADER.size
    return head[begin : begin + name_size], begin + name_size + extra_size


def _storage_without_memory(saved: Any) -> Any:
    _, kind, _key, _, count = saved
    dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
    storage = torch.UntypedStorage(count * dtype.itemsize, device="meta")
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
