"""A run's checkpoints in one directory: begin a step, find the newest, read, remove.

    checkpoints = Checkpoints("/mnt/braid/run7", keep=3)
    with checkpoints.begin(step, part=rank, parts=world, attempt=run_id) as c:
        with c.file(f"rank{rank:05d}.pt") as f:
            torch.save(state, f)
    c.wait()

**For writers whose ranks agree by themselves** (torch's DCP: the coordinator's `finish` runs after
all ranks have told it their results) there are no parts and no marks. Every rank calls
`path = checkpoints.prepare(step, attempt)`, writes its files there and makes them durable (fsync of
each file); then the coordinator alone calls `checkpoints.commit(step, attempt, files, parts=world)`
with the name of every file: it takes sizes (and sums) itself, makes names
durable, renames, makes room by `keep`, and returns the Step. A rank that gives up calls nothing;
`tidy` removes what is left.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path

from . import names
from .calls import Calls
from .commit import Attempt, Step
from .errors import NotWhole, StepLost
from .part import Part
from .shelf import TIDY_AGE, Shelf
from .staging import Settings, Staging

_log = logging.getLogger(__name__)
_TRIES = 20


class Checkpoints:
    """The checkpoints below `root`, which is made if it is missing. Any thread; a rank has its own.

    keep: how many visible steps stay after a commit; 0: all. keep_every: steps that are multiples
    of it stay always; 0: none. sums: a sum of each file is written into the manifest (xxh3 with the
    package xxhash, else blake2b), for `verify`; that reads the file once more, from memory.
    staging: a directory in memory (/dev/shm/NAME), the same for all ranks of a node: the block of
    `begin` writes there, and a process of its own makes the step durable. staged: how many steps
    may be there; `begin` waits for room up to `staging_timeout` seconds, then raises StagingFull.
    """

    staging_timeout: float = 600.0

    def __init__(
        self,
        root: str | PathLike[str],
        keep: int = 3,
        keep_every: int = 0,
        sums: bool = False,
        staging: str | PathLike[str] | None = None,
        *,
        staged: int = 2,
        calls: Calls | None = None,
    ) -> None:
        if keep < 0 or keep_every < 0:
            raise ValueError("keep and keep_every are counts of steps, 0 or more")
        self.root = Path(root)
        self._keep, self._keep_every, self._is_summed = keep, keep_every, sums
        self._calls = calls or Calls()
        self._steps = Shelf(self._calls, self.root)
        self._wait_for_room: Callable[[], None] | None = None
        self._staging = None
        if staging is not None:
            settings = Settings(str(self.root.absolute()), keep, keep_every)
            self._staging = Staging(Path(staging), settings, staged)

    def begin(
        self,
        step: int,
        part: int = 0,
        parts: int = 1,
        attempt: str | None = None,
        node_parts: tuple[int, int] | None = None,
    ) -> Part:
        """Begins to write one part of a step; each rank has its own, from 0 to `parts` - 1.

        attempt: a word (letters, digits, '_', '+', '-') that is the same for all ranks of one try
        and no other; None: that of torchrun or Slurm, and without these a new one for each call if
        there is one part. node_parts: (number of this rank on its node from 0, ranks on this node)
        has the node leave one mark, which is faster with many ranks.
        Raises StepExists if the step is visible, AttemptUsedError if this part was written before,
        ValueError for arguments that cannot be, and OSError.
        """
        if not 0 <= part < parts:
            raise ValueError(f"part {part} is none of the {parts} parts, which are numbered from 0")
        if node_parts is not None and not 0 <= node_parts[0] < node_parts[1] <= parts:
            raise ValueError("node_parts is the number of this rank on its node, and their count")
        if attempt is None:
            attempt = names.default_attempt(alone=self._calls.unique() if parts == 1 else None)
        tried = self._attempt(step, attempt, parts)
        tried.prepare()
        tried.claim(part)
        if self._staging is not None:
            if node_parts is not None:
                raise ValueError(
                    "with staging the drain leaves the marks, so there are no node_parts"
                )
            return self._staging.begin(tried, part, self.staging_timeout, is_summed=self._is_summed)
        return Part(
            self._calls,
            tried,
            part,
            node_parts=node_parts,
            is_summed=self._is_summed,
            committed=self._make_room_later,
        )

    def prepare(self, step: int, attempt: str | None = None) -> Path:
        """Makes the hidden directory of a step without parts, and returns it: see this module.

        Raises StepExists, ValueError and OSError.
        """
        tried = self._attempt(step, attempt, 1)
        tried.prepare()
        return tried.hidden

    def commit(
        self, step: int, attempt: str | None, files: Iterable[str], *, parts: int = 1
    ) -> Step:
        """Makes a prepared step visible with these files (names relative to its directory).

        One process calls it, after every file is written and fsynced. When it returns, the step is
        visible and durable. parts: how many ranks wrote it, for the manifest. Raises NotWhole if a
        file is missing, StepExists if another attempt was faster, StepLost, and OSError.
        """
        tried = self._attempt(step, attempt, parts)
        listed = sorted(dict.fromkeys(map(names.checked_file, files)))
        try:
            found = tried.durable_files(listed, 0, is_summed=self._is_summed)
        except FileNotFoundError as error:
            raise NotWhole(step, str(error.filename), "it was not written") from None
        done = tried.commit(found)
        self._make_room()
        return done

    def wait(
        self, step: int, attempt: str | None = None, parts: int = 1, timeout: float = 600
    ) -> Step:
        """Returns when the step is visible and durable, for a process without a part of its own.

        timeout: in seconds. Raises as Part.wait.
        """
        return self._attempt(step, attempt, parts).wait(timeout)

    def steps(self) -> list[Step]:
        """All visible steps, ascending."""
        return self._shelf().steps()

    def latest(self) -> Step | None:
        """The highest visible step; None: there is none. It is whole and durable.

        With staging: a step that is whole in the memory of this node (all of its parts were written
        here) is preferred if it is higher; its `staged` is true. So ranks on other nodes may find
        another one: let one rank decide. Use `reading` to keep the step while it is loaded.
        """
        durable = self._shelf().latest()
        staged = self._staging.latest() if self._staging else None
        if staged is None or (durable is not None and durable.number >= staged.number):
            return durable
        return staged

    def flush(self, timeout: float = 600.0) -> None:
        """Returns when no part of this node is only in memory. Without staging: at once.

        After it `latest` is the same as without staging, once the other nodes have done it, too.
        timeout: in seconds. Raises DrainFailed and CommitTimeout.
        """
        if self._staging is not None:
            self._staging.flush(timeout)

    @contextmanager
    def reading(self, step: int | Step | None = None) -> Iterator[Path]:
        """The directory of a step, which nobody removes during the block. None: the newest.

        Raises StepLost if the step is not there (None: if there is none at all).
        """
        if step is not None:
            with self._held(step) as path:
                yield path
            return
        for _ in range(_TRIES):
            newest = self.latest()
            if newest is None:
                break
            held = self._held(newest)
            try:
                path = held.__enter__()
            except StepLost:
                continue  # it was removed just now, so there is a newer one
            try:
                yield path
            finally:
                held.__exit__(None, None, None)
            return
        raise StepLost(None)

    def remove(self, step: int) -> bool:
        """Removes a step. False: somebody reads it. Raises StepLost if it is not there."""
        return self._shelf().remove(step)

    def tidy(self, age: float = TIDY_AGE) -> list[str]:
        """Deletes what crashed writers and removers left; returns the names of the directories.

        A hidden directory stays while it is of the newest attempt, or changed within `age` seconds.
        """
        return self._shelf().tidy(age)

    def _held(self, step: int | Step) -> AbstractContextManager[Path]:
        if isinstance(step, Step) and step.staged and self._staging is not None:
            return self._staging.reading(names.Partial(step.number, step.attempt))
        return self._shelf().reading(step.number if isinstance(step, Step) else step)

    def _attempt(self, step: int, attempt: str | None, parts: int) -> Attempt:
        word = names.default_attempt() if attempt is None else attempt
        checked = names.checked_attempt(word), names.checked_step(step)
        return Attempt(self._calls, self.root, checked[1], checked[0], parts)

    def _shelf(self) -> Shelf:
        """The visible steps, when the room for this object's last commit has been made."""
        wait, self._wait_for_room = self._wait_for_room, None
        if wait is not None:
            wait()
        return self._steps

    def _make_room_later(self) -> None:
        """So that ranks go on as soon as the step is durable."""
        self._shelf()
        self._wait_for_room = self._calls.later(self._make_room, must_end=True)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_wait_for_room": None}

    def _make_room(self) -> None:
        """After a commit; the step is safe, so an error here is logged and not raised."""
        try:
            self._steps.make_room(self._keep, self._keep_every)
        except OSError as error:
            _log.warning("old checkpoints in %s were not removed: %s", self.root, error)
