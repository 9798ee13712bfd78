"""Lists one folder: its files with their sizes and inode numbers, and its folders.

The native module _braidfs_reader does that in one call without the GIL, so that threads list
folders beside each other. Where it is missing, Python does the same, and one set of tests runs
against both. Not here: the walk over a tree (scan.py).
"""

import errno
import os
import stat
from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Final, NamedTuple

from braidfs.mounts import has_device

_LEADS_NOWHERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # errors of symbolic links


class Folder(NamedTuple):
    """What a folder has in it. Files and folders are each sorted by the bytes of their names, where
    a folder's ends with a slash. Numbers of files are packed, 64 bits each."""

    inode: int
    """The folder's own."""
    paths: bytes
    """Of the files, each behind the prefix, one after another."""
    offsets: bytes
    """Where each path begins, and the end of the last one."""
    sizes: bytes
    """Of each file, in bytes."""
    inodes: bytes
    """Of each file; 0 for a symbolic link to one."""
    folders: list[bytes]
    """Names, each with a slash behind it."""
    places: list[int]
    """Of each folder: how many files come before it."""


class Wish(NamedTuple):
    """What is wanted of each folder."""

    ends: tuple[bytes, ...] = ()
    """Only files whose names end with one of these, in small letters (capitals of ASCII are equal
    to them); none: all."""
    device: int = 0
    """The device of a mount that tells sizes together with names: native code believes what was
    told, and asks for no file again. 0: none."""


Lister = Callable[[bytes, bytes, Wish], Folder]
"""(folder, prefix, wish) lists a folder. Files are regular ones, and symbolic links to such. Files
that vanish meanwhile, and links that lead nowhere, are left out. Raises OSError if the folder
cannot be listed."""


def native_lister() -> Lister:
    """Raises ImportError where the native module is missing."""
    from _braidfs_reader import list_folder  # noqa: PLC0415  # it is optional

    return lambda folder, prefix, wish: Folder(*list_folder(folder, prefix, *wish))


def new_lister() -> Lister:
    """The native one; where the native module is missing, that of Python."""
    try:
        return native_lister()
    except ImportError:
        return python_lister


def telling_device(root: bytes) -> int:
    """The device of the root if a BraidFS is mounted there, else 0. A BraidFS tells the attributes
    of all files with their names. Those without a lease may be believed for no longer, so stat(2)
    would ask for each of them again: only native code can do without."""
    try:
        device = os.stat(root).st_dev  # noqa: PTH116  # a name of bytes
        return device if has_device(device) else 0
    except OSError:
        return 0


def python_lister(folder: bytes, prefix: bytes, wish: Wish) -> Folder:
    """A Lister. It asks for each file."""
    files: list[tuple[bytes, int, int]] = []
    folders: list[bytes] = []
    inode = os.stat(folder).st_ino  # noqa: PTH116  # a name of bytes
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name + b"/")
            elif _has_end(entry.name, wish.ends) and (file := _file(entry)) is not None:
                files.append(file)
    files.sort()
    folders.sort()
    names = [name for name, _, _ in files]
    lengths = (len(prefix) + len(name) for name in names)
    return Folder(
        inode,
        b"".join([prefix + name for name in names]),
        array("Q", accumulate(lengths, initial=0)).tobytes(),
        array("Q", [size for _, size, _ in files]).tobytes(),
        array("Q", [number for _, _, number in files]).tobytes(),
        folders,
        [bisect_left(names, name) for name in folders],
    )


def _has_end(name: bytes, ends: tuple[bytes, ...]) -> bool:
    return not ends or name.lower().endswith(ends)


def _file(entry: "os.DirEntry[bytes]") -> tuple[bytes, int, int] | None:
    """Name, size and inode number of a regular file, or of a symbolic link to one."""
    is_link = entry.is_symlink()
    try:
        if not is_link and not entry.is_file(follow_symlinks=False):
            return None
        seen = entry.stat(follow_symlinks=is_link)
    except OSError as error:  # it was removed meanwhile, or the link leads nowhere
        if error.errno == errno.ENOENT or (is_link and error.errno in _LEADS_NOWHERE):
            return None
        raise
    if not stat.S_ISREG(seen.st_mode):
        return None
    return entry.name, seen.st_size, 0 if is_link else seen.st_ino
