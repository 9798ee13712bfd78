"""The visible steps of a root: which there are, which are removed, and who may read them meanwhile.

A reader holds a shared lock of the step's manifest. Whoever removes a step takes the exclusive one
first, without waiting, and renames the directory before it deletes anything: nobody finds half of a
step, and no step goes away under its reader. On BraidFS these locks hold in the whole cluster.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from . import names
from .calls import Calls, Lock
from .commit import Step, step_of
from .errors import NotWhole, StepLost
from .manifest import Manifest, decode_manifest

TIDY_AGE = 3600.0
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Shelf:
    """Any thread."""

    def __init__(self, calls: Calls, root: Path) -> None:
        self._calls, self.root = calls, root

    def numbers(self) -> list[int]:
        """Of the visible steps, whole or not, ascending."""
        try:
            listed = self._calls.names(self.root)
        except FileNotFoundError:
            return []
        return sorted(step for step in map(names.read_visible, listed) if step is not None)

    def place(self, step: int) -> Path:
        return self.root / names.visible_name(names.checked_step(step))

    def manifest(self, step: int) -> Manifest:
        """Raises StepLost if the step is not visible, NotWhole if its manifest cannot be used."""
        content = self._on_manifest(step, self._calls.read)
        try:
            return decode_manifest(content)
        except ValueError as error:
            raise NotWhole(step, names.MANIFEST, str(error)) from None

    def step(self, number: int) -> Step | None:
        """None: it is not visible, or it is a directory without a manifest that somebody else
        made."""
        try:
            return step_of(self.place(number), self.manifest(number))
        except (StepLost, NotWhole):
            return None

    def steps(self) -> list[Step]:
        return [step for step in map(self.step, self.numbers()) if step is not None]

    def latest(self) -> Step | None:
        for number in reversed(self.numbers()):
            step = self.step(number)
            if step is not None:
                return step
        return None

    @contextlib.contextmanager
    def reading(self, number: int) -> Iterator[Path]:
        """Holds the step's shared lock. Raises StepLost if it is not there, or being removed."""
        lock = self._lock(number, exclusive=False)
        if lock is None:
            raise StepLost(number)
        try:
            yield self.place(number)
        finally:
            lock.close()

    def remove(self, number: int, *, in_background: bool = False) -> bool:
        """False: somebody reads it. Raises StepLost if it is not there."""
        lock = self._lock(number, exclusive=True)
        if lock is None:
            return False
        try:
            hidden = self._hide(names.visible_name(number))
        except FileNotFoundError:
            lock.close()
            raise StepLost(number) from None
        except BaseException:
            lock.close()
            raise

        def delete() -> None:
            try:
                self._calls.remove_tree(hidden)
            except OSError as error:
                if not in_background:
                    raise
                _log.warning("%s is not wholly deleted: %s; tidy() does the rest", hidden, error)
            finally:
                lock.close()  # a reader that opened the manifest before finds it locked, or moved

        if in_background:
            self._calls.later(delete)
        else:
            delete()
        return True

    def make_room(self, count: int, every: int) -> None:
        """After a commit: `latest` names the newest step, and old ones go. count: 0 keeps all."""
        self.point_latest()
        if count:
            self.keep(count, every)

    def keep(self, count: int, every: int) -> list[int]:
        """Removes the oldest steps but `count`, and those that are multiples of `every`. Which it
        removed."""
        removed = []
        for number in self.numbers()[:-count]:
            if every and number % every == 0:
                continue
            try:
                if self.remove(number, in_background=True):
                    removed.append(number)
            except StepLost:
                continue  # another rank or job did it
            except NotWhole:
                _log.warning("%s has no manifest: nobody here made it", self.place(number))
        return removed

    def point_latest(self) -> None:
        """Sets the symbolic link, which is for other tools: an error is only logged."""
        fresh = self.root / f".{names.LATEST}.{self._calls.unique()}"
        try:
            while (newest := self.numbers()[-1:]) != []:
                self._calls.link_name(fresh, names.visible_name(newest[0]))
                self._calls.rename(fresh, self.root / names.LATEST)
                if self.numbers()[-1:] == newest:  # else a newer link may have been replaced
                    return
        except OSError as error:
            _log.info("the link %s was not set: %s", self.root / names.LATEST, error)
            with contextlib.suppress(OSError):
                self._calls.unlink(fresh)

    def tidy(self, age: float = TIDY_AGE) -> list[str]:
        """Deletes what is left of steps that were given up or removed. Their names.

        These are hidden directories of attempts that are not the newest and in which nothing
        changed for `age` seconds, and what a remover left.
        """
        listed = self._calls.names(self.root) if self._calls.exists(self.root) else []
        gone = []
        for name in self._given_up(listed, age):
            with contextlib.suppress(FileNotFoundError):  # it was committed now, or tidied
                self._calls.remove_tree(self._hide(name))
                gone.append(name)
        for name in listed:
            if name.startswith(names.REMOVED):
                self._calls.remove_tree(self.root / name)
                gone.append(name)
        return sorted(gone)

    def _given_up(self, listed: list[str], age: float) -> list[str]:
        times: dict[str, tuple[float, str]] = {}
        for name in listed:
            partial = names.read_partial(name)
            if partial is not None:
                with contextlib.suppress(FileNotFoundError):
                    times[name] = self._calls.modified(self.root / name), partial.attempt
        newest = max(times.values(), default=None)
        now = self._calls.now()
        return [
            name
            for name, (time, attempt) in times.items()
            if newest is not None and attempt != newest[1] and now - time > age
        ]

    def _hide(self, name: str) -> Path:
        """Renames first: whoever commits or reads it meanwhile finds it gone, never a half.

        The new name is durable before anything is deleted, or a power cut could bring back the
        visible name of a directory that has lost its files.
        """
        hidden = self.root / names.removed_name(name, self._calls.unique())
        self._calls.rename(self.root / name, hidden)
        self._calls.sync_directory(self.root)
        return hidden

    def _lock(self, number: int, *, exclusive: bool) -> Lock | None:
        """The lock of the manifest that has the visible name now. None: it is taken."""
        place = self.place(number) / names.MANIFEST
        lock = self._on_manifest(number, lambda path: self._calls.lock(path, exclusive=exclusive))
        if lock is not None and not lock.is_still(place):
            lock.close()  # it was renamed between open and lock
            raise StepLost(number)
        return lock

    def _on_manifest(self, number: int, call: Callable[[Path], _T]) -> _T:
        """Raises StepLost if the step is not visible, NotWhole if it is, without a manifest.

        It looks twice: the step may have become visible after the first look.
        """
        place = self.place(number)
        for _ in range(2):
            try:
                return call(place / names.MANIFEST)
            except (FileNotFoundError, NotADirectoryError):
                if not self._calls.exists(place):
                    raise StepLost(number) from None
        raise NotWhole(number, names.MANIFEST, "it is missing")
