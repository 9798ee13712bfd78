"""The bytes of tensors: views of their memory, sources for files, and places to read into.

Tensors of the CPU are written from their own memory and read into it. Those of a device go through
pinned memory, one arena a thread: the copy runs on a stream of that thread, so one thread copies
while others write. The device half was written after torch's documentation and was not tried on a
GPU.
"""

import ctypes
import math
import threading
from typing import Any

import torch


def is_dense(tensor: Any) -> bool:
    """True when the elements fill one range of memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return True
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def is_plain(tensor: Any) -> bool:
    """True when a tensor is no more than its elements: no subclass, strided, not quantized."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.device.type != "meta"
    )


def size_of(tensor: Any) -> int:
    return math.prod(map(int, tensor.shape)) * int(tensor.element_size())


def view_at(address: int, size: int) -> memoryview:
    """The memory at an address. Who calls keeps its owner alive."""
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def bytes_of(tensor: Any) -> memoryview:
    """The memory of a dense tensor of the CPU, writable. Who calls keeps the tensor alive."""
    return view_at(int(tensor.data_ptr()), size_of(tensor))


def flat(tensor: Any) -> Any:
    """The bytes of a dense tensor of any device as a tensor of one dimension, which shares them."""
    count = math.prod(tensor.shape)
    return tensor.detach().as_strided((count,), (1,)).view(torch.uint8)


class _Memory:
    """A source: a dense tensor, or a storage, of the CPU."""

    def __init__(self, owner: Any, view: memoryview) -> None:
        self._owner = owner
        self._view = view
        self.size = view.nbytes

    def take(self, begin: int, end: int) -> memoryview:
        return self._view[begin:end]


class _Copied:
    """A source: a tensor of the CPU with gaps or repeated elements. It is copied when the first of
    its bytes is taken, and the copy is dropped with the last."""

    def __init__(self, tensor: Any) -> None:
        self.size = size_of(tensor)
        self._tensor = tensor
        self._lock = threading.Lock()
        self._copy: Any = None
        self._left = self.size

    def take(self, begin: int, end: int) -> memoryview:
        with self._lock:
            if self._copy is None:
                self._copy = self._tensor.contiguous()
            whole = (ctypes.c_char * self.size).from_address(int(self._copy.data_ptr()))
            whole.owner = self._copy  # type: ignore[attr-defined]  # as long as a view is there
            self._left -= end - begin
            if self._left == 0:
                self._copy = None
        return memoryview(whole).cast("B")[begin:end]


class _Arena(threading.local):
    """Pinned memory of one thread, twice as long as a piece: the parts of a piece never meet."""

    def __init__(self) -> None:
        self.held: Any = None
        self.position = 0
        self.stream: Any = None

    def room(self, size: int, piece: int) -> Any:
        if self.held is None or self.held.numel() < 2 * piece:
            pinned = torch.accelerator.is_available()
            self.held = torch.empty(2 * piece, dtype=torch.uint8, pin_memory=pinned)
        if self.position + size > self.held.numel():
            self.position = 0
        self.position += size
        return self.held[self.position - size : self.position]


_arena = _Arena()


class _OfDevice:
    """A source: a tensor of a device. `piece` is the most that is taken for one write."""

    def __init__(self, tensor: Any, piece: int) -> None:
        self.size = size_of(tensor)
        self._flat = flat(tensor)
        self._piece = piece

    def take(self, begin: int, end: int) -> memoryview:
        room = _arena.room(end - begin, self._piece)
        device = self._flat.device
        if device.type == "cpu":  # in tests
            room.copy_(self._flat[begin:end])
            return bytes_of(room)
        if _arena.stream is None or _arena.stream.device != device:
            _arena.stream = torch.Stream(device=device)
        _arena.stream.wait_stream(torch.accelerator.current_stream(device))
        with _arena.stream:
            room.copy_(self._flat[begin:end], non_blocking=True)
        _arena.stream.synchronize()
        return bytes_of(room)


def source_of(tensor: Any, piece: int) -> Any:
    """A Source (braidfs.checkpoint.pieces) of a plain tensor's elements: dense ones as they lie,
    others in the order of their indices."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.device.type != "cpu":
        return _OfDevice(tensor if is_dense(tensor) else tensor.contiguous(), piece)
    if not is_dense(tensor):
        return _Copied(tensor)
    return _Memory(tensor, bytes_of(tensor))


def source_of_storage(storage: Any, piece: int) -> Any:
    """A Source of all bytes of an untyped storage."""
    if storage.device.type != "cpu":
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return _OfDevice(whole, piece)
    return _Memory(storage, view_at(int(storage.data_ptr()), int(storage.nbytes())))
