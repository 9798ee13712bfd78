"""Shares of the limits of trees, with which clients make files in delegated directories.

What a client makes by itself is never refused. So it learns beforehand how much it may make: a
number of files in one directory, each up to a size. That is at most an eighth of what the tree has
left, less the shares that are out. A share is out as long as the directory is held exclusively; it
shrinks by what the client has reported of it. So shares alone never exceed a limit. With what is
made by requests meanwhile, a tree may exceed its limit by the shares that are out. Near the limit a
share is not worthwhile: then each file is made by a request. Shares are in memory only: a restarted
metaserver has none.

Only the event loop's thread uses them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fscommon.limits import FILE_SIZE_MAX
from fscommon.types import Ino, SessionId

PART: Final = 8  # a share is at most this part of what is left
FILES_MAX: Final = 1024  # of one share
FILES_MIN: Final = 16
SIZE_MIN: Final = 64 << 10  # a share is not worthwhile if its files may grow to less
DIRECTORIES_MAX: Final = 1024  # of one tree, each with a share

IsHeld = Callable[[SessionId, Ino], bool]


@dataclass(frozen=True, slots=True)
class Room:
    """What a tree has left; None: no limit but the room of the cluster."""

    bytes: int | None
    inodes: int | None


@dataclass(slots=True)
class Share:
    files: int
    size_limit: int


class ShareTable:
    def __init__(self) -> None:
        self._trees: dict[int, dict[tuple[SessionId, Ino], Share]] = {}

    def grant(
        self, session: SessionId, directory: Ino, tree: int, room: Room, is_held: IsHeld
    ) -> Share | None:
        """Returns what the session may make in the directory, on top of what it knows; None:
        nothing worthwhile."""
        shares = self._pruned(tree, is_held)
        out_files = sum(share.files for share in shares.values())
        out_bytes = sum(share.files * share.size_limit for share in shares.values())
        granted = _part(room, out_files, out_bytes)
        key = session, directory
        if granted is None or (key not in shares and len(shares) >= DIRECTORIES_MAX):
            return None
        had = shares.get(key)
        left = had.files if had is not None else 0
        shares[key] = Share(left + granted.files, granted.size_limit)
        self._trees[tree] = shares
        return granted

    def used(self, session: SessionId, directory: Ino, tree: int, files: int) -> None:
        """The session has reported files that it made in the directory."""
        share = self._trees.get(tree, {}).get((session, directory))
        if share is not None:
            share.files = max(0, share.files - files)

    def _pruned(self, tree: int, is_held: IsHeld) -> dict[tuple[SessionId, Ino], Share]:
        """Returns the shares that are still out."""
        known = self._trees.pop(tree, {})
        shares = {key: share for key, share in known.items() if is_held(*key)}
        if shares:
            self._trees[tree] = shares
        return shares


def _part(room: Room, out_files: int, out_bytes: int) -> Share | None:
    files, size_limit = FILES_MAX, FILE_SIZE_MAX
    if room.inodes is not None:
        files = min(files, (room.inodes - out_files) // PART)
    if room.bytes is not None:
        part = max(0, room.bytes - out_bytes) // PART
        files = min(files, part // SIZE_MIN)
        size_limit = part // max(1, files)
    return Share(files, size_limit) if files >= FILES_MIN else None
