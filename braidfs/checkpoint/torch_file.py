"""Single files in the format of torch.save: `save` writes them by threads, `load` reads them so.

What `save` writes is read by torch.load, with and without mmap, and `load` reads what torch.save
wrote. `load` runs no code of a file: it is torch.load(weights_only=True).
"""

import fcntl
import io
import os
import pickle
import secrets
import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from braidfs.checkpoint.damage import DamagedFile
from braidfs.checkpoint.pieces import (
    PIECE,
    Inputs,
    Layout,
    Want,
    cut,
    read_wants,
    write_layout,
    write_to,
)
from braidfs.checkpoint.torch_memory import bytes_of, flat, is_dense, is_plain, size_of, view_at
from braidfs.checkpoint.torch_skeletons import layout_of, place_of, places_of, records_of

try:
    from torch._weights_only_unpickler import Unpickler as _SafeUnpickler
except ImportError:
    _SafeUnpickler = None

# What torch's unpickler raises when its input is no pickle.
_BROKEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
_RECORD_MAX = 1 << 30  # of pickled objects; there is no tensor in them


def save(
    obj: object,
    f: "str | os.PathLike[str] | IO[bytes]",
    *,
    threads: int = 4,
    piece: int = PIECE,
    direct: bool = False,
) -> None:
    """Writes obj as torch.save(obj, f) does, by threads and without a CRC-32.

    A path: the file appears whole and durable under its name, or not at all; one that was there is
    replaced by a rename. An open file: it is written from its position on and not synced; one
    without a descriptor gets torch.save's own bytes. `piece`: the bytes of one write. `direct`: a
    path is written past the page cache (O_DIRECT).

    Raises OSError with the file's name, and what torch.save raises for objects that it cannot
    pickle.
    """
    layout = layout_of(obj, piece)
    if isinstance(f, str | os.PathLike):
        path = Path(os.path.realpath(f))
        if layout is None or not _may_replace(path):
            torch.save(obj, path)
            return
        _replace(path, layout, threads, piece, direct)
    elif layout is None or not _has_descriptor(f):
        torch.save(obj, f)
    else:
        f.flush()
        position = f.tell()
        write_to(f.fileno(), layout, threads=threads, piece=piece, base=position)
        f.seek(position + layout.size)


