"""A list of the files of a data set that processes share: no object of Python for each file.

Its parts are arrays in one image, which is the content of an index file: paths one after another,
where each begins, sizes, inode numbers, and the numbers of its folder and class. An image that was
loaded is mapped, so workers of a DataLoader share its pages, however they are started, and nothing
grows by counts of references. docs/reference/index-file.md has the format.

A damaged file is found when it is loaded, by its checksum. A forged one may have a right checksum:
everything that is read from the image is checked before it is used. Not here: how trees are
scanned (scan.py).
"""

import mmap
import operator
import os
import stat
import struct
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, SupportsIndex

from .scan import NO_CLASS, Listed, scan

AnyPath = str | os.PathLike[str]

MAGIC: Final = b"BraidIdx"
FORMAT: Final = 1
_SECTIONS: Final = (
    "root",
    "paths",
    "offsets",
    "sizes",
    "inodes",
    "folders",
    "classes",
    "folder_inodes",
    "class_names",
)
_FIRST: Final = struct.Struct("<8s2I")  # magic, format, CRC-32 of all bytes behind this
_COUNTS: Final = struct.Struct("<5Q")  # size of the file, files, folders, classes, root's inode
_PLACE: Final = struct.Struct("<2Q")  # offset and size of a section
_HEAD: Final = _FIRST.size + _COUNTS.size + len(_SECTIONS) * _PLACE.size
_ALIGNMENT: Final = 8


class DamagedIndexError(ValueError):
    """An index file is damaged, was forged, or is none."""


class Index:
    """Regular files below a root, sorted by the bytes of their paths. Never changes; any thread and
    any process may use it."""

    def __init__(self, image: "bytes | mmap.mmap", *, name: str = "this index") -> None:
        """image: the content of an index file. Raises DamagedIndexError. Programs call Index.scan()
        or Index.load()."""
        self._image = image
        self._name = name
        self._file: str | None = None
        self._checksum, counts, views = _parts(memoryview(image), name)
        _, self._count, self._folder_count, self._class_count, self.root_inode = counts
        self._paths = views["paths"]
        self._offsets = views["offsets"].cast("Q")
        self.sizes: memoryview = views["sizes"].cast("Q")
        """Size of each file in bytes when the tree was scanned."""
        self.inodes: memoryview = views["inodes"].cast("Q")
        """Inode number of each file; 0 for a symbolic link to one."""
        self._folders = views["folders"].cast("I")
        self._classes = views["classes"].cast("I")
        self.folder_inodes: memoryview = views["folder_inodes"].cast("Q")
        """Inode number of each folder that has files in it."""
        self._root = bytes(views["root"])
        self.classes = _class_names(views["class_names"], self._class_count, name)
        """Names of the folders below the root that have files below them, sorted."""
        self._check_ends()

    @classmethod
    def scan(cls, root: AnyPath, suffixes: Iterable[str] = (), *, threads: int = 16) -> "Index":
        """Lists the regular files below a folder. The same tree gives the same index.

        suffixes: ends of the names that are wanted, in any case; none: all. threads: how many
        folders are listed at a time. Symbolic links to files are files; those to folders are not
        followed. Files that vanish meanwhile are left out. Of a file that another node is writing
        at that moment, the size may be that of a moment before. Raises OSError if a folder cannot
        be listed."""
        top = _absolute(root)
        return cls(_image_of(scan(top, tuple(suffixes), threads), top))

    @classmethod
    def load(cls, file: AnyPath, *, root: AnyPath | None = None) -> "Index":
        """Maps an index file. root: where the tree is on this node, if not where it was scanned.
        Raises OSError, and DamagedIndexError for a file that is no index, or no whole one."""
        index = cls(_mapped(os.fspath(file)), name=os.fspath(file))
        if zlib.crc32(memoryview(index._image)[_FIRST.size :]) != index._checksum:
            raise DamagedIndexError(f"{file}: the checksum is wrong: make the index again")
        index._file = str(Path(file).absolute())
        if root is not None:
            index._root = _absolute(root)
        return index

    def save(self, file: AnyPath) -> None:
        """Writes the index file: it appears whole or not at all. Workers that are started by
        `spawn` then map it, instead of getting a copy each. Raises OSError."""
        name = Path(file).absolute()
        temporary = name.with_name(f".{name.name}.{os.getpid()}.partial")
        try:
            with temporary.open("wb") as written:
                written.write(self._image)
                written.flush()
                os.fsync(written.fileno())
            temporary.replace(name)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._file = str(name)

    def __len__(self) -> int:
        return self._count

    @property
    def root(self) -> str:
        """The folder below which the files are."""
        return os.fsdecode(self._root)

    def row(self, row: SupportsIndex) -> int:
        """The row as a number from 0; negative ones count from the end. Raises IndexError."""
        number = operator.index(row)
        if number < 0:
            number += self._count
        if not 0 <= number < self._count:
            raise IndexError(f"row {row} of an index with {self._count} files")
        return number

    def size(self, row: int) -> int:
        """Size in bytes when the tree was scanned."""
        return int(self.sizes[row])

    def name(self, row: int) -> bytes:
        """The path below the root. Raises DamagedIndexError for one that is none, or that leads out
        of the root."""
        begin, end = self._offsets[row], self._offsets[row + 1]
        if not begin < end <= len(self._paths):
            raise DamagedIndexError(f"{self._name}: row {row} has no path")
        name = bytes(self._paths[begin:end])
        if b"\0" in name or name[:1] == b"/" or (b".." in name and b".." in name.split(b"/")):
            raise DamagedIndexError(
                f"{self._name}: row {row} has a path that leads out of the root"
            )
        return name

    def full_name(self, row: int) -> bytes:
        """The path with the root's, as the system takes it."""
        return self._root.rstrip(b"/") + b"/" + self.name(row)

    def path(self, row: SupportsIndex) -> str:
        """The path with the root's."""
        return os.fsdecode(self.full_name(self.row(row)))

    def folder(self, row: int) -> int:
        """The number of the file's folder, a row of folder_inodes."""
        number = int(self._folders[row])
        if number >= self._folder_count:
            raise DamagedIndexError(f"{self._name}: row {row} has a folder that is not there")
        return number

    def class_of(self, row: SupportsIndex) -> int | None:
        """The number of the file's class, a row of `classes`: the folder below the root in which it
        is, at any depth. None: it is in the root itself."""
        number = int(self._classes[self.row(row)])
        if number == NO_CLASS:
            return None
        if number >= self._class_count:
            raise DamagedIndexError(f"{self._name}: row {row} has a class that is not there")
        return number

    def __repr__(self) -> str:
        return f"<Index of {self._count:,} files below {self.root}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is None:
            return _restored, (bytes(self._image), self._root)
        return _mapped_again, (self._file, self._checksum, self._root)

    def _check_ends(self) -> None:
        ends = (self._offsets[0], self._offsets[self._count])
        if ends != (0, len(self._paths)):
            raise DamagedIndexError(f"{self._name}: the paths do not end where they should")


