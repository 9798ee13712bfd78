"""Steps in the memory of a node: ranks write there and go on, and a drain makes them durable.

Below the staging directory each root has a folder of its own:

    FOLDER/.step-000001200.ATTEMPT.partial/     what the ranks of this node wrote, and their marks
        .parts/00003                            part 3 is whole here (as the marks of a commit)
        .parts/00003.drained                    part 3 is durable in the root, and marked there
        .parts/count                            how many parts the step has on all nodes
        .parts/busy                             locked (shared) by each rank that is writing
        .parts/failure                          why the drain could not; told to the next `begin`
    FOLDER/drain.json                           what the drain needs to know of `Checkpoints`
    FOLDER/drain.lock                           locked by the drain while it runs
    FOLDER/begin.lock                           locked for the moment in which a step gets its place

A part that is drained goes through the same commit as one that was never staged, so a step becomes
visible when the drains of all nodes have brought their parts. Memory is bounded: as many steps as
`staged` may lie here, and the next `begin` waits. The drain is braidfs.checkpoint.drain.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import names
from .calls import Calls, Lock, take_lock, wait_for_lock
from .commit import Attempt, Step, step_of
from .errors import CommitTimeout, DrainFailed, StagingFull, StepExists, StepLost
from .manifest import File, Manifest, decode_mark
from .part import DEFAULT_TIMEOUT, Part

DRAINED = ".drained"
FAILURE = f"{names.PARTS}/failure"
BUSY = f"{names.PARTS}/busy"
COUNT = f"{names.PARTS}/count"
BEGIN_LOCK = "begin.lock"
DRAIN_LOCK = "drain.lock"
DRAIN_SETTINGS = "drain.json"
LOCK_SECONDS_LEAST = 5.0  # others hold the lock for a moment, also when no time for room is left
_POLL = 0.05
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What a drain does for its root: as the arguments of Checkpoints."""

    root: str
    keep: int
    keep_every: int


