"""One table of outcomes: what crosses the wire, the errno that applications see, and the retry
class.

Codes below 1000 are Linux errno values and mean what POSIX says. Codes from 1000 on are BraidFS's
own; `TABLE` gives each its errno, and says whether a request that got it may be sent again. FsError
crosses the wire as its Status; only fsclient.fuse turns it into an errno.
native/include/braidfs/status.h repeats the codes; tests/wire/test_status.py compares them.
"""

import errno
import os
from dataclasses import dataclass
from enum import Enum, IntEnum, unique


@unique
class Status(IntEnum):
    OK = 0
    EPERM = errno.EPERM
    ENOENT = errno.ENOENT
    EINTR = errno.EINTR
    EIO = errno.EIO
    ENXIO = errno.ENXIO
    E2BIG = errno.E2BIG
    EBADF = errno.EBADF
    EAGAIN = errno.EAGAIN
    ENOMEM = errno.ENOMEM
    EACCES = errno.EACCES
    EBUSY = errno.EBUSY
    EEXIST = errno.EEXIST
    EXDEV = errno.EXDEV
    ENODEV = errno.ENODEV
    ENOTDIR = errno.ENOTDIR
    EISDIR = errno.EISDIR
    EINVAL = errno.EINVAL
    EFBIG = errno.EFBIG
    ENOSPC = errno.ENOSPC
    EROFS = errno.EROFS
    EMLINK = errno.EMLINK
    ERANGE = errno.ERANGE
    EDEADLK = errno.EDEADLK
    ENAMETOOLONG = errno.ENAMETOOLONG
    ENOLCK = errno.ENOLCK
    ENOSYS = errno.ENOSYS
    ENOTEMPTY = errno.ENOTEMPTY
    ELOOP = errno.ELOOP
    ENODATA = errno.ENODATA
    EOVERFLOW = errno.EOVERFLOW
    EOPNOTSUPP = errno.EOPNOTSUPP
    ESTALE = errno.ESTALE
    EDQUOT = errno.EDQUOT
    ETIMEDOUT = errno.ETIMEDOUT

    BAD_REQUEST = 1000  # the peer sent something that the protocol forbids
    NOT_READY = 1001  # starting or recovering: ask again
    BUSY = 1002  # a bound was reached: ask again
    UNKNOWN_SESSION = 1003  # there is no such live session: open a new one
    FENCED = 1004  # this session was evicted
    BAD_CAPABILITY = 1005  # the capability is forged, of another session, or lacks the right
    STALE_INCARNATION = 1006  # the target lost unsynced bytes since the write
    # From storage servers of earlier releases only: the capability is old.
    STALE_MAP_EPOCH = 1007
    STALE_TRUNCATE_EPOCH = 1008  # a write from before a truncate
    CORRUPT = 1009  # a stored block fails its checksum
    NO_OBJECT = 1010  # the target has no such object
    NO_TARGET = 1011  # the server has no such target
    CHECKSUM = 1012  # bytes were damaged on the wire: send again
    DISCONNECTED = 1013  # made locally: the connection ended before the reply
    ABORTED = 1014  # made locally: the administrator gave up on waiting requests
    DROPPED = 1015  # the layout names this replica no longer: look at the layout again


def status_of(code: int) -> Status:
    """The status of a code from the wire; EIO for a code that is unknown here."""
    try:
        return Status(code)
    except ValueError:
        return Status.EIO


class Retry(Enum):
    NEVER = "never"
    SAFE = "safe"  # nothing was done: send again
    IF_IDEMPOTENT = "if_idempotent"  # perhaps done: send again only if repeating is harmless


@dataclass(frozen=True, slots=True)
class Outcome:
    errno: int
    retry: Retry


def _posix(status: Status) -> Outcome:
    return Outcome(int(status), Retry.NEVER)


TABLE: dict[Status, Outcome] = {s: _posix(s) for s in Status if s < 1000} | {
    Status.BAD_REQUEST: Outcome(errno.EIO, Retry.NEVER),
    Status.NOT_READY: Outcome(errno.EIO, Retry.SAFE),
    Status.BUSY: Outcome(errno.EIO, Retry.SAFE),
    Status.UNKNOWN_SESSION: Outcome(errno.EIO, Retry.SAFE),
    Status.FENCED: Outcome(errno.EIO, Retry.NEVER),
    Status.BAD_CAPABILITY: Outcome(errno.EIO, Retry.SAFE),
    Status.STALE_INCARNATION: Outcome(errno.EIO, Retry.NEVER),
    Status.STALE_MAP_EPOCH: Outcome(errno.EIO, Retry.SAFE),
    Status.STALE_TRUNCATE_EPOCH: Outcome(errno.EIO, Retry.NEVER),
    Status.CORRUPT: Outcome(errno.EIO, Retry.NEVER),
    Status.NO_OBJECT: Outcome(errno.EIO, Retry.NEVER),
    Status.NO_TARGET: Outcome(errno.EIO, Retry.SAFE),
    Status.CHECKSUM: Outcome(errno.EIO, Retry.SAFE),
    Status.DISCONNECTED: Outcome(errno.EIO, Retry.IF_IDEMPOTENT),
    Status.ABORTED: Outcome(errno.EIO, Retry.NEVER),
    Status.DROPPED: Outcome(errno.EIO, Retry.NEVER),
}


class BraidError(Exception):
    """Base of everything that BraidFS raises on purpose."""


class FsError(BraidError):
    """An operation ended with a status other than OK: expected, and it crosses the wire as itself.

    parents: attribute records that came with it (with ENOENT of a name: that of its directory, if
    leased).
    """

    def __init__(self, status: Status, message: str = "", parents: bytes = b"") -> None:
        super().__init__(f"{status.name}: {message}" if message else status.name)
        self.status = status
        self.message = message
        self.parents = parents

    @property
    def errno(self) -> int:
        return TABLE[self.status].errno

    @property
    def sentence(self) -> str:
        """The text for people: the message, or else the description of the errno."""
        return self.message or os.strerror(self.errno)


class ProtocolError(BraidError):
    """The peer sent something that the wire forbids; its connection is closed."""


class RangeError(ProtocolError):
    """A message has the right shape, but a value is out of its range. It can be answered, so a
    single value that is wrong by mistake does not cost its sender the connection."""


class TransportError(BraidError):
    """A connection could not be made, or ended."""


class NobodyThereError(TransportError):
    """The host answers, but no program listens there: the one that listened has ended."""


class RefusedError(TransportError):
    """The peer accepts no more connections now; the message says why."""


class AuthenticationError(BraidError):
    """The peer could not prove that it holds the cluster key."""


class ConfigError(BraidError):
    """A configuration file, option or argument is wrong; the message says where and what."""
