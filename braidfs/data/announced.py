"""A sampler that tells the mount which files will be read next.

It draws the order of an epoch from another sampler, whole, and announces a window of it at a time
(docs/decisions/0038-announced-reads.md). It never disturbs the training: where there is no BraidFS,
or announcements are switched off, it only passes the order on.
"""

import itertools
import logging
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..announce import Announcer
from .files import Files
from .index import Index

_log: Final = logging.getLogger(__name__)
_begun: Final[set[int]] = set()  # mounts, by their st_dev, on which nothing is to be replaced


class Announced:
    """Iterates as another sampler of rows does. Only one pass at a time is under way."""

    def __init__(
        self, sampler: Iterable[int], files: Files | Index, *, window: int = 65536
    ) -> None:
        """sampler: gives the rows of an epoch, for example a DistributedSampler. files: what the
        rows are of. window: how many files are announced at a time; the mount bounds the memory,
        this bounds how long it takes until the first file is read.

        What was announced before and will not be read is replaced: by the first pass of this
        program on a mount, since an earlier job may have been killed, and by the one after a pass
        that was given up. On a node with several ranks only that with LOCAL_RANK 0 does so. What
        another rank has announced just before that moment goes with it, and is read as if it had
        not been announced, up to one window; all other passes of all ranks only add."""
        if window < 1:
            raise ValueError("a window has at least one file")
        self._sampler = sampler
        self._index = files.index if isinstance(files, Files) else files
        self._window = window
        self._before: Any = None  # state of the sampler before it was drawn
        self._given = 0  # rows of this pass that were given out
        self._skipped = 0  # rows of the next pass that were given out before a restart

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]  # as the sampler has one or not

    def __iter__(self) -> Iterator[int]:
        """Rows in the sampler's order. Those that a loaded state has behind it are left out, and
        not announced."""
        self._before = _state(self._sampler)
        self._given, self._skipped = self._skipped, 0
        order = array("q", itertools.islice(self._sampler, self._given, None))
        teller = _Teller(self._index)
        told = teller.tell(order[: self._window])
        try:
            for number, row in enumerate(order):
                if told < len(order) and number >= told - self._window // 2:
                    told += teller.tell(order[told : told + self._window])
                self._given += 1
                yield row
        except BaseException:  # GeneratorExit: the loop over the loader has ended early
            teller.give_up_pass()
            raise
        finally:
            teller.close()
        self._before, self._given = None, 0

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch to the sampler, if it wants to know."""
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the pass is: the sampler's state from before it was drawn, and how many rows were
        given out since."""
        before = self._before if self._before is not None else _state(self._sampler)
        return {"sampler": before, "given": self._given or self._skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where that state was taken. A sampler without a state of its own
        must draw the same order again, as one with a seed and an epoch does."""
        if state["sampler"] is not None:
            self._sampler.load_state_dict(state["sampler"])  # type: ignore[attr-defined]
        self._skipped, self._given, self._before = int(state["given"]), 0, None


def _state(sampler: Any) -> Any:
    return sampler.state_dict() if hasattr(sampler, "state_dict") else None


class _Teller:
    """Announces the files of a pass. It gives up at the first error, with one line for people who
    search for it."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._announcer: Announcer | None = None
        try:
            self._announcer = Announcer(index.root)
            root = Path(index.root).stat()
            self._by_numbers, self._mount = root.st_ino == index.root_inode, root.st_dev
        except OSError as error:
            self._give_up(error)

    def tell(self, rows: "array[int]") -> int:
        """Announces these files after those that were, or in their place. Returns how many rows
        are behind it, announced or not."""
        if self._announcer is not None:
            more = self._mount in _begun or os.environ.get("LOCAL_RANK", "0") != "0"
            try:
                self._announce(self._announcer, rows, more=more)
                _begun.add(self._mount)
            # An index with a wrong row, too, is for its reader to complain about.
            except (OSError, ValueError, LookupError) as error:
                self._give_up(error)
        return len(rows)

    def _announce(self, announcer: Announcer, rows: "array[int]", *, more: bool) -> None:
        index = self._index
        if self._by_numbers:
            inodes, folders = index.inodes, index.folder_inodes
            numbers = ((inodes[row], folders[index.folder(row)]) for row in rows)
            announcer.announce_numbers((one for one in numbers if all(one)), more=more)
        else:  # the index is of another tree, with the same paths
            announcer.announce((index.path(row) for row in rows), more=more)

    def give_up_pass(self) -> None:
        """Some of what was announced will not be read: the next pass replaces it."""
        if self._announcer is not None:
            _begun.discard(self._mount)

    def close(self) -> None:
        if self._announcer is not None:
            self._announcer.close()
            self._announcer = None

    def _give_up(self, error: Exception) -> None:
        _log.debug("reads below %s are not announced: %s", self._index.root, error)
        self.close()
