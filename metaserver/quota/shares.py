"""Shares of the limits of trees, with which clients make files in delegated directories.

What a client makes by itself is never refused, so it is told beforehand how much it may make: so
many files in this directory, each up to a size, an eighth at most of what the tree has left beside
the shares that are out. A share is out as long as the directory is held exclusively, less what was
told of it. So shares alone never exceed a limit; with what is made by requests meanwhile a tree may
be over it by the shares that are out. Near the limit none is worth its while: every file is asked
for again then. Memory only: a restarted metaserver knows of none of before.

Only the event loop's thread touches it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fscommon.limits import FILE_SIZE_MAX
from fscommon.types import Ino, SessionId

PART: Final = 8  # of what is left
FILES_MAX: Final = 1024  # in one share
FILES_MIN: Final = 16
SIZE_MIN: Final = 64 << 10  # of what each file may grow to
DIRECTORIES_MAX: Final = 1024  # of a tree, with a share each

IsHeld = Callable[[SessionId, Ino], bool]


@dataclass(frozen=True, slots=True)
class Room:
    """What a tree has left; None: as much as there is room for."""

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
        """What the session may make in the directory on top of what it was told before; None:
        nothing worth telling."""
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
        """The session told of files that it made there."""
        share = self._trees.get(tree, {}).get((session, directory))
        if share is not None:
            share.files = max(0, share.files - files)

    def _pruned(self, tree: int, is_held: IsHeld) -> dict[tuple[SessionId, Ino], Share]:
        """Those that are out still."""
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