def _absolute(root: AnyPath) -> bytes:
    return os.fsencode(Path(root).absolute())


def _restored(image: bytes, root: bytes) -> Index:
    index = Index(image)
    index._root = root
    return index


def _mapped_again(file: str, checksum: int, root: bytes) -> Index:
    """The index in another process. Its content was checked when the first process loaded it."""
    index = Index(_mapped(file), name=file)
    if index._checksum != checksum:
        raise DamagedIndexError(f"{file}: it is another index than the one that was handed over")
    index._file = file
    index._root = root
    return index


def _mapped(file: str) -> "mmap.mmap | bytes":
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            raise DamagedIndexError(f"{file}: it is no regular file")
        if seen.st_size < _HEAD:
            raise DamagedIndexError(f"{file}: it is too short for an index")
        return mmap.mmap(descriptor, seen.st_size, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def _parts(image: memoryview, name: str) -> tuple[int, tuple[int, ...], dict[str, memoryview]]:
    """Checksum, counts and sections of an image, all of whose sizes fit together."""
    if sys.byteorder != "little":
        raise DamagedIndexError(f"{name}: an index is for processors with the least byte first")
    if len(image) < _HEAD:
        raise DamagedIndexError(f"{name}: it is too short for an index")
    magic, version, checksum = _FIRST.unpack_from(image)
    if magic != MAGIC:
        raise DamagedIndexError(f"{name}: it is no index")
    if version != FORMAT:
        raise DamagedIndexError(f"{name}: it has format {version}, and this version reads {FORMAT}")
    counts = _COUNTS.unpack_from(image, _FIRST.size)
    size, files, folders, _, _ = counts
    if size != len(image):
        raise DamagedIndexError(f"{name}: it has {len(image):,} bytes of {size:,}")
    expected = {
        "offsets": 8 * (files + 1),
        "sizes": 8 * files,
        "inodes": 8 * files,
        "folders": 4 * files,
        "classes": 4 * files,
        "folder_inodes": 8 * folders,
    }
    views = {}
    for number, section in enumerate(_SECTIONS):
        at = _FIRST.size + _COUNTS.size + number * _PLACE.size
        begin, length = _PLACE.unpack_from(image, at)
        if begin < _HEAD or begin % _ALIGNMENT or begin + length > size:
            raise DamagedIndexError(f"{name}: the section {section} lies outside of it")
        if length != expected.get(section, length):
            raise DamagedIndexError(f"{name}: the section {section} has a wrong size")
        views[section] = image[begin : begin + length]
    return checksum, counts, views


def _class_names(section: memoryview, count: int, name: str) -> tuple[str, ...]:
    packed = bytes(section)
    names = packed.split(b"\0")
    if names.pop() != b"" or len(names) != count:
        raise DamagedIndexError(f"{name}: the names of classes are damaged")
    return tuple(os.fsdecode(one) for one in names)


def _image_of(listed: Listed, root: bytes) -> bytes:
    contents: dict[str, Any] = {
        "root": root,
        "paths": listed.paths,
        "offsets": listed.offsets,
        "sizes": listed.sizes,
        "inodes": listed.inodes,
        "folders": listed.folders,
        "classes": listed.classes,
        "folder_inodes": listed.folder_inodes,
        "class_names": b"".join(one + b"\0" for one in listed.class_names),
    }
    places: list[bytes] = []
    parts: list[memoryview | bytes] = []
    end = _HEAD
    for section in _SECTIONS:
        view = memoryview(contents[section]).cast("B")
        padding = -len(view) % _ALIGNMENT
        places.append(_PLACE.pack(end, len(view)))
        parts += [view, b"\0" * padding]
        end += len(view) + padding
    files, folders = len(listed.sizes), len(listed.folder_inodes)
    counts = _COUNTS.pack(end, files, folders, len(listed.class_names), listed.root_inode)
    behind = b"".join([counts, *places, *parts])
    return _FIRST.pack(MAGIC, FORMAT, zlib.crc32(behind)) + behind