class Staging:
    """The folder of one root in memory. Any thread."""

    def __init__(self, directory: Path, settings: Settings, staged: int = 2) -> None:
        if staged < 1:
            raise ValueError("staged is a count of steps in memory, 1 or more")
        word = hashlib.blake2b(os.fsencode(Path(settings.root).absolute()), digest_size=8)
        self.folder = directory / word.hexdigest()
        self.root = Path(settings.root)
        self._settings, self._staged, self._calls = settings, staged, Calls()
        self._drain: subprocess.Popen[bytes] | None = None

    def begin(
        self, durable: Attempt, part: int, timeout: float, *, is_summed: bool = False
    ) -> "StagedPart":
        """A part that is written into memory. Waits for room up to `timeout` seconds.

        Raises StagingFull, LockTimeout, DrainFailed, StepExists, AttemptUsedError and OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        end = time.monotonic() + timeout
        is_said = False
        while True:
            lock_end = max(end, time.monotonic() + LOCK_SECONDS_LEAST)
            with contextlib.closing(wait_for_lock(self.folder / BEGIN_LOCK, lock_end)):
                self._tell_failures()
                self._forget_others(durable)
                there = self.attempts()
                mine = names.Partial(durable.step, durable.attempt)
                if mine in there or len(there) < self._staged:
                    return self._started(durable, part, is_summed)
            if time.monotonic() >= end:
                raise StagingFull([one.step for one in there])
            if not is_said:
                steps = ", ".join(str(one.step) for one in there)
                _log.warning("step %d waits: steps %s are not durable yet", durable.step, steps)
                is_said = True
            self.start_drain()
            time.sleep(_POLL)

    def attempts(self) -> list[names.Partial]:
        """Which steps are in memory, ascending."""
        with contextlib.suppress(FileNotFoundError):
            found = map(names.read_partial, self._calls.names(self.folder))
            return sorted(one for one in found if one is not None)
        return []

    def place(self, partial: names.Partial) -> Path:
        return self.folder / names.partial_name(*partial)

    def latest(self) -> Step | None:
        """The newest step that is whole in the memory of this node alone; None: there is none."""
        for partial in reversed(self.attempts()):
            if (step := self.whole(partial)) is not None:
                return step
        return None

    def whole(self, partial: names.Partial) -> Step | None:
        """The step, if all of its parts were written on this node, and are all here."""
        place = self.place(partial)
        try:
            count = int((place / COUNT).read_text())
            marks = self.marks(place)
        except (FileNotFoundError, ValueError):
            return None
        if set(marks) != set(range(count)):
            return None
        files = tuple(file for listed in marks.values() for file in listed)
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                if (place / file.name).stat().st_size == file.size:
                    continue
            return None
        return step_of(place, Manifest(partial.step, partial.attempt, count, files), staged=True)

    def marks(self, place: Path) -> dict[int, tuple[File, ...]]:
        """Part → its files, of the parts that are whole here."""
        found = {}
        for name in self._calls.names(place / names.PARTS):
            mark = names.read_mark(name)
            read = decode_mark((place / names.PARTS / name).read_bytes()) if mark else None
            if mark is not None and read is not None:
                found[mark.part] = read[1]
        return found

    def is_drained(self, place: Path, part: int) -> bool:
        return (place / names.PARTS / f"{names.mark_name(part)}{DRAINED}").exists()

    def start_drain(self) -> None:
        """Starts the drain of this root and node unless it runs."""
        lock = take_lock(self.folder / DRAIN_LOCK, exclusive=True, make=True)
        if lock is None:
            return
        fresh = self.folder / f".{DRAIN_SETTINGS}.{os.getpid()}"
        fresh.write_text(json.dumps(asdict(self._settings)))
        fresh.rename(self.folder / DRAIN_SETTINGS)
        lock.close()  # two may be started now: the one that finds the lock taken ends at once
        log = (self.folder / "drain.log").open("ab")
        with log:
            self._drain = subprocess.Popen(  # kept, so that it is reaped when the next one starts
                [sys.executable, "-m", "braidfs.checkpoint.drain", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it goes on when the job is killed
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def failure(self, partial: names.Partial) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return (self.place(partial) / FAILURE).read_text()
        return None

    def flush(self, timeout: float) -> None:
        """Returns when nothing is only in this memory. Raises DrainFailed, CommitTimeout."""
        end = time.monotonic() + timeout
        while waiting := [one for one in self.attempts() if not self._is_drained(one)]:
            for one in waiting:
                if (text := self.failure(one)) is not None:
                    raise DrainFailed(one.step, text)
            if time.monotonic() >= end:
                raise CommitTimeout(waiting[0].step, [])
            self.start_drain()
            time.sleep(_POLL)

    def forget(self, partial: names.Partial) -> bool:
        """Removes a step from memory. False: a rank is writing it."""
        place = self.place(partial)
        try:
            lock = take_lock(place / BUSY, exclusive=True)
        except FileNotFoundError:
            lock = None
            if (place / BUSY).exists():
                return False
        else:
            if lock is None:
                return False
        gone = self.folder / names.removed_name(place.name, self._calls.unique())
        with contextlib.suppress(FileNotFoundError):
            place.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        if lock is not None:
            lock.close()
        return True

    def is_waiting(self, partial: names.Partial) -> bool:
        """Whether the drain has something to do with it."""
        return self.failure(partial) is None and not self._is_drained(partial)

    @contextlib.contextmanager
    def reading(self, partial: names.Partial) -> Iterator[Path]:
        """Keeps the drain from giving the memory back meanwhile. Raises StepLost if it has."""
        place = self.place(partial)
        try:
            lock = take_lock(place / BUSY, exclusive=False)
        except FileNotFoundError:
            lock = None
        if lock is None:
            raise StepLost(partial.step)
        try:
            if not lock.is_still(place / BUSY):
                raise StepLost(partial.step)
            yield place
        finally:
            lock.close()

    def _is_drained(self, partial: names.Partial) -> bool:
        place = self.place(partial)
        with contextlib.suppress(FileNotFoundError):
            return all(self.is_drained(place, part) for part in self.marks(place))
        return True

    def _tell_failures(self) -> None:
        """Raises the failure of an earlier step, once: the memory is free then."""
        for one in self.attempts():
            if (text := self.failure(one)) is not None and self.forget(one):
                raise DrainFailed(one.step, text)

    def _forget_others(self, durable: Attempt) -> None:
        """Gives room: steps of which a part failed, and those of former attempts that are
        drained."""
        for one in self.attempts():
            is_former = one.attempt != durable.attempt and self._is_drained(one)
            if is_former or self._has_failed_part(one):
                self.forget(one)

    def _has_failed_part(self, partial: names.Partial) -> bool:
        with contextlib.suppress(FileNotFoundError):
            listed = self._calls.names(self.place(partial) / names.PARTS)
            return any(names.read_failed(name) is not None for name in listed)
        return False

    def _started(self, durable: Attempt, part: int, is_summed: bool) -> "StagedPart":
        local = Attempt(self._calls, self.folder, durable.step, durable.attempt, durable.parts)
        local.hidden.mkdir(exist_ok=True)
        local.marks.mkdir(exist_ok=True)
        (local.hidden / COUNT).write_text(str(durable.parts))
        local.claim(part)
        lock = take_lock(local.hidden / BUSY, exclusive=False, make=True)
        if lock is None:
            raise StepExists(durable.step)  # it is being removed from memory: it was committed
        return StagedPart(self, (local, durable), part, lock, is_summed=is_summed)


class _InMemory(Attempt):
    """An attempt whose files need no fsync, since they are in memory anyway."""

    def make_durable(self, files: Sequence[str]) -> list[int]:
        return [(self.hidden / name).stat().st_size for name in files]

    def try_to_commit(self, *, alone: bool = False) -> Step | None:
        return None  # the drain commits


class StagedPart(Part):
    """A part in memory. After its block it is safe from the end of the job, not of the node."""

    def __init__(
        self,
        staging: Staging,
        attempts: tuple[Attempt, Attempt],
        part: int,
        lock: Lock,
        *,
        is_summed: bool = False,
    ) -> None:
        local, self._durable = attempts
        in_memory = _InMemory(Calls(), staging.folder, local.step, local.attempt, local.parts)
        super().__init__(Calls(), in_memory, part, is_summed=is_summed)
        self._staging, self._lock = staging, lock

    def __exit__(self, *how: object) -> None:
        try:
            super().__exit__(*how)  # type: ignore[arg-type]
        finally:
            self._lock.close()
        if how[0] is None:
            self._staging.start_drain()

    def wait(self, timeout: float = DEFAULT_TIMEOUT) -> Step:
        """Returns when the step is visible and durable: the drains of all nodes have ended.

        Raises as Part.wait, and DrainFailed if the drain of this node could not.
        """
        if not self._has_ended:
            raise RuntimeError("wait() comes after the block, which leaves this part's mark")
        end, mine = time.monotonic() + timeout, names.Partial(*self._id())
        while self._done is None:
            try:
                self._done = self._durable.wait(min(0.5, max(0.0, end - time.monotonic())))
            except CommitTimeout:
                if (text := self._staging.failure(mine)) is not None:
                    raise DrainFailed(mine.step, text) from None
                if time.monotonic() >= end:
                    raise
                self._staging.start_drain()  # it may have been killed
        return self._done

    def _id(self) -> tuple[int, str]:
        return self._durable.step, self._durable.attempt

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self._durable.fail(self._part, f"{type(error).__name__}: {error}")
