"""The program that makes staged steps durable: one for each root and node, started by a rank.

    python -m braidfs.checkpoint.drain FOLDER      # FOLDER: that of braidfs.checkpoint.staging

It copies the parts that are whole in memory into the root's hidden directory, makes them durable
and leaves their marks there, as the ranks would have done; whoever leaves the last one commits. It
is in a session of its own, so it goes on when the job ends. When it is killed, the next `begin` or
`wait` starts another, which does again what has no mark. It ends when it had nothing to do for some
time. An error of one step is written down for the next `begin`, and told to the other nodes.
"""

import contextlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import names
from .calls import Calls, Lock, take_lock
from .commit import LIST_EVERY, Attempt, make_directories
from .errors import CheckpointError
from .manifest import File
from .shelf import Shelf
from .staging import COUNT, DRAIN_LOCK, DRAIN_SETTINGS, DRAINED, FAILURE, Settings, Staging

IDLE_SECONDS = 30.0
_POLL = 0.05
_log = logging.getLogger("braidfs.checkpoint.drain")


class Drain:
    """One pass after another over the folder. One thread, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(**json.loads((folder / DRAIN_SETTINGS).read_text()))
        self._settings, self._calls = settings, Calls()
        self._staging = Staging(folder.parent, settings)
        self._staging.folder = folder
        self._shelf = Shelf(self._calls, Path(settings.root))
        self._next: dict[names.Partial, float] = {}

    def has_work(self) -> bool:
        return any(map(self._staging.is_waiting, self._staging.attempts()))

    def look(self) -> bool:
        """Drains what is whole. False: there was nothing to do."""
        did = False
        for partial in self._staging.attempts():
            if self._staging.failure(partial) is not None:
                continue
            with contextlib.suppress(FileNotFoundError):  # it was forgotten meanwhile
                did |= self._step(partial)
        return did

    def _step(self, partial: names.Partial) -> bool:
        place = self._staging.place(partial)
        parts = int((place / COUNT).read_text() or 0)
        durable = Attempt(self._calls, self._shelf.root, partial.step, partial.attempt, parts)
        waiting = [
            (part, files)
            for part, files in sorted(self._staging.marks(place).items())
            if not self._staging.is_drained(place, part)
        ]
        try:
            for part, files in waiting:
                self._part(durable, place, part, files)
            is_over = self._is_due(partial, is_new=bool(waiting)) and self._commit(durable)
        except CheckpointError as error:
            self._fail(place, error)  # nothing that this node could do would make it whole
            return True
        except OSError as error:
            for part, _ in waiting:
                durable.fail(part, f"{type(error).__name__}: {error}")
            self._fail(place, error)
            return True
        if is_over:
            self._staging.forget(partial)
        return bool(waiting) or is_over

    def _is_due(self, partial: names.Partial, *, is_new: bool) -> bool:
        """Whether to look at the marks in the root: after a part, and now and then."""
        is_due = is_new or time.monotonic() >= self._next.get(partial, 0.0)
        if is_due:
            self._next[partial] = time.monotonic() + LIST_EVERY
        return is_due and bool(self._staging.marks(self._staging.place(partial)))

    def _part(self, durable: Attempt, place: Path, part: int, files: Sequence[File]) -> None:
        mark = durable.marks / names.mark_name(part)
        # A drain that was killed may have left the mark: its files may be committed at any time.
        if not durable.visible.exists() and not mark.exists():
            durable.prepare()
            self._copy(durable, place, [file.name for file in files])
            durable.make_durable([file.name for file in files])
            durable.mark([part], files)
        (place / names.PARTS / f"{names.mark_name(part)}{DRAINED}").touch()

    def _copy(self, durable: Attempt, place: Path, files: Sequence[str]) -> None:
        for name in files:
            make_directories(self._calls, (durable.hidden / name).parent)
        self._calls.each(lambda name: shutil.copyfile(place / name, durable.hidden / name), files)

    def _commit(self, durable: Attempt) -> bool:
        """True: the step is visible, so memory can be given back."""
        if durable.try_to_commit() is None:
            return False
        self._shelf.make_room(self._settings.keep, self._settings.keep_every)
        return True

    def _fail(self, place: Path, error: Exception) -> None:
        _log.error("%s: %s", place.name, error)
        fresh = place / f"{FAILURE}.new"
        fresh.write_text(str(error))
        fresh.rename(place / FAILURE)


def run(folder: Path, idle: float = IDLE_SECONDS) -> int:
    """Until nothing was to do for `idle` seconds. 0 also if another drain has the lock."""
    lock = take_lock(folder / DRAIN_LOCK, exclusive=True, make=True)
    while lock is not None:
        _until_idle(folder, idle)
        lock.close()
        # A rank that left a mark now may have seen the lock held, so look once more.
        lock = _again(folder)
    return 0


def _until_idle(folder: Path, idle: float) -> None:
    drain, last = Drain(folder), time.monotonic()
    while time.monotonic() - last < idle and folder.exists():
        if drain.look():
            last = time.monotonic()
        time.sleep(_POLL)


def _again(folder: Path) -> Lock | None:
    if not folder.exists() or not Drain(folder).has_work():
        return None
    return take_lock(folder / DRAIN_LOCK, exclusive=True, make=True)


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        print(__doc__, file=sys.stderr)  # noqa: T201
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    idle = float(os.environ.get("BRAIDFS_DRAIN_IDLE_SECONDS", IDLE_SECONDS))
    return run(Path(words[0]), idle)


if __name__ == "__main__":
    sys.exit(main())
