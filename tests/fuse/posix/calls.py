"""The bare system calls: the C library's wrappers called with ctypes; they raise OSError with errno
when they return -1.

`c.NAME(arguments...)` calls NAME of libc. Paths may be str or bytes, BAD is an address that no
process can read, None is NULL. Python's own os module retries EINTR, sets O_CLOEXEC and refuses
arguments that the kernel should refuse; these do not. `fails` asserts an errno.
"""

import ctypes
import errno
import functools
import os
import re
from collections.abc import Callable

import pytest

LIBC = ctypes.CDLL(None, use_errno=True)
BAD = ctypes.c_void_p(1)

AT_FDCWD = -100
AT_SYMLINK_NOFOLLOW, AT_REMOVEDIR, AT_SYMLINK_FOLLOW = 0x100, 0x200, 0x400
AT_EACCESS, AT_EMPTY_PATH = 0x200, 0x1000
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
XATTR_CREATE, XATTR_REPLACE = 1, 2
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_COLLAPSE_RANGE = 1, 2, 8
FALLOC_FL_ZERO_RANGE, FALLOC_FL_INSERT_RANGE = 16, 32
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
FS_APPEND_FL, FS_IMMUTABLE_FL = 0x20, 0x10
F_OFD_GETLK, F_OFD_SETLK = 36, 37
SYS_FACCESSAT2, SYS_OPENAT2, SYS_FCHMODAT2 = 439, 437, 452  # the same on every architecture

_LONG = {
    *("read", "write", "pread", "pwrite", "readv", "writev", "preadv", "pwritev", "preadv2"),
    *("pwritev2", "lseek", "copy_file_range", "sendfile", "splice", "tee", "mmap", "syscall"),
    *("getxattr", "lgetxattr", "fgetxattr", "listxattr", "llistxattr", "flistxattr"),
    *("readlink", "readlinkat", "getdents64"),
}  # they return 64 bits


def _argument(value: object) -> object:
    if isinstance(value, int):
        return ctypes.c_long(value)
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    return os.fsencode(value) if isinstance(value, str) else value


def _invoke(name: str, *arguments: object) -> int:
    function = getattr(LIBC, name)
    function.restype = ctypes.c_long if name in _LONG else ctypes.c_int
    ctypes.set_errno(0)
    result = function(*(_argument(value) for value in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return int(result)


class Calls:
    def __getattr__(self, name: str) -> Callable[..., int]:
        return functools.partial(_invoke, name)


c = Calls()


class Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def times(atime: tuple[int, int], mtime: tuple[int, int]) -> ctypes.Array[Timespec]:
    """The argument of utimensat: (seconds, nanoseconds) twice."""
    return (Timespec * 2)(Timespec(*atime), Timespec(*mtime))


class StatxTime(ctypes.Structure):
    _fields_ = (
        ("seconds", ctypes.c_int64),
        ("nanoseconds", ctypes.c_uint32),
        ("reserved", ctypes.c_int32),
    )


class Statx(ctypes.Structure):
    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("blksize", ctypes.c_uint32),
        ("attributes", ctypes.c_uint64),
        ("nlink", ctypes.c_uint32),
        ("uid", ctypes.c_uint32),
        ("gid", ctypes.c_uint32),
        ("mode", ctypes.c_uint16),
        ("spare0", ctypes.c_uint16),
        ("ino", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("blocks", ctypes.c_uint64),
        ("attributes_mask", ctypes.c_uint64),
        ("atime", StatxTime),
        ("btime", StatxTime),
        ("ctime", StatxTime),
        ("mtime", StatxTime),
        ("rest", ctypes.c_uint8 * 128),
    )


def errno_name(error: OSError) -> str:
    if error.errno == errno.EOPNOTSUPP:
        return "EOPNOTSUPP"  # Python calls it ENOTSUP
    return errno.errorcode.get(error.errno or 0, str(error.errno))


def fails(wanted: str, call: Callable[..., object], *arguments: object) -> None:
    """`wanted` is the name of an errno, or several with / between where a standard allows them."""
    if wanted == "EFAULT" and re.search(r"lib[at]san", os.environ.get("LD_PRELOAD", "")):
        pytest.skip("a sanitizer in this process looks at the address before the kernel does")
    try:
        call(*arguments)
    except OSError as error:
        found = errno_name(error)
    else:
        found = "success"
    if found not in wanted.split("/"):
        raise AssertionError(f"{wanted} expected, {found} found")
