"""Idmapped bind mounts, made with the system calls: mount(8) of Debian 12 has no option for
them.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_MOUNT_ATTR_IDMAP = 0x00100000
COUNT = 65536


class _MountAttr(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")
    ]


def _called(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@contextmanager
def _user_namespace(first: int) -> Iterator[int]:
    """A user namespace in which user and group 0 are `first` of this one, and so on."""
    words = ["unshare", "--user", "sh", "-c", "echo; exec sleep 60"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # the process has entered its namespace
        process.stdout.close()
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{process.pid}/{name}").write_text(f"0 {first} {COUNT}\n")
        fd = os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY)
    finally:
        process.kill()
        process.wait()
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def idmapped(folder: Path, point: Path, first: int) -> Iterator[Path]:
    """Mounts `folder` again at `point`, where files of user or group N belong to first + N. Raises
    OSError if the file system has no idmapped mounts."""
    point.mkdir(parents=True, exist_ok=True)
    tree = _called(_LIBC.syscall(_OPEN_TREE, _AT_FDCWD, bytes(folder), _OPEN_TREE_CLONE))
    try:
        with _user_namespace(first) as namespace:
            attr = _MountAttr(_MOUNT_ATTR_IDMAP, 0, 0, namespace)
            size = ctypes.sizeof(attr)
            _called(
                _LIBC.syscall(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attr), size)
            )
        _called(
            _LIBC.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, bytes(point), _MOVE_MOUNT_F_EMPTY_PATH)
        )
    finally:
        os.close(tree)
    try:
        yield point
    finally:
        subprocess.run(("umount", "-l", point), check=False)
