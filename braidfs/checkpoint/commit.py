"""The group commit: how the parts of one attempt become a visible step, all of them or none.

Each part makes its files durable, and then leaves a mark with their names and sizes in `.parts` of
the hidden directory. Whoever finds that the marks stand for all parts writes the manifest, makes
the hidden directory durable, renames it to the visible name, and makes the root durable. Several
may do so at the same time: one rename wins, and for the others the hidden directory is gone. A rank
that waits commits, too, if all marks are there: the one that left the last of them may have died.

What keeps it correct (tests/model/test_group_commit.py breaks each, and sees it):

* A file is durable before the mark that names it, and every name before the rename.
* A mark that is not filled yet counts as missing, so it need be neither durable nor renamed.
* A missing hidden directory means nothing until the visible name was looked for afterwards.
* The hidden directory is only ever removed under another name: `tidy` against a slow attempt.
* Whoever commits looks for each file: a mark may be in a directory that was made anew after `tidy`.
* A part leaves its mark once. One that finds its own mark is of another try of the same name,
  gives the attempt up, and so its files are never mixed with those of that try.
"""

import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import names, sums
from .calls import Calls
from .errors import (
    AttemptUsedError,
    CheckpointError,
    CommitTimeout,
    NotWhole,
    PartFailed,
    StepExists,
    StepLost,
)
from .manifest import File, Manifest, decode_manifest, decode_mark, encode_mark

POLL_FIRST = 0.005  # seconds between looks for the visible name
POLL_LAST = 0.25
POLL_SHARE = 1 / 16  # of the time that was waited so far, so that a commit is not seen much later
LIST_EVERY = 0.5  # seconds between looks at the marks: a listing takes a lease from those who mark
_SHOWN = 32
_MARKS_TRIED = 16


@dataclass(frozen=True)
class Step:
    """A step that is whole.

    number: of the step. path: its directory. bytes: of its files together. parts: how many ranks
    wrote it. attempt: which of the tries. staged: it is in the memory of this node, and not durable
    yet.
    """

    number: int
    path: Path
    bytes: int
    parts: int
    attempt: str = ""
    staged: bool = False


def step_of(path: Path, manifest: Manifest, *, staged: bool = False) -> Step:
    return Step(manifest.step, path, manifest.size, manifest.parts, manifest.attempt, staged=staged)


