"""The errors in replies that are no success. Pure."""

from fscommon.errors import FsError, ProtocolError, Status
from fscommon.wire.codec import decode
from fscommon.wire.frame import Frame
from fscommon.wire.messages import Failure


def evicted() -> FsError:
    return FsError(Status.DISCONNECTED, "the session was evicted")


def failure_in(frame: Frame) -> Failure:
    """Decodes the body of a reply that is no success."""
    try:
        return decode(Failure, frame.body) if frame.body else Failure("")
    except ProtocolError:
        return Failure("")


def error_in(frame: Frame) -> FsError:
    """The error that a reply carries."""
    return error_of(frame.header.status, failure_in(frame))


def error_of(status: int, failure: Failure) -> FsError:
    """Makes the error of a status. An unknown status becomes EIO."""
    try:
        return FsError(Status(status), failure.message, failure.parents)
    except ValueError:
        return FsError(Status.EIO, f"unknown status {status}: {failure.message}")
