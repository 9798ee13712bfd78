"""Lists the objects of targets for an administrator (OBJECT_LIST), by the names of their files.

Native code has no part in it, and the data path does not wait: a directory is read by a thread of
its own, one at a time for all connections. A file may come or go meanwhile; one that was there all
the time is in the listing.
"""

import heapq
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import trio

from fscommon.errors import FsError, Status
from fscommon.wire.objects import (
    DIRECTORIES,
    END_UNKNOWN,
    OBJECTS_MAX,
    ObjectList,
    ObjectListing,
    ObjectRow,
)

_NAME: Final = re.compile(r"([0-9a-f]{16})\.(0|[1-9a-f][0-9a-f]{0,7})")
_BLOCK: Final = 512  # of st_blocks
# Of an object's file (docs/INTERFACES.md, section 4; native/src/store/layout.h).
_PAGE: Final = 4096  # of records, before the blocks of each group
_GROUP: Final = 1 << 20  # bytes of an object
_SLOTS_APART: Final = 1 << 43


class Listing:
    """path_of(target): where it lies; None: this server has no such target."""

    def __init__(self, path_of: Callable[[int], Path | None]) -> None:
        self._path_of = path_of
        self._one = trio.Lock()

    async def list(self, request: ObjectList) -> ObjectListing:
        """Raises FsError."""
        async with self._one:
            return await self._list(request)

    async def _list(self, request: ObjectList) -> ObjectListing:
        path = self._path_of(request.target)
        if path is None:
            raise FsError(Status.NO_TARGET, f"there is no target {request.target} here")
        if request.directory >= DIRECTORIES:
            raise FsError(Status.EINVAL, f"a target has {DIRECTORIES} directories")
        directory = path / "objects" / f"{request.directory:02x}"
        try:
            return await trio.to_thread.run_sync(list_directory, directory, request.after)
        except OSError as error:
            raise FsError(Status.EIO, f"{directory}: {error.strerror}") from error


def list_directory(directory: Path, after: str) -> ObjectListing:
    """Raises OSError."""
    with os.scandir(directory) as entries:
        behind = (entry.name for entry in entries if entry.name > after)
        names = heapq.nsmallest(OBJECTS_MAX + 1, behind)
    rows = tuple(_rows(directory, names[:OBJECTS_MAX]))
    return ObjectListing(rows, names[OBJECTS_MAX - 1] if len(names) > OBJECTS_MAX else "")


def _rows(directory: Path, names: list[str]) -> Iterator[ObjectRow]:
    now_s = time.time()
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None:
            continue  # no object: native code says so when it starts
        try:
            status = (directory / name).stat()
        except FileNotFoundError:
            continue
        age_s = max(0.0, now_s - status.st_mtime)
        file_id, number = int(found[1], 16), int(found[2], 16)
        end = end_of(status.st_size)
        yield ObjectRow(file_id, number, status.st_blocks * _BLOCK, int(age_s), end)


def end_of(length: int) -> int:
    """What of the object lies behind this cannot be in its file, which has so many bytes.
    END_UNKNOWN: some of it is in the second slots, which are behind all others."""
    if length > _SLOTS_APART:
        return END_UNKNOWN
    group, inside = divmod(length, _PAGE + _GROUP)
    return group * _GROUP + max(0, inside - _PAGE)
