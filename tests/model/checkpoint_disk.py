"""A file system in memory for the model of checkpoints, whose power can be cut.

It promises no more than POSIX does: fsync of a file makes its bytes durable, and not its name;
fsync of a directory makes its names durable, and not what is in them. After a cut each change
that was not made durable is there or not, as the seed decides; unsynced bytes may be torn.
"""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

Change = dict[str, Any]  # name → node, or None


@dataclass(eq=False)
class File:
    content: bytes = b""
    durable: bytes = b""
    locks: list[bool] = field(default_factory=list)  # True: exclusive


@dataclass(eq=False)
class Directory:
    entries: dict[str, Any] = field(default_factory=dict)
    durable: dict[str, Any] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    changed: float = 0.0

    def apply(self, change: Change) -> None:
        self.pending.append(change)
        _apply(self.entries, change)

    def sync(self) -> None:
        self.durable, self.pending = dict(self.entries), []


def _apply(entries: dict[str, Any], change: Change) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _error(number: int, path: Path) -> OSError:
    return OSError(number, errno.errorcode[number], str(path))


class _Lock:
    def __init__(self, disk: "MemoryDisk", file: File, exclusive: bool) -> None:
        self._disk, self._file, self._exclusive = disk, file, exclusive

    def is_still(self, path: Path) -> bool:
        try:
            return self._disk.find(path) is self._file
        except OSError:
            return False

    def close(self) -> None:
        self._file.locks.remove(self._exclusive)


class MemoryDisk:
    """The methods are those of braidfs.checkpoint.calls.Calls, each in one step."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.root, self._now = Directory(), now

    def find(self, path: Path) -> Any:
        node: Any = self.root
        for name in path.parts[1:]:
            if not isinstance(node, Directory):
                raise _error(errno.ENOTDIR, path)
            if name not in node.entries:
                raise _error(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def make_directory(self, path: Path) -> bool:
        if self.exists(path):
            return False
        self._change(path, Directory(changed=self._now()))
        return True

    def names(self, path: Path) -> list[str]:
        return list(self.find(path).entries)

    def matching(self, path: Path, pattern: str) -> list[str]:
        entries = self.find(path).entries.items()
        return sorted(n for n, one in entries if isinstance(one, File) and fnmatchcase(n, pattern))

    def exists(self, path: Path) -> bool:
        try:
            self.find(path)
        except OSError:
            return False
        return True

    def size(self, path: Path) -> int:
        return len(self.find(path).content)

    def modified(self, path: Path) -> float:
        node: Directory = self.find(path)
        below = [path / n for n, one in node.entries.items() if isinstance(one, Directory)]
        return max([node.changed, *map(self.modified, below)])

    def create(self, path: Path, content: bytes) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "EEXIST", str(path))
        self._change(path, File(content))

    def empty(self, path: Path) -> None:
        self._change(path, File())

    def fill(self, path: Path, content: bytes) -> None:
        self.find(path).content = content

    def read(self, path: Path) -> bytes:
        node = self.find(path)
        assert isinstance(node, File), path
        return node.content

    def sync_file(self, path: Path) -> int:
        file = self.find(path)
        file.durable = file.content
        return len(file.content)

    def sync_directory(self, path: Path) -> None:
        self.find(path).sync()

    def rename(self, old: Path, new: Path) -> None:
        node, parent = self.find(old), self.find(old.parent)
        target = self.find(new) if self.exists(new) else None
        if isinstance(target, Directory) and target.entries:
            raise _error(errno.ENOTEMPTY, new)
        assert parent is self.find(new.parent), "every rename here is within one directory"
        parent.apply({old.name: None, new.name: node})
        parent.changed = self._now()

    def link_name(self, path: Path, target: str) -> None:
        self._change(path, File(target.encode()))

    def unlink(self, path: Path) -> None:
        self.find(path)
        self._change(path, None)

    def lock(self, path: Path, *, exclusive: bool) -> _Lock | None:
        return self.lock_node(self.find(path), exclusive=exclusive)

    def lock_node(self, file: File, *, exclusive: bool) -> _Lock | None:
        if True in file.locks or (exclusive and file.locks):
            return None
        file.locks.append(exclusive)
        return _Lock(self, file, exclusive)

    def cut_power(self, chance: random.Random) -> None:
        """What is there after the machine, or the whole cluster, has started again."""
        _cut(self.root, chance, set())

    def _change(self, path: Path, node: Any) -> None:
        parent = self.find(path.parent)
        parent.apply({path.name: node})
        parent.changed = self._now()


def _cut(node: Any, chance: random.Random, seen: set[int]) -> None:
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, File):
        if node.content != node.durable and chance.random() < 0.7:
            cut = node.content[: chance.randrange(len(node.content) + 1)]
            node.content = node.durable if chance.random() < 0.5 else cut
        node.locks = []
        return
    share = chance.choice((0.0, 0.5, 1.0))
    entries = dict(node.durable)
    for change in node.pending:
        if chance.random() < share:
            _apply(entries, change)
    node.entries = entries
    node.sync()
    for one in list(entries.values()):
        _cut(one, chance, seen)
