"""The trees that have a trash, and which tree a directory is in.

A tree is a directory of which an administrator said what becomes of names that are removed in it
and below: the nearest one above counts. With none that is on, a removal costs one look at `is_on`;
else the way up is climbed once for a directory and kept in mind until a directory moves or a tree
is changed. How many inodes a trash holds is counted beside the transactions, as quotas are: the
records of trees that changed go into the very batch that the entries are in.
Only the event loop's thread touches it. The entries are metaserver.namespace.trash.
"""

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from metaserver.records import TrashTreeRecord, pack_trash_tree, trash_tree_key

_DIRECTORIES_MAX: Final = 1 << 16  # kept in mind


class TreeState(IntEnum):
    OFF = 0  # what is removed here is gone, whatever is said above
    ON = 1
    ENDING = 2  # no tree any more, but for the entries that it has


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
        self.counts: Counter[str] = Counter()  # entries that came and went, by how
        self._dirty: set[int] = set()
        self._tree_of: dict[int, int] = {}  # directory → its tree, 0: none
        self._stamped_ns = 0

    def put(self, ino: int, tree: Tree) -> None:
        self.trees[ino] = tree
        self._changed()

    def stamp(self, now_ns: int) -> int:
        """When an entry came: each later than the one before, whatever the clock's grain, so that
        of two versions of a file it is known which is newer."""
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
        """A directory has another parent."""
        self._tree_of.clear()

    def known(self, directory: int) -> int | None:
        """Its tree, 0: in none; None: as that of its parent."""
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
        """The op that moved entries is in the overlay: trees, and how ("kept": one more)."""
        for ino, how in changes:
            self.counts[how] += 1
            self.trees[ino].inodes += 1 if how == "kept" else -1
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
