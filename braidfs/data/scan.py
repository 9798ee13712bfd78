"""Lists the files of a tree with several threads, and puts them into arrays, sorted by path.

Threads list folders, and note names, sizes and inode numbers of each. One thread then walks over
the tree: a folder's files and folders sorted by name, where a folder's name ends with a slash, give
all paths in the order of their bytes, so nothing is sorted but the names of one folder at a time.
"""

import os
import stat
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from queue import SimpleQueue
from typing import Final

NO_CLASS: Final = (1 << 32) - 1  # of a file in the root


@dataclass(slots=True)
class Listed:
    """All files of a tree. Arrays have an entry for each file, if nothing else is said."""

    root_inode: int
    paths: bytearray = field(default_factory=bytearray)  # below the root, one after another
    offsets: "array[int]" = field(default_factory=lambda: array("Q", [0]))  # ends with an end
    sizes: "array[int]" = field(default_factory=lambda: array("Q"))
    inodes: "array[int]" = field(default_factory=lambda: array("Q"))
    folders: "array[int]" = field(default_factory=lambda: array("I"))
    classes: "array[int]" = field(default_factory=lambda: array("I"))
    folder_inodes: "array[int]" = field(default_factory=lambda: array("Q"))  # for each folder
    class_names: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Folder:
    """What a folder has in it, each sorted by name."""

    inode: int
    files: list[bytes]
    sizes: "array[int]"
    inodes: "array[int]"
    folders: list[bytes]


def scan(root: bytes, suffixes: tuple[str, ...], threads: int) -> Listed:
    """Lists the regular files below the root whose names end with a suffix. Raises OSError if a
    folder cannot be listed."""
    if threads < 1:
        raise ValueError("a scan needs a thread")
    ends = tuple(os.fsencode(one).lower() for one in suffixes)
    found = _Scan(root, ends).run(threads)
    return _arranged(found)


class _Scan:
    """Lists all folders. Threads take folders from `waiting` and give what they found to `done`;
    the thread that called run() has all the state."""

    def __init__(self, root: bytes, ends: tuple[bytes, ...]) -> None:
        self._root = root
        self._ends = ends
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[bytes, _Folder | OSError]] = SimpleQueue()
        self._stopped = False

    def run(self, threads: int) -> dict[bytes, _Folder]:
        started = [
            threading.Thread(target=self._serve, name=f"braidfs-scan-{number}", daemon=True)
            for number in range(threads)
        ]
        for one in started:
            one.start()
        try:
            return self._collected()
        finally:
            self._stopped = True
            for _ in started:
                self._waiting.put(None)
            for one in started:
                one.join()

    def _collected(self) -> dict[bytes, _Folder]:
        """The folders by their paths below the root; the root is b"", others end with a slash."""
        found: dict[bytes, _Folder] = {}
        self._waiting.put(b"")
        outstanding = 1
        while outstanding:
            path, folder = self._done.get()
            outstanding -= 1
            if isinstance(folder, OSError):
                if path and isinstance(folder, FileNotFoundError):
                    continue  # it was removed meanwhile
                raise folder
            found[path] = folder
            for name in folder.folders:
                self._waiting.put(path + name)
            outstanding += len(folder.folders)
        return found

    def _serve(self) -> None:
        while (path := self._waiting.get()) is not None:
            if self._stopped:
                return
            try:
                self._done.put((path, self._list(path)))
            except OSError as error:
                error.filename = os.fsdecode(self._root + b"/" + path)  # for people to read
                self._done.put((path, error))

    def _list(self, path: bytes) -> _Folder:
        files: list[tuple[bytes, int, int]] = []
        folders: list[bytes] = []
        place = self._root.rstrip(b"/") + b"/" + path
        inode = os.stat(place).st_ino  # noqa: PTH116  # a name of bytes
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name + b"/")
                elif self._is_wanted(entry.name) and (file := _file(entry)) is not None:
                    files.append(file)
        files.sort()
        folders.sort()
        return _Folder(
            inode,
            [name for name, _, _ in files],
            array("Q", [size for _, size, _ in files]),
            array("Q", [number for _, _, number in files]),
            folders,
        )

    def _is_wanted(self, name: bytes) -> bool:
        return not self._ends or name.lower().endswith(self._ends)


def _file(entry: "os.DirEntry[bytes]") -> tuple[bytes, int, int] | None:
    """Name, size and inode number of a regular file, or of a symbolic link to one."""
    try:
        if entry.is_file(follow_symlinks=False):
            seen = entry.stat(follow_symlinks=False)
            return entry.name, seen.st_size, seen.st_ino
        if entry.is_symlink() and stat.S_ISREG((seen := entry.stat()).st_mode):
            return entry.name, seen.st_size, 0
    except FileNotFoundError:  # it was removed meanwhile, or the link leads nowhere
        pass
    return None


def _arranged(found: dict[bytes, _Folder]) -> Listed:
    listed = Listed(found[b""].inode)
    numbers: dict[bytes, int] = {}
    for path, begin, end in _runs(found):
        folder = found[path]
        if path not in numbers:
            numbers[path] = len(numbers)
            listed.folder_inodes.append(folder.inode)
        _append(listed, folder, path, numbers[path], slice(begin, end))
    return listed


def _runs(found: dict[bytes, _Folder]) -> Iterator[tuple[bytes, int, int]]:
    """Runs of files of a folder that follow each other in the order of all paths."""
    stack: list[tuple[bytes, int, int] | bytes] = [b""]
    while stack:
        top = stack.pop()
        if isinstance(top, tuple):
            yield top
            continue
        folder = found.get(top)
        if folder is None:
            continue  # it was removed meanwhile
        parts: list[tuple[bytes, int, int] | bytes] = []
        begin = 0
        for name in folder.folders:
            end = bisect_left(folder.files, name)
            parts += [(top, begin, end), top + name]
            begin = end
        parts.append((top, begin, len(folder.files)))
        stack += [one for one in reversed(parts) if not isinstance(one, tuple) or one[1] < one[2]]


def _append(listed: Listed, folder: _Folder, path: bytes, number: int, run: slice) -> None:
    names = folder.files[run]
    listed.paths += b"".join([path + name for name in names])
    last = listed.offsets.pop()
    listed.offsets.extend(accumulate((len(path) + len(name) for name in names), initial=last))
    listed.sizes.extend(folder.sizes[run])
    listed.inodes.extend(folder.inodes[run])
    listed.folders.extend(array("I", [number]) * len(names))
    listed.classes.extend(array("I", [_class(listed, path)]) * len(names))


def _class(listed: Listed, path: bytes) -> int:
    """The number of the class of files in that folder; classes come in the order of paths."""
    name, slash, _ = path.partition(b"/")
    if not slash:
        return NO_CLASS
    if not listed.class_names or listed.class_names[-1] != name:
        listed.class_names.append(name)
    return len(listed.class_names) - 1
