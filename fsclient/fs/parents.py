"""The directory in which a file was last seen: a hint, which may be wrong, in a table of fixed
size.

An OPEN of the kernel has only the inode. Direct-mapped: of two inodes with the same place the later
one is kept. Pure; touched by the client's trio thread only.
"""

from array import array
from collections.abc import Iterable

PLACES = 1 << 16


class Parents:
    def __init__(self) -> None:
        self._inos = array("Q", bytes(8 * PLACES))
        self._parents = array("Q", bytes(8 * PLACES))

    def note(self, ino: int, parent: int) -> None:
        at = ino % PLACES
        self._inos[at] = ino
        self._parents[at] = parent

    def note_all(self, inos: Iterable[int], parent: int) -> None:
        known, parents = self._inos, self._parents
        for ino in inos:
            at = ino % PLACES
            known[at] = ino
            parents[at] = parent

    def of(self, ino: int) -> int:
        """The directory of ino; 0: not known."""
        at = ino % PLACES
        return self._parents[at] if self._inos[at] == ino else 0