def _may_replace(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def _has_descriptor(f: IO[bytes]) -> bool:
    """Whether bytes may be written at offsets of an open file: not to the end of one that is open
    for appending, and not into a pipe."""
    try:
        fd = f.fileno()
    except (AttributeError, OSError):
        return False
    appends = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
    return not appends and stat.S_ISREG(os.fstat(fd).st_mode)


def _replace(path: Path, layout: Layout, threads: int, piece: int, direct: bool) -> None:
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.partial")
    try:
        write_layout(partial, layout, threads=threads, piece=piece, direct=direct)
        partial.rename(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(
    path: "str | os.PathLike[str]", into: Any = None, *, threads: int = 4, piece: int = PIECE
) -> Any:
    """The object of a file of torch.save, on the CPU; torch.load(path, weights_only=True), by
    threads.

    `into`: an object of the same structure, such as a model's state_dict(): the bytes are read into
    its tensors, of any device, and it is returned with the file's other values in the place of its
    own.

    Raises DamagedFile for a file that is cut or torn, ValueError when `into` lacks a key or has a
    tensor of another shape or dtype, and pickle.UnpicklingError for objects that are neither
    tensors nor allowed by torch.serialization.add_safe_globals.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            begin = file.read(4)
            if begin[:1] == b"\x80" or path.suffix == ".safetensors":
                return _by_torch(path, into)
            if begin != b"PK\3\4":
                raise DamagedFile(path, "it does not begin as a file of torch.save")
            found = _opened(file)
    except zipfile.BadZipFile as error:
        raise DamagedFile(path, str(error)) from error
    if found is None:
        return _by_torch(path, into)
    content, places = found
    storages = _Storages(places, fill=into is None)
    value = storages.unpickled(path, content)
    if into is None:
        wants = list(storages.wants(path.name, piece))
    else:
        filling = _Filling(path.name, storages.begins, piece)
        value = filling.merged(into, value, "")
        wants = filling.wants
    with Inputs(path.parent) as inputs:
        read_wants(inputs, wants, threads=threads, piece=piece)
    return value


def _by_torch(path: Path, into: Any) -> Any:
    """For files of other formats, such as those of torch before 1.6 and TorchScript's."""
    value = torch.load(path, map_location="cpu", weights_only=True)
    if into is None:
        return value
    return _Filling(path.name, {}, PIECE).merged(into, value, "")


def _opened(file: IO[bytes]) -> tuple[bytes, dict[str, tuple[int, int]]] | None:
    """The pickled object and the places of its storages; None for what torch itself must load."""
    size = os.fstat(file.fileno()).st_size
    records = {one.filename.partition("/")[2]: one for one in records_of(file)}
    if _SafeUnpickler is None or "constants.pkl" in records:
        return None
    if "data.pkl" not in records:
        raise zipfile.BadZipFile("it is no file of torch.save: it has no data.pkl")
    if order := records.get("byteorder"):
        begin, length = place_of(file.fileno(), order, size)
        said = os.pread(file.fileno(), min(length, 8), begin)
        if said == b"big":
            return None
        if said != b"little":
            raise zipfile.BadZipFile(f"its byteorder is {said!r}")
    begin, length = place_of(file.fileno(), records["data.pkl"], size)
    if length > _RECORD_MAX:
        raise zipfile.BadZipFile(f"its data.pkl has {length} bytes")
    return os.pread(file.fileno(), length, begin), places_of(file)


class _Storages:
    """The storages of a file, made when its object is unpickled, and filled later; with fill=False
    they have no memory."""

    def __init__(self, places: dict[str, tuple[int, int]], *, fill: bool) -> None:
        self._places = places
        self._fill = fill
        self._made: dict[str, Any] = {}
        self.begins: dict[int, int] = {}  # where the bytes of a storage begin in the file

    def unpickled(self, path: Path, content: bytes) -> Any:
        unpickler = _SafeUnpickler(io.BytesIO(content), encoding="utf-8")
        unpickler.persistent_load = self._load
        try:
            return unpickler.load()
        except pickle.UnpicklingError as error:
            told = (
                "the file has an object that is loaded only after add_safe_globals, or is damaged"
            )
            raise pickle.UnpicklingError(f"{path}: {told}: {error}") from error
        except _MisfitError as error:
            raise DamagedFile(path, str(error)) from None
        except _BROKEN as error:
            raise DamagedFile(path, f"its data.pkl cannot be read: {error!r}") from error

    def _load(self, saved: Any) -> Any:
        _, kind, key, _, count = saved
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        size = count * torch.empty(0, dtype=dtype).element_size()
        begin, length = self._places.get(key, (0, -1))
        if size != length:
            raise _MisfitError(f"storage {key!r} should have {size} bytes, and has {length}")
        storage = self._made.get(key)
        if storage is None:
            device = "cpu" if self._fill else "meta"
            storage = self._made[key] = torch.UntypedStorage(size, device=device)
            self.begins[storage._cdata] = begin
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)

    def wants(self, file: str, piece: int) -> Iterator[Want]:
        for key, storage in self._made.items():
            begin, size = self._places[key]
            view = view_at(int(storage.data_ptr()), size)
            yield from cut(file, begin, view, piece)


class _MisfitError(Exception):
    """What data.pkl says and what the file has do not fit."""


class _Filling:
    """Reads the tensors of a file into those of an object of the same structure."""

    def __init__(self, file: str, begins: dict[int, int], piece: int) -> None:
        self._file = file
        self._begins = begins
        self._piece = piece
        self.wants: list[Want] = []

    def merged(self, into: Any, value: Any, name: str) -> Any:
        """`into`, with its containers changed in place and what is no tensor taken from value."""
        if isinstance(into, torch.Tensor):
            self._fill(into, value, name)
            return into
        if isinstance(into, dict) and isinstance(value, dict):
            if missing := [key for key in into if key not in value]:
                raise ValueError(f"the file has no {_joined(name, missing[0])}")
            for key, one in value.items():
                if key not in into:
                    raise ValueError(f"the file has {_joined(name, key)}, which `into` lacks")
                into[key] = self.merged(into[key], one, _joined(name, key))
            return into
        if isinstance(into, list | tuple) and isinstance(value, list | tuple):
            if len(into) != len(value):
                raise ValueError(f"{name} has {len(into)} entries, and {len(value)} in the file")
            pairs = enumerate(zip(into, value, strict=True))
            found = [self.merged(a, b, _joined(name, number)) for number, (a, b) in pairs]
            if isinstance(into, list):
                into[:] = found
                return into
            return type(into)(*found) if hasattr(into, "_fields") else tuple(found)
        if isinstance(value, torch.Tensor):
            raise ValueError(f"{name} is a tensor in the file, and none in `into`")
        return value

    def _fill(self, target: Any, saved: Any, name: str) -> None:
        if not isinstance(saved, torch.Tensor):
            raise ValueError(f"{name} is a tensor in `into`, and none in the file")
        if target.shape != saved.shape or target.dtype != saved.dtype:
            wanted = f"{tuple(target.shape)} of {target.dtype}"
            raise ValueError(
                f"{name} is {wanted}, and {tuple(saved.shape)} of {saved.dtype} in the file"
            )
        target = target.detach()
        if saved.device.type != "meta":
            target.copy_(saved)
            return
        begin = self._begins[saved.untyped_storage()._cdata]
        begin += saved.storage_offset() * saved.element_size()
        if not is_dense(saved):
            raise ValueError(f"{name} has gaps in the file: load it without `into`")
        if target.numel() == 0:
            return
        if target.stride() == saved.stride() and is_dense(target) and _is_as_it_lies(target, saved):
            if target.device.type == "cpu":
                self.wants += cut(self._file, begin, bytes_of(target), self._piece)
            else:
                self.wants += self._through_memory(flat(target), begin)
        else:
            self.wants.append(self._copied(target, saved, begin))

    def _through_memory(self, bytes_on_device: Any, begin: int) -> Iterator[Want]:
        for position in range(0, bytes_on_device.numel(), self._piece):
            part = bytes_on_device[position : position + self._piece]
            yield _copying(self._file, begin + position, part)

    def _copied(self, target: Any, saved: Any, begin: int) -> Want:
        """A target whose elements lie otherwise: through a tensor that lies like the file's."""
        return _copying(self._file, begin, target, saved)


def _is_as_it_lies(target: Any, saved: Any) -> bool:
    """Whether the elements of both are their bytes: no view conjugates or negates them."""
    views = (target.is_conj(), target.is_neg(), saved.is_conj(), saved.is_neg())
    return is_plain(target) and not any(views)


def _copying(file: str, begin: int, target: Any, saved: Any = None) -> Want:
    """A want through memory; `saved`: how the file's elements lie, if not as those of target."""
    like = target if saved is None else saved
    held: list[Any] = []

    def place() -> memoryview:
        held.append(torch.empty_strided(like.shape, like.stride(), dtype=like.dtype))
        return bytes_of(held[0])

    def done(_: memoryview) -> None:
        found = held.pop()
        found = found.conj() if like.is_conj() else found
        target.copy_(-found if like.is_neg() else found)

    return Want(file, begin, size_of(target), place, done)


def _joined(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)
