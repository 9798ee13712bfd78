"""The calls of the operating system that checkpoints make, in one class: the only door to the disk.

Everything about the order of calls is elsewhere, so a test may put another file system beneath it
(tests/model: one in memory with power cuts, and one that fails).
"""

import contextlib
import fcntl
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from .errors import LockTimeout

SYNCS_AT_A_TIME = 8
REMOVAL = "checkpoint-removal"  # the name of threads that remove old steps
_PAUSE_FIRST = 0.0002  # seconds between looks at a lock, which is mostly held for less than a ms
_PAUSE_LAST = 0.02

_T = TypeVar("_T")


class Lock(Protocol):
    def is_still(self, path: Path) -> bool:
        """Whether the locked file is the one that path names now."""
        ...

    def close(self) -> None: ...


class Calls:
    """The real ones. Each method may raise OSError, with the name of its file."""

    def make_directory(self, path: Path) -> bool:
        """False: it was there."""
        try:
            path.mkdir()
        except FileExistsError:
            return False
        return True

    def names(self, path: Path) -> list[str]:
        return os.listdir(path)  # noqa: PTH208 - a Path for each of 10,000 names costs 20 ms

    def matching(self, path: Path, pattern: str) -> list[str]:
        """Files (no directories) below path, relative to it, sorted."""
        found = (one for one in path.glob(pattern) if one.is_file())
        return sorted(one.relative_to(path).as_posix() for one in found)

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified(self, path: Path) -> float:
        """When something in the tree changed last, in seconds since 1970."""
        newest = path.lstat().st_mtime
        for folder, _, files in os.walk(path):
            for one in (folder, *(f"{folder}/{file}" for file in files)):
                with contextlib.suppress(FileNotFoundError):
                    newest = max(newest, Path(one).lstat().st_mtime)
        return newest

    def open_new(self, path: Path, mode: str = "wb") -> BinaryIO:
        """A file that is made, or emptied, and written."""
        if mode not in ("wb", "w+b", "wb+"):
            raise ValueError(f"a file of a checkpoint is opened as 'wb' or 'w+b', not {mode!r}")
        return path.open(mode)  # type: ignore[return-value]

    def create(self, path: Path, content: bytes) -> None:
        """Makes a file; FileExistsError if the name is taken. Others may see it before it is
        filled."""
        with path.open("xb", buffering=0) as file:
            file.write(content)

    def create_synced(self, path: Path, content: bytes) -> None:
        with path.open("xb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def sync_file(self, path: Path) -> int:
        """Makes the file's bytes durable, whoever wrote them, and returns its size."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _fsync(file, path)
            return os.fstat(file).st_size
        finally:
            os.close(file)

    def sync_directory(self, path: Path) -> None:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _fsync(file, path)
        finally:
            os.close(file)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)  # noqa: PTH104 - rename(2), not a Path's

    def link_name(self, path: Path, target: str) -> None:
        """A symbolic link."""
        path.symlink_to(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        """Whatever of it is still there; another process may be removing it, too."""
        shutil.rmtree(path, onerror=_unless_gone)

    def lock(self, path: Path, *, exclusive: bool) -> Lock | None:
        """flock of the file, without waiting. None: somebody holds it."""
        return take_lock(path, exclusive=exclusive)

    def each(self, work: Callable[[_T], object], items: Sequence[_T]) -> list[object]:
        """work(item) of all items, a few at a time; raises the first error after all have ended."""
        if len(items) < 2:
            return [work(one) for one in items]
        with ThreadPoolExecutor(min(SYNCS_AT_A_TIME, len(items))) as pool:
            return [one.result() for one in [pool.submit(work, item) for item in items]]

    def later(self, work: Callable[[], None], *, must_end: bool = False) -> Callable[[], None]:
        """In a thread. must_end: the program waits for it when it ends; else what is not done by
        then stays to be done by `tidy`. Returns what waits for the end of the work."""
        thread = threading.Thread(target=work, name=REMOVAL, daemon=not must_end)
        thread.start()
        return thread.join

    def unique(self) -> str:
        return uuid.uuid4().hex[:12]

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _Flock:
    def __init__(self, file: int) -> None:
        self._file = file

    def is_still(self, path: Path) -> bool:
        try:
            named = path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file)
        return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Gives the lock up, also where a process that was forked meanwhile, as the workers of a
        DataLoader are, has the file open as well."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            os.close(self._file)


def take_lock(path: Path, *, exclusive: bool, make: bool = False) -> Lock | None:
    """flock(2) of a file, without waiting. make: the file is made if it is missing."""
    flags = os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT if make else os.O_RDONLY)
    file = os.open(path, flags, 0o666)
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return _Flock(file)


def wait_for_lock(path: Path, end: float) -> Lock:
    """Locks a file of this node exclusively; it is made if it is missing.

    end: until when to wait, as time.monotonic() counts. Raises LockTimeout, and OSError.
    """
    began, pause = time.monotonic(), _PAUSE_FIRST
    while (lock := take_lock(path, exclusive=True, make=True)) is None:
        now = time.monotonic()
        if now >= end:
            raise LockTimeout(path, now - began)
        time.sleep(min(pause, end - now))
        pause = min(2 * pause, _PAUSE_LAST)
    return lock


def _fsync(file: int, path: Path) -> None:
    try:
        os.fsync(file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _unless_gone(_call: object, _path: str, error: Iterable[object]) -> None:
    failure = tuple(error)[1]
    if not isinstance(failure, FileNotFoundError) and isinstance(failure, BaseException):
        raise failure
