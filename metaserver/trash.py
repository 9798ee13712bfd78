"""The trees that have a trash, and in which tree a directory is.

A tree is a directory for which an administrator has set what happens to names that are removed in
it and below; the nearest tree above a name applies. If no tree has its trash on, a removal costs
one look at `is_on`. Otherwise the path upwards is searched once for a directory; the result is
cached until a directory moves or a tree changes. The number of inodes in a trash is counted beside
the transactions, like quotas: records of changed trees go into the same batch as the entries.
Only the event loop's thread uses the table. metaserver.namespace.trash has the entries.
"""

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from metaserver.records import TrashTreeRecord, pack_trash_tree, trash_tree_key

_DIRECTORIES_MAX: Final = 1 << 16  # directories whose tree is cached


class TreeState(IntEnum):
    OFF = 0  # what is removed here is gone, whatever trees above say
    ON = 1
    ENDING = 2  # not a tree any more, except for the entries that it has


@dataclass(slots=True)
class Tree:
    state: TreeState
    expiry_s: int
    inodes: int = 0

    def record(self) -> TrashTreeRecord:
        return TrashTreeRecord(self.state, self.expiry_s, self.inodes)


class TrashTable:
    def __init__(self) -> None:
        self.trees: dict[int, Tree] = {}
        self.is_on = False
        self.counts: Counter[str] = Counter()  # entries that came or went, by how they did
        self._dirty: set[int] = set()
        self._tree_of: dict[int, int] = {}  # directory → its tree, 0: none
        self._stamped_ns = 0

    def put(self, ino: int, tree: Tree) -> None:
        self.trees[ino] = tree
        self._changed()

    def stamp(self, now_ns: int) -> int:
        """Returns the time of a new entry. Each is later than the one before, however coarse the
        clock is, so that of two versions of a file it is known which one is newer."""
        self._stamped_ns = max(now_ns, self._stamped_ns + 1)
        return self._stamped_ns

    def drop(self, ino: int) -> None:
        self.trees.pop(ino, None)
        self._dirty.discard(ino)
        self._changed()

    def _changed(self) -> None:
        self.is_on = any(tree.state is TreeState.ON for tree in self.trees.values())
        self._tree_of.clear()

    # ---- which tree a directory is in -------------------------------------------------------

    def moved(self) -> None:
        """A directory has moved to another parent: empties the cache."""
        self._tree_of.clear()

    def known(self, directory: int) -> int | None:
        """Returns the directory's tree, 0 if it is in none, None if it is not cached."""
        tree = self.trees.get(directory)
        if tree is not None and tree.state is not TreeState.ENDING:
            return directory if tree.state is TreeState.ON else 0
        return self._tree_of.get(directory)

    def learn(self, directories: list[int], tree: int) -> None:
        if len(self._tree_of) + len(directories) > _DIRECTORIES_MAX:
            self._tree_of.clear()
        for directory in directories[:_DIRECTORIES_MAX]:
            self._tree_of[directory] = tree

    # ---- how much is in it ------------------------------------------------------------------

    def merge(self, changes: list[tuple[int, str]]) -> None:
        """Counts the entries that an op has moved, each as its tree and how it moved: "kept" adds
        one. The op's writes are in the overlay."""
        for ino, how in changes:
            self.counts[how] += 1
            tree = self.trees.get(ino)
            if tree is not None:  # otherwise an entry names a tree that is not there
                tree.inodes = max(0, tree.inodes + (1 if how == "kept" else -1))
                self._dirty.add(ino)

    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        records: list[tuple[bytes, bytes | None]] = [
            (trash_tree_key(ino), pack_trash_tree(self.trees[ino].record())) for ino in self._dirty
        ]
        self._dirty.clear()
        return records

    @property
    def inodes(self) -> int:
        return sum(tree.inodes for tree in self.trees.values())
