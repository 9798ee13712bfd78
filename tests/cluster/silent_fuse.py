"""A FUSE mount that answers nothing: who uses it waits in the kernel, and cannot be killed.

python silent_fuse.py POINT
"""

import ctypes
import os
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_INIT, _DIRECTORY, _DETACH = 26, 0o40000, 2
_HEADER, _ANSWER = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_INIT_ANSWER = struct.Struct("<IIIIHHIIHH32x")
_LIBC = ctypes.CDLL(None, use_errno=True)

# A service that does what a client does for its supervisor, and waits in the kernel.
SERVICE = """
import os, signal, sys, threading
from fsclient import death_watch
from fscommon.supervisor import notify_supervisor
death_watch.begin()
threading.Thread(target=lambda: os.listdir(sys.argv[1])).start()
notify_supervisor("READY=1")
signal.pause()
"""


@contextmanager
def silent_mount(point: str) -> Iterator[threading.Event]:
    """The event is set when the kernel has asked for something. Whoever waits goes on when the
    mount ends. Raises OSError."""
    device = os.open("/dev/fuse", os.O_RDWR)
    try:
        words = f"fd={device},rootmode={_DIRECTORY:o},user_id=0,group_id=0"
        if _LIBC.mount(b"silent", os.fsencode(point), b"fuse", 0, words.encode()) != 0:
            raise OSError(ctypes.get_errno(), "mount(2) failed")
        request = os.read(device, 1 << 17)
        _, opcode, unique, *_ = _HEADER.unpack_from(request)
        assert opcode == _INIT
        body = _INIT_ANSWER.pack(7, 31, 0, 0, 0, 0, 4096, 0, 0, 0)
        os.write(device, _ANSWER.pack(_ANSWER.size + len(body), 0, unique) + body)
        asked = threading.Event()

        def take() -> None:
            os.read(device, 1 << 17)
            asked.set()

        threading.Thread(target=take, daemon=True).start()
        try:
            yield asked
        finally:
            _LIBC.umount2(os.fsencode(point), _DETACH)
    finally:
        os.close(device)


if __name__ == "__main__":
    with silent_mount(sys.argv[1]) as used:
        used.wait()
        signal.pause()
