"""Reads through the page cache beside writes that bypass it: once a write is done, reads show it.

The kernel drops the pages under such a write before it sends it. A reader may fill them again while
the write is in flight, most easily with asynchronous writes, of which many wait.
"""

import ctypes
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuse.posix.calls import LIBC

pytestmark = [pytest.mark.mount, pytest.mark.timeout(120)]

BLOCK = 4096
BLOCKS = 64
# These are the numbers on x86-64.
SYS_IO_SETUP, SYS_IO_DESTROY, SYS_IO_GETEVENTS, SYS_IO_SUBMIT = 206, 207, 208, 209
IOCB_CMD_PWRITE = 1


class Iocb(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("more", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class IoEvent(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_uint64),
        ("object", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


def _call(*arguments: object) -> int:
    LIBC.syscall.restype = ctypes.c_long
    result = int(LIBC.syscall(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), "io")
    return result


class Writes:
    """libaio: writes all blocks of the file at once, each with one byte value."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._context = ctypes.c_ulong()
        _call(SYS_IO_SETUP, BLOCKS, ctypes.byref(self._context))
        self._memory = mmap.mmap(-1, BLOCK)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def write(self, value: int) -> None:
        self._memory[:] = bytes([value]) * BLOCK
        blocks = [
            Iocb(
                opcode=IOCB_CMD_PWRITE,
                fd=self._fd,
                buffer=self._address,
                count=BLOCK,
                offset=index * BLOCK,
            )
            for index in range(BLOCKS)
        ]
        pointers = (ctypes.POINTER(Iocb) * BLOCKS)(*(ctypes.pointer(block) for block in blocks))
        assert _call(SYS_IO_SUBMIT, self._context, BLOCKS, pointers) == BLOCKS
        events = (IoEvent * BLOCKS)()
        done = _call(SYS_IO_GETEVENTS, self._context, BLOCKS, BLOCKS, events, None)
        assert [event.result for event in events[:done]] == [BLOCK] * BLOCKS

    def end(self) -> None:
        _call(SYS_IO_DESTROY, self._context)


class PlainWrites:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(-1, BLOCK)

    def write(self, value: int) -> None:
        self._memory[:] = bytes([value]) * BLOCK
        for index in range(BLOCKS):
            assert os.pwrite(self._fd, self._memory, index * BLOCK) == BLOCK

    def end(self) -> None:
        self._memory.close()


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        (Writes, os.O_RDWR | os.O_DIRECT),
        (PlainWrites, os.O_RDWR | os.O_DIRECT),
        (PlainWrites, os.O_WRONLY),
    ],
)
def test_what_was_written_is_read(
    workdir: Path,
    kind: type[Writes] | type[PlainWrites],
    flags: int,
    sized: Callable[[int, int], int],
) -> None:
    path = workdir / "file"
    path.write_bytes(bytes(BLOCKS * BLOCK))
    reader = os.open(path, os.O_RDONLY)
    fd = os.open(path, flags)
    writes = kind(fd)
    ended = threading.Event()

    def read_on() -> None:
        own = os.open(path, os.O_RDONLY)
        while not ended.is_set():
            os.pread(own, BLOCKS * BLOCK, 0)
        os.close(own)

    readers = [threading.Thread(target=read_on) for _ in range(2)]
    for thread in readers:
        thread.start()
    stale = []
    try:
        for value in range(1, sized(80, 200)):
            writes.write(value)
            seen = os.pread(reader, BLOCKS * BLOCK, 0)
            if seen != bytes([value]) * (BLOCKS * BLOCK):
                stale.append((value, sum(seen[at] != value for at in range(0, len(seen), BLOCK))))
    finally:
        ended.set()
        for thread in readers:
            thread.join()
    writes.end()
    os.close(fd)
    os.close(reader)
    assert not stale, f"rounds with blocks of before: {stale[:10]} ({len(stale)})"
