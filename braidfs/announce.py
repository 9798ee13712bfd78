"""Announces files to the mount, for programs that read many small files in an order that they know,
as a training loop does in each epoch: the mount fetches files before they are read.

    from braidfs.announce import Announcer

    announcer = Announcer("/mnt/data")
    for epoch in range(90):
        order = sampler.order(epoch)
        announcer.announce(paths[index] for index in order)
        for batch in loader: ...

Nothing else changes: files are opened and read as usual, by any process of this machine, and a file
that was announced and never read only costs its fetch. Regular files of up to 1 MiB are fetched;
the mount option `read_mib` sets how many bytes are kept. docs/decisions/0038-announced-reads.md
says how it works.
"""

import errno
import fcntl
import itertools
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from .announcement import FILES_MAX, IOCTL_ANNOUNCE, Announcement

_LISTED_MIN: Final = 8  # with this many names a directory is listed, else each is looked up
_AT_A_TIME: Final = 1 << 16  # paths that are looked up together

AnyPath = str | os.PathLike[str]


class Announcer:
    """Announces files to one mount. It keeps the inode numbers of directories that it has listed: a
    program whose data set changes makes a new one. Only one thread may use it at a time."""

    def __init__(self, directory: AnyPath) -> None:
        """directory: any one of the mount. Raises OSError; ENOTTY: no BraidFS is mounted there, or
        one that does not know announcements; EOPNOTSUPP: announcements are switched off for this
        mount."""
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.fstat(self._directory).st_dev
        self._listed: dict[str, tuple[int, dict[str, int]]] = {}
        try:
            self._tell(Announcement((), (), replaces=False))
        except OSError:
            self.close()
            raise

    def announce(self, paths: Iterable[AnyPath], *, more: bool = False) -> int:
        """Announces that these files will be read, in this order: in place of earlier
        announcements, or with `more` after them. Returns how many were accepted: at most about a
        million wait at once, and paths that do not exist, are no regular files or are on another
        file system are skipped. Raises OSError when the mount does not answer."""
        return self.announce_numbers(self._found(iter(paths)), more=more)

    def announce_numbers(self, files: Iterable[tuple[int, int]], *, more: bool = False) -> int:
        """Announces files of this mount by their inode numbers and those of their directories, as
        announce() does: without a look at the files. Numbers that the mount does not know are
        skipped."""
        noted, replaces = 0, not more
        found = iter(files)
        while batch := list(itertools.islice(found, FILES_MAX)):
            inos, parents = zip(*batch, strict=True)
            count = self._tell(Announcement(inos, parents, replaces=replaces))
            noted, replaces = noted + count, False
            if count < len(batch):
                break
        if replaces:
            self._tell(Announcement((), (), replaces=True))
        return noted

    def close(self) -> None:
        """Closes the mount's directory. What was announced stays announced."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1

    def __enter__(self) -> "Announcer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tell(self, announcement: Announcement) -> int:
        if self._directory < 0:
            raise OSError(errno.EBADF, "this announcer is closed")
        given = bytearray(announcement.packed())  # bytes would be limited to 1 KiB
        return int(fcntl.ioctl(self._directory, IOCTL_ANNOUNCE, given, True))

    def _found(self, paths: Iterator[AnyPath]) -> Iterator[tuple[int, int]]:
        """Yields the inode numbers of files and of their directories."""
        while some := [
            os.path.split(os.fspath(path)) for path in itertools.islice(paths, _AT_A_TIME)
        ]:
            for folder, count in Counter(folder for folder, _ in some).items():
                if folder not in self._listed and count >= _LISTED_MIN:
                    self._list(folder)
            parents: dict[str, int] = {}
            for folder, name in some:
                listed = self._listed.get(folder)
                if listed is not None:
                    parent, ino = listed[0], listed[1].get(name, 0)
                else:
                    if folder not in parents:
                        parents[folder] = self._number(folder or ".", stat.S_IFDIR)
                    parent = parents[folder]
                    ino = self._number(f"{folder}/{name}" if folder else name, stat.S_IFREG)
                if parent and ino:
                    yield ino, parent

    def _list(self, folder: str) -> None:
        try:
            with os.scandir(folder or ".") as entries:
                names = {
                    one.name: one.inode() for one in entries if one.is_file(follow_symlinks=False)
                }
        except OSError:
            names = {}
        self._listed[folder] = (self._number(folder or ".", stat.S_IFDIR), names)

    def _number(self, path: str, kind: int) -> int:
        """The inode number; 0: it is of another kind, or not on this mount."""
        try:
            seen = Path(path).stat(follow_symlinks=kind == stat.S_IFDIR)
        except OSError:
            return 0
        return (
            seen.st_ino if stat.S_IFMT(seen.st_mode) == kind and seen.st_dev == self._device else 0
        )
