"""For programs that read many small files in an order they know, as a training does in each epoch:
the mount is told the order, and fetches files before they are asked for.

    from fsclient.announce import Announcer

    announcer = Announcer("/mnt/data")
    for epoch in range(90):
        order = sampler.order(epoch)
        announcer.announce(paths[index] for index in order)
        for batch in loader: ...

Nothing else changes: files are opened and read as ever, by any process of this machine, and what
was announced and never read only costs the reading. What can be fetched: regular files of up to
1 MiB; how many bytes are kept is the mount option `read_mib`.
docs/decisions/0038-announced-reads.md says how it works.
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

from .fuse.announcement import FILES_MAX, IOCTL_ANNOUNCE, Announcement

_LISTED_MIN: Final = 8  # names of one directory from which on it is listed, not each looked up
_AT_A_TIME: Final = 1 << 16  # paths that are looked up together

AnyPath = str | os.PathLike[str]


class Announcer:
    """The way to one mount. Keeps the inode numbers of directories that it listed: a program whose
    data set changes makes another one. Not for several threads at once."""

    def __init__(self, directory: AnyPath) -> None:
        """Any directory of the mount. Raises OSError; ENOTTY: no BraidFS is mounted there, or one
        that does not know announcements; EOPNOTSUPP: this mount has them switched off."""
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._device = os.fstat(self._directory).st_dev
        self._listed: dict[str, tuple[int, dict[str, int]]] = {}
        try:
            self._tell(Announcement((), (), replaces=False))
        except OSError:
            self.close()
            raise

    def announce(self, paths: Iterable[AnyPath], *, more: bool = False) -> int:
        """These files are going to be read, in this order: in place of what was announced before,
        or with `more` after it. Returns how many were noted: at most some million wait at once;
        what is not there, no regular file or of another file system is passed over. Raises OSError
        when the mount cannot be asked."""
        noted, replaces = 0, not more
        found = self._found(iter(paths))
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
        """What was announced stays so."""
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
        given = bytearray(announcement.packed())  # as bytes fcntl would copy it, 1 KiB at most
        return int(fcntl.ioctl(self._directory, IOCTL_ANNOUNCE, given, True))

    def _found(self, paths: Iterator[AnyPath]) -> Iterator[tuple[int, int]]:
        """Inode numbers of files and of their directories."""
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
        """0: it is no such thing of this mount."""
        try:
            seen = Path(path).stat(follow_symlinks=kind == stat.S_IFDIR)
        except OSError:
            return 0
        return (
            seen.st_ino if stat.S_IFMT(seen.st_mode) == kind and seen.st_dev == self._device else 0
        )
