"""The kernel's structures (linux/fuse.h) of requests that pyfuse3 does not know. Pure.

Native has checked that each body is as long as its fixed part; the users of the fields check their
values.
"""

import stat
import struct
from typing import Final, NamedTuple

from fscommon.errors import FsError, Status
from fscommon.file_time import true_time
from fscommon.layout.attributes import (
    INODE_APPEND,
    INODE_FLAGS_SETTABLE,
    INODE_IMMUTABLE,
    INODE_NOATIME,
    INODE_NODUMP,
    Attributes,
    RecordFields,
)
from fscommon.layout.lock_ranges import LOCK_END, LockType
from fscommon.wire.locks import LockFound

from ..fs.locks import LockOwner, LockRequest

BLOCK_SIZE_OF_IO: Final = 1 << 20
_SECOND: Final = 10**9
_CALLER: Final = struct.Struct("<4I")
_ATTR: Final = struct.Struct("<3Q3q10I")
_ENTRY: Final = struct.Struct("<4Q2I")
_OPENED: Final = struct.Struct("<QIi")
_DIRENT: Final = struct.Struct("<2Q2I")
READDIR_SIZE_MAX: Final = 128 << 10
_DIRECT_IO: Final = 1
_STATX: Final = struct.Struct("<QII16x2IQ3IH2x4Q" + "qI4x" * 4 + "4I112x")
_STATX_MASK: Final = 0xFFF  # basic stats and birth time
_STATX_IMMUTABLE, _STATX_APPEND, _STATX_NODUMP = 0x10, 0x20, 0x40
_IOCTL_DONE: Final = struct.Struct("<i3I")
_FSXATTR: Final = struct.Struct("<5I8x")
_XFLAGS: Final = (
    (0x8, INODE_IMMUTABLE),
    (0x10, INODE_APPEND),
    (0x40, INODE_NOATIME),
    (0x80, INODE_NODUMP),
)

_LK_FLOCK: Final = 1

IOCTL_GET_FLAGS: Final = 0x80086601
IOCTL_SET_FLAGS: Final = 0x40086602
IOCTL_GET_XATTR: Final = 0x801C581F
IOCTL_SET_XATTR: Final = 0x401C5820


class CallHead(NamedTuple):
    """The caller, in front of the body of every CALL event."""

    uid: int
    gid: int
    pid: int

    @classmethod
    def of(cls, payload: bytes) -> tuple["CallHead", bytes]:
        uid, gid, pid, _ = _CALLER.unpack_from(payload)
        return cls(uid, gid, pid), payload[_CALLER.size :]


class FallocateIn(NamedTuple):
    fh: int
    offset: int
    length: int
    mode: int


class SeekIn(NamedTuple):
    fh: int
    offset: int
    whence: int


class ReadIn(NamedTuple):
    fh: int
    offset: int
    size: int


class CopyIn(NamedTuple):
    fh_in: int
    offset_in: int
    nodeid_out: int
    fh_out: int
    offset_out: int
    length: int
    flags: int


class CreateIn(NamedTuple):
    flags: int
    mode: int
    umask: int
    open_flags: int


class IoctlIn(NamedTuple):
    fh: int
    flags: int
    command: int
    argument: int
    in_size: int
    out_size: int


def fallocate_in(body: bytes) -> FallocateIn:
    return FallocateIn(*struct.unpack_from("<3QI", body))


def read_in(body: bytes) -> ReadIn:
    return ReadIn(*struct.unpack_from("<2QI", body))


def seek_in(body: bytes) -> SeekIn:
    return SeekIn(*struct.unpack_from("<2QI", body))


def copy_in(body: bytes) -> CopyIn:
    return CopyIn(*struct.unpack_from("<7Q", body))


def copy_out(copied: int) -> bytes:
    """The answer to COPY_FILE_RANGE, like that to a WRITE."""
    return struct.pack("<2I", copied, 0)


def handle_out(fh: int) -> bytes:
    """The handle, in front of the body of a READ that returns to its lane (docs/decisions/0033)."""
    return struct.pack("<Q", fh)


def create_in(body: bytes) -> CreateIn:
    return CreateIn(*struct.unpack_from("<4I", body))


def ioctl_in(body: bytes) -> tuple[IoctlIn, bytes]:
    request = IoctlIn(*struct.unpack_from("<Q2IQ2I", body))
    return request, body[32 : 32 + request.in_size]


def flush_owner(payload: bytes) -> int:
    """The lock owner of a FLUSH."""
    return int(struct.unpack_from("<16xQ8xQ", payload)[1])


def released_fh(payload: bytes) -> int:
    return int(struct.unpack_from("<16xQ", payload)[0])


def lock_in(ino: int, body: bytes) -> LockRequest:
    """Unpacks a lock request. Raises EINVAL if it is invalid."""
    fh, owner, start, last, kind, pid, flags = struct.unpack_from("<4Q3I", body)
    if kind > LockType.NONE or not start <= last < LOCK_END:
        raise FsError(Status.EINVAL, "the request is not a lock")
    is_flock = bool(flags & _LK_FLOCK)
    end = LOCK_END if is_flock else last + 1
    return LockRequest(
        LockOwner(ino, is_flock, owner), fh, 0 if is_flock else start, end, LockType(kind), pid
    )