class Attempt:
    """One attempt of one step, as one of its ranks sees it. Any thread, one at a time."""

    def __init__(self, calls: Calls, root: Path, step: int, attempt: str, parts: int) -> None:
        self.step, self.attempt, self.parts = step, attempt, parts
        self.visible = root / names.visible_name(step)
        self.hidden = root / names.partial_name(step, attempt)
        self.has_won = False  # whether the rename to the visible name was this object's
        self._root, self._calls = root, calls

    @property
    def marks(self) -> Path:
        return self.hidden / names.PARTS

    def prepare(self) -> None:
        """Makes the hidden directory. Raises StepExists if the step is visible."""
        make_directories(self._calls, self._root)
        if self._calls.exists(self.visible):
            raise StepExists(self.step)
        self._calls.make_directory(self.hidden)
        self._calls.make_directory(self.marks)

    def claim(self, part: int) -> None:
        """Raises AttemptUsedError if the part has ended before, and gives the attempt up."""
        for name in (names.mark_name(part), names.failed_name(part)):
            if self._calls.exists(self.marks / name):
                failure = AttemptUsedError(self.step, self.attempt, part)
                self.fail(part, str(failure))
                raise failure

    def fail(self, part: int, text: str) -> None:
        """Tells all others that this part has failed, as well as the disk allows."""
        place = self.marks / names.failed_name(part)
        try:
            self._calls.create(place, text.encode()[:4096])
        except OSError:
            return  # the file without its text is told, too; without the file they time out

    def make_durable(self, files: Sequence[str]) -> list[int]:
        """fsync of these files, and of the directories below the hidden one that have them. Their
        sizes."""
        sizes = self._calls.each(lambda name: self._calls.sync_file(self.hidden / name), files)
        below = {up.as_posix() for name in files for up in Path(name).parents} - {"."}
        self._calls.each(
            lambda name: self._calls.sync_directory(self.hidden / name), sorted(below, reverse=True)
        )
        return [size for size in sizes if isinstance(size, int)]

    def durable_files(self, files: Sequence[str], part: int, *, is_summed: bool) -> list[File]:
        """Makes these files durable. What marks and manifest say of them; with sums if
        is_summed."""
        sizes = self.make_durable(files)
        found: list[object] = [None] * len(files)
        if is_summed:
            found = self._calls.each(lambda name: sums.sum_of(self.hidden / name), files)
        return [
            File(name, size, None if one is None else str(one), part)
            for name, size, one in zip(files, sizes, found, strict=True)
        ]

    def mark(self, parts: Sequence[int], files: Iterable[File]) -> None:
        """Says that these parts are durable. Raises AttemptUsedError if that was said before."""
        name = names.mark_name(min(parts), len(parts))
        try:
            self._calls.create(self.marks / name, encode_mark(parts, files))
        except FileExistsError:
            raise AttemptUsedError(self.step, self.attempt, min(parts)) from None
        except FileNotFoundError:
            raise self._gone() from None

    def lacks_marks_after(self, part: int) -> bool:
        """Whether one of the parts that follow this one has left no mark of its own yet.

        The answer costs less than a listing, and takes no lease from ranks that are about to leave
        their marks. False: a listing says more, perhaps that the part has failed."""
        for one in range(part + 1, part + 1 + min(self.parts - 1, _MARKS_TRIED)):
            following = one % self.parts
            if not self._calls.exists(self.marks / names.mark_name(following)):
                return not self._calls.exists(self.marks / names.failed_name(following))
        return False

    def try_to_commit(self, *, alone: bool = False) -> Step | None:
        """Commits if all parts have marks. None: some are missing. alone: None, too, if another
        rank has begun to commit; it may have died, so who waits tries again after a while.

        Raises PartFailed, StepExists, StepLost, and NotWhole if two parts wrote one file.
        """
        try:
            listed = self._listed_marks()
            if listed is None or (alone and not self._is_first()):
                return None
            found = self._marked(listed)
            if found is None:
                return None
            self._look_for(found)
            return self.commit(found)
        except FileNotFoundError:
            return self._won_by_another()

    def commit(self, files: Sequence[File]) -> Step:
        """Makes these files, which are durable, the visible step."""
        manifest = Manifest(self.step, self.attempt, self.parts, tuple(files))
        self._refuse_doubles(manifest)
        unique = names.NEW_MANIFEST + self._calls.unique()
        try:
            self._calls.create_synced(self.hidden / unique, manifest.encode())
            self._calls.rename(self.hidden / unique, self.hidden / names.MANIFEST)
            self._calls.sync_directory(self.hidden)
            self._calls.rename(self.hidden, self.visible)
        except FileNotFoundError:
            self._forget(self.visible / unique)
            return self._won_by_another()
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise StepExists(self.step) from None
            self._forget(self.hidden / unique)
            raise
        self.has_won = True
        self._calls.sync_directory(self._root)
        return step_of(self.visible, manifest)

    def wait(self, timeout: float) -> Step:
        """Returns when the step is visible and durable. timeout: in seconds.

        Raises PartFailed within a second after a part left its mark of failure, CommitTimeout,
        StepExists if another attempt committed the step, and StepLost.
        """
        begin = self._calls.monotonic()
        next_list = begin + min(LIST_EVERY, timeout)  # the caller has just looked at the marks
        while True:
            done, now = self._found_visible(), self._calls.monotonic()
            if done is None and now >= next_list:
                done, next_list = self.try_to_commit(), now + LIST_EVERY
            if done is not None:
                return done
            if now >= begin + timeout:
                raise CommitTimeout(self.step, self.missing())
            pause = min(max((now - begin) * POLL_SHARE, POLL_FIRST), POLL_LAST)
            self._calls.sleep(min(pause, max(begin + timeout - now, 0.0)))

    def missing(self) -> list[int]:
        """The first parts that have no mark."""
        try:
            found = [self._mark(name) for name in self._calls.names(self.marks)]
        except FileNotFoundError:
            return []
        there = {part for one in found if one for part in one[0]}
        return sorted(set(range(self.parts)) - there)[:_SHOWN]

    def _is_first(self) -> bool:
        """Whether no other rank has said that it commits. Ranks that commit at the same time would
        only hold each other up."""
        try:
            self._calls.create(self.marks / names.COMMITTING, b"")
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise
        except OSError:
            return True  # the disk is full, perhaps; all parts are durable
        return True

    def _listed_marks(self) -> list[str] | None:
        """The names of the marks; None: there are fewer than parts."""
        listed = self._calls.names(self.marks)
        for name in listed:
            part = names.read_failed(name)
            if part is not None:
                raise PartFailed(part, self._calls.read(self.marks / name).decode(errors="replace"))
        marks = [(name, names.read_mark(name)) for name in listed]
        is_enough = sum(mark.parts for _, mark in marks if mark) >= self.parts
        return [name for name, mark in marks if mark] if is_enough else None

    def _marked(self, listed: Sequence[str]) -> list[File] | None:
        """The files of all parts; None: a mark is not filled yet."""
        read = [self._mark(name) for name in listed]
        parts = {part for one in read if one for part in one[0]}
        if parts < set(range(self.parts)):
            return None
        return sorted(
            (file for one in read if one for file in one[1]),
            key=lambda file: (file.name, file.part),
        )

    def _look_for(self, files: Sequence[File]) -> None:
        """Raises FileNotFoundError if a file that a mark names is not in this directory.

        `tidy` may have taken the directory away while a slow rank was about to leave its mark, and
        another rank may have made it anew: the mark is in the new one, and the file in the old.
        """
        sizes = self._calls.each(lambda file: self._calls.size(self.hidden / file.name), files)
        for file, size in zip(files, sizes, strict=True):
            if size != file.size:
                text = f"it has {size} bytes, and had {file.size} when its part ended"
                raise NotWhole(self.step, file.name, text)

    def _mark(self, name: str) -> tuple[frozenset[int], tuple[File, ...]] | None:
        if names.read_mark(name) is None:
            return None
        return decode_mark(self._calls.read(self.marks / name))

    def _found_visible(self) -> Step | None:
        """The step, durable; None: it is not visible. StepExists: it is of another attempt."""
        try:
            manifest = decode_manifest(self._calls.read(self.visible / names.MANIFEST))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise NotWhole(self.step, names.MANIFEST, str(error)) from None
        if manifest.attempt != self.attempt:
            raise StepExists(self.step)
        # The winner's fsync may not have ended: without this one a power cut could take the step.
        self._calls.sync_directory(self._root)
        return step_of(self.visible, manifest)

    def _won_by_another(self) -> Step:
        done = self._found_visible()
        if done is None:
            raise StepLost(self.step)
        return done

    def _gone(self) -> CheckpointError:
        try:
            self._won_by_another()
        except CheckpointError as error:
            return error
        return StepExists(self.step)

    def _refuse_doubles(self, manifest: Manifest) -> None:
        seen: dict[str, int] = {}
        for file in manifest.files:
            if file.name in seen:
                text = f"parts {seen[file.name]} and {file.part} wrote it; names differ by part"
                raise NotWhole(self.step, file.name, text)
            seen[file.name] = file.part

    def _forget(self, path: Path) -> None:
        try:
            self._calls.unlink(path)
        except OSError:
            return  # it is hidden, and is not in the manifest


def make_directories(calls: Calls, path: Path) -> None:
    """Makes a directory with those above it, each of them durable in the one above."""
    try:
        made = calls.make_directory(path)
    except FileNotFoundError:
        make_directories(calls, path.parent)
        made = calls.make_directory(path)
    if made:
        calls.sync_directory(path.parent)
