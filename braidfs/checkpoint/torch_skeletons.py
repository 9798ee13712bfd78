"""Skeletons: what a file of torch.save has beside the elements of tensors.

torch itself writes them, by torch.save under `skip_data()`, into memory that is never filled: each
storage is a hole there, at a multiple of its alignment. So whatever reads such a file reads ours.
This is the way of torch's tutorial for GPUDirect Storage, and needs torch 2.7. The settings that
torch has for the whole process (alignment, CRC-32) are changed under a lock while a skeleton is
written, which takes about 0.4 ms, and restored. A CRC-32 is not computed: it costs 0.6 s of CPU
a GiB, torch.load does not want it, and BraidFS has checksums of its own.
"""

import contextlib
import functools
import mmap
import os
import pickle
import struct
import threading
import types
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import torch

from braidfs.checkpoint.pieces import ALIGNMENT, Held, Layout
from braidfs.checkpoint.torch_memory import source_of_storage

try:
    from torch.serialization import skip_data
    from torch.utils.serialization import config as _config

    HAS_SKELETONS = hasattr(_config.save, "storage_alignment")
except ImportError:  # before torch 2.7
    HAS_SKELETONS = False

SMALL = 256 << 10  # below this, space counts for more than alignment
_SMALL_ALIGNMENT = 64
_MAP_NORESERVE = 0x4000  # Linux; Python has no name for it before 3.13
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_lock = threading.RLock()  # what is saved may save something in its __reduce__


@dataclass(frozen=True, slots=True)
class Skeleton:
    """The file of one tensor: `head`, then `size` bytes of elements, then `tail`."""

    head: bytes
    size: int
    tail: bytes
    crc: int  # of the head


@contextlib.contextmanager
def _settings(alignment: int) -> Iterator[None]:
    with _lock:
        before = _config.save.storage_alignment, _config.save.compute_crc32
        _config.save.storage_alignment, _config.save.compute_crc32 = alignment, False
        try:
            with skip_data():
                yield
        finally:
            _config.save.storage_alignment, _config.save.compute_crc32 = before


@contextlib.contextmanager
def _memory_file() -> Iterator[IO[bytes]]:
    """A file in memory, in which holes take no memory."""
    with os.fdopen(os.memfd_create("braidfs-skeleton", os.MFD_CLOEXEC), "w+b") as file:
        yield file


@functools.lru_cache(maxsize=4096)
def skeleton_of(dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> Skeleton:
    """The file of a tensor of the CPU that fills its storage; it must have an element."""
    size = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    with contextlib.closing(_Room(mmap.mmap(-1, size, flags=flags))) as room:
        storage = torch.frombuffer(room.memory, dtype=torch.uint8).untyped_storage()
        tensor = torch.empty(0, dtype=dtype).set_(storage, 0, shape, stride)
        with _memory_file() as file:
            with _settings(ALIGNMENT if size >= SMALL else _SMALL_ALIGNMENT):
                torch.save(tensor, file)
            file.flush()
            ((begin, length),) = places_of(file).values()
            if length != size:
                raise ValueError(f"torch wrote {length} bytes of a tensor that has {size}")
            end = os.fstat(file.fileno()).st_size
            head = os.pread(file.fileno(), begin, 0)
            tail = os.pread(file.fileno(), end - begin - size, begin + size)
        del storage, tensor
    return Skeleton(head, size, tail, zlib.crc32(head))


class _Room:
    """Memory for a tensor that nobody writes; it ends when the last tensor in it is gone."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self.memory.close()


def places_of(file: IO[bytes]) -> dict[str, tuple[int, int]]:
    """The storages of a file of torch.save by their keys: offset and size of the bytes of each.

    Raises zipfile.BadZipFile when the file is none, and when a place is not within it."""
    size = os.fstat(file.fileno()).st_size
    found = {}
    for record in records_of(file):
        folder, _, key = record.filename.rpartition("/")
        if folder.partition("/")[2] == "data":
            found[key] = place_of(file.fileno(), record, size)
    return found


def records_of(file: IO[bytes]) -> list[zipfile.ZipInfo]:
    """The records of a zip file. Raises zipfile.BadZipFile when it is none, or torn."""
    try:
        return zipfile.ZipFile(file).infolist()
    except (NotImplementedError, OSError, ValueError, struct.error) as error:
        raise zipfile.BadZipFile(f"its directory cannot be read: {error}") from error


def place_of(fd: int, record: zipfile.ZipInfo, size: int) -> tuple[int, int]:
    """Offset and size of a record's bytes in a file of `size` bytes.

    Raises zipfile.BadZipFile when they are compressed, or not within the file."""
    offset = max(0, record.header_offset)  # a torn directory may say less
    header = os.pread(fd, _LOCAL_HEADER.size, offset)
    if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\3\4":
        raise zipfile.BadZipFile(f"{record.filename} has no header")
    *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    begin = offset + _LOCAL_HEADER.size + name_size + extra_size
    if record.compress_type != zipfile.ZIP_STORED or begin + record.file_size > size:
        raise zipfile.BadZipFile(f"{record.filename} is not whole")
    return begin, record.file_size


def layout_of(obj: Any, piece: int) -> Layout | None:
    """The file of torch.save(obj); None when this torch cannot write it without its bytes."""
    if not HAS_SKELETONS:
        return None
    seen: dict[str, Any] = {}
    pickling = types.SimpleNamespace(__name__="braidfs", Pickler=_noting(seen))
    with _memory_file() as file:
        try:
            with _settings(ALIGNMENT):
                torch.save(obj, file, pickle_module=pickling)
        except RuntimeError as error:
            if "skip_data" in str(error):  # such as a tensor of a device that has no storages
                return None
            raise
        file.flush()
        places = places_of(file)
        if places.keys() != seen.keys():
            return None
        memory = memoryview(mmap.mmap(file.fileno(), 0))
    layout = Layout()
    for key, (begin, size) in sorted(places.items(), key=lambda one: one[1]):
        if size != seen[key].nbytes():
            return None
        layout.add(Held(memory[layout.size : begin]))
        layout.add(source_of_storage(seen[key], piece))
    layout.add(Held(memory[layout.size :]))
    return layout


def _noting(seen: dict[str, Any]) -> type[pickle.Pickler]:
    """A pickler that notes the storages that torch.save meets, by the key that it gives them.
    torch.save derives a class from it, whose persistent_id() returns the key with others."""

    class Noting(pickle.Pickler):
        def __init_subclass__(cls) -> None:
            inner = cls.persistent_id

            def persistent_id(self: Any, obj: Any) -> Any:
                found = inner(self, obj)
                if found is not None:
                    seen[found[2]] = _untyped(obj)
                return found

            cls.persistent_id = persistent_id  # type: ignore[method-assign]

    return Noting


def _untyped(storage: Any) -> Any:
    return storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage
