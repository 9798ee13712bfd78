"""A process's descriptors of a file, for reading only, as /proc shows them.

If they were opened before anybody locked the file (FOPEN_NOFLUSH), their close(2) sends no FLUSH,
yet it drops the process's fcntl locks of that file. fsclient.fs.locks checks here whether they
still exist. A file with the same number in another mount of the same type cannot be told apart. No
file system is asked: these are the kernel's own tables.
"""

import os
from pathlib import Path

_KIND = " fuse.braidfs "


def reading(pid: int, ino: int) -> frozenset[int]:
    """The numbers of the process's descriptors of the file; empty if the process has ended."""
    try:
        numbers = [entry.name for entry in Path(f"/proc/{pid}/fdinfo").iterdir()]
    except OSError:
        return frozenset()
    mounts: frozenset[int] | None = None
    found = set()
    for number in numbers:
        mount = _mount_of(pid, int(number), ino)
        if mount is not None:
            mounts = _mounts(pid) if mounts is None else mounts
            if mount in mounts:
                found.add(int(number))
    return frozenset(found)


def are_there(pid: int, ino: int, numbers: frozenset[int]) -> bool:
    return all(_mount_of(pid, number, ino) is not None for number in numbers)


def count(pid: int) -> int:
    """How many descriptors the process has, of any kind."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fdinfo").iterdir())
    except OSError:
        return 0


def _mount_of(pid: int, number: int, ino: int) -> int | None:
    """The mount of the descriptor, if it can only read and is of the file with this number."""
    try:
        text = Path(f"/proc/{pid}/fdinfo/{number}").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    words = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    try:
        flags, mount, there = int(words["flags"], 8), int(words["mnt_id"]), int(words["ino"])
    except (KeyError, ValueError):  # Linux before 5.14 does not show the inode
        return None
    return mount if there == ino and flags & os.O_ACCMODE == os.O_RDONLY else None


def _mounts(pid: int) -> frozenset[int]:
    """The mounts of this type of file system."""
    try:
        text = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    return frozenset(int(line.split()[0]) for line in text.splitlines() if _KIND in line)