def lock_out(found: LockFound) -> bytes:
    if found.type == LockType.NONE:
        return struct.pack("<2Q2I", 0, 0, LockType.NONE, 0)
    return struct.pack("<2Q2I", found.start, found.end - 1, found.type, found.pid)


def _parts(time_ns: int) -> tuple[int, int]:
    return divmod(time_ns, _SECOND)


def _time(kept_ns: int) -> tuple[int, int]:
    return divmod(true_time(kept_ns), _SECOND)


def _attr(attributes: Attributes | RecordFields, ino: int) -> bytes:
    a = attributes
    atime_s, atime_ns = _time(a.atime_ns)
    mtime_s, mtime_ns = _time(a.mtime_ns)
    ctime_s, ctime_ns = _time(a.ctime_ns)
    return _ATTR.pack(
        ino,
        a.size,
        a.blocks,
        atime_s,
        mtime_s,
        ctime_s,
        atime_ns,
        mtime_ns,
        ctime_ns,
        a.mode,
        a.nlink,
        a.uid,
        a.gid,
        a.rdev,
        BLOCK_SIZE_OF_IO,
        0,
    )


class EntryOut(NamedTuple):
    """An inode for the kernel: its number, and how long it may cache name and attributes."""

    attributes: Attributes | RecordFields
    ino: int
    entry_s: float
    attr_s: float

    @property
    def octets(self) -> bytes:
        name_s, name_ns = _parts(int(self.entry_s * _SECOND))
        attr_s, attr_ns = _parts(int(self.attr_s * _SECOND))
        head = _ENTRY.pack(self.ino, 0, name_s, attr_s, name_ns, attr_ns)
        return head + _attr(self.attributes, self.ino)


class DirectoryBody:
    """The answer to READDIRPLUS, as it grows."""

    def __init__(self, size: int) -> None:
        self._size = min(size, READDIR_SIZE_MAX)
        self._octets = bytearray()

    def add(self, name: bytes, cookie: int, entry: EntryOut) -> bool:
        """Adds an entry. False: there is no room."""
        kind = stat.S_IFMT(entry.attributes.mode) >> 12
        row = entry.octets + _DIRENT.pack(entry.ino, cookie, len(name), kind) + name
        row += bytes(-len(row) % 8)
        if len(self._octets) + len(row) > self._size:
            return False
        self._octets += row
        return True

    @property
    def octets(self) -> bytes:
        return bytes(self._octets)


def created_out(attributes: Attributes, ino: int, fh: int, *, attr_s: float, direct: bool) -> bytes:
    """The answer to TMPFILE."""
    entry = EntryOut(attributes, ino, 0.0, attr_s)
    return entry.octets + _OPENED.pack(fh, _DIRECT_IO if direct else 0, 0)


def statx_out(attributes: Attributes, ino: int, attr_s: float) -> bytes:
    a = attributes
    whole, rest = _parts(int(attr_s * _SECOND))
    known = _STATX_IMMUTABLE | _STATX_APPEND | _STATX_NODUMP
    return _STATX.pack(
        whole,
        rest,
        0,
        _STATX_MASK,
        BLOCK_SIZE_OF_IO,
        a.flags & known,
        a.nlink,
        a.uid,
        a.gid,
        a.mode,
        ino,
        a.size,
        a.blocks,
        known,
        *_time(a.atime_ns),
        *_time(a.btime_ns),
        *_time(a.ctime_ns),
        *_time(a.mtime_ns),
        (a.rdev & 0xFFF00) >> 8,
        a.rdev & 0xFF | (a.rdev >> 12) & 0xFFF00,
        0,
        0,
    )


def flags_out(attributes: Attributes, command: int) -> bytes:
    """The answer to the ioctls that read an inode's flags."""
    flags = attributes.flags & INODE_FLAGS_SETTABLE
    if command == IOCTL_GET_FLAGS:
        return _IOCTL_DONE.pack(0, 0, 0, 0) + struct.pack("<I", flags)
    xflags = sum(xflag for xflag, flag in _XFLAGS if flags & flag)
    return _IOCTL_DONE.pack(0, 0, 0, 0) + _FSXATTR.pack(xflags, 0, 0, 0, 0)


def flags_of(command: int, given: bytes) -> int | None:
    """The inode flags that such an ioctl sets; None: one of them is not supported."""
    if command == IOCTL_SET_FLAGS:
        flags = int.from_bytes(given[:4], "little") if len(given) >= 4 else -1
        return flags if flags >= 0 and not flags & ~INODE_FLAGS_SETTABLE else None
    if len(given) < _FSXATTR.size:
        return None
    xflags, extent_size, _, project, cow_size = _FSXATTR.unpack_from(given)
    known = sum(xflag for xflag, _ in _XFLAGS)
    if xflags & ~known or extent_size or project or cow_size:
        return None
    return sum(flag for xflag, flag in _XFLAGS if xflags & xflag)


def ioctl_result(result: int) -> bytes:
    """What ioctl(2) returns."""
    return _IOCTL_DONE.pack(result, 0, 0, 0)


IOCTL_DONE: Final = _IOCTL_DONE.pack(0, 0, 0, 0)
