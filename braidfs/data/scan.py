"""Lists the files of a tree with several threads, and puts them into arrays, sorted by path.

Threads list folders (listing.py). One thread then walks over the tree: a folder's files and folders
sorted by name, where a folder's name ends with a slash, give all paths in the order of their bytes,
so nothing is sorted but the names of one folder at a time.
"""

import os
import threading
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from .listing import Folder, Lister, Wish, new_lister, telling_device

NO_CLASS: Final = (1 << 32) - 1  # of a file in the root
_NUMBER: Final = 8  # bytes of a packed number


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


def scan(root: bytes, suffixes: tuple[str, ...], threads: int) -> Listed:
    """Lists the regular files below the root whose names end with a suffix. Raises OSError if a
    folder cannot be listed."""
    if threads < 1:
        raise ValueError("a scan needs a thread")
    ends = tuple(os.fsencode(one).lower() for one in suffixes)
    found = _Scan(root, Wish(ends, telling_device(root)), new_lister()).run(threads)
    return _arranged(found)


class _Scan:
    """Lists all folders. Threads take folders from `waiting` and give what they found to `done`;
    the thread that called run() has all the state."""

    def __init__(self, root: bytes, wish: Wish, lister: Lister) -> None:
        self._top = root.rstrip(b"/") + b"/"
        self._wish = wish
        self._list = lister
        self._waiting: SimpleQueue[bytes | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[bytes, Folder | Exception]] = SimpleQueue()
        self._stopped = False

    def run(self, threads: int) -> dict[bytes, Folder]:
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

    def _collected(self) -> dict[bytes, Folder]:
        """The folders by their paths below the root; the root is b"", others end with a slash."""
        found: dict[bytes, Folder] = {}
        self._waiting.put(b"")
        outstanding = 1
        while outstanding:
            path, folder = self._done.get()
            outstanding -= 1
            if isinstance(folder, Exception):
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
                self._done.put((path, self._list(self._top + path, path, self._wish)))
            except OSError as error:
                error.filename = os.fsdecode(self._top + path)  # for people to read
                self._done.put((path, error))
            except Exception as error:  # whoever waits for this folder gets it
                self._done.put((path, error))


def _arranged(found: dict[bytes, Folder]) -> Listed:
    listed = Listed(found[b""].inode)
    numbers: dict[bytes, int] = {}
    for path, begin, end in _runs(found):
        folder = found[path]
        if path not in numbers:
            numbers[path] = len(numbers)
            listed.folder_inodes.append(folder.inode)
        _append(listed, folder, path, numbers[path], range(begin, end))
    return listed


def _runs(found: dict[bytes, Folder]) -> Iterator[tuple[bytes, int, int]]:
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
        for name, end in zip(folder.folders, folder.places, strict=True):
            parts += [(top, begin, end), top + name]
            begin = end
        parts.append((top, begin, len(folder.sizes) // _NUMBER))
        stack += [one for one in reversed(parts) if not isinstance(one, tuple) or one[1] < one[2]]


def _append(listed: Listed, folder: Folder, path: bytes, number: int, run: range) -> None:
    offsets = memoryview(folder.offsets).cast("Q")[run.start : run.stop + 1]
    shift = len(listed.paths) - offsets[0]
    listed.paths += memoryview(folder.paths)[offsets[0] : offsets[-1]]
    listed.offsets.extend([shift + offset for offset in offsets[1:]])
    numbers = slice(_NUMBER * run.start, _NUMBER * run.stop)
    listed.sizes.frombytes(memoryview(folder.sizes)[numbers])
    listed.inodes.frombytes(memoryview(folder.inodes)[numbers])
    listed.folders.extend(array("I", [number]) * len(run))
    listed.classes.extend(array("I", [_class(listed, path)]) * len(run))


def _class(listed: Listed, path: bytes) -> int:
    """The number of the class of files in that folder; classes come in the order of paths."""
    name, slash, _ = path.partition(b"/")
    if not slash:
        return NO_CLASS
    if not listed.class_names or listed.class_names[-1] != name:
        listed.class_names.append(name)
    return len(listed.class_names) - 1
