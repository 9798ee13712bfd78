"""Changes of attributes: what a caller wants, and the request for it to the metaserver. Pure."""

import stat
from collections.abc import Callable
from dataclasses import dataclass

from fscommon.layout.attributes import Attributes
from fscommon.wire.messages import (
    COMMIT_KILL_SGID,
    COMMIT_KILL_SUIDGID,
    COMMIT_MTIME,
    COMMIT_SIZE,
    SET_FLAGS,
    SET_GROW,
    SET_KILL_SGID,
    SET_KILL_SUIDGID,
    SET_MODE,
    SET_TIMES_GIVEN,
    SetAttr,
)

from .ports import Written

_SET_ID_BITS = stat.S_ISUID | stat.S_ISGID


@dataclass(frozen=True, slots=True)
class Change:
    """Which attributes to set; None leaves one as it is. kill_set_ids: clear set-ID bits, as after
    a write by a caller who may not keep them. in_group: whether the caller is in that group; it is
    called for a set-group-ID bit of a file that its group may not execute. kill_every_sgid: the
    caller is not."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None
    ctime_ns: int | None = None
    kill_set_ids: bool = False
    kill_every_sgid: bool = False
    times_given: bool = False  # the caller gave a time, not both are now
    in_group: Callable[[int], bool] = lambda _gid: False
    at_least: bool = False  # size is a minimum: a larger one stays
    inode_flags: int | None = None
    like: int = 0  # for a size of 0: the inode whose layout the file takes

    @property
    def sets_mtime(self) -> bool:
        return self.mtime_ns is not None or self.size is not None

    @property
    def only_kills(self) -> bool:
        """Whether it clears set-ID bits and sets nothing."""
        values = (self.mode, self.uid, self.gid, self.size, self.atime_ns, self.mtime_ns)
        return self.kill_set_ids and all(value is None for value in values)

    def takes_more(self, left: Attributes) -> bool:
        """Whether a set-group-ID bit was left that the caller may not keep."""
        asks = self.kill_set_ids and not self.kill_every_sgid
        return asks and is_lent_to_group(left.mode) and not self.in_group(left.gid)


def loses_set_ids(attributes: Attributes, in_group: Callable[[int], bool]) -> bool:
    """Whether a write by a member of these groups clears set-ID bits of the inode."""
    mode = attributes.mode
    if stat.S_ISDIR(mode) or not mode & _SET_ID_BITS:
        return False
    is_kept = not mode & stat.S_ISUID and is_lent_to_group(mode) and in_group(attributes.gid)
    return not is_kept


def is_lent_to_group(mode: int) -> bool:
    """Whether this is a file's mode with a set-group-ID bit that does not mean execution: a member
    of the group may keep it."""
    bits = mode & (stat.S_ISGID | stat.S_IXGRP)
    return bits == stat.S_ISGID and not stat.S_ISDIR(mode)


def set_attr(ino: int, change: Change, written: Written) -> SetAttr:
    """The request for a change, with the written state merged in."""
    size, mtime_ns, flags = written
    kill = change.kill_set_ids or bool(flags & COMMIT_KILL_SUIDGID)
    values = (
        change.mode,
        change.uid,
        change.gid,
        change.size,
        change.atime_ns,
        change.mtime_ns,
        change.ctime_ns,
    )
    valid = sum(1 << index for index, value in enumerate(values) if value is not None)
    valid |= SET_GROW if change.at_least else 0
    valid |= SET_TIMES_GIVEN if change.times_given else 0
    valid |= SET_FLAGS if change.inode_flags is not None else 0
    if kill and not valid & SET_MODE:
        valid |= SET_KILL_SUIDGID
        valid |= SET_KILL_SGID if change.kill_every_sgid or flags & COMMIT_KILL_SGID else 0
    return SetAttr(
        ino=ino,
        valid=valid,
        mode=change.mode or 0,
        uid=change.uid or 0,
        gid=change.gid or 0,
        size=change.size or 0,
        atime_ns=change.atime_ns or 0,
        mtime_ns=change.mtime_ns or 0,
        ctime_ns=change.ctime_ns or 0,
        written_size=size if flags & COMMIT_SIZE else 0,
        written_mtime_ns=mtime_ns if flags & COMMIT_MTIME else 0,
        inode_flags=change.inode_flags or 0,
        like=change.like,
    )
