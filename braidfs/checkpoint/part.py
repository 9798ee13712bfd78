"""What one rank writes of a step: `with checkpoints.begin(…) as c:`.

The end of the block makes the files durable, and leaves the mark that says so; the rank that leaves
the last mark commits. With an exception the block leaves a mark of failure instead, so that the
other ranks do not wait.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from . import names
from .calls import Calls
from .commit import Attempt, Step
from .node import gather_on_node

DEFAULT_TIMEOUT = 600.0


class Part:
    """A part of a step that is being written. One thread at a time, except for `file`."""

    def __init__(
        self,
        calls: Calls,
        attempt: Attempt,
        part: int,
        *,
        node_parts: tuple[int, int] | None = None,
        is_summed: bool = False,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        self._calls, self._attempt, self._part = calls, attempt, part
        self._node_parts, self._is_summed, self._committed = node_parts, is_summed, committed
        self._files: dict[str, BinaryIO] = {}
        self._patterns: list[str] = []
        self._done: Step | None = None
        self._has_ended = False

    @property
    def path(self) -> Path:
        """The directory to write into. It is hidden, and has another name after the commit."""
        return self._attempt.hidden

    def file(self, name: str, mode: str = "wb") -> BinaryIO:
        """Opens a new file of this part. name: relative, '/' between folders, which are made.

        mode: `wb`, or `w+b` to read what was written. Raises ValueError for another mode, and for
        a name that no file may have; OSError. A file that is open at the end of the block is
        closed.
        """
        place = self.path / names.checked_file(name)
        if place.parent != self.path:
            self._make_folders(place.parent)
        opened = self._calls.open_new(place, mode)
        self._files[name] = opened
        return opened

    def add(self, pattern: str) -> None:
        """Names files of this part that something else writes below `path`, such as a library.

        pattern: as for pathlib's glob, relative: `rank00012.pt`, `shard-12/**/*`. It is looked for
        at the end of the block, which raises ValueError if it matches nothing.
        """
        if pattern.startswith("/") or ".." in pattern.split("/"):
            raise ValueError(f"{pattern!r} leads out of the checkpoint's directory")
        self._patterns.append(pattern)

    def wait(self, timeout: float = DEFAULT_TIMEOUT) -> Step:
        """After the block: returns when all parts are visible and durable. timeout: in seconds.

        Raises PartFailed, StepExists, CommitTimeout, StepLost (see their docstrings) and OSError.
        """
        if not self._has_ended:
            raise RuntimeError("wait() comes after the block, which leaves this part's mark")
        if self._done is None:
            self._done = self._attempt.wait(timeout)
            if self._attempt.has_won:  # the one that left the last mark had died
                self._committed()
        return self._done

    def __enter__(self) -> "Part":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._has_ended = True
        if error is not None:
            for opened in self._files.values():
                with contextlib.suppress(OSError):  # the error of the block is the one to tell
                    opened.close()
            self._fail(error)
            return
        try:
            self._end()
        except BaseException as failure:
            self._fail(failure)
            raise
        if self._node_parts is None and self._attempt.lacks_marks_after(self._part):
            return  # whoever leaves the last mark commits
        self._done = self._attempt.try_to_commit(alone=True)
        if self._done is not None and self._attempt.has_won:
            self._committed()

    def _end(self) -> None:
        """Makes the part durable and leaves the mark, or what the last rank of the node needs."""
        for opened in self._files.values():
            opened.close()
        files = self._found()
        ended = self._attempt.durable_files(files, self._part, is_summed=self._is_summed)
        parts: list[int] | None = [self._part]
        if self._node_parts is not None:
            key = (self._attempt.hidden, *self._node_parts)
            parts, ended = gather_on_node(key, self._part, ended)
        if parts:
            self._attempt.mark(parts, ended)

    def _found(self) -> list[str]:
        listed = dict.fromkeys(self._files)
        for pattern in self._patterns:
            matched = [
                name
                for name in self._calls.matching(self.path, pattern)
                if not name.startswith((f"{names.PARTS}/", names.NEW_MANIFEST))
            ]
            if not matched:
                raise ValueError(f"no file matches {pattern!r} in {self.path}")
            listed.update(dict.fromkeys(matched))
        return sorted(listed)

    def _fail(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        self._attempt.fail(self._part, text)

    def _make_folders(self, place: Path) -> None:
        if place != self.path and not self._calls.exists(place):
            self._make_folders(place.parent)
            self._calls.make_directory(place)
